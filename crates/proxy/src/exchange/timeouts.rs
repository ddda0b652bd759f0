//! Exchanges that took too long: each sweep examines a part of them.

use tollway_http::h2::ErrorCode;
use tollway_routing::Failure;

use super::{Exchanges, UpstreamState, again, body, describe, fail, fault, outcome};
use crate::conn::{Connection, Connections, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::ExchangeKey;
use crate::request_error::{RequestError, Within};

/// Sweeps in which all exchanges are examined once: about a second.
const EXCHANGE_ROUNDS: usize = 10;
/// Exchanges examined in a sweep however few there are.
const EXCHANGES_AT_LEAST: usize = 256;

/// Examines a part of the exchanges.
pub(crate) fn sweep(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges) {
    let timeouts = cx.config.timeouts;
    let mut expired = Vec::new();
    let mut late = Vec::new();
    let mut silent = Vec::new();
    let mut unserved = Vec::new();
    let mut unconnected = Vec::new();
    let mut quiet_on = Vec::new();
    let mut timed = Vec::new();
    let part = (exchanges.slab.places() / EXCHANGE_ROUNDS).max(EXCHANGES_AT_LEAST);
    let from = exchanges.swept;
    let to = from + part;
    exchanges.swept = if to < exchanges.slab.places() { to } else { 0 };
    for (key, exchange) in exchanges.slab.iter_places(from..to) {
        let quiet = cx.now.saturating_duration_since(exchange.active);
        let answered = exchange.answer.has_begun;
        if exchange.has_timers() {
            timed.push(key);
        }
        if exchange.deadline.is_some_and(|deadline| cx.now >= deadline) {
            expired.push(key);
        } else if exchange.request.finished && !answered && quiet > timeouts.request {
            late.push(key);
        } else if quiet > exchange.idle_limit(timeouts.stream_idle) {
            silent.push(key);
        } else if exchange.up == UpstreamState::Permit && quiet > timeouts.request {
            unserved.push(key);
        } else if matches!(exchange.up, UpstreamState::Waiting | UpstreamState::FairQueue)
            && quiet > timeouts.discovery + timeouts.connect
        {
            unconnected.push(key);
        } else if let UpstreamState::Open(up) = exchange.up
            && quiet > timeouts.ping_after
        {
            quiet_on.push((up.conn, quiet));
        }
    }
    for key in timed {
        exchanges.set_timer(cx.now, key);
    }
    for key in expired {
        end_expired(cx, conns, exchanges, key);
    }
    cx.metrics.timeouts.response.add(u64::try_from(late.len()).unwrap_or(0));
    for key in late {
        time_out_attempt(cx, conns, exchanges, key);
    }
    for key in silent {
        end_silent(cx, conns, exchanges, key);
    }
    for key in unserved {
        let limit = cx.config.app_concurrency.unwrap_or_default();
        fail::fail(
            cx,
            conns,
            exchanges,
            key,
            &RequestError::Overloaded { what: "the list of requests at the app", limit },
        );
    }
    for key in unconnected {
        cx.effects.push(Effect::GiveUpWaiting(key));
    }
    for (conn, quiet) in quiet_on {
        cx.effects.push(Effect::Probe { conn, quiet });
    }
}

/// Examines the exchanges for which a route has set a time that is over now.
pub(crate) fn serve_timers(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges) {
    for key in exchanges.due(cx.now) {
        let Some(exchange) = exchanges.get_mut(key) else { continue };
        exchange.timer_fired();
        if exchange.deadline.is_some_and(|deadline| cx.now >= deadline) {
            end_expired(cx, conns, exchanges, key);
            continue;
        }
        if exchange.held.as_ref().is_some_and(|held| cx.now >= held.until) {
            fault::release(cx, conns, exchanges, key);
            exchanges.set_timer(cx.now, key);
            continue;
        }
        let attempt_ends = exchange.steering.as_ref().and_then(|steering| steering.attempt_ends);
        if attempt_ends.is_some_and(|ends| cx.now >= ends)
            && !exchange.answer.has_begun
            && exchange.upstream().is_some()
        {
            cx.metrics.timeouts.attempt.add(1);
            time_out_attempt(cx, conns, exchanges, key);
            continue;
        }
        let resume_at = exchange.steering.as_ref().and_then(|steering| steering.resume_at);
        if exchange.up == UpstreamState::Pausing && resume_at.is_some_and(|at| cx.now >= at) {
            again::resume(cx, exchanges, key);
        }
        exchanges.set_timer(cx.now, key);
    }
}

/// An attempt has had no answer in time.
fn time_out_attempt(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    outcome::on_attempt_broke(cx, conns, exchanges, key);
    fail::cancel_upstream(cx, conns, exchanges, key);
    cx.effects.push(Effect::AttemptFailed {
        exchange: key,
        failure: Failure::TimedOut,
        cause: "".into(),
    });
}

/// The time that a caller or a route gave a call is over. A caller knows that by itself; where it
/// does not act on it, or has not been heard of since, the app is not kept busy for it.
pub(crate) fn end_expired(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let is_of_route = exchange.is_deadline_of_route();
    let kinds = &cx.metrics.timeouts;
    let kind = if is_of_route { &kinds.request } else { &kinds.deadline };
    kind.add(1);
    if exchange.answer.has_begun {
        return break_off(cx, conns, exchanges, key);
    }
    if exchange.request.finished {
        exchange.note_failure(cx);
    }
    let given = exchange.deadline.map(|deadline| deadline - exchange.started);
    let within = Within(given.unwrap_or_default());
    let error = RequestError::TimedOut { peer: describe(&exchange.destination), within };
    fail::fail(cx, conns, exchanges, key, &error);
}

/// Neither side has sent a byte for too long: the caller gets an error if no response has begun.
fn end_silent(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges, key: ExchangeKey) {
    let Some(exchange) = exchanges.get(key) else { return };
    cx.metrics.timeouts.idle.add(1);
    if exchange.answer.has_begun {
        return break_off(cx, conns, exchanges, key);
    }
    let within = Within(exchange.idle_limit(cx.config.timeouts.stream_idle));
    let error = if exchange.request.ended || !exchange.request.is_empty() {
        RequestError::TimedOut { peer: describe(&exchange.destination), within }
    } else {
        RequestError::BodyTimedOut { within }
    };
    fail::fail(cx, conns, exchanges, key, &error);
}

/// Time is over for an answer that has begun.
fn break_off(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges, key: ExchangeKey) {
    cx.metrics.request_failures.add(1);
    fail::cancel_upstream(cx, conns, exchanges, key);
    fail::abort_down(cx, conns, exchanges, key, ErrorCode::CANCEL);
}

/// Gives back the connection credit held while the thread held too much.
pub(crate) fn release_held_credit(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges) {
    if !exchanges.holds_credit || exchanges.buffered_bytes > cx.config.limits.buffered_bytes {
        return;
    }
    exchanges.holds_credit = false;
    for key in conns.keys() {
        if conns.get(key).is_some_and(has_held_credit) {
            body::release_connection_credit(cx, conns, exchanges, key, 0);
        }
    }
}

fn has_held_credit(conn: &Connection) -> bool {
    match &conn.role {
        Role::Http2Server(link) | Role::Http2Client(link) => link.held_credit > 0,
        _ => false,
    }
}
