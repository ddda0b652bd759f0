//! Turns of actors on their way to the app: each is sent whole and in time, or not at all.
//!
//! The app may begin with what it has of a request, and an app that has not all of it begins when
//! the rest comes. A turn that came late might run beside that of a host which has the actor by
//! then, so it waits until it is whole, and the clock of leases is looked at right before it is
//! sent.

use std::time::Duration;

use tollway_net::{Closed, Key};

use super::Worker;
use crate::actors::TurnLease;
use crate::connection::{Connection, Role};
use crate::exchange::{Exchange, Side, Upstream};
use crate::fault::Fault;

/// So much of a turn waits for its rest. Of what is longer each part must be in time, by the lease as
/// it is then: an app may take long to take it.
const GATHERED_BYTES: usize = 16 * 1024;

/// Whether a moment of the clock of leases is over.
pub(super) fn is_over(moment: Duration) -> bool {
    tollway_net::boot_time() >= moment
}

/// The earlier of two moments, of which there may be none.
pub(super) fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (moment, None) | (None, moment) => moment,
    }
}

impl Exchange {
    /// From when on what goes to the sink of `side` is not to be sent.
    pub(super) fn send_by(&self, side: Side) -> Option<Duration> {
        self.begin_by.filter(|_| side == Side::Request)
    }

    /// Its lease lasts longer than it did.
    pub(super) fn renew(&mut self, lease: TurnLease) {
        if self.lease == lease.number {
            self.begin_by = self.begin_by.max(self.begin_by.and(Some(lease.until)));
        }
    }
}

impl Connection {
    /// It was flushed; `is_done` says that nothing is left.
    pub(super) fn note_turns(&mut self, is_done: bool) {
        if self.send_by.is_none() || self.io.is_connecting() {
            return;
        }
        self.turn_flushes += 1;
        if is_done {
            self.send_by = None;
        }
    }
}

impl Worker {
    /// Has a turn wait until it is whole. False if it is, or goes on in parts.
    pub(super) fn gathers(&mut self, key: Key) -> bool {
        let limits = &self.config.limits;
        let most = GATHERED_BYTES.min(limits.pipe_bytes);
        let is_over = self.held_bytes > limits.held_bytes;
        let Some(exchange) = self.exchanges.get_mut(key) else { return false };
        let pipe = &exchange.request;
        let gathers = exchange.begin_by.is_some() && !pipe.ended && pipe.len() < most && !is_over;
        if gathers {
            exchange.up = Upstream::Gathering;
        }
        gathers
    }

    /// Whether all turns of a connection may still be sent, by their lease as it is now.
    pub(super) fn renews(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let streams: Vec<Key> = match &conn.role {
            Role::H1Client(client) => client.exchange.into_iter().collect(),
            Role::H2Client(link) => link.streams.values().copied().collect(),
            _ => return false,
        };
        let mut send_by = None;
        for key in streams {
            if let Some(exchange) = self.exchanges.get_mut(key) {
                exchange.renew(self.lease);
                send_by = earlier(send_by, exchange.begin_by);
            }
        }
        conn.send_by = send_by;
        !send_by.is_some_and(is_over)
    }

    /// A turn is about to be sent, and it is too late for it: its connection goes, with all that was
    /// to be written to it. Who has a part of a turn must not get the whole.
    pub(super) fn on_turn_too_late(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.send_by = None;
        conn.io.abort_on_close();
        let flushes = conn.turn_flushes;
        let exchanges = &self.exchanges;
        let is_unsent = |key: &Key| {
            let exchange = exchanges.get(*key);
            exchange.is_some_and(|e| e.begin_by.is_some() && e.turn_flushes == flushes)
        };
        let unsent: Vec<Key> = match &mut conn.role {
            Role::H1Client(client) => {
                client.exchange.take_if(|key| is_unsent(key)).into_iter().collect()
            }
            Role::H2Client(link) => {
                let unsent = link.streams.extract_if(|_, key| is_unsent(key));
                unsent.map(|(_, key)| key).collect()
            }
            _ => return,
        };
        for key in &unsent {
            if let Some(exchange) = self.exchanges.get_mut(*key) {
                // As if it had found no connection yet.
                exchange.up = Upstream::Waiting;
            }
        }
        match self.conns.get(key).map(|conn| &conn.role) {
            Some(Role::H1Client(_)) => self.on_h1_client_closed(key, Closed::Truncated),
            _ => {
                self.on_h2_over(key, "a turn of an actor was too late for it");
                self.remove(key);
            }
        }
        for key in unsent {
            self.fail(key, &Fault::TooLate);
        }
    }
}
