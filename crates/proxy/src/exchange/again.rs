//! Retries that the rule of a route allows: after a pause, within its budget and the request's time.

use std::time::Duration;

use tollway_http::ResponseHead;
use tollway_routing::{Attempt, Failure, Retry, decide_routed_retry, pause_before, retry_after};

use super::{Exchange, ExchangeKey, Exchanges, UpstreamState, access_log, fail, trace};
use crate::conn::Connections;
use crate::cx::{Cx, Effect};
use crate::observe::grpc_status;

/// An attempt has failed. Returns whether the rule of a route has the request sent again, after a pause
/// that is no shorter than `asked`.
pub(crate) fn retry_by_route(
    cx: &mut Cx,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    failure: Failure,
    asked: Option<Duration>,
) -> bool {
    let random = cx.next_random();
    let Some(pause) = exchanges.get(key).and_then(|of| pause(of, failure, asked, random)) else {
        return false;
    };
    let at = cx.now + pause;
    let Some(exchange) = exchanges.get_mut(key) else { return false };
    let Some(steering) = &mut exchange.steering else { return false };
    if exchange.deadline.is_some_and(|deadline| at >= deadline) {
        return false;
    }
    if !steering.take_retry(cx.now) {
        steering.counts(&cx.metrics).retries_over_budget.add(1);
        return false;
    }
    steering.counts(&cx.metrics).retries.add(1);
    steering.resume_at = Some(at);
    exchange.up = UpstreamState::Pausing;
    cx.metrics.retries.add(1);
    if exchange.observed.is_some() {
        access_log::record_attempt(cx, exchanges, key, failure);
        trace::note_failed_attempt(exchanges, key, access_log::code_of(failure));
    }
    exchanges.set_timer(cx.now, key);
    true
}

/// How long to wait before the next retry; `None` if the rule allows none.
fn pause(
    exchange: &Exchange,
    failure: Failure,
    asked: Option<Duration>,
    random: u64,
) -> Option<Duration> {
    let steering = exchange.steering.as_deref().filter(|_| !exchange.is_mirrored)?;
    let retry = steering.rule().retry()?;
    let attempt = Attempt {
        made: exchange.attempts,
        idempotent: retry.idempotent || exchange.head.method.is_idempotent(),
        body_held: exchange.replay.is_some() && !exchange.answer.has_begun,
    };
    let decided = decide_routed_retry(failure, attempt, steering.retries(), retry.attempts);
    let may_be = decided == Retry::Again && !exchange.is_upgrade;
    may_be.then(|| pause_before(retry, steering.retries() + 1, asked, random))
}

/// A response has come. Returns whether it is dropped, since the rule of a route has the request sent
/// again at its status.
pub(crate) fn retry_answered(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    head: &ResponseHead,
) -> bool {
    let Some(exchange) = exchanges.get(key) else { return false };
    let Some(retry) = exchange.steering.as_ref().and_then(|steering| steering.rule().retry())
    else {
        return false;
    };
    let of_grpc = grpc_status(&head.fields).filter(|_| exchange.is_grpc);
    let is_meant = retry.statuses.contains(&head.status)
        || of_grpc.is_some_and(|of| retry.grpc_statuses.iter().any(|one| u16::from(*one) == of));
    if !is_meant {
        return false;
    }
    let asked = head.fields.value(b"retry-after").and_then(retry_after);
    // The attempt is over before it is decided on; if there is no other, what came is passed on.
    let up = exchange.up;
    if !retry_by_route(cx, exchanges, key, Failure::Answered, asked) {
        return false;
    }
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.up = up;
        exchange.avoid_replica(conns);
    }
    fail::cancel_upstream(cx, conns, exchanges, key);
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.up = UpstreamState::Pausing;
    }
    true
}

/// The pause before a retry is over.
pub(super) fn resume(cx: &mut Cx, exchanges: &mut Exchanges, key: ExchangeKey) {
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.up = UpstreamState::Waiting;
        exchange.leave_replica();
    }
    exchanges.rewind(key);
    cx.effects.push(Effect::Dispatch(key));
}
