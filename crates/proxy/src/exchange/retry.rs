//! Whether a request may be sent once more.

use tollway_model::ErrorCode;
use tollway_routing::{Attempt, Failure, Retry, decide_retry};

use super::{Exchanges, fail};
use crate::cause::Cause;
use crate::conn::Connections;
use crate::cx::{Cx, Effect};
use crate::exchange::ExchangeKey;

/// Whether a request may be sent once more after an attempt that failed so.
pub(crate) fn may_retry(exchanges: &Exchanges, key: ExchangeKey, failure: Failure) -> bool {
    let Some(exchange) = exchanges.get(key) else { return false };
    let attempt = Attempt {
        made: exchange.attempts,
        idempotent: exchange.head.method.is_idempotent() && !exchange.is_of_actors,
        body_held: exchange.replay.is_some(),
    };
    let unsent = failure == Failure::NotConnected;
    (unsent || !exchange.is_upgrade) && decide_retry(failure, attempt) == Retry::Again
}

/// The peer's sidecar passed nothing of a request on to its app. False when another replica was
/// asked often enough.
pub(crate) fn ask_another_replica(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) -> bool {
    if !may_retry(exchanges, key, Failure::Refused) {
        return false;
    }
    fail::cancel_upstream(cx, conns, exchanges, key);
    let cause = Cause::coded(ErrorCode::AppUnreachable, "its app cannot be reached");
    cx.effects.push(Effect::AttemptFailed { exchange: key, failure: Failure::Refused, cause });
    true
}
