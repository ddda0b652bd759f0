//! The runtime of a sidecar: it serves the API for the sidecar's app, and calls apps over gRPC. Its
//! APIs are wire-compatible with Dapr's.
//!
//! The data loop itself carries invocation over HTTP and proxied gRPC. It hands all other requests
//! over as connections within the process ([`tollway_proxy::ApiStream`]), which hyper and tonic
//! serve (`server`):
//!
//! - health, metadata and shutdown over HTTP (`rest`) and gRPC (`grpc`), and `InvokeService`
//!   (`invoke_service`);
//! - the state API (`state`) and actors (`actors`);
//! - calls over HTTP to an app over gRPC, as `AppCallback/OnInvoke` (`callback`);
//! - calls under Resiliency rules (`resiliency`);
//! - calls of endpoints outside of the network (`external_endpoints`).
//!
//! Calls that this crate makes go back into the data loop (`loopback`), as calls of the app would.

#![forbid(unsafe_code)]

mod actors;
mod app;
mod body_collector;
mod callback;
mod called;
mod codes;
mod control_link;
mod direct_invoke;
mod end_request;
mod error_counts;
mod external_endpoints;
mod fields;
mod go_json;
mod grpc;
mod health;
mod invoke_service;
mod loopback;
mod metadata;
mod readiness;
mod resiliency;
mod rest;
mod routes;
mod server;
mod sidecar;
mod state;
#[cfg(test)]
mod testing;

pub use body_collector::{
    BODY_BYTES_PER_SECOND, BODY_TIME, COLLECTED_BODY_BYTES, INBOUND_BODY_BYTES, MESSAGE_BYTES,
};
pub use external_endpoints::{BaseUrl, BaseUrlError, EndpointTls, EndpointTlsError, HttpEndpoint};
pub use routes::{ROUTES, Route};
pub use sidecar::{Ended, Sidecar, SidecarError, StateStores, network_store, run_sidecar};
pub use state::OpenStoreError;
