//! What downstreams and upstreams of HTTP/1.1 have in common: their input is parsed step by step.

use tollway_http::RequestHead;

use super::{Arrival, http1_client, http1_server};
use crate::conn::{ConnKey, Connections, Role};
use crate::cx::Cx;
use crate::exchange::Exchanges;

/// What follows one step through the input.
pub(crate) enum Next {
    /// Another step, behind so many bytes.
    Again(usize),
    /// More input must come first.
    Wait,
    /// The connection has another role now, is closed, or has no exchange any more.
    Stop,
    /// A request begins; what is left of the input follows it unless the connection may leave HTTP.
    Request { arrival: Arrival, consumed: usize, may_leave_http: bool },
    /// A request begins, and what follows it is HTTP/2.
    Http2 { arrival: Arrival, consumed: usize },
    /// A CONNECT.
    Connect(Box<RequestHead>),
}

/// One step through the input.
pub(crate) fn step(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    bytes: &[u8],
) -> Next {
    match conns.get(key).map(|conn| &conn.role) {
        Some(Role::Http1Server(_)) => http1_server::step(cx, conns, exchanges, key, bytes),
        Some(Role::Http1Client(_)) => http1_client::step(cx, conns, exchanges, key, bytes),
        _ => Next::Stop,
    }
}

/// Takes what was read and not parsed. `None` for a connection that is not of HTTP/1.1.
pub(crate) fn take_input(conns: &mut Connections, key: ConnKey) -> Option<Vec<u8>> {
    match &mut conns.get_mut(key)?.role {
        Role::Http1Server(server) => Some(std::mem::take(&mut server.input)),
        Role::Http1Client(client) => Some(std::mem::take(&mut client.input)),
        _ => None,
    }
}

/// The input that [`take_input`] gave and the new bytes, as one. Copies nothing if there was none.
pub(crate) fn with_input<'a>(input: &'a mut Vec<u8>, data: &'a [u8]) -> &'a [u8] {
    if input.is_empty() {
        return data;
    }
    input.extend_from_slice(data);
    input
}

/// Stores what is not parsed yet. A client's connection is not read further while the response to an
/// earlier request is under way.
pub(crate) fn keep_input(conns: &mut Connections, key: ConnKey, rest: &[u8]) {
    if rest.is_empty() {
        return;
    }
    let Some(conn) = conns.get_mut(key) else { return };
    match &mut conn.role {
        Role::Http1Server(server) => {
            server.input.extend_from_slice(rest);
            conn.paused |= server.exchange.is_some() && server.body.is_none();
        }
        Role::Http1Client(client) => client.input.extend_from_slice(rest),
        _ => {}
    }
}
