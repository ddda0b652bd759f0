//! HTTP/1.1 downstreams: one exchange at a time; what is pipelined behind it waits unread.

use tollway_http::h1::{self, BodyDecoder, BodyLength, Parsed};
use tollway_http::h2::StreamId;
use tollway_http::{Method, ResponseHead};
use tollway_model::ErrorCode;
use tollway_net::Closed;

use super::Arrival;
use super::h2c;
use super::http1::Next;
use crate::conn::{ConnKey, Connections, Http1Server, Role, access_log};
use crate::cx::Cx;
use crate::error_response;
use crate::exchange::body::Chunk;
use crate::exchange::{BodySize, Exchange, Exchanges, Side, StreamRef};
use crate::exchange::{body, fail};
use crate::request_error::{RequestError, Within};

fn server(conns: &mut Connections, key: ConnKey) -> Option<&mut Http1Server> {
    match &mut conns.get_mut(key)?.role {
        Role::Http1Server(server) => Some(server),
        _ => None,
    }
}

/// One step through the input.
pub(crate) fn step(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    bytes: &[u8],
) -> Next {
    let limits = cx.config.limits.h1;
    let Some(conn) = conns.get_mut(key) else { return Next::Stop };
    let paused = conn.paused;
    let Role::Http1Server(server) = &mut conn.role else { return Next::Stop };
    if bytes.is_empty() || paused {
        return Next::Wait;
    }
    if server.body.is_some() {
        return request_body(cx, conns, exchanges, key, bytes);
    }
    if server.exchange.is_some() {
        return Next::Wait;
    }
    let spare = || exchanges.spare_head();
    match h1::parse_request_into(bytes, &limits, &mut server.scanner, spare) {
        Ok(Parsed::Partial) => {
            if server.input.is_empty() && !server.in_head {
                server.in_head = true;
                conn.since = cx.now;
                conns.schedule(cx, key);
            }
            Next::Wait
        }
        Ok(Parsed::Complete { message, consumed }) => {
            server.in_head = false;
            let has_body = !matches!(message.body, BodyLength::None | BodyLength::Fixed(0));
            if message.offers_h2c && !has_body {
                // It offers nothing else.
                return match h2c::upgrade(cx, conns, key, message) {
                    Ok(arrival) => Next::Http2 { arrival, consumed },
                    Err(request) => begin_request(cx, conns, key, request, consumed, false),
                };
            }
            let may_leave_http = message.upgrade && !has_body;
            if may_leave_http {
                // What follows may belong to another protocol: it waits with the connection.
                server.input = bytes[consumed..].to_vec();
            }
            begin_request(cx, conns, key, message, consumed, may_leave_http)
        }
        Err(h1::Refusal::RequestLine | h1::Refusal::Version) if !names_http(bytes) => {
            cx.metrics.requests_refused.add(1);
            access_log::log_refused_connection(cx, conns, key, ErrorCode::MalformedRequest);
            conns.linger(cx, key);
            Next::Stop
        }
        Err(refusal) => {
            refuse(cx, conns, key, refusal.status(), &refusal.to_string());
            Next::Stop
        }
    }
}

fn request_body(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    bytes: &[u8],
) -> Next {
    let Some(server) = server(conns, key) else { return Next::Stop };
    let exchange = server.exchange;
    let Some(body) = &mut server.body else { return Next::Wait };
    match body.decode(bytes) {
        Ok(step) => {
            let finished = body.is_finished();
            let trailers = body.take_trailers().filter(|t| !t.is_empty());
            if finished {
                server.body = None;
            }
            let data = &bytes[step.data];
            if let Some(exchange) = exchange {
                let ends_here = finished && trailers.is_none();
                if !data.is_empty() || ends_here {
                    body::feed(
                        cx,
                        conns,
                        exchanges,
                        exchange,
                        Side::Request,
                        Chunk { data, credit: 0, end: ends_here },
                    );
                }
                if finished && trailers.is_some() {
                    body::end_source(cx, conns, exchanges, exchange, Side::Request, trailers);
                }
            }
            if step.consumed == 0 && !finished { Next::Wait } else { Next::Again(step.consumed) }
        }
        Err(refusal) => {
            cx.metrics.requests_refused.add(1);
            match exchange {
                Some(exchange) => {
                    fail::fail(cx, conns, exchanges, exchange, &RequestError::refused(refusal))
                }
                None => conns.close(cx, key),
            }
            Next::Stop
        }
    }
}

fn begin_request(
    cx: &Cx,
    conns: &mut Connections,
    key: ConnKey,
    request: h1::Request,
    consumed: usize,
    may_leave_http: bool,
) -> Next {
    let limits = cx.config.limits.h1;
    let Some(conn) = conns.get_mut(key) else { return Next::Stop };
    let Role::Http1Server(server) = &mut conn.role else { return Next::Stop };
    conn.since = cx.now;
    server.version = request.version;
    server.keep_alive = request.keep_alive && !conn.draining;
    server.body = match request.body {
        BodyLength::None | BodyLength::Fixed(0) => None,
        length => Some(BodyDecoder::new(length, &limits)),
    };
    let ended = server.body.is_none();
    let mut head = request.head;
    let is_connect = head.method == Method::Connect;
    let upgrade = head.fields.value(b"upgrade").map(<[u8]>::to_vec);
    h1::strip_hop_by_hop(&mut head.fields);
    let is_upgrade = request.upgrade && !is_connect && ended;
    if is_upgrade && let Some(protocol) = upgrade {
        head.fields.push(b"upgrade", &protocol);
    }
    if is_connect {
        return Next::Connect(head);
    }
    let down = StreamRef { conn: key, stream: StreamId(0) };
    let size = size_of(request.body);
    let arrival = Arrival { down, head, size, ended, is_upgrade };
    Next::Request { arrival, consumed, may_leave_http }
}

/// The bytes are not a request: says why and closes.
pub(crate) fn refuse(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    status: u16,
    reason: &str,
) {
    cx.metrics.requests_refused.add(1);
    let fault = match status {
        431 => RequestError::HeadTooLarge,
        _ => RequestError::BadRequest { status, reason: reason.to_owned() },
    };
    answer_error(cx, conns, key, &fault);
}

/// The head did not end in time.
pub(crate) fn refuse_slow_head(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    cx.metrics.requests_refused.add(1);
    let within = Within(cx.config.timeouts.head);
    answer_error(cx, conns, key, &RequestError::HeadTimedOut { within });
}

/// Says why what came is no exchange, and closes.
pub(crate) fn answer_error(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    fault: &RequestError,
) {
    access_log::log_refused_request(cx, conns, key, fault, None);
    let (head, body) = error_response::http_error(fault, &cx.config.hop);
    answer_and_close(cx, conns, key, &head, &body);
}

fn answer_and_close(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    head: &ResponseHead,
    body: &[u8],
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let options =
        h1::ResponseOptions { connection: h1::Connection::Close, ..h1::ResponseOptions::default() };
    let length = BodyLength::Fixed(body.len() as u64);
    h1::write_response(conn.io.out(), head, length, &options);
    conn.io.out().extend_from_slice(body);
    conns.linger(cx, key);
}

/// The client sends no more. Whether it has gone or still reads is unknown, and hardly any client
/// closes one side alone, while many give up on a response: its request is called off, as over
/// HTTP/2. A response that is whole still goes out, to a client that reads.
pub(crate) fn on_closed(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    how: Closed,
) {
    let Some(server) = server(conns, key) else { return };
    let exchange = server.exchange;
    let is_whole = exchange.and_then(|key| exchanges.get(key)).is_none_or(is_answered);
    if is_whole && how == Closed::Clean {
        return end(cx, conns, key);
    }
    if let Some(exchange) = exchange {
        fail::on_caller_gone(cx, conns, exchanges, exchange);
    }
    conns.close(cx, key);
}

/// Nothing more is taken from a client; what it is owed goes out.
fn end(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    let owes = conn.io.pending() > 0;
    let Role::Http1Server(server) = &mut conn.role else { return };
    server.keep_alive = false;
    match server.exchange {
        // Its end lets the connection go.
        Some(_) => {}
        None if owes => conns.linger(cx, key),
        None => conns.close(cx, key),
    }
}

/// Whether the upstream has answered in full and only the client has to take it.
fn is_answered(exchange: &Exchange) -> bool {
    exchange.has_response_begun() && exchange.response.ended
}

/// Whether the first line speaks of HTTP at all. What does not (a spoilt HTTP/2 preface, say) is
/// not answered in HTTP/1.1, which its sender would not understand.
fn names_http(input: &[u8]) -> bool {
    let input = input.strip_prefix(b"\r\n").unwrap_or(input);
    let line = input.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.windows(b"HTTP/".len()).any(|window| window == b"HTTP/")
}

/// What a parsed framing says of the length.
pub(super) fn size_of(length: BodyLength) -> BodySize {
    match length {
        BodyLength::None => BodySize::None,
        BodyLength::Fixed(length) => BodySize::Fixed(length),
        BodyLength::Chunked | BodyLength::UntilClose => BodySize::Unknown,
    }
}
