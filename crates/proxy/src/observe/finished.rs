//! A request or a connection that is over, as the data thread hands it on.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tollway_http::{Fields, Method, RequestHead};
use tollway_identity::PeerIdentity;
use tollway_model::{ErrorCode, ServiceName};

use super::{Observed, Recorded};
use crate::conn::{Connection, ListenerKind};
use crate::exchange::{Destination, Exchange};

/// Longest path that is recorded, in bytes; what is beyond it is left out.
const PATH_BYTES: usize = 1024;
/// Longest method.
const METHOD_BYTES: usize = 32;

/// What has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Request,
    /// Plain TCP, through a port that stands for a service or to the app.
    Tcp,
    /// A CONNECT tunnel to a TCP service.
    Connect,
    /// A request whose connection left HTTP.
    Upgrade,
    /// A connection that was refused before it could carry anything.
    Connection,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The caller has the whole answer of the callee, or both have ended their connection.
    Answered,
    /// It was refused or failed here.
    Failed(ErrorCode),
    /// The caller went away.
    Cancelled,
}

/// Everything that may be recorded of one request or connection.
#[derive(Clone)]
pub(crate) struct Finished {
    pub(crate) kind: Kind,
    pub(crate) inbound: bool,
    /// Empty without one.
    pub(crate) method: Method,
    /// Without its query, which may hold secrets; empty without one.
    pub(crate) path: Vec<u8>,
    /// The callee; `None` for the own service, or when the request names none.
    pub(crate) service: Option<ServiceName>,
    /// 0 without an answer.
    pub(crate) status: u16,
    pub(crate) outcome: Outcome,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    pub(crate) attempts: u32,
    pub(crate) is_grpc: bool,
    pub(crate) grpc_status: Option<u16>,
    pub(crate) peer: Option<Arc<PeerIdentity>>,
    /// What a front's client proved.
    pub(crate) client: Option<Box<[u8]>>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) version: &'static str,
    pub(crate) recorded: Option<Recorded>,
}

impl Finished {
    /// What is left of an exchange; `None` for one that the process served itself.
    pub(crate) fn of(exchange: Exchange, observed: Observed, now: Instant) -> Option<Self> {
        let outcome = match (observed.error, observed.cancelled) {
            (Some(code), _) => Outcome::Failed(code),
            (None, true) => Outcome::Cancelled,
            (None, false) => Outcome::Answered,
        };
        let is_own = exchange.destination == Destination::Api && !observed.is_external;
        if is_own && outcome == Outcome::Answered {
            return None;
        }
        let in_trailers = || exchange.response.trailers.as_ref().and_then(grpc_status);
        Some(Self {
            kind: Kind::Request,
            inbound: exchange.is_for_app(),
            service: exchange.destination.service().cloned(),
            status: exchange.status(),
            method: shorten_method(exchange.head.method),
            path: shorten_path(exchange.head.path),
            outcome,
            request_bytes: exchange.request.passed,
            response_bytes: exchange.response.passed,
            started: exchange.started,
            ended: now,
            attempts: exchange.attempts,
            is_grpc: exchange.is_grpc,
            grpc_status: observed.grpc_status.or_else(in_trailers),
            peer: observed.peer,
            client: observed.client,
            remote: observed.remote,
            version: observed.version,
            recorded: observed.recorded,
        })
    }

    /// An attempt that failed with `code` and is made again.
    pub(crate) fn attempt(exchange: &Exchange, code: ErrorCode, now: Instant) -> Option<Self> {
        let observed = exchange.observed.as_ref()?;
        let service = exchange.destination.service()?;
        let RequestHead { method, path, .. } = &*exchange.head;
        Some(Self {
            kind: Kind::Request,
            inbound: false,
            method: shorten_method(method.clone()),
            path: shorten_path(path.clone()),
            service: Some(service.clone()),
            status: 0,
            outcome: Outcome::Failed(code),
            request_bytes: exchange.request.passed,
            response_bytes: 0,
            started: exchange.started,
            ended: now,
            attempts: exchange.attempts,
            is_grpc: exchange.is_grpc,
            grpc_status: None,
            peer: observed.peer.clone(),
            client: None,
            remote: observed.remote,
            version: observed.version,
            recorded: observed.recorded,
        })
    }

    /// What an accepted connection brings, before anything of it is read.
    pub(crate) fn arrived(kind: Kind, conn: &Connection, now: Instant) -> Self {
        let inbound = conn.via.as_ref().is_some_and(ListenerKind::is_inbound);
        let (peer, client) = (conn.peer.clone(), conn.proven_client());
        Self { peer, client, ..Self::refused(kind, inbound, conn.remote, now) }
    }

    /// The same without a connection.
    pub(crate) fn refused(
        kind: Kind,
        inbound: bool,
        remote: Option<SocketAddr>,
        now: Instant,
    ) -> Self {
        Self {
            kind,
            inbound,
            method: Method::Other(Box::default()),
            path: Vec::new(),
            service: None,
            status: 0,
            outcome: Outcome::Answered,
            request_bytes: 0,
            response_bytes: 0,
            started: now,
            ended: now,
            attempts: 0,
            is_grpc: false,
            grpc_status: None,
            peer: None,
            client: None,
            remote,
            version: "",
            recorded: None,
        }
    }

    /// What was asked for.
    pub(crate) fn set_request(&mut self, head: &RequestHead) {
        self.method = shorten_method(head.method.clone());
        self.path = shorten_path(head.path.clone());
    }

    /// It fails with `code`, if it has not ended otherwise.
    pub(crate) fn fail(&mut self, code: ErrorCode) {
        if self.outcome == Outcome::Answered {
            self.outcome = Outcome::Failed(code);
        }
    }

    /// The path as text.
    pub(crate) fn path(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.path)
    }

    /// The method as text.
    pub(crate) fn method(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.method.as_bytes())
    }
}

/// The status that a call ended with, from its trailers or a head that ends it.
pub(crate) fn grpc_status(fields: &Fields) -> Option<u16> {
    std::str::from_utf8(fields.value(b"grpc-status")?).ok()?.parse().ok()
}

fn shorten_path(mut path: Vec<u8>) -> Vec<u8> {
    let query = path.iter().position(|byte| *byte == b'?');
    path.truncate(query.unwrap_or(path.len()).min(PATH_BYTES));
    if path.capacity() > 2 * PATH_BYTES {
        path.shrink_to_fit();
    }
    path
}

fn shorten_method(method: Method) -> Method {
    match method.as_bytes().get(..METHOD_BYTES) {
        Some(start) => Method::Other(start.into()),
        None => method,
    }
}
