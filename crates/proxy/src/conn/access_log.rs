//! The access log of connections: those that carry bytes have one line at their end, and those that are
//! refused have one at once. Costs a branch where no log is written.

use std::net::SocketAddr;

use tollway_http::RequestHead;
use tollway_model::{ErrorCode, ServiceName};

use super::{ConnKey, Connections, ListenerKind, Relay, Role};
use crate::cx::Cx;
use crate::observe::{Finished, Kind, Outcome};
use crate::request_error::RequestError;

fn writes_lines(cx: &Cx) -> bool {
    cx.observer.as_ref().is_some_and(|observer| observer.lines.is_some())
}

/// An accepted connection is to carry bytes to `service` (`None` for the own app); the access
/// log has it at its end.
pub(crate) fn begin_line(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    kind: Kind,
    service: Option<ServiceName>,
) {
    if !writes_lines(cx) {
        return;
    }
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    if conn.access_log.is_none() {
        let finished = Finished { service, ..Finished::arrived(kind, conn, now) };
        conn.access_log = Some(Box::new(finished));
    }
}

pub(crate) fn mark_line(conns: &mut Connections, key: ConnKey, mark: impl FnOnce(&mut Finished)) {
    if let Some(entry) = conns.get_mut(key).and_then(|conn| conn.access_log.as_mut()) {
        mark(entry);
    }
}

/// The connections of which `key` is one end before their time.
pub(crate) fn fail_line(conns: &mut Connections, key: ConnKey, code: ErrorCode) {
    let other = match conns.get(key).map(|conn| &conn.role) {
        Some(Role::Relay(Relay { other, .. })) => *other,
        _ => None,
    };
    mark_line(conns, key, |entry| entry.fail(code));
    if let Some(other) = other {
        mark_line(conns, other, |entry| entry.fail(code));
    }
}

/// The mesh's end of the bytes that an app's connection carries.
pub(crate) fn note_callee(cx: &mut Cx, conns: &mut Connections, down: ConnKey, up: ConnKey) {
    if !writes_lines(cx) {
        return;
    }
    let Some(conn) = conns.get(up) else { return };
    let (peer, remote) = (conn.peer.clone(), conn.remote);
    mark_line(conns, down, |entry| {
        if !entry.inbound {
            (entry.peer, entry.remote) = (peer, remote);
        }
    });
}

/// One of two connections broke by itself: the caller's, which has the line, or the other.
pub(crate) fn note_break(conns: &mut Connections, key: ConnKey, other: Option<ConnKey>) {
    mark_line(conns, key, |entry| {
        if entry.outcome == Outcome::Answered {
            entry.outcome = Outcome::Cancelled;
        }
    });
    if let Some(other) = other {
        mark_line(conns, other, |entry| entry.fail(ErrorCode::ClosedEarly));
    }
}

/// The process ends: so do the connections that it still carries.
pub(crate) fn end_lines(cx: &mut Cx, conns: &mut Connections) {
    for key in conns.keys() {
        if let Some(entry) = conns.get_mut(key).and_then(|conn| conn.access_log.take()) {
            cx.end_line(*entry);
        }
    }
}

/// A request is refused with an answer before it has become an exchange; `head` is there if it
/// could be read.
pub(crate) fn log_refused_request(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    error: &RequestError,
    head: Option<&RequestHead>,
) {
    if !writes_lines(cx) {
        return;
    }
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    let mut finished = match conn.access_log.take() {
        Some(entry) => *entry,
        None => Finished::arrived(Kind::Request, conn, now),
    };
    if let Some(head) = head {
        finished.set_request(head);
    }
    finished.status = error.status();
    finished.fail(error.code());
    cx.end_line(finished);
}

/// A connection is refused without an answer.
pub(crate) fn log_refused_connection(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    code: ErrorCode,
) {
    if !writes_lines(cx) {
        return;
    }
    let Some(conn) = conns.get(key) else { return };
    let mut finished = Finished::arrived(Kind::Connection, conn, cx.now);
    finished.fail(code);
    cx.end_line(finished);
}

/// Logs a connection that is refused right after it was accepted.
pub(crate) fn log_unadmitted(cx: &mut Cx, remote: Option<SocketAddr>, via: &ListenerKind) {
    if !writes_lines(cx) {
        return;
    }
    let mut finished = Finished::refused(Kind::Connection, via.is_inbound(), remote, cx.now);
    finished.fail(ErrorCode::Overloaded);
    cx.end_line(finished);
}
