//! Turns of actors on their way to the app: each is sent whole and in time, or not at all.
//!
//! The app may begin with what it has of a request, and an app that has not all of it begins when
//! the rest comes. A turn that came late might run beside that of a host which has the actor by
//! then, so it waits until it is whole, and the clock of leases is read right before it is sent.

use std::time::Duration;

use super::{Exchange, Exchanges, Side};
use crate::conn::Connection;
use crate::cx::Clocks;
use crate::exchange::ExchangeKey;
use crate::limits::Limits;
use crate::runtime_protocol::TurnLease;

/// So much of a turn waits for its rest. Of what is longer each part must be in time, by the lease as
/// it is then: an app may take long to take it.
const GATHERED_BYTES: usize = 16 * 1024;

impl TurnLease {
    /// Whether it is over, by the clock of leases; `present` is the own host's, which may be the same
    /// one, renewed.
    pub(crate) fn is_over(self, present: Self, now: Duration) -> bool {
        let is_renewed = self.number == present.number && now < present.until;
        now >= self.until && !is_renewed
    }
}

impl Exchange {
    /// The turn that goes to the sink of `side`.
    pub(crate) fn turn_towards(&self, side: Side) -> Option<TurnLease> {
        self.turn.filter(|_| side == Side::Request)
    }

    /// Whether more of it is to come before it is sent: it is not whole, and may wait here.
    pub(crate) fn is_to_gather(&self, limits: &Limits, buffered_bytes: usize) -> bool {
        let most = GATHERED_BYTES.min(limits.pipe_bytes);
        let is_over = buffered_bytes > limits.buffered_bytes;
        !self.request.ended && self.request.len() < most && !is_over
    }
}

impl Connection {
    /// Something of an exchange was written here, which may be a turn.
    pub(crate) fn note_turn(&mut self, key: ExchangeKey, turn: Option<TurnLease>) {
        if let Some(turn) = turn
            && !self.turns.contains(&(key, turn))
        {
            self.turns.push((key, turn));
        }
    }

    /// Whether it is too late for a turn that waits here.
    pub(crate) fn has_late_turn(&self, present: TurnLease, clocks: Clocks) -> bool {
        if self.turns.is_empty() {
            return false;
        }
        let now = (clocks.boot)();
        self.turns.iter().any(|(_, turn)| turn.is_over(present, now))
    }

    /// It was flushed with turns; `is_done` says that nothing is left.
    pub(crate) fn note_flushed(&mut self, is_done: bool, exchanges: &mut Exchanges) {
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
