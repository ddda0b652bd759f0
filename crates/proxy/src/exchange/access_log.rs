//! What the access log and traces record of exchanges. Costs a branch where nothing is recorded.

use tollway_model::ErrorCode;
use tollway_routing::Failure;

use super::{Exchange, Exchanges};
use crate::conn::{Connection, Connections, Role};
use crate::cx::Cx;
use crate::exchange::ExchangeKey;
use crate::observe::{Finished, Kind, Observed};

impl Observed {
    /// Records the peer of a connection.
    pub(crate) fn record_peer(&mut self, conn: &Connection) {
        self.peer.clone_from(&conn.peer);
        self.client = conn.proven_client();
        self.remote = conn.remote;
        self.version = match conn.role {
            Role::Http2Server(_) | Role::Http2Client(_) => "2",
            _ => "1.1",
        };
    }
}

pub(crate) fn mark_observed(
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    mark: impl FnOnce(&mut Observed),
) {
    if let Some(observed) = exchanges.get_mut(key).and_then(|e| e.observed.as_mut()) {
        mark(observed);
    }
}

/// An exchange is over.
pub(crate) fn record_finished(cx: &mut Cx, conns: &mut Connections, mut exchange: Exchange) {
    let Some(observed) = exchange.observed.take() else { return };
    let (down, has_left_http) = (exchange.down.conn, exchange.answer.status == 101);
    let finished = Finished::of(exchange, *observed, cx.now);
    let (Some(observer), Some(mut finished)) = (&mut cx.observer, finished) else {
        return;
    };
    if !has_left_http {
        return observer.record(finished, false, &cx.metrics);
    }
    // The span ends here; the line waits for the end of the connection.
    observer.record(finished.clone(), true, &cx.metrics);
    finished.kind = Kind::Upgrade;
    if let Some(conn) = conns.get_mut(down) {
        conn.access_log = Some(Box::new(finished));
    }
}

/// An attempt failed and is made again: it has a span of its own, and so has the next.
pub(crate) fn record_attempt(
    cx: &mut Cx,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    failure: Failure,
) {
    let (Some(observer), Some(exchange)) = (&mut cx.observer, exchanges.get_mut(key)) else {
        return;
    };
    if let Some(finished) = Finished::attempt(exchange, code_of(failure), cx.now) {
        observer.record(finished, true, &cx.metrics);
    }
    let recorded = exchange.observed.as_mut().and_then(|observed| observed.recorded.as_mut());
    if let Some(recorded) = recorded {
        observer.begin_again(recorded, &mut exchange.head, cx.now);
    }
}

/// What the failure would be called if it were not tried again.
pub(crate) fn code_of(failure: Failure) -> ErrorCode {
    match failure {
        Failure::NotConnected => ErrorCode::Unreachable,
        Failure::Refused => ErrorCode::Reset,
        Failure::ReusedConnectionClosed | Failure::Broken => ErrorCode::ClosedEarly,
        Failure::Malformed => ErrorCode::BadResponse,
        Failure::TimedOut => ErrorCode::TimedOut,
        Failure::Silent => ErrorCode::Silent,
        Failure::Answered => ErrorCode::BadResponse,
    }
}
