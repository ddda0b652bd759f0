//! What is told of exchanges, where somebody wants to hear: what only the worker knows of them is
//! noted here, and a finished one handed to the observer. None of it runs for the others.

use tollway_model::ErrorCode;
use tollway_net::Key;
use tollway_routing::Failure;

use super::Worker;
use crate::connection::{Connection, Role};
use crate::exchange::Exchange;
use crate::observe::{Finished, Observed};

impl Observed {
    /// Notes who is at the mesh's end of a connection.
    pub(super) fn meet(&mut self, conn: &Connection) {
        self.peer.clone_from(&conn.peer);
        self.remote = conn.remote;
        self.version = match conn.role {
            Role::H2Server(_) | Role::H2Client(_) => "2",
            _ => "1.1",
        };
    }
}

impl Worker {
    pub(super) fn mark_observed(&mut self, key: Key, mark: impl FnOnce(&mut Observed)) {
        if let Some(observed) = self.exchanges.get_mut(key).and_then(|e| e.observed.as_mut()) {
            mark(observed);
        }
    }

    /// An exchange is over.
    pub(super) fn tell(&mut self, mut exchange: Exchange) {
        let Some(observed) = exchange.observed.take() else { return };
        let finished = Finished::of(exchange, *observed, self.now);
        if let (Some(observer), Some(finished)) = (&mut self.observer, finished) {
            observer.tell(finished, false, &self.metrics);
        }
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
