//! Memory that one caller holds to the harm of others: where buffered bytes exceed their limit,
//! connections to other sidecars and to the app are not credited, and every request on them waits.
//! Then the caller with most buffered bytes loses its exchanges; where many hold a little, in the end
//! those that hold most of them. Each connection begins with credit of its own, so a crowd can send
//! much more than the limit before that: then no time is granted.

use std::collections::HashMap;
use std::time::Duration;

use tollway_http::h2::ErrorCode;
use tollway_model::ErrorCode as Code;

use super::{Exchange, Exchanges, Side, access_log, fail};
use crate::conn::{ConnKey, Connections};
use crate::cx::Cx;
use crate::exchange::ExchangeKey;
use crate::request_error::RequestError;

/// How long buffered bodies may exceed the limit before a caller loses its own.
const OVER_FOR: Duration = Duration::from_secs(1);
/// A caller that holds less than this part of the limit loses nothing before [`CROWDED_FOR`].
const BLAMED_FROM: usize = 4;
/// After this time above the limit, any caller may lose what it holds: many small ones fill the memory.
pub(crate) const CROWDED_FOR: Duration = Duration::from_secs(5);
/// Above this many times the limit, callers above [`FLOODS_FROM`] lose what they hold at once.
pub(crate) const FLOODED_FROM: usize = 2;
/// Times `pipe_bytes` that a caller may hold when memory is flooded ([`FLOODED_FROM`]).
const FLOODS_FROM: usize = 2;

/// What one caller holds in buffers.
struct Held {
    /// Its connection.
    caller: ConnKey,
    bytes: usize,
    /// Its exchanges of which something waits.
    exchanges: Vec<ExchangeKey>,
}

impl Held {
    fn of(caller: ConnKey) -> Self {
        Self { caller, bytes: 0, exchanges: Vec::new() }
    }
}

/// Frees what the caller with most bytes waiting holds, once nothing else has helped.
pub(crate) fn relieve(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges) {
    let limit = cx.config.limits.buffered_bytes;
    if !exchanges.holds_credit || exchanges.buffered_bytes <= limit {
        exchanges.over_since = None;
        return;
    }
    let since = *exchanges.over_since.get_or_insert(cx.now);
    let over_for = cx.now.saturating_duration_since(since);
    let is_flood = exchanges.buffered_bytes / FLOODED_FROM > limit;
    if over_for < OVER_FOR && !is_flood {
        return;
    }
    let callers = holders(exchanges);
    let most = callers.first().map_or(0, |held| held.bytes);
    let spared = FLOODS_FROM * cx.config.limits.pipe_bytes;
    if over_for >= CROWDED_FOR {
        drop_largest(cx, conns, exchanges, &callers, 0);
    } else if is_flood && most > spared {
        drop_largest(cx, conns, exchanges, &callers, spared);
    } else if over_for >= OVER_FOR && most >= limit / BLAMED_FROM {
        drop_largest(cx, conns, exchanges, &callers[..1], 0);
    } else {
        return;
    }
    exchanges.over_since = None;
}

/// The callers that hold buffered bytes, those with most first.
fn holders(exchanges: &Exchanges) -> Vec<Held> {
    let mut held: HashMap<ConnKey, Held> = HashMap::new();
    for (key, exchange) in exchanges.slab.iter_places(0..exchanges.slab.places()) {
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
fn drop_largest(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    callers: &[Held],
    spared: usize,
) {
    let limit = cx.config.limits.buffered_bytes;
    for held in callers {
        if exchanges.buffered_bytes <= limit || held.bytes <= spared {
            return;
        }
        log_holder(cx, conns, held, limit);
        for key in &held.exchanges {
            drop_buffered(cx, conns, exchanges, *key);
        }
    }
}

fn log_holder(cx: &mut Cx, conns: &Connections, held: &Held, limit: usize) {
    let remote = conns.get(held.caller).and_then(|conn| conn.remote);
    // A crowd comes from many ports of a few addresses.
    let from = remote.map(|remote| remote.ip());
    if let Some(left_out) = cx.log.admit("held", format!("{from:?}"), cx.now) {
        let (code, bytes) = (Code::Overloaded, held.bytes);
        tracing::warn!(%code, ?remote, bytes, limit, left_out, "a caller does not take its answers, or its \
            bodies are not taken: what waits of them is given up");
    }
}

/// Gives up what waits of an exchange, unless it has gone meanwhile.
fn drop_buffered(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get(key) else { return };
    if waiting(exchange) == 0 {
        return;
    }
    if exchange.answer.has_begun {
        cx.metrics.request_failures.add(1);
        fail::cancel_upstream(cx, conns, exchanges, key);
        access_log::mark_observed(exchanges, key, |observed| {
            observed.error.get_or_insert(Code::Overloaded);
        });
        return fail::abort_down(cx, conns, exchanges, key, ErrorCode::ENHANCE_YOUR_CALM);
    }
    let limit = cx.config.limits.buffered_bytes;
    fail::fail(
        cx,
        conns,
        exchanges,
        key,
        &RequestError::Overloaded { what: "the memory for bodies", limit },
    );
}

fn waiting(exchange: &Exchange) -> usize {
    exchange.pipe(Side::Request).len() + exchange.pipe(Side::Response).len()
}
