//! The nouns of Tollway: names, networks, workloads, services, revisions, and the ways to fail.
//!
//! Pure: no sockets, clock, environment or randomness. Everything here is a value that other
//! crates exchange; `wire` converts it to and from protobuf, `routing` decides on it.

pub mod failure;
mod name;
mod service;

pub use failure::ErrorCode;
pub use name::{
    AppId, Instance, Label, MESH_SUFFIX, NameError, NetworkName, ServiceName, SpiffeId, TrustDomain,
};
pub use service::{
    AppProtocol, Endpoint, Remote, Revision, ServiceState, ServiceUpdate, UnavailableReason,
    Workload,
};
