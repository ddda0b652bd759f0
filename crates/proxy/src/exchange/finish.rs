//! How exchanges end in full: the upstream is given back, the call is counted, the next request of
//! the caller's connection begins.

use std::time::Duration;

use tollway_http::h2::ErrorCode;
use tollway_http::{Fields, RequestHead};
use tollway_telemetry::{AnsweredCall, CallEnd, DaprMetrics};

use super::{BodySize, Destination, Exchange, Exchanges, Side, UpstreamState};
use super::{access_log, body, fail};
use crate::conn::{ConnKey, Connections, ListenerKind, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::ExchangeKey;
use crate::headers::CALLER_APP;
use crate::observe::grpc_status;

/// Upstream has sent the whole response.
pub(crate) fn on_response_source_ended(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    trailers: Option<Fields>,
) {
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.judge_end(cx, trailers.as_ref());
    }
    release_upstream(cx, conns, exchanges, key);
    body::end_source(cx, conns, exchanges, key, Side::Response, trailers);
}

/// Gives the upstream stream or connection back. A request that is not sent to its end is cut off,
/// since its response is over.
pub(crate) fn release_upstream(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let whole = exchange.request.finished;
    let up = std::mem::replace(&mut exchange.up, UpstreamState::Gone);
    let UpstreamState::Open(up) = up else { return };
    let code = fail::calling_off(exchange);
    if exchange.judged.is_some() && exchange.answer.has_begun {
        exchange.judge_end(cx, None);
    }
    let Some(conn) = conns.get_mut(up.conn) else { return };
    match &mut conn.role {
        Role::Http2Client(link) => {
            link.close(up.stream, cx.now);
            conn.since = cx.now;
            if !whole {
                link.codec.reset(up.stream, code, conn.io.out());
                conns.mark_dirty(up.conn);
                cx.effects.push(Effect::CalledOff(up.conn));
            }
            cx.effects.push(Effect::Capacity(up.conn));
        }
        Role::Http1Client(client) => {
            client.exchange = None;
            client.keep_alive &= whole;
            cx.effects.push(Effect::Http1Idle(up.conn));
        }
        _ => {}
    }
}

/// The request has wholly gone upstream.
pub(crate) fn on_request_sent(cx: &mut Cx, exchanges: &mut Exchanges, key: ExchangeKey) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.active = cx.now;
    if exchange.steering.is_some() {
        begin_answer(cx, exchanges, key);
    }
}

/// A request has gone out whole: what a route makes of that begins.
pub(crate) fn begin_answer(cx: &mut Cx, exchanges: &mut Exchanges, key: ExchangeKey) {
    if exchanges.get(key).is_some_and(Exchange::is_to_mirror) {
        cx.effects.push(Effect::Mirror(key));
    }
    exchanges.begin_attempt_time(cx.now, key);
}

/// The response has wholly gone downstream: the exchange is over.
pub(crate) fn on_response_sent(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    release_upstream(cx, conns, exchanges, key);
    let Some(exchange) = exchanges.get(key) else { return };
    record(cx, exchange);
    let (down, request_ended) = (exchange.down, exchange.request.ended);
    forget(cx, conns, exchanges, key);
    let Some(conn) = conns.get_mut(down.conn) else { return };
    conn.since = cx.now;
    match &mut conn.role {
        Role::Http1Server(_) => next_request(cx, conns, down.conn),
        Role::Http2Server(link) => {
            link.close(down.stream, cx.now);
            if !request_ended {
                link.codec.reset(down.stream, ErrorCode::NO_ERROR, conn.io.out());
                conns.mark_dirty(down.conn);
            }
        }
        _ => {}
    }
}

/// A response has wholly gone out on an HTTP/1.1 downstream: the next request, or the end.
fn next_request(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Http1Server(server) = &mut conn.role else { return };
    server.exchange = None;
    server.sink = None;
    let is_over = server.body.is_some() || !server.keep_alive || conn.draining;
    if is_over { conns.linger(cx, key) } else { conns.resume(key) }
}

/// Gives the head of a request to its connection of HTTP/2, whose next heads use its memory; gives it
/// back if the connection is of HTTP/1.1.
fn recycle_head(
    conns: &mut Connections,
    key: ConnKey,
    head: Box<RequestHead>,
) -> Option<Box<RequestHead>> {
    match conns.get_mut(key).map(|conn| &mut conn.role) {
        Some(Role::Http2Server(link)) => {
            link.codec.recycle_head(head);
            None
        }
        _ => Some(head),
    }
}

/// Counts an exchange of which the response has wholly gone downstream.
fn record(cx: &Cx, exchange: &Exchange) {
    let took = cx.now.saturating_duration_since(exchange.started);
    if let Some(metrics) = &cx.config.dapr_metrics {
        count_dapr(metrics, exchange, took);
    }
    // Of a call of an actor by another sidecar, that is counted.
    if exchange.is_of_runtime() {
        return;
    }
    let inbound = exchange.via.is_inbound();
    cx.metrics.record(inbound, exchange.answer.status, took);
    if let Some(series) = exchange.series {
        cx.metrics.services.record(series, end_of(exchange), took);
    }
}

/// A call of a service ended without an answer.
pub(super) fn count_call(cx: &Cx, exchange: &Exchange, end: CallEnd) {
    if let Some(series) = exchange.series {
        let took = cx.now.saturating_duration_since(exchange.started);
        cx.metrics.services.record(series, end, took);
    }
}

/// The exchange became a stream of bytes that its connections relay by themselves.
pub(crate) fn exchange_left_http(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.answer.status = 101;
        exchange.note_success(cx);
    }
    if let Some(exchange) = exchanges.get(key) {
        record(cx, exchange);
    }
    forget(cx, conns, exchanges, key);
}

/// Removes an exchange that is over.
pub(super) fn forget(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get(key) else { return };
    if exchange.holds_permit {
        cx.effects.push(Effect::PermitFreed);
    }
    let down = exchange.down.conn;
    if exchange.observed.is_some() {
        if let Some(exchange) = exchanges.remove(key) {
            access_log::record_finished(cx, conns, exchange);
        }
    } else if let Some(head) = exchanges.discard(key)
        && let Some(head) = recycle_head(conns, down, head)
    {
        exchanges.spare_heads.keep(head);
    }
}

/// How an exchange ended whose response has wholly gone downstream.
fn end_of(exchange: &Exchange) -> CallEnd {
    if exchange.answer.failed {
        return CallEnd::Failed;
    }
    if exchange.is_grpc && grpc_status_of(exchange).is_some_and(|code| code > 0) {
        return CallEnd::GrpcError;
    }
    CallEnd::Answered(exchange.answer.status)
}

/// The status of a gRPC call, from the head of its answer or from its end.
pub(super) fn grpc_status_of(exchange: &Exchange) -> Option<u16> {
    let in_trailers = || exchange.response.trailers.as_ref().and_then(grpc_status);
    exchange.answer.grpc_status.or_else(in_trailers)
}

/// The gRPC status that is counted for a call that ended without one.
const UNKNOWN: u16 = 2;

/// Counts an exchange under Dapr's names, in a sidecar in daprd's place; it took `took` from its head.
fn count_dapr(metrics: &DaprMetrics, exchange: &Exchange, took: Duration) {
    let head = &exchange.head;
    let grpc_status = exchange.is_grpc.then(|| grpc_status_of(exchange).unwrap_or(UNKNOWN));
    let call = AnsweredCall {
        method: text(head.method.as_bytes()),
        path: text(&head.path),
        status: exchange.answer.status,
        grpc_status,
        request_bytes: exchange.request.passed,
        response_bytes: exchange.response.passed,
        took,
    };
    match (&exchange.via, &exchange.destination) {
        (ListenerKind::HttpApi | ListenerKind::GrpcApi, _) => {
            metrics.served(call, exchange.path_label.as_deref().unwrap_or_default());
        }
        (ListenerKind::Inbound | ListenerKind::Loopback, Destination::App) => {
            metrics.asked_app(call)
        }
        _ => {}
    }
    if exchange.is_of_actors {
        return;
    }
    let status = grpc_status.unwrap_or(exchange.answer.status);
    if let Some(service) = exchange.destination.service() {
        let streams = exchange.request_size == BodySize::Unknown;
        metrics.call_sent(service.app.as_str(), streams, status, took);
    } else if exchange.via == ListenerKind::Inbound {
        metrics.call_received(text(head.fields.value(CALLER_APP).unwrap_or_default()), status);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
