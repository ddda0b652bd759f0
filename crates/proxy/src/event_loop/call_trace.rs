//! What only the event loop can note of a traced request: why a policy let it in, and dials that failed
//! while it waited.

use std::net::SocketAddr;

use tollway_net::Key;

use super::EventLoop;
use crate::call_trace::{CalleeTrace, TracePart};
use crate::cause::Cause;
use crate::exchange::{Destination, Exchange};

impl EventLoop {
    /// A caller's sidecar asks for the way of a request that was let in.
    pub(super) fn explain_as_callee(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let conn = self.conns.get_mut(exchange.down.conn);
        let admission = self.policy.admission(conn, &exchange.head, &self.cx.config.home);
        let part = TracePart::Callee(Box::new(CalleeTrace { admission, sent: None }));
        exchange.observed.get_or_insert_default().explained = Some(part);
    }

    /// A connection could not be made that requests wait for.
    pub(super) fn note_failed_dial(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        cause: &Cause,
    ) {
        let Some(pool) = self.pools.get(destination) else { return };
        let is_explained = |key: &Key| {
            let observed = self.exchanges.get(*key).and_then(|e| e.observed.as_ref());
            observed.is_some_and(|observed| observed.explained.is_some())
        };
        let waiting: Vec<Key> = pool.waiting.iter().copied().filter(is_explained).collect();
        if waiting.is_empty() {
            return;
        }
        let code = self.unreachable(destination, address, cause.clone()).code();
        for key in waiting {
            if let Some(part) = self.exchanges.get_mut(key).and_then(Exchange::caller_part) {
                part.fail_dial(code, address);
            }
        }
    }
}
