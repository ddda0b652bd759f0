//! The runtime API: what an app asks of the sidecar beside it, and how a call reaches an app that
//! speaks gRPC. Wire-compatible with Dapr's HTTP and gRPC APIs.
//!
//! Invocation over HTTP and proxied gRPC never come here: the data loop carries them by itself.
//! What does come is handed over as connections within the process ([`tollway_proxy::ApiStream`])
//! and served by hyper and tonic: health, metadata and shutdown over HTTP (`rest`), the same and
//! `InvokeService` over gRPC (`grpc`), and calls over HTTP for an app of gRPC, which become
//! `AppCallback/OnInvoke` (`callback`). What this crate calls itself goes back into the loop
//! through [`tollway_proxy::Inside`], as a call of the app would.

#![forbid(unsafe_code)]

mod callback;
mod codes;
mod fields;
mod grpc;
mod held;
mod inside;
mod metadata;
mod rest;
mod server;
mod sidecar;

pub use sidecar::{Sidecar, run_sidecar};
