//! The Dapr-compatible API: its calls, actors and stores, and apps on SDKs that are not ours.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod actors;
mod api;
mod stores;
