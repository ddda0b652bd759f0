//! What follows when an attempt failed before any response.

use crate::cause::Cause;
use crate::conn::Connections;
use crate::cx::{Cx, Effect};
use crate::exchange::{
    ExchangeKey, Exchanges, UpstreamState, access_log, again, describe, fail, trace,
};
use crate::outbound::failover::{self, STAYS_TRIED};
use crate::request_error::{RequestError, Within};
use crate::upstream::{Upstreams, dial};
use tollway_http::h2;
use tollway_model::ErrorCode;
use tollway_routing::Failure;

/// An attempt failed before any response: once more, or the answer to the caller.
pub(crate) fn on_attempt_failed(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    key: ExchangeKey,
    failure: Failure,
    cause: Cause,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let may_retry = exchange.may_retry(failure);
    if !may_retry
        && exchange.steering.is_some()
        && again::retry_by_route(cx, exchanges, key, failure, None)
    {
        return;
    }
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let is_unsent = matches!(failure, Failure::NotConnected | Failure::Refused);
    exchange.up = if may_retry || is_unsent { UpstreamState::Waiting } else { UpstreamState::Gone };
    if !may_retry {
        let destination = exchange.destination.clone();
        let (peer, reason) = (describe(&destination), cause.reason.clone());
        let error = match failure {
            Failure::NotConnected => dial::unreachable(cx, upstreams, &destination, None, cause),
            Failure::ReusedConnectionClosed | Failure::Broken if cause.code.is_some() => {
                dial::unreachable(cx, upstreams, &destination, None, cause)
            }
            Failure::Refused => RequestError::Reset { peer, reason: h2::ErrorCode::REFUSED_STREAM },
            Failure::ReusedConnectionClosed | Failure::Broken => {
                RequestError::ClosedEarly { peer, reason }
            }
            // Only a retry is made of it.
            Failure::Answered => RequestError::ClosedEarly { peer, reason },
            Failure::Malformed => RequestError::BadResponse { peer, reason },
            // Only asked for where it may be tried again.
            Failure::Silent => RequestError::Unreachable { code: ErrorCode::Silent, peer, reason },
            Failure::TimedOut => {
                RequestError::TimedOut { peer, within: Within(cx.config.timeouts.request) }
            }
        };
        return fail::fail(cx, conns, exchanges, key, &error);
    }
    cx.metrics.retries.add(1);
    if exchange.observed.is_some() {
        access_log::record_attempt(cx, exchanges, key, failure);
        trace::note_failed_attempt(
            exchanges,
            key,
            cause.code.unwrap_or_else(|| access_log::code_of(failure)),
        );
    }
    if !failover::move_on(cx, conns, exchanges, upstreams, key, STAYS_TRIED)
        && let Some(exchange) = exchanges.get_mut(key)
    {
        exchange.leave_replica();
    }
    exchanges.rewind(key);
    cx.effects.push(Effect::Dispatch(key));
}
