//! HTTP/2 connections, both sides: the codec's events become calls on exchanges.

use tollway_http::h2::{ErrorCode, Event, StreamId};
use tollway_http::{Method, RequestHead, ResponseHead, h1};
use tollway_routing::Failure;

use super::{Arrival, http1_client};
use crate::as_daprd::AsDaprd;
use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, Http2Link, Role, access_log};
use crate::cx::{Cx, Effect};
use crate::error_response;
use crate::exchange::body::Chunk;
use crate::exchange::respond::Framing;
use crate::exchange::{
    BodySize, Destination, ExchangeKey, Exchanges, Side, StreamRef, UpstreamState, describe,
};
use crate::exchange::{body, fail, finish, outcome, respond};
use crate::headers;
use crate::request_error::RequestError;

/// Reads bytes that came; what they amount to is put into `events`, of which each is to be handled
/// by [`on_event`] before [`after_bytes`] is called with the result.
pub(crate) fn receive(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    data: &[u8],
    events: &mut Vec<Event>,
) -> Received {
    let (clock, now) = (cx.since_start(), cx.now);
    let Some(conn) = conns.get_mut(key) else { return Received::default() };
    let (Role::Http2Server(link) | Role::Http2Client(link)) = &mut conn.role else {
        return Received::default();
    };
    link.received = now;
    let was_silent = link.asked.take().is_some() && std::mem::take(&mut link.is_silent);
    let result = link.codec.receive(data, clock, events, conn.io.out());
    if let Role::Http2Server(link) = &mut conn.role {
        cx.metrics.requests_refused.add(link.codec.take_mistakes());
    }
    conns.mark_dirty(key);
    Received { was_silent, refusal: result.err().map(|error| error.to_string()) }
}

/// What else [`receive`] has found.
#[derive(Default)]
pub(crate) struct Received {
    /// The peer was taken for dead.
    was_silent: bool,
    /// The peer broke a rule, which ends the connection.
    refusal: Option<String>,
}

/// Ends what [`receive`] began.
pub(crate) fn after_bytes(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    received: Received,
) {
    if link(conns, key).is_some_and(|link| link.codec.deadline().is_some()) {
        conns.schedule(cx, key);
    }
    if received.was_silent {
        cx.effects.push(Effect::Revived(key));
    }
    if let Some(reason) = received.refusal {
        refuse_connection(cx, conns, exchanges, key, &reason);
    }
}

/// The peer broke a rule, or did not go on in time, and the codec has sent GOAWAY.
pub(crate) fn refuse_connection(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    reason: &str,
) {
    cx.metrics.requests_refused.add(1);
    if is_server(conns, key) {
        access_log::log_refused_connection(
            cx,
            conns,
            key,
            tollway_model::ErrorCode::MalformedRequest,
        );
    }
    on_over(cx, conns, exchanges, key, reason);
}

fn link(conns: &mut Connections, key: ConnKey) -> Option<&mut Http2Link> {
    match &mut conns.get_mut(key)?.role {
        Role::Http2Server(link) | Role::Http2Client(link) => Some(link),
        _ => None,
    }
}

fn exchange_of(conns: &mut Connections, key: ConnKey, stream: StreamId) -> Option<ExchangeKey> {
    link(conns, key)?.streams.get(&stream.0).copied()
}

fn is_server(conns: &Connections, key: ConnKey) -> bool {
    conns.get(key).is_some_and(|conn| matches!(conn.role, Role::Http2Server(_)))
}

/// What a head says of the body behind it.
struct Declared {
    content_length: Option<u64>,
    /// Nothing follows.
    end: bool,
}

impl Declared {
    fn size(&self) -> BodySize {
        match self.content_length {
            // Servers ask for a length where there could be content.
            Some(0) => BodySize::Fixed(0),
            _ if self.end => BodySize::None,
            Some(length) => BodySize::Fixed(length),
            None => BodySize::Unknown,
        }
    }
}

/// Handles an event of the codec; `input` is what [`receive`] was given. Gives the request that
/// begins, if one does.
pub(crate) fn on_event(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    event: Event,
    input: &[u8],
) -> Option<Arrival> {
    match event {
        Event::Request { stream, head, content_length, end } => {
            let declared = Declared { content_length, end };
            return on_request(cx, conns, key, stream, head, &declared);
        }
        Event::Response { stream, head, content_length, end } => {
            let declared = Declared { content_length, end };
            on_response(cx, conns, exchanges, key, stream, head, declared);
        }
        Event::Data { stream, range, end, credit } => {
            body::release_connection_credit(cx, conns, exchanges, key, credit);
            let Some(exchange) = exchange_of(conns, key, stream) else {
                cx.effects.push(Effect::Capacity(key));
                return None;
            };
            let side = if is_server(conns, key) { Side::Request } else { Side::Response };
            body::feed(
                cx,
                conns,
                exchanges,
                exchange,
                side,
                Chunk { data: &input[range], credit, end },
            );
            if end && side == Side::Response {
                finish::release_upstream(cx, conns, exchanges, exchange);
            }
        }
        Event::Trailers { stream, fields } => {
            let Some(exchange) = exchange_of(conns, key, stream) else {
                cx.effects.push(Effect::Capacity(key));
                return None;
            };
            if is_server(conns, key) {
                body::end_source(cx, conns, exchanges, exchange, Side::Request, Some(fields));
            } else {
                finish::on_response_source_ended(cx, conns, exchanges, exchange, Some(fields));
            }
        }
        Event::Reset { stream, code } => on_reset(cx, conns, exchanges, key, stream, code),
        Event::WindowOpen { stream: None } => body::serve_queue(cx, conns, exchanges, key),
        Event::WindowOpen { stream: Some(stream) } => {
            if let Some(exchange) = exchange_of(conns, key, stream) {
                body::serve_stream(cx, conns, exchanges, key, exchange);
            }
        }
        Event::GoAway { .. } => on_goaway(cx, conns, key),
        Event::SettingsChanged => cx.effects.push(Effect::Capacity(key)),
        Event::Refused { stream } => refuse_stream(cx, conns, key, stream),
        Event::PingAck(payload) => cx.effects.push(Effect::PingAnswered(key, payload)),
    }
    None
}

fn on_request(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    stream: StreamId,
    head: Box<RequestHead>,
    declared: &Declared,
) -> Option<Arrival> {
    let down = StreamRef { conn: key, stream };
    let is_connect = head.method == Method::Connect;
    if let Some(conn) = conns.get_mut(key) {
        conn.since = cx.now;
    }
    let error = if is_connect {
        Some(RequestError::Unsupported {
            method: "CONNECT over HTTP/2",
            reason: "use CONNECT over HTTP/1.1",
        })
    } else {
        // What goes on over HTTP/1.1 must not be read differently there.
        let refusal = h1::check_request_line(&head).err();
        refusal.map(RequestError::refused)
    };
    if let Some(error) = error {
        cx.metrics.requests_refused.add(1);
        answer_error(cx, conns, key, stream, &error, Some(&head));
        return None;
    }
    Some(Arrival { down, head, size: declared.size(), ended: declared.end, is_upgrade: false })
}

fn on_response(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    stream: StreamId,
    mut head: ResponseHead,
    said: Declared,
) {
    let Some(exchange) = exchange_of(conns, key, stream) else { return };
    if headers::is_unprocessed(&head) && ask_another(cx, conns, exchanges, key, exchange) {
        return;
    }
    if cx.config.as_daprd.is_some()
        && let Some(call) = exchanges.get(exchange)
        && let Some(error) = AsDaprd::failure_of_callee(call, &head)
    {
        if let Some(call) = exchanges.get_mut(exchange) {
            call.judge_head(cx, &head, true);
        }
        return fail::fail(cx, conns, exchanges, exchange, &error);
    }
    let is_head = exchanges.get(exchange).is_some_and(|e| e.is_head);
    let is_empty = matches!(head.status, 204 | 304);
    let declared = said.content_length.filter(|_| is_head || head.status == 304);
    // Whole by its head: a body that comes all the same has no meaning, for callers of either
    // version, and the codec ends its stream.
    let is_bodiless = head.status >= 200 && (is_head || is_empty);
    let said = Declared {
        end: said.end || is_bodiless,
        content_length: said.content_length.filter(|_| !is_bodiless),
    };
    if said.end {
        finish::release_upstream(cx, conns, exchanges, exchange);
    }
    let framing = Framing { size: said.size(), declared, ended: said.end };
    respond::on_response(cx, conns, exchanges, exchange, &mut head, framing);
    if let Some(link) = link(conns, key) {
        link.codec.recycle(head.fields);
    }
}

/// The peer's sidecar passed nothing on to its app: other connections are used for a while,
/// and another replica is asked for this request. False when that was tried often enough: the
/// answer is the reason; and of the call of an actor, which was for this one.
fn ask_another(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    exchange: ExchangeKey,
) -> bool {
    let until = cx.now + cx.config.timeouts.dial_backoff;
    if exchanges.get(exchange).is_none_or(|exchange| exchange.is_of_actors) {
        return false;
    }
    let Some(link) = link(conns, key) else { return false };
    // Only sidecars may say so.
    if !matches!(link.destination, Some(Destination::Service(_))) {
        return false;
    }
    link.ejected_until = Some(until);
    fail::ask_another_replica(cx, conns, exchanges, exchange)
}

/// A request whose head is over the limits.
fn refuse_stream(cx: &mut Cx, conns: &mut Connections, key: ConnKey, stream: StreamId) {
    cx.metrics.requests_refused.add(1);
    answer_error(cx, conns, key, stream, &RequestError::HeadTooLarge, None);
}

/// Answers a request that is refused before it becomes an exchange. `head` is its head, if that could
/// be read.
fn answer_error(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    stream: StreamId,
    error: &RequestError,
    asked: Option<&RequestHead>,
) {
    access_log::log_refused_request(cx, conns, key, error, asked);
    let (head, _) = error_response::http_error(error, &cx.config.hop);
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Http2Server(link) = &mut conn.role else { return };
    let out = conn.io.out();
    // Gone means reset; nothing is left to answer.
    if link.codec.send_response(stream, &head, Some(0), true, out).is_ok() {
        link.codec.reset(stream, ErrorCode::NO_ERROR, out);
    }
    conns.mark_dirty(key);
}

fn on_reset(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    stream: StreamId,
    code: ErrorCode,
) {
    let now = cx.now;
    let Some(link) = link(conns, key) else { return };
    let Some(exchange) = link.close(stream, now) else {
        return cx.effects.push(Effect::Capacity(key));
    };
    if is_server(conns, key) {
        return fail::on_caller_gone(cx, conns, exchanges, exchange);
    }
    let Some(state) = exchanges.get_mut(exchange) else { return };
    state.up = UpstreamState::Gone;
    if code == ErrorCode::REFUSED_STREAM {
        outcome::on_attempt_refused(conns, exchanges, exchange);
    } else {
        outcome::on_attempt_broke(cx, conns, exchanges, exchange);
    }
    let Some(state) = exchanges.get(exchange) else { return };
    if state.has_response_begun() {
        cx.metrics.request_failures.add(1);
        fail::abort_down(cx, conns, exchanges, exchange, code);
    } else if code == ErrorCode::REFUSED_STREAM {
        cx.effects.push(Effect::AttemptFailed {
            exchange,
            failure: Failure::Refused,
            cause: "it refused the request".into(),
        });
    } else {
        let peer = describe(&state.destination);
        fail::fail(cx, conns, exchanges, exchange, &RequestError::Reset { peer, reason: code });
    }
    cx.effects.push(Effect::Capacity(key));
}

/// The peer takes no new streams: others do.
fn on_goaway(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    if matches!(conn.role, Role::Http2Client(_)) {
        conn.draining = true;
        conns.schedule(cx, key);
        conns.leave_pool(cx, key, true);
    }
}

/// The connection is over: closed, broken, or refused for what it did.
pub(crate) fn on_over(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    cause: impl Into<Cause>,
) {
    let cause = cause.into();
    let server = is_server(conns, key);
    let Some(link) = link(conns, key) else { return };
    let mut ended: Vec<(u32, ExchangeKey)> = link.streams.drain().collect();
    ended.sort_unstable();
    let has_spoken = link.codec.is_settled();
    // Out of its pool, which dials again: the peer may have been restarted. One that has not spoken may
    // refuse every connection, so another request is waited for.
    conns.leave_pool(cx, key, has_spoken);
    if server {
        for (_, exchange) in ended {
            fail::on_caller_gone(cx, conns, exchanges, exchange);
        }
    } else {
        for (stream, exchange) in ended {
            // The first request may itself be what broke the connection.
            outcome::on_attempt_broke(cx, conns, exchanges, exchange);
            let is_reused = stream > 1;
            let failure = if is_reused { Failure::ReusedConnectionClosed } else { Failure::Broken };
            http1_client::upstream_broke(cx, conns, exchanges, exchange, failure, cause.clone());
        }
    }
    tracing::debug!(reason = cause.reason, server, "HTTP/2 connection over");
    conns.linger(cx, key);
}
