//! Connections to the port for workloads, gateways and joined networks: accepted within limits,
//! identified by their TLS handshake, and ended when they take too long.
//!
//! `accept` takes connections and admits them, `limits` has their numbers, `handshake` and `tls` do
//! TLS, `stream` ends connections in time, and `send_backlog` counts unread answers. The services
//! authorise requests; they get the [`Caller`] of each one.

mod accept;
mod backlog_layer;
mod caller;
mod frames;
mod handshake;
mod limits;
mod send_backlog;
mod stream;
mod tls;

pub(crate) use accept::{ACCEPT_PAUSE, Acceptor, accept, ready_queue};
pub(crate) use backlog_layer::TrackSendBacklog;
pub(crate) use caller::{Caller, expired_status, is_system};
pub(crate) use limits::ConnectionLimits;
pub(crate) use tls::ALPN;
