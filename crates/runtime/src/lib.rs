//! The runtime API: what an app asks of the sidecar beside it, and how a call reaches an app that
//! speaks gRPC. Wire-compatible with Dapr's HTTP and gRPC APIs.
//!
//! Invocation over HTTP and proxied gRPC never come here: the data loop carries them by itself.
//! What does come is handed over as connections within the process ([`tollway_proxy::ApiStream`])
//! and served by hyper and tonic: health, metadata and shutdown over HTTP (`rest`), the same and
//! `InvokeService` over gRPC (`grpc`), the state API over both (`state`), and calls over HTTP for
//! an app of gRPC, which become `AppCallback/OnInvoke` (`callback`), and calls that somebody has made
//! rules for where they fail (`resiliency`), and those that leave the mesh (`outside`). What this crate calls itself goes back into the loop
//! through [`tollway_proxy::LoopbackClient`], as a call of the app would.

#![forbid(unsafe_code)]

mod actors;
mod app;
mod body_collector;
mod callback;
mod codes;
mod control_link;
mod external_endpoints;
mod fields;
mod grpc;
mod health;
mod invoke_service;
mod loopback;
mod metadata;
mod resiliency;
mod rest;
mod server;
mod sidecar;
mod state;
#[cfg(test)]
mod testing;

pub use body_collector::{COLLECTED_BODY_BYTES, MESSAGE_BYTES};
pub use external_endpoints::{BaseUrl, BaseUrlError, EndpointTls, EndpointTlsError, HttpEndpoint};
pub use sidecar::{Sidecar, SidecarError, StateStores, network_store, run_sidecar};
pub use state::OpenStoreError;
