//! How many requests the app has at a time, where that is bounded (`--app-max-concurrency`). A
//! request has its slot from when it is sent on its way to the app until its answer has wholly gone
//! to the caller; others wait, first come first served, as many as may wait for a service.

use std::collections::VecDeque;

use tollway_net::Key;

use super::EventLoop;
use crate::exchange::fail;
use crate::exchange::{Destination, Upstream};
use crate::request_error::RequestError;

/// The slots that are taken, and who waits for one.
#[derive(Default)]
pub(super) struct ConcurrencyLimit {
    taken: usize,
    waiting: VecDeque<Key>,
    /// One came free, and nobody has looked for whom since.
    has_come_free: bool,
}

impl ConcurrencyLimit {
    /// Somebody may be served without waiting for anything to happen.
    pub(super) fn are_due(&self) -> bool {
        self.has_come_free && !self.waiting.is_empty()
    }
}

impl EventLoop {
    /// Whether a request may go to its destination now; it waits otherwise, or is refused where too
    /// many wait. A request that is sent once more has its slot already.
    pub(super) fn takes_slot(&mut self, key: Key, destination: &Destination) -> bool {
        let Some(slots) = self.cx.config.app_concurrency else { return true };
        if !matches!(destination, Destination::App | Destination::Callback) {
            return true;
        }
        let Some(exchange) = self.exchanges.get_mut(key) else { return false };
        if exchange.holds_permit {
            return true;
        }
        if self.slots.taken < slots {
            self.slots.taken += 1;
            exchange.holds_permit = true;
            return true;
        }
        self.wait_for_slot(key, destination);
        false
    }

    fn wait_for_slot(&mut self, key: Key, destination: &Destination) {
        self.note_wait(key, destination);
        let limit = self.cx.config.limits.waiting_per_service;
        let mut waiting = std::mem::take(&mut self.slots.waiting);
        if waiting.len() >= limit {
            // Those that were called off meanwhile take no place.
            waiting.retain(|key| self.waits_for_slot(*key));
        }
        let is_full = waiting.len() >= limit;
        if let Some(exchange) = self.exchanges.get_mut(key)
            && !is_full
        {
            exchange.up = Upstream::Slot;
            waiting.push_back(key);
        }
        self.slots.waiting = waiting;
        if is_full {
            fail::fail(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                &RequestError::Overloaded { what: "the queue for the app", limit },
            );
        }
    }

    fn waits_for_slot(&self, key: Key) -> bool {
        self.exchanges.get(key).is_some_and(|exchange| exchange.up == Upstream::Slot)
    }

    /// The request that had a slot is over.
    pub(super) fn free_slot(&mut self) {
        self.slots.taken = self.slots.taken.saturating_sub(1);
        self.slots.has_come_free = true;
    }

    /// Sends those on their way who have waited longest, as far as slots are free.
    pub(super) fn serve_slots(&mut self) {
        if !std::mem::take(&mut self.slots.has_come_free) {
            return;
        }
        let slots = self.cx.config.app_concurrency.unwrap_or(usize::MAX);
        while self.slots.taken < slots {
            let Some(key) = self.slots.waiting.pop_front() else { return };
            if self.waits_for_slot(key) {
                self.dispatch(key);
            }
        }
    }
}
