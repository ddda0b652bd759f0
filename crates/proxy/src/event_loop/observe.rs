//! What is told of exchanges, of connections that carry bytes, and of what is refused before it is
//! either, where somebody wants to hear: what only the worker knows of them is noted here, and a
//! finished one handed to the observer. None of it runs for the others.

use std::net::TcpStream;

use tollway_http::RequestHead;
use tollway_model::{ErrorCode, ServiceName};
use tollway_net::Key;
use tollway_routing::Failure;

use super::EventLoop;
use crate::connection::{Connection, ListenerKind, Relay, Role};
use crate::exchange::Exchange;
use crate::observe::{Finished, Kind, Observed, Outcome};
use crate::request_error::RequestError;

impl Observed {
    /// Notes who is at the other end of a connection.
    pub(super) fn meet(&mut self, conn: &Connection) {
        self.peer.clone_from(&conn.peer);
        self.client = conn.proven_client();
        self.remote = conn.remote;
        self.version = match conn.role {
            Role::Http2Server(_) | Role::Http2Client(_) => "2",
            _ => "1.1",
        };
    }
}

impl EventLoop {
    pub(super) fn mark_observed(&mut self, key: Key, mark: impl FnOnce(&mut Observed)) {
        if let Some(observed) = self.exchanges.get_mut(key).and_then(|e| e.observed.as_mut()) {
            mark(observed);
        }
    }

    /// An exchange is over.
    pub(super) fn tell(&mut self, mut exchange: Exchange) {
        let Some(observed) = exchange.observed.take() else { return };
        let (down, has_left_http) = (exchange.down.conn, exchange.status == 101);
        let finished = Finished::of(exchange, *observed, self.now);
        let (Some(observer), Some(mut finished)) = (&mut self.observer, finished) else { return };
        if !has_left_http {
            return observer.tell(finished, false, &self.metrics);
        }
        // The span ends here; the line waits for the end of the connection.
        observer.tell(finished.clone(), true, &self.metrics);
        finished.kind = Kind::Upgrade;
        if let Some(conn) = self.conns.get_mut(down) {
            conn.told = Some(Box::new(finished));
        }
    }

    fn writes_lines(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.lines.is_some())
    }

    /// An accepted connection is to carry bytes to `service` (`None` for the own app); the access
    /// log has it at its end.
    pub(super) fn begin_line(&mut self, key: Key, kind: Kind, service: Option<ServiceName>) {
        if !self.writes_lines() {
            return;
        }
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.told.is_none() {
            let finished = Finished { service, ..Finished::arrived(kind, conn, now) };
            conn.told = Some(Box::new(finished));
        }
    }

    pub(super) fn mark_line(&mut self, key: Key, mark: impl FnOnce(&mut Finished)) {
        if let Some(told) = self.conns.get_mut(key).and_then(|conn| conn.told.as_mut()) {
            mark(told);
        }
    }

    /// The connections of which `key` is one end before their time.
    pub(super) fn fail_line(&mut self, key: Key, code: ErrorCode) {
        let other = match self.conns.get(key).map(|conn| &conn.role) {
            Some(Role::Relay(Relay { other, .. })) => *other,
            _ => None,
        };
        self.mark_line(key, |told| told.fail(code));
        if let Some(other) = other {
            self.mark_line(other, |told| told.fail(code));
        }
    }

    /// The mesh's end of the bytes that an app's connection carries.
    pub(super) fn note_callee(&mut self, down: Key, up: Key) {
        if !self.writes_lines() {
            return;
        }
        let Some(conn) = self.conns.get(up) else { return };
        let (peer, remote) = (conn.peer.clone(), conn.remote);
        self.mark_line(down, |told| {
            if !told.inbound {
                (told.peer, told.remote) = (peer, remote);
            }
        });
    }

    /// One of two connections broke by itself: the caller's, which has the line, or the other.
    pub(super) fn note_break(&mut self, key: Key, other: Option<Key>) {
        self.mark_line(key, |told| {
            if told.outcome == Outcome::Answered {
                told.outcome = Outcome::Cancelled;
            }
        });
        if let Some(other) = other {
            self.mark_line(other, |told| told.fail(ErrorCode::ClosedEarly));
        }
    }

    /// A connection is over that has a line.
    pub(super) fn end_line(&mut self, mut finished: Finished) {
        finished.ended = self.now;
        if let Some(observer) = &mut self.observer {
            observer.write_line(finished, &self.metrics);
        }
    }

    /// The process ends: so do the connections that it still carries.
    pub(super) fn end_lines(&mut self) {
        for key in self.conns.keys() {
            if let Some(told) = self.conns.get_mut(key).and_then(|conn| conn.told.take()) {
                self.end_line(*told);
            }
        }
    }

    /// A request is refused with an answer before it has become an exchange; `head` is there if it
    /// could be read.
    pub(super) fn tell_refused(
        &mut self,
        key: Key,
        error: &RequestError,
        head: Option<&RequestHead>,
    ) {
        if !self.writes_lines() {
            return;
        }
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let mut finished = match conn.told.take() {
            Some(told) => *told,
            None => Finished::arrived(Kind::Request, conn, now),
        };
        if let Some(head) = head {
            finished.asks(head);
        }
        finished.status = error.status();
        finished.fail(error.code());
        self.end_line(finished);
    }

    /// A connection is refused without an answer.
    pub(super) fn tell_refused_connection(&mut self, key: Key, code: ErrorCode) {
        if !self.writes_lines() {
            return;
        }
        let Some(conn) = self.conns.get(key) else { return };
        let mut finished = Finished::arrived(Kind::Connection, conn, self.now);
        finished.fail(code);
        self.end_line(finished);
    }

    /// The same for one that was hardly accepted.
    pub(super) fn tell_unadmitted(&mut self, stream: &TcpStream, via: &ListenerKind) {
        if !self.writes_lines() {
            return;
        }
        let (inbound, remote) = (via.is_inbound(), stream.peer_addr().ok());
        let mut finished = Finished::refused(Kind::Connection, inbound, remote, self.now);
        finished.fail(ErrorCode::Overloaded);
        self.end_line(finished);
    }

    /// An attempt failed and is made again: it has a span of its own, and so has the next.
    pub(super) fn tell_of_attempt(&mut self, key: Key, failure: Failure) {
        let (Some(observer), Some(exchange)) = (&mut self.observer, self.exchanges.get_mut(key))
        else {
            return;
        };
        if let Some(finished) = Finished::attempt(exchange, code_of(failure), self.now) {
            observer.tell(finished, true, &self.metrics);
        }
        let recorded = exchange.observed.as_mut().and_then(|observed| observed.recorded.as_mut());
        if let Some(recorded) = recorded {
            observer.begin_again(recorded, &mut exchange.head, self.now);
        }
    }
}

/// What the failure would be called if it were not tried again.
pub(super) fn code_of(failure: Failure) -> ErrorCode {
    match failure {
        Failure::NotConnected => ErrorCode::Unreachable,
        Failure::Refused => ErrorCode::Reset,
        Failure::ReusedConnectionClosed | Failure::Broken => ErrorCode::ClosedEarly,
        Failure::Malformed => ErrorCode::BadResponse,
        Failure::TimedOut => ErrorCode::TimedOut,
        Failure::Silent => ErrorCode::Silent,
    }
}
