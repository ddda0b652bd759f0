//! Memory that one caller holds to the harm of others: where bodies that wait exceed their limit,
//! connections to other sidecars and to the app are not credited, and whoever shares them waits.
//! Then the caller who has most waiting loses it.

use std::collections::HashMap;
use std::time::Duration;

use tollway_http::h2::ErrorCode;
use tollway_model::ErrorCode as Code;
use tollway_net::Key;

use super::Worker;
use crate::exchange::{Exchange, Side};
use crate::fault::Fault;

/// How long more than the limit may wait before somebody loses it.
const OVER_FOR: Duration = Duration::from_secs(1);
/// Whoever has less than this part of the limit waiting is not to blame.
const BLAMED_FROM: usize = 4;

impl Worker {
    /// Frees what the caller with most bytes waiting holds, once nothing else has helped.
    pub(super) fn sweep_held(&mut self) {
        let limit = self.config.limits.held_bytes;
        if !self.holds_credit || self.held_bytes <= limit {
            self.over_since = None;
            return;
        }
        let since = *self.over_since.get_or_insert(self.now);
        if self.now.saturating_duration_since(since) < OVER_FOR {
            return;
        }
        self.over_since = None;
        let Some((caller, bytes)) = self.most_held() else { return };
        if bytes < limit / BLAMED_FROM {
            return;
        }
        let remote = self.conns.get(caller).and_then(|conn| conn.remote);
        if self.told.is_news(format!("held {remote:?}"), self.now) {
            let code = Code::Overloaded;
            tracing::warn!(%code, ?remote, bytes, limit, "a caller does not take its answers, or its \
                bodies are not taken: what waits of them is given up");
        }
        let of_caller = |(key, exchange): (Key, &Exchange)| {
            (exchange.down.conn == caller && waiting(exchange) > 0).then_some(key)
        };
        let places = 0..self.exchanges.places();
        let shed: Vec<Key> = self.exchanges.iter_places(places).filter_map(of_caller).collect();
        for key in shed {
            self.shed(key);
        }
    }

    /// The downstream connection with most bytes waiting, and how many.
    fn most_held(&self) -> Option<(Key, usize)> {
        let mut held: HashMap<Key, usize> = HashMap::new();
        for (_, exchange) in self.exchanges.iter_places(0..self.exchanges.places()) {
            *held.entry(exchange.down.conn).or_default() += waiting(exchange);
        }
        held.into_iter().max_by_key(|(_, bytes)| *bytes)
    }

    fn shed(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        if exchange.responding {
            self.metrics.faults.add(1);
            self.cancel_upstream(key);
            self.mark_observed(key, |observed| {
                observed.error.get_or_insert(Code::Overloaded);
            });
            return self.abort_down(key, ErrorCode::ENHANCE_YOUR_CALM);
        }
        let limit = self.config.limits.held_bytes;
        self.fail(key, &Fault::Overloaded { what: "the memory for bodies", limit });
    }
}

fn waiting(exchange: &Exchange) -> usize {
    exchange.pipe(Side::Request).len() + exchange.pipe(Side::Response).len()
}
