//! Connections to the port for workloads, gateways and joined networks: accepted within limits,
//! identified by their TLS handshake, and ended when they take too long.
//!
//! `accept` takes connections and admits them, `limits` has their numbers, `shares` decides which
//! identity gives way, `handshake` and `tls` do TLS, `stream` ends connections in time,
//! `open_connections` those whose peers are trusted no more, `send_backlog` counts unread answers,
//! and `stream_limits` the streams and requests of each identity. The services authorise requests;
//! they get the [`Caller`] of each one.

mod accept;
mod backlog_layer;
mod caller;
mod frames;
mod handshake;
mod limits;
mod open_connections;
mod send_backlog;
mod shares;
mod stream;
mod stream_limits;
mod tls;

pub(crate) use accept::{ACCEPT_PAUSE, Acceptor, accept, ready_queue};
pub(crate) use backlog_layer::TrackSendBacklog;
pub(crate) use caller::{Caller, Renewing, expired_status, is_system, origin_of, revoked_status};
pub(crate) use limits::ConnectionLimits;
pub(crate) use open_connections::OpenConnections;
pub(crate) use shares::{
    Holder, Limits, NAME_OVERHEAD_BYTES, Own, Refused, Share, ShareLimit, evicted_status,
};
pub(crate) use stream_limits::{LimitStreams, StreamLimits};
pub(crate) use tls::ALPN;
