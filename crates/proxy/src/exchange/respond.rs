//! Responses: from an upstream, or made here, to the downstream.

use tollway_http::{ResponseHead, h1};
use tollway_model::ErrorCode;

use super::body::Chunk;
use super::{BodySize, Exchanges, Side, again, body, describe, finish, trace};
use crate::as_daprd;
use crate::conn::{Connections, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::ExchangeKey;
use crate::headers::{self, ResponseOrigin};
use crate::observe::grpc_status;
use crate::request_error::RequestError;

/// What a response's head says of its body.
#[derive(Clone, Copy)]
pub(crate) struct Framing {
    pub(crate) size: BodySize,
    /// The length that the head states where no body follows.
    pub(crate) declared: Option<u64>,
    /// Nothing follows the head.
    pub(crate) ended: bool,
}

/// A response's head came from upstream.
pub(crate) fn on_response(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    head: &mut ResponseHead,
    framing: Framing,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.active = cx.now;
    let origin = ResponseOrigin::of(exchange);
    if head.status < 200 {
        if let Some(observed) = &mut exchange.observed {
            observed.grpc_status = grpc_status(&head.fields);
        }
        headers::response(head, origin);
        return on_informational(cx, conns, exchanges, key, head);
    }
    if exchange.judged.is_some() {
        exchange.judge_head(cx, head, framing.ended);
    }
    if exchange.steering.is_some() && again::retry_answered(cx, conns, exchanges, key, head) {
        return;
    }
    let Exchanges { slab, spare_bodies, .. } = exchanges;
    let Some(exchange) = slab.get_mut(key) else { return };
    spare_bodies.keep(exchange.replay.take());
    if exchange.series.is_some() && (head.status >= 400 || exchange.is_grpc) {
        // Another hop of the mesh may speak for the service.
        exchange.answer.failed = head.fields.value(headers::ERROR).is_some();
    }
    let is_counted = exchange.series.is_some() || cx.config.dapr_metrics.is_some();
    if exchange.is_grpc && is_counted {
        exchange.answer.grpc_status = grpc_status(&head.fields);
    }
    if let Some(observed) = exchange.observed.as_mut().filter(|observed| observed.is_external) {
        let word =
            head.fields.value(headers::ERROR).and_then(|word| std::str::from_utf8(word).ok());
        observed.error = word.and_then(ErrorCode::from_word);
    }
    let is_observed = exchange.observed.is_some();
    if is_observed {
        trace::take_callee_trace(exchanges, key, head);
    }
    headers::response(head, origin);
    if let Some(steering) = exchanges.get(key).and_then(|exchange| exchange.steering.as_ref()) {
        steering.edit_response(head);
    }
    if is_observed {
        trace::add_call_trace(cx, exchanges, key, head, None);
    }
    if let Some(daprd) = &cx.config.as_daprd
        && let Some(exchange) = exchanges.get(key)
    {
        as_daprd::complete(daprd, exchange, head);
    }
    start_response(cx, conns, exchanges, key, head, framing);
}

fn on_informational(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    head: &ResponseHead,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.answer.informational = exchange.answer.informational.saturating_add(1);
    if exchange.answer.informational > cx.config.limits.informational {
        let peer = describe(&exchange.destination);
        let reason = "too many informational responses".to_owned();
        let error = Box::new(RequestError::BadResponse { peer, reason });
        return cx.effects.push(Effect::Fail { exchange: key, error });
    }
    let down = exchange.down;
    let Some(conn) = conns.get_mut(down.conn) else { return };
    match &mut conn.role {
        // HTTP/1.0 knows no informational responses.
        Role::Http1Server(server) if server.version == h1::Version::Http11 => {
            let options = h1::ResponseOptions::default();
            h1::write_response(conn.io.out(), head, h1::BodyLength::None, &options);
        }
        Role::Http2Server(link) => {
            // A stream that is gone was reset; an event follows.
            let _ = link.codec.send_response(down.stream, head, None, false, conn.io.out());
        }
        _ => return,
    }
    conns.mark_dirty(down.conn);
}

/// Writes a response's head downstream; the body follows by `feed`.
fn start_response(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    head: &ResponseHead,
    framing: Framing,
) {
    let Framing { size, declared, ended } = framing;
    let draining = cx.draining.is_some();
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let down = exchange.down;
    exchange.answer.has_begun = true;
    exchange.answer.status = head.status;
    if exchange.is_mirrored {
        if ended {
            exchange.response.finished = true;
            exchange.response.ended = true;
            finish::on_response_sent(cx, conns, exchanges, key);
        }
        return;
    }
    let Some(conn) = conns.get_mut(down.conn) else { return };
    match &mut conn.role {
        Role::Http1Server(server) => {
            server.keep_alive &= !draining && !conn.draining && server.body.is_none();
            let options = h1::ResponseOptions {
                connection: if server.keep_alive {
                    h1::Connection::KeepAlive
                } else {
                    h1::Connection::Close
                },
                peer: server.version,
                context: h1::ResponseContext {
                    request_was_head: exchange.is_head,
                    request_was_connect: false,
                },
                declared_length: declared,
            };
            let framing = size.framing(true);
            let sink = h1::write_response(conn.io.out(), head, framing, &options);
            server.keep_alive &= sink != h1::BodyLength::UntilClose;
            server.sink = Some(sink);
        }
        Role::Http2Server(link) => {
            let length = declared.or(size.content_length());
            let out = conn.io.out();
            // A stream that is gone was reset; an event follows.
            let _ = link.codec.send_response(down.stream, head, length, ended, out);
            exchange.response.finished |= ended;
        }
        _ => {}
    }
    conns.mark_dirty(down.conn);
    if exchange.response.finished {
        exchange.response.ended = true;
        finish::on_response_sent(cx, conns, exchanges, key);
    } else if ended {
        body::end_source(cx, conns, exchanges, key, Side::Response, None);
    }
}

/// Answers from here: the head, a body of known length, the end.
pub(crate) fn respond(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    head: &ResponseHead,
    body: &[u8],
) {
    let size = if body.is_empty() { BodySize::None } else { BodySize::Fixed(body.len() as u64) };
    let is_head = exchanges.get(key).is_some_and(|e| e.is_head);
    let declared = is_head.then_some(body.len() as u64);
    let ended = is_head || body.is_empty();
    start_response(cx, conns, exchanges, key, head, Framing { size, declared, ended });
    if !ended {
        body::feed(
            cx,
            conns,
            exchanges,
            key,
            Side::Response,
            Chunk { data: body, credit: 0, end: true },
        );
    }
}
