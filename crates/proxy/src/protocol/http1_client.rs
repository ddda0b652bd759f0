//! HTTP/1.1 upstreams: the app, the sidecar's own API, connections about to leave HTTP, and other
//! sidecars where mesh connections are pooled.

use tollway_http::h1::{self, BodyDecoder, BodyLength, Parsed, ResponseContext};
use tollway_net::Closed;
use tollway_routing::Failure;

use super::http1::Next;
use super::http1_server::size_of;
use super::relay;
use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, Http1Client, Role};
use crate::cx::{Cx, Effect, EjectedReplica};
use crate::exchange::body::Chunk;
use crate::exchange::respond::Framing;
use crate::exchange::{BodySize, Destination, ExchangeKey, Exchanges, Side};
use crate::exchange::{body, fail, finish, outcome, respond};
use crate::headers;

fn client(conns: &mut Connections, key: ConnKey) -> Option<&mut Http1Client> {
    match &mut conns.get_mut(key)?.role {
        Role::Http1Client(client) => Some(client),
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
    let Role::Http1Client(client) = &mut conn.role else { return Next::Stop };
    if bytes.is_empty() || paused {
        return Next::Wait;
    }
    let Some(exchange) = client.exchange else {
        // No request waits here: these bytes must not become the response to the next one.
        conns.close(cx, key);
        return Next::Stop;
    };
    if client.body.is_some() {
        return response_body(cx, conns, exchanges, key, exchange, bytes);
    }
    client.answered = true;
    let method = exchanges.get(exchange).map(|e| &e.head.method);
    let context = method.map(ResponseContext::of).unwrap_or_default();
    match h1::parse_response(bytes, context, &limits, &mut client.scanner) {
        Ok(Parsed::Partial) => Next::Wait,
        Ok(Parsed::Complete { message, consumed }) => {
            begin_response(cx, conns, exchanges, key, message, bytes, consumed)
        }
        Err(refusal) => {
            on_malformed(cx, conns, exchanges, key, exchange, &refusal.to_string());
            Next::Stop
        }
    }
}

fn begin_response(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    mut response: h1::Response,
    bytes: &[u8],
    consumed: usize,
) -> Next {
    let Some(exchange) = client(conns, key).and_then(|client| client.exchange) else {
        return Next::Stop;
    };
    let limits = cx.config.limits.h1;
    if response.head.status == 101 || response.upgrade {
        return upgraded(cx, conns, exchanges, key, exchange, response, &bytes[consumed..]);
    }
    let informational = response.head.status < 200;
    if headers::is_unprocessed(&response.head)
        && ask_another_way(cx, conns, exchanges, key, exchange)
    {
        return Next::Stop;
    }
    let Some(client) = client(conns, key) else { return Next::Stop };
    if informational {
        let framing = Framing { size: BodySize::None, declared: None, ended: false };
        respond::on_response(cx, conns, exchanges, exchange, &mut response.head, framing);
        return Next::Again(consumed);
    }
    client.keep_alive = response.keep_alive;
    client.body = match response.body {
        BodyLength::None | BodyLength::Fixed(0) => None,
        length => Some(BodyDecoder::of_response(length, &limits)),
    };
    let ended = client.body.is_none();
    if ended {
        client.keep_alive &= consumed == bytes.len();
    }
    let (size, declared) = (size_of(response.body), response.declared_length);
    if ended {
        finish::release_upstream(cx, conns, exchanges, exchange);
    }
    let framing = Framing { size, declared, ended };
    respond::on_response(cx, conns, exchanges, exchange, &mut response.head, framing);
    if ended { Next::Stop } else { Next::Again(consumed) }
}

/// The peer's sidecar passed nothing on to its app: nothing leads there for a while, and another
/// replica is asked. False when that was tried often enough: the answer is the reason.
fn ask_another_way(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    exchange: ExchangeKey,
) -> bool {
    let Some(conn) = conns.get(key) else { return false };
    let Some(destination @ Destination::Service(_)) = conn.destination().cloned() else {
        return false;
    };
    let (address, instance) = (conn.remote, conn.instance().cloned());
    let replica = EjectedReplica { destination, address, instance };
    cx.effects.push(Effect::EjectReplica(Box::new(replica)));
    fail::ask_another_replica(cx, conns, exchanges, exchange)
}

fn response_body(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    exchange: ExchangeKey,
    bytes: &[u8],
) -> Next {
    let Some(client) = client(conns, key) else { return Next::Stop };
    let Some(body) = &mut client.body else { return Next::Wait };
    match body.decode(bytes) {
        Ok(step) => {
            let finished = body.is_finished();
            let trailers = body.take_trailers().filter(|t| !t.is_empty());
            if finished {
                client.body = None;
                // Bytes behind the response belong to no exchange.
                client.keep_alive &= step.consumed == bytes.len();
                finish::release_upstream(cx, conns, exchanges, exchange);
            }
            let data = &bytes[step.data];
            let ends_here = finished && trailers.is_none();
            if !data.is_empty() || ends_here {
                body::feed(
                    cx,
                    conns,
                    exchanges,
                    exchange,
                    Side::Response,
                    Chunk { data, credit: 0, end: ends_here },
                );
            }
            if finished && trailers.is_some() {
                body::end_source(cx, conns, exchanges, exchange, Side::Response, trailers);
            }
            match (finished, step.consumed) {
                (true, _) => Next::Stop,
                (false, 0) => Next::Wait,
                (false, consumed) => Next::Again(consumed),
            }
        }
        Err(refusal) => {
            on_malformed(cx, conns, exchanges, key, exchange, &refusal.to_string());
            Next::Stop
        }
    }
}

fn upgraded(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    exchange: ExchangeKey,
    response: h1::Response,
    rest: &[u8],
) -> Next {
    if exchanges.get(exchange).is_some_and(|e| e.is_upgrade) {
        relay::leave_http(cx, conns, exchanges, key, exchange, &response.head, rest);
    } else {
        on_malformed(
            cx,
            conns,
            exchanges,
            key,
            exchange,
            "101 to a request that asked for no upgrade",
        );
    }
    Next::Stop
}

fn on_malformed(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    exchange: ExchangeKey,
    reason: &str,
) {
    outcome::on_attempt_broke(cx, conns, exchanges, exchange);
    detach(cx, conns, key);
    upstream_broke(cx, conns, exchanges, exchange, Failure::Malformed, reason);
}

/// Takes a connection from its exchange and drops it.
fn detach(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    if let Some(client) = client(conns, key) {
        client.exchange = None;
    }
    conns.close(cx, key);
}

/// The upstream half broke: another attempt or an answer if nothing was answered yet, else
/// the answer is broken off.
pub(crate) fn upstream_broke(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    exchange: ExchangeKey,
    failure: Failure,
    cause: impl Into<Cause>,
) {
    let Some(state) = exchanges.get_mut(exchange) else { return };
    state.up = crate::exchange::UpstreamState::Gone;
    if state.has_response_begun() {
        cx.metrics.request_failures.add(1);
        fail::abort_down(
            cx,
            conns,
            exchanges,
            exchange,
            tollway_http::h2::ErrorCode::INTERNAL_ERROR,
        );
    } else {
        cx.effects.push(Effect::AttemptFailed { exchange, failure, cause: cause.into() });
    }
}

/// The upstream closed: the end of a body, a broken exchange, or an idle connection less.
pub(crate) fn on_closed(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    how: Closed,
) {
    let Some(client) = client(conns, key) else { return };
    let Some(exchange) = client.exchange else { return conns.close(cx, key) };
    let reused = client.served > 0 && !client.answered;
    let ended_by_close =
        how == Closed::Clean && client.body.as_mut().is_some_and(|body| body.close().is_ok());
    client.keep_alive = false;
    if ended_by_close {
        client.body = None;
        finish::release_upstream(cx, conns, exchanges, exchange);
        return body::end_source(cx, conns, exchanges, exchange, Side::Response, None);
    }
    let failure = if reused { Failure::ReusedConnectionClosed } else { Failure::Broken };
    outcome::on_attempt_broke(cx, conns, exchanges, exchange);
    detach(cx, conns, key);
    upstream_broke(cx, conns, exchanges, exchange, failure, "it closed the connection");
}
