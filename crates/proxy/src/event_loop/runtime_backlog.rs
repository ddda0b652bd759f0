//! What the runtime was sent and has not looked at, though nobody waits for it any more: requests
//! that were called off. It is slower than what sends it requests, and a request that is called off
//! takes no stream any more; so without a bound a caller who only calls off would have any number
//! of them wait there, each with its head, and others behind them.
//!
//! A PING behind a reset tells when it was read: the other end answers in the order of the frames.
//! While too many have not been, requests wait on this side, where one that is called off is gone.

use tollway_net::Key;

use super::EventLoop;
use crate::conn::{Connection, Http2Link, Role};
use crate::exchange::Destination;

/// What the PINGs of here bear; those for a sign of life bear the number of a round.
const LOOKED: [u8; 8] = *b"backlog?";

impl EventLoop {
    /// Whether the runtime has as many requests before it that were called off as it may have.
    pub(super) fn is_backlogged(&self) -> bool {
        self.backlog >= self.cx.config.limits.runtime_resets
    }

    /// A request to the runtime was called off on an open stream.
    pub(super) fn add_to_backlog(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some(link) = served_here(conn) else { return };
        link.called_off.later += 1;
        self.backlog += 1;
        let is_full = self.backlog == self.cx.config.limits.runtime_resets;
        self.cx.metrics.sources_paused.add(u64::from(is_full));
        self.ask_for_backlog(key);
    }

    /// Asks whether the runtime has read what was called off, unless that is asked already.
    fn ask_for_backlog(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http2Client(link) = &mut conn.role else { return };
        let called_off = &mut link.called_off;
        if called_off.asked > 0 || called_off.later == 0 {
            return;
        }
        called_off.asked = std::mem::take(&mut called_off.later);
        link.codec.ping(LOOKED, conn.io.out());
        self.conns.mark_dirty(key);
    }

    /// A PING was answered.
    pub(super) fn on_ping_answered(&mut self, key: Key, payload: [u8; 8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some(link) = served_here(conn).filter(|_| payload == LOOKED) else { return };
        let read = std::mem::take(&mut link.called_off.asked);
        self.ask_for_backlog(key);
        self.lessen_backlog(read);
    }

    /// So many of them have been read, or their connection is over.
    pub(super) fn lessen_backlog(&mut self, by: usize) {
        let was_full = self.is_backlogged();
        self.backlog = self.backlog.saturating_sub(by);
        if !was_full || self.is_backlogged() {
            return;
        }
        for destination in [Destination::Api, Destination::Callback, Destination::Actors] {
            if self.pools.get(&destination).is_some_and(|pool| !pool.waiting.is_empty()) {
                self.serve_waiting(&destination);
                self.keep_dialled(&destination);
            }
        }
    }
}

/// The connection to the runtime, if this is one.
fn served_here(conn: &mut Connection) -> Option<&mut Http2Link> {
    match &mut conn.role {
        Role::Http2Client(link) if link.leads_to_runtime() => Some(link),
        _ => None,
    }
}
