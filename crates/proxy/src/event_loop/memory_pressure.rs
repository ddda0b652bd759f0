//! Memory that one caller holds to the harm of others: where bodies that wait exceed their limit,
//! connections to other sidecars and to the app are not credited, and whoever shares them waits.
//! Then the caller who has most waiting loses it; where many have a little, in the end those who have
//! most of them. Each connection begins with credit of its own, so a crowd can send much more than
//! the limit before that: it is not waited for.

use std::collections::HashMap;
use std::time::Duration;

use tollway_http::h2::ErrorCode;
use tollway_model::ErrorCode as Code;
use tollway_net::Key;

use super::EventLoop;
use crate::exchange::{Exchange, Side};
use crate::request_error::RequestError;

/// How long more than the limit may wait before somebody loses it.
const OVER_FOR: Duration = Duration::from_secs(1);
/// Whoever has less than this part of the limit waiting is not to blame,
const BLAMED_FROM: usize = 4;
/// until it has been too much for so long: then a crowd keeps everybody else waiting.
pub(super) const CROWDED_FOR: Duration = Duration::from_secs(5);
/// More than so many times the limit is borne for no time:
pub(super) const FLOODED_FROM: usize = 2;
/// whoever has more waiting than so many times what any source may have (`pipe_bytes`) loses it.
const FLOODS_FROM: usize = 2;

/// What waits of one caller.
struct Held {
    /// Its connection.
    caller: Key,
    bytes: usize,
    /// Its exchanges of which something waits.
    exchanges: Vec<Key>,
}

impl Held {
    fn of(caller: Key) -> Self {
        Self { caller, bytes: 0, exchanges: Vec::new() }
    }
}

impl EventLoop {
    /// Frees what the caller with most bytes waiting holds, once nothing else has helped.
    pub(super) fn sweep_held(&mut self) {
        let limit = self.config.limits.buffered_bytes;
        if !self.holds_credit || self.buffered_bytes <= limit {
            self.over_since = None;
            return;
        }
        let since = *self.over_since.get_or_insert(self.now);
        let over_for = self.now.saturating_duration_since(since);
        let is_flood = self.buffered_bytes / FLOODED_FROM > limit;
        if over_for < OVER_FOR && !is_flood {
            return;
        }
        let callers = self.held_by_callers();
        let most = callers.first().map_or(0, |held| held.bytes);
        let spared = FLOODS_FROM * self.config.limits.pipe_bytes;
        if over_for >= CROWDED_FOR {
            self.shed_callers(&callers, 0);
        } else if is_flood && most > spared {
            self.shed_callers(&callers, spared);
        } else if over_for >= OVER_FOR && most >= limit / BLAMED_FROM {
            self.shed_callers(&callers[..1], 0);
        } else {
            return;
        }
        self.over_since = None;
    }

    /// The callers of whom something waits, those with most of it first.
    fn held_by_callers(&self) -> Vec<Held> {
        let mut held: HashMap<Key, Held> = HashMap::new();
        for (key, exchange) in self.exchanges.iter_places(0..self.exchanges.places()) {
            let bytes = waiting(exchange);
            if bytes > 0 {
                let caller = exchange.down.conn;
                let of_caller = held.entry(caller).or_insert_with(|| Held::of(caller));
                of_caller.bytes += bytes;
                of_caller.exchanges.push(key);
            }
        }
        let mut callers: Vec<Held> = held.into_values().collect();
        callers.sort_unstable_by_key(|held| std::cmp::Reverse(held.bytes));
        callers
    }

    /// Gives up what waits of `callers`, the first of them first, until no more than the limit waits
    /// or who is next has no more than `spared` bytes.
    fn shed_callers(&mut self, callers: &[Held], spared: usize) {
        let limit = self.config.limits.buffered_bytes;
        for held in callers {
            if self.buffered_bytes <= limit || held.bytes <= spared {
                return;
            }
            self.tell_of(held, limit);
            for key in &held.exchanges {
                self.shed(*key);
            }
        }
    }

    fn tell_of(&mut self, held: &Held, limit: usize) {
        let remote = self.conns.get(held.caller).and_then(|conn| conn.remote);
        // A crowd comes from many ports of a few addresses.
        let from = remote.map(|remote| remote.ip());
        if self.log.should_log(format!("held {from:?}"), self.now) {
            let (code, bytes) = (Code::Overloaded, held.bytes);
            tracing::warn!(%code, ?remote, bytes, limit, "a caller does not take its answers, or its \
                bodies are not taken: what waits of them is given up");
        }
    }

    /// Gives up what waits of an exchange, unless it has gone meanwhile.
    fn shed(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        if waiting(exchange) == 0 {
            return;
        }
        if exchange.responding {
            self.metrics.faults.add(1);
            self.cancel_upstream(key);
            self.mark_observed(key, |observed| {
                observed.error.get_or_insert(Code::Overloaded);
            });
            return self.abort_down(key, ErrorCode::ENHANCE_YOUR_CALM);
        }
        let limit = self.config.limits.buffered_bytes;
        self.fail(key, &RequestError::Overloaded { what: "the memory for bodies", limit });
    }
}

fn waiting(exchange: &Exchange) -> usize {
    exchange.pipe(Side::Request).len() + exchange.pipe(Side::Response).len()
}
