//! The request goes out on a connection: its head, and what has come of its body.

use crate::conn::{ConnKey, Connections, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::{
    Destination, Exchange, ExchangeKey, Exchanges, Side, StreamRef, UpstreamState, body, fail,
    finish, timeouts,
};
use crate::headers;
use crate::inbound::AppQueue;
use crate::request_error::{RequestError, Within};
use tollway_http::h2::StreamId;
use tollway_http::{Method, h1};
use tollway_routing::Failure;

/// Sends the request on an open connection.
pub(crate) fn send(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    app_queue: &mut AppQueue,
    key: ExchangeKey,
    conn_key: ConnKey,
) {
    let now = cx.now;
    let Some(exchange) = exchanges.get_mut(key) else { return };
    if let Some(deadline) = exchange.deadline {
        if now >= deadline {
            return timeouts::end_expired(cx, conns, exchanges, key);
        }
        // The time that it has waited here is not left for the next hop. One of gRPC has its field yet.
        if now > exchange.started || !exchange.is_grpc {
            let fields = &mut exchange.head.fields;
            headers::set_time_left(fields, exchange.is_grpc, deadline - now);
        }
    }
    if exchange.attempts == 0
        && (exchange.destination.is_app() || exchange.destination == Destination::Callback)
        && let Some(waited) = app_queue.sheds(exchange.started, now)
    {
        cx.metrics.requests_shed.add(1);
        let error = RequestError::Shed { waited: Within(waited) };
        return fail::fail(cx, conns, exchanges, key, &error);
    }
    if exchange.turn.is_some_and(|turn| turn.is_over(app_queue.lease(), (cx.clocks.boot)())) {
        return fail::fail(cx, conns, exchanges, key, &RequestError::TooLate);
    }
    let Some(conn) = conns.get_mut(conn_key) else { return };
    exchange.is_begun = false;
    conn.note_turn(key, exchange.turn);
    exchange.attempts += 1;
    exchange.begin_attempt(conn_key, conn, now);
    let mut ended = exchange.request.is_drained() && exchange.request.trailers.is_none();
    match &mut conn.role {
        Role::Http2Client(link) => {
            let length = exchange.request_size.content_length();
            let opened = link.codec.send_request(&exchange.head, length, ended, conn.io.out());
            let Ok(stream) = opened else { return report_unsendable(cx, key) };
            link.streams.insert(stream.0, key);
            if exchange.is_bulk {
                link.begin_bulk(stream);
            }
            exchange.up = UpstreamState::Open(StreamRef { conn: conn_key, stream });
        }
        Role::Http1Client(client) => {
            let upgrade = exchange.head.fields.value(b"upgrade");
            let connection = match upgrade.filter(|_| exchange.is_upgrade) {
                Some(protocol) => h1::Connection::Upgrade(protocol),
                None => h1::Connection::KeepAlive,
            };
            let options = h1::RequestOptions { connection, ..h1::RequestOptions::default() };
            let framing = request_framing(exchange);
            client.sink = h1::write_request(conn.io.out(), &exchange.head, framing, &options);
            // Chunks have an end of their own, also where there are none.
            ended &= client.sink != h1::BodyLength::Chunked;
            client.exchange = Some(key);
            client.answered = false;
            exchange.up = UpstreamState::Open(StreamRef { conn: conn_key, stream: StreamId(0) });
        }
        _ => return report_unsendable(cx, key),
    }
    if let Some(observed) = &mut exchange.observed {
        if exchange.destination.is_of_mesh() {
            observed.record_peer(conn);
        }
        observed.send(conn, exchange.started);
    }
    exchange.active = cx.now;
    exchange.request.finished = ended;
    conns.mark_dirty(conn_key);
    let is_steered = exchange.steering.is_some();
    if !ended {
        body::move_waiting(cx, conns, exchanges, key, Side::Request, usize::MAX);
    } else if is_steered {
        finish::begin_answer(cx, exchanges, key);
    }
}

/// How a request's body goes over HTTP/1.1. Where its method expects content, that there is none is
/// written (RFC 9110 section 8.6): over HTTP/2 the end of the stream shows it, and servers answer a
/// POST without length with 411.
fn request_framing(exchange: &Exchange) -> h1::BodyLength {
    let method = &exchange.head.method;
    match exchange.request_size.framing(true) {
        h1::BodyLength::None
            if !exchange.is_upgrade
                && matches!(method, Method::Post | Method::Put | Method::Patch) =>
        {
            h1::BodyLength::Fixed(0)
        }
        framing => framing,
    }
}

/// The chosen connection turned out to take no request.
fn report_unsendable(cx: &mut Cx, key: ExchangeKey) {
    cx.effects.push(Effect::AttemptFailed {
        exchange: key,
        failure: Failure::NotConnected,
        cause: "no connection takes requests".into(),
    });
}
