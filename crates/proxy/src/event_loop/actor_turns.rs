//! Turns of actors on their way to the app: each is sent whole and in time, or not at all.
//!
//! The app may begin with what it has of a request, and an app that has not all of it begins when
//! the rest comes. A turn that came late might run beside that of a host which has the actor by
//! then, so it waits until it is whole, and the clock of leases is looked at right before it is
//! sent.

use std::time::Duration;

use tollway_net::{Closed, Key, Slab, boot_time};

use super::EventLoop;
use crate::connection::{Connection, Role};
use crate::exchange::{Exchange, Side, Upstream};
use crate::limits::Limits;
use crate::request_error::RequestError;
use crate::runtime_fields::TurnLease;

/// So much of a turn waits for its rest. Of what is longer each part must be in time, by the lease as
/// it is then: an app may take long to take it.
const GATHERED_BYTES: usize = 16 * 1024;

impl TurnLease {
    /// Whether it is over, by the clock of leases; `present` is the own host's, which may be the same
    /// one, renewed.
    pub(super) fn is_over(self, present: Self, now: Duration) -> bool {
        let is_renewed = self.number == present.number && now < present.until;
        now >= self.until && !is_renewed
    }
}

impl Exchange {
    /// The turn that goes to the sink of `side`.
    pub(super) fn turn_towards(&self, side: Side) -> Option<TurnLease> {
        self.turn.filter(|_| side == Side::Request)
    }

    /// Whether more of it is to come before it is sent: it is not whole, and may wait here.
    pub(super) fn is_to_gather(&self, limits: &Limits, buffered_bytes: usize) -> bool {
        let most = GATHERED_BYTES.min(limits.pipe_bytes);
        let is_over = buffered_bytes > limits.buffered_bytes;
        !self.request.ended && self.request.len() < most && !is_over
    }
}

impl Connection {
    /// Something of an exchange was written here, which may be a turn.
    pub(super) fn note_turn(&mut self, key: Key, turn: Option<TurnLease>) {
        if let Some(turn) = turn
            && !self.turns.contains(&(key, turn))
        {
            self.turns.push((key, turn));
        }
    }

    /// Whether it is too late for a turn that waits here.
    pub(super) fn has_late_turn(&self, present: TurnLease) -> bool {
        if self.turns.is_empty() {
            return false;
        }
        let now = boot_time();
        self.turns.iter().any(|(_, turn)| turn.is_over(present, now))
    }

    /// It was flushed with turns; `is_done` says that nothing is left.
    pub(super) fn note_flushed(&mut self, is_done: bool, exchanges: &mut Slab<Exchange>) {
        if self.io.is_connecting() {
            return;
        }
        for (key, _) in &self.turns {
            if let Some(exchange) = exchanges.get_mut(*key) {
                exchange.is_begun = true;
            }
        }
        if is_done {
            self.turns.clear();
        }
    }
}

impl EventLoop {
    /// Ends the call of that number, and says whether anything of it was sent.
    pub(super) fn call_off(&mut self, number: u64) {
        let is_meant =
            |exchange: &Exchange| exchange.number == Some(number) && !exchange.responding;
        let found = self.exchanges.iter().find(|(_, exchange)| is_meant(exchange));
        if let Some((key, _)) = found {
            self.fail(key, &RequestError::CalledOff);
        }
    }

    /// A turn is about to be sent, and it is too late for it: its connection goes, with all that was
    /// to be written to it. Who has a part of a turn must not get the whole.
    pub(super) fn on_turn_too_late(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.io.abort_on_close();
        let mut unsent = Vec::new();
        for (turn, _) in std::mem::take(&mut conn.turns) {
            let Some(exchange) = self.exchanges.get_mut(turn) else { continue };
            let Some(up) = exchange.upstream().filter(|_| !exchange.is_begun) else { continue };
            match &mut conn.role {
                Role::Http1Client(client) => client.exchange = None,
                Role::Http2Client(link) => drop(link.streams.remove(&up.stream.0)),
                _ => {}
            }
            // As if it had found no connection yet.
            exchange.up = Upstream::Waiting;
            unsent.push(turn);
        }
        match &conn.role {
            Role::Http1Client(_) => self.on_h1_client_closed(key, Closed::Truncated),
            _ => {
                self.on_h2_over(key, "a turn of an actor was too late for it");
                self.remove(key);
            }
        }
        for key in unsent {
            self.fail(key, &RequestError::TooLate);
        }
    }
}
