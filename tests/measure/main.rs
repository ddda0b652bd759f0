//! What measures: `tollway load`, the lab with its peers, reports and the demo.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod demo;
mod lab;
mod linkerd;
mod load_flags;
mod load_foreign;
mod load_formats;
mod load_plans;
mod peers;
mod reports;
