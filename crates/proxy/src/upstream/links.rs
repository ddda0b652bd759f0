//! What the choice between upstream connections, and their number, depend on: nothing else of a
//! connection is looked at there, so that both are decided without sockets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollway_model::{Instance, Level};
use tollway_routing::ReplicaId;

use crate::conn::{ConnKey, Connections, Role};

/// Upstream connections as they are now.
pub(crate) trait Links {
    /// `None` for a connection that has closed.
    fn link(&self, key: ConnKey) -> Option<Link<'_>>;
}

/// An upstream connection, or one that is being made.
pub(crate) struct Link<'a> {
    pub(crate) remote: Option<SocketAddr>,
    /// The instance that the peer proved to be.
    pub(crate) instance: Option<&'a Instance>,
    /// The same, where traffic policies distinguish replicas.
    pub(crate) replica: Option<ReplicaId>,
    /// How near that is, where near replicas are preferred; far otherwise.
    pub(crate) level: Level,
    /// It takes no new requests.
    pub(crate) is_draining: bool,
    /// Bytes that were written and that the peer has not taken.
    pub(crate) pending: usize,
    pub(crate) protocol: LinkProtocol,
}

/// What a link speaks.
#[derive(Clone, Copy)]
pub(crate) enum LinkProtocol {
    /// `is_fresh`: nothing has come on it since its last response.
    Http1 {
        is_fresh: bool,
    },
    Http2(Http2State),
    /// Nothing yet: it is being made.
    None,
}

/// What matters of an HTTP/2 link.
#[derive(Clone, Copy)]
pub(crate) struct Http2State {
    /// Requests under way on it.
    pub(crate) streams: usize,
    /// The peer and its own limits let it open another stream.
    pub(crate) can_open: bool,
    /// The peer has stated how many streams it takes.
    pub(crate) is_settled: bool,
    /// Requests that may be reset before the peer takes it for an attack.
    pub(crate) resets_left: usize,
    /// Small requests should have another connection: it carries bulk, or did until lately.
    pub(crate) carries_bulk: bool,
    /// The peer did not answer a keepalive in time.
    pub(crate) is_silent: bool,
    /// The peer's app could not be reached: other links are preferred until then.
    pub(crate) ejected_until: Option<Instant>,
    pub(crate) leads_to_runtime: bool,
    /// As TCP measured it when the link was made.
    pub(crate) round_trip: Option<Duration>,
}

impl Link<'_> {
    /// Its HTTP/2 state; `None` for other protocols.
    pub(crate) fn http2(&self) -> Option<Http2State> {
        match self.protocol {
            LinkProtocol::Http2(state) => Some(state),
            LinkProtocol::Http1 { .. } | LinkProtocol::None => None,
        }
    }

    /// It neither drains nor is silent.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_draining && !self.http2().is_some_and(|state| state.is_silent)
    }
}

impl Links for Connections {
    fn link(&self, key: ConnKey) -> Option<Link<'_>> {
        let conn = self.get(key)?;
        let protocol = match &conn.role {
            Role::Http1Client(_) => LinkProtocol::Http1 { is_fresh: !conn.io.may_read() },
            Role::Http2Client(link) => LinkProtocol::Http2(Http2State {
                streams: link.codec.active_streams(),
                can_open: link.codec.can_open(),
                is_settled: link.codec.is_settled(),
                resets_left: link.codec.resets_left(),
                carries_bulk: link.carries_bulk(),
                is_silent: link.is_silent,
                ejected_until: link.ejected_until,
                leads_to_runtime: link.leads_to_runtime(),
                round_trip: link.opened.and_then(|opened| opened.round_trip),
            }),
            _ => LinkProtocol::None,
        };
        Some(Link {
            remote: conn.remote,
            instance: conn.instance(),
            replica: conn.replica.map(|replica| replica.id),
            level: conn.replica.and_then(|replica| replica.level).unwrap_or(Level::Network),
            is_draining: conn.draining,
            pending: conn.io.pending(),
            protocol,
        })
    }
}
