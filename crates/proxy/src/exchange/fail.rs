//! How exchanges end before their time: failed here, or canceled by either side.

use tollway_http::h2::ErrorCode;
use tollway_model::Called;
use tollway_routing::Failure;
use tollway_telemetry::CallEnd;

use super::{Destination, Exchange, Exchanges, UpstreamState};
use super::{access_log, finish, outcome, respond, trace};
use crate::as_daprd::{self, AsDaprd};
use crate::cause::Cause;
use crate::conn::{Connections, ListenerKind, Role, retire};
use crate::cx::{Cx, Effect};
use crate::error_response;
use crate::exchange::ExchangeKey;
use crate::headers;
use crate::request_error::RequestError;

/// The exchange cannot go on: the caller gets the error if no response has begun; otherwise the
/// response is broken off so that it is not taken for whole.
pub(crate) fn fail(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    error: &RequestError,
) {
    let unsent = [
        UpstreamState::Waiting,
        UpstreamState::FairQueue,
        UpstreamState::Permit,
        UpstreamState::Gathering,
        UpstreamState::Pausing,
    ];
    let is_unsent = exchanges.get(key).is_some_and(|e| unsent.contains(&e.up));
    cancel_upstream(cx, conns, exchanges, key);
    let Some(exchange) = exchanges.get_mut(key) else { return };
    tracing::debug!(%error, destination = ?exchange.destination, "request failed");
    cx.metrics.request_failures.add(1);
    cx.metrics.mirrors_failed.add(u64::from(exchange.is_mirrored));
    if let Some(observed) = &mut exchange.observed {
        observed.error = Some(error.code());
        observed.grpc_status = exchange.is_grpc.then(|| u16::from(error.grpc_status()));
    }
    if exchange.answer.has_begun {
        return abort_down(cx, conns, exchanges, key, ErrorCode::INTERNAL_ERROR);
    }
    exchange.answer.failed = true;
    // Nothing of the mesh serves the Service any more: the app's next connection may leave the mesh.
    let is_left =
        matches!(error, RequestError::UnknownService { .. } | RequestError::NoReadyEndpoint { .. })
            && matches!(&exchange.via, ListenerKind::Tunnel(name) if name.called() != Called::App);
    if is_left {
        retire::retire_caller(cx, conns, exchange.down.conn);
    }
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.answer.grpc_status = exchange.is_grpc.then(|| u16::from(error.grpc_status()));
    let is_of_actors = exchange.is_of_actors;
    if let Some(metrics) = cx.config.dapr_metrics.as_ref().filter(|of| of.counts_errors()) {
        as_daprd::count_failure(metrics, exchange, error, &cx.config.home);
    }
    let as_daprd = cx
        .config
        .as_daprd
        .as_ref()
        .and_then(|_| AsDaprd::failure(exchange, error, &cx.config.home, &cx.config.hop));
    let (mut head, body) = if let Some(answer) = as_daprd {
        answer
    } else if exchange.is_grpc {
        (error_response::grpc_error(error, &cx.config.hop), Vec::new())
    } else {
        error_response::http_error(error, &cx.config.hop)
    };
    if let Some(daprd) = &cx.config.as_daprd {
        as_daprd::complete(daprd, exchange, &mut head);
    }
    if is_unsent && is_of_actors {
        head.fields.set(headers::UNPROCESSED, b"1");
    }
    trace::add_call_trace(cx, exchanges, key, &mut head, Some(error.code()));
    respond::respond(cx, conns, exchanges, key, &head, &body);
}

/// Breaks the downstream half off and forgets the exchange.
pub(crate) fn abort_down(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    code: ErrorCode,
) {
    let Some(exchange) = exchanges.get(key) else { return };
    let down = exchange.down;
    let code = breaking_off(exchange, code);
    finish::count_call(cx, exchange, CallEnd::Failed);
    if let Some(conn) = conns.get_mut(down.conn) {
        match &mut conn.role {
            Role::Http1Server(server) => {
                server.exchange = None;
                // The beginning of the answer goes out; the reset behind it says that it is
                // not the whole.
                let _ = conn.io.flush();
                conn.io.abort_on_close();
                conns.close(cx, down.conn);
            }
            Role::Http2Server(link) => {
                link.close(down.stream, cx.now);
                link.codec.reset(down.stream, code, conn.io.out());
                conns.mark_dirty(down.conn);
            }
            _ => {}
        }
    }
    access_log::mark_observed(exchanges, key, |observed| {
        observed.error.get_or_insert(tollway_model::ErrorCode::ClosedEarly);
    });
    finish::forget(cx, conns, exchanges, key);
}

/// The caller is gone: so is the reason to go on.
pub(crate) fn on_caller_gone(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    cx.metrics.requests_cancelled.add(1);
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.judge_abandoned(cx);
    }
    cancel_upstream(cx, conns, exchanges, key);
    if let Some(exchange) = exchanges.get(key) {
        finish::count_call(cx, exchange, CallEnd::Cancelled);
    }
    access_log::mark_observed(exchanges, key, |observed| observed.cancelled = true);
    finish::forget(cx, conns, exchanges, key);
}

/// The peer's sidecar passed nothing of a request on to its app: another replica is asked. False when
/// that was tried often enough.
pub(crate) fn ask_another_replica(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) -> bool {
    let failure = Failure::Refused;
    if !exchanges.get(key).is_some_and(|exchange| exchange.may_retry(failure)) {
        return false;
    }
    outcome::on_attempt_broke(cx, conns, exchanges, key);
    cancel_upstream(cx, conns, exchanges, key);
    let cause = Cause::coded(tollway_model::ErrorCode::AppUnreachable, "its app cannot be reached");
    cx.effects.push(Effect::AttemptFailed { exchange: key, failure, cause });
    true
}

/// Ends the upstream half before its time.
pub(crate) fn cancel_upstream(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let up = match std::mem::replace(&mut exchange.up, UpstreamState::Gone) {
        UpstreamState::Open(up) => up,
        UpstreamState::FairQueue => {
            let down = exchange.down.conn;
            return cx.effects.push(Effect::LeaveFairQueue { exchange: key, conn: down });
        }
        UpstreamState::Waiting
        | UpstreamState::Permit
        | UpstreamState::Gathering
        | UpstreamState::Pausing
        | UpstreamState::Gone => return,
    };
    let code = calling_off(exchange);
    let Some(conn) = conns.get_mut(up.conn) else { return };
    match &mut conn.role {
        Role::Http2Client(link) => {
            link.close(up.stream, cx.now);
            link.codec.reset(up.stream, code, conn.io.out());
            let worn_at = match link.destination {
                Some(Destination::App | Destination::AppPort(_)) => cx.config.limits.app_resets,
                // It bears any number; how many wait there is counted over all connections.
                Some(Destination::Api | Destination::Callback | Destination::Actors) => usize::MAX,
                // Its other end keeps to the same limits.
                Some(Destination::Service(_) | Destination::Workload(_)) | None => {
                    cx.config.limits.h2.limits.resets.burst as usize / 2
                }
            };
            let is_worn = link.codec.resets_owed() >= worn_at && !conn.draining;
            conns.mark_dirty(up.conn);
            if is_worn {
                // Before its other end takes all who are on it for attackers.
                cx.effects.push(Effect::Retire(up.conn));
            } else {
                cx.effects.push(Effect::CalledOff(up.conn));
                cx.effects.push(Effect::Capacity(up.conn));
            }
        }
        Role::Http1Client(client) => {
            client.exchange = None;
            conns.close(cx, up.conn);
        }
        _ => {}
    }
}

/// The code by which a response is broken off that is not whole. `NO_ERROR` and `CANCEL` name no
/// fault: hyper takes a body that ends by the first for whole, Node.js one that ends by either. So
/// both are replaced, except in a gRPC call: its missing trailers show that it is not whole, and
/// clients derive its status from the code.
fn breaking_off(exchange: &Exchange, code: ErrorCode) -> ErrorCode {
    let names_no_fault = matches!(code, ErrorCode::NO_ERROR | ErrorCode::CANCEL);
    if names_no_fault && !exchange.is_grpc { ErrorCode::INTERNAL_ERROR } else { code }
}

/// The code by which a request is called off. A body that is not whole is broken off as an answer
/// is.
pub(super) fn calling_off(exchange: &Exchange) -> ErrorCode {
    if exchange.request.finished {
        return ErrorCode::CANCEL;
    }
    breaking_off(exchange, ErrorCode::CANCEL)
}
