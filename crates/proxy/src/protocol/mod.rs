//! The protocols of connections: bytes come in, exchanges are begun, fed, answered and ended.
//!
//! A protocol hands a new request to the event loop as a value ([`Arrival`]); what else it wants of
//! pools, policies or the runtime is an [`Effect`](crate::cx::Effect).

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod actor_turns;
mod h2c;
pub(crate) mod http1;
pub(crate) mod http1_client;
pub(crate) mod http1_server;
pub(crate) mod http2;
pub(crate) mod relay;
pub(crate) mod trust;

use tollway_http::RequestHead;

use crate::exchange::{BodySize, StreamRef};

/// A request as a downstream codec hands it over.
pub(crate) struct Arrival {
    pub(crate) down: StreamRef,
    pub(crate) head: Box<RequestHead>,
    pub(crate) size: BodySize,
    /// Nothing follows the head.
    pub(crate) ended: bool,
    pub(crate) is_upgrade: bool,
}
