//! HTTP/1.1 upstreams: the app, the sidecar's own API, connections about to leave HTTP, and other
//! sidecars where mesh connections are pooled.

use tollway_http::h1::{self, BodyDecoder, BodyLength, Parsed, ResponseContext};
use tollway_model::ServiceState;
use tollway_net::{Closed, Key};
use tollway_routing::Failure;

use super::EventLoop;
use super::http1_server::{behind, size_of};
use crate::cause::Cause;
use crate::connection::{Http1Client, Role};
use crate::exchange::{Destination, Side};
use crate::headers;

enum Next {
    Again(usize),
    Wait,
    Gone,
}

impl EventLoop {
    pub(super) fn on_h1_client_bytes(&mut self, key: Key, data: &[u8]) {
        let Some(client) = self.h1_client(key) else { return };
        let mut kept = std::mem::take(&mut client.input);
        let bytes = behind(&mut kept, data);
        let mut at = 0;
        loop {
            match self.h1_client_step(key, &bytes[at..]) {
                Next::Again(consumed) => at += consumed,
                Next::Wait => break,
                Next::Gone => return,
            }
        }
        if let Some(client) = self.h1_client(key) {
            client.input.extend_from_slice(&bytes[at..]);
        }
    }

    fn h1_client(&mut self, key: Key) -> Option<&mut Http1Client> {
        match &mut self.conns.get_mut(key)?.role {
            Role::Http1Client(client) => Some(client),
            _ => None,
        }
    }

    fn h1_client_step(&mut self, key: Key, bytes: &[u8]) -> Next {
        let limits = self.config.limits.h1;
        let Some(conn) = self.conns.get_mut(key) else { return Next::Gone };
        let paused = conn.paused;
        let Role::Http1Client(client) = &mut conn.role else { return Next::Gone };
        if bytes.is_empty() || paused {
            return Next::Wait;
        }
        let Some(exchange) = client.exchange else {
            // Nobody asked: whatever this is, it must not become the next response.
            self.drop_h1_client(key);
            return Next::Gone;
        };
        if client.body.is_some() {
            return self.h1_response_body(key, exchange, bytes);
        }
        client.answered = true;
        let method = self.exchanges.get(exchange).map(|e| &e.head.method);
        let context = method.map(ResponseContext::of).unwrap_or_default();
        match h1::parse_response(bytes, context, &limits, &mut client.scanner) {
            Ok(Parsed::Partial) => Next::Wait,
            Ok(Parsed::Complete { message, consumed }) => {
                self.begin_h1_response(key, exchange, message, bytes, consumed)
            }
            Err(refusal) => {
                self.on_h1_malformed(key, exchange, &refusal.to_string());
                Next::Gone
            }
        }
    }

    fn begin_h1_response(
        &mut self,
        key: Key,
        exchange: Key,
        mut response: h1::Response,
        bytes: &[u8],
        consumed: usize,
    ) -> Next {
        let limits = self.config.limits.h1;
        if response.head.status == 101 || response.upgrade {
            return self.h1_upgraded(key, exchange, response, &bytes[consumed..]);
        }
        let informational = response.head.status < 200;
        if headers::is_unprocessed(&response.head) && self.ask_another_way(key, exchange) {
            return Next::Gone;
        }
        let Some(client) = self.h1_client(key) else { return Next::Gone };
        if informational {
            let size = crate::exchange::BodySize::None;
            self.on_response(exchange, &mut response.head, size, None, false);
            return Next::Again(consumed);
        }
        client.keep_alive = response.keep_alive;
        client.body = match response.body {
            BodyLength::None | BodyLength::Fixed(0) => None,
            length => Some(BodyDecoder::new(length, &limits)),
        };
        let ended = client.body.is_none();
        if ended {
            client.keep_alive &= consumed == bytes.len();
        }
        let (size, declared) = (size_of(response.body), response.declared_length);
        if ended {
            self.release_upstream(exchange);
        }
        self.on_response(exchange, &mut response.head, size, declared, ended);
        if ended { Next::Gone } else { Next::Again(consumed) }
    }

    /// The peer's sidecar passed nothing on to its app: nothing leads there for a while, and another
    /// replica is asked. False when that was tried often enough: the answer is the reason.
    fn ask_another_way(&mut self, key: Key, exchange: Key) -> bool {
        let Some(client) = self.h1_client(key) else { return false };
        let destination = client.destination.clone();
        if !matches!(destination, Destination::Service(_)) {
            return false;
        }
        self.leave_replica(key, &destination);
        self.ask_another_replica(exchange)
    }

    /// Drops the idle connections to the replica that this one leads to. Its address rests, unless
    /// it is a gateway's, behind which there may be others.
    fn leave_replica(&mut self, key: Key, destination: &Destination) {
        let Some(pool) = self.pools.get(destination) else { return };
        let is_local = matches!(pool.state, Some(ServiceState::Local { .. }));
        let leads_there = |other: &&Key| self.instance(**other) == self.instance(key);
        let idle: Vec<Key> = pool.idle.iter().filter(leads_there).copied().collect();
        if is_local {
            let address = self.conns.get(key).and_then(|conn| conn.remote);
            self.rest(destination, address, self.now + self.config.timeouts.dial_backoff);
        }
        for other in idle {
            self.drop_h1_client(other);
        }
    }

    fn h1_response_body(&mut self, key: Key, exchange: Key, bytes: &[u8]) -> Next {
        let Some(client) = self.h1_client(key) else { return Next::Gone };
        let Some(body) = &mut client.body else { return Next::Wait };
        match body.decode(bytes) {
            Ok(step) => {
                let finished = body.is_finished();
                let trailers = body.take_trailers().filter(|t| !t.is_empty());
                if finished {
                    client.body = None;
                    // Bytes behind the response belong to nobody.
                    client.keep_alive &= step.consumed == bytes.len();
                    self.release_upstream(exchange);
                }
                let data = &bytes[step.data];
                let ends_here = finished && trailers.is_none();
                if !data.is_empty() || ends_here {
                    self.feed(exchange, Side::Response, data, 0, ends_here);
                }
                if finished && trailers.is_some() {
                    self.end_source(exchange, Side::Response, trailers);
                }
                match (finished, step.consumed) {
                    (true, _) => Next::Gone,
                    (false, 0) => Next::Wait,
                    (false, consumed) => Next::Again(consumed),
                }
            }
            Err(refusal) => {
                self.on_h1_malformed(key, exchange, &refusal.to_string());
                Next::Gone
            }
        }
    }

    fn h1_upgraded(
        &mut self,
        key: Key,
        exchange: Key,
        response: h1::Response,
        rest: &[u8],
    ) -> Next {
        if self.exchanges.get(exchange).is_some_and(|e| e.is_upgrade) {
            self.leave_http(key, exchange, &response.head, rest);
        } else {
            self.on_h1_malformed(key, exchange, "101 to a request that asked for no upgrade");
        }
        Next::Gone
    }

    fn on_h1_malformed(&mut self, key: Key, exchange: Key, reason: &str) {
        self.h1_client_detach(key);
        self.upstream_broke(exchange, Failure::Malformed, reason);
    }

    /// Takes a connection from its exchange and drops it.
    fn h1_client_detach(&mut self, key: Key) {
        if let Some(client) = self.h1_client(key) {
            client.exchange = None;
        }
        self.drop_h1_client(key);
    }

    /// The upstream half broke: another attempt or an answer if nothing was answered yet, else
    /// the answer is broken off.
    pub(super) fn upstream_broke(
        &mut self,
        exchange: Key,
        failure: Failure,
        cause: impl Into<Cause>,
    ) {
        let Some(state) = self.exchanges.get_mut(exchange) else { return };
        state.up = crate::exchange::Upstream::Gone;
        if state.responding {
            self.metrics.faults.add(1);
            self.abort_down(exchange, tollway_http::h2::ErrorCode::INTERNAL_ERROR);
        } else {
            self.on_attempt_failed(exchange, failure, cause);
        }
    }

    /// The upstream closed: the end of a body, a broken exchange, or an idle connection less.
    pub(super) fn on_h1_client_closed(&mut self, key: Key, how: Closed) {
        let Some(client) = self.h1_client(key) else { return };
        let Some(exchange) = client.exchange else { return self.drop_h1_client(key) };
        let reused = client.served > 0 && !client.answered;
        let ended_by_close =
            how == Closed::Clean && client.body.as_mut().is_some_and(|body| body.close().is_ok());
        client.keep_alive = false;
        if ended_by_close {
            client.body = None;
            self.release_upstream(exchange);
            return self.end_source(exchange, Side::Response, None);
        }
        let failure = if reused { Failure::ReusedConnectionClosed } else { Failure::Broken };
        self.h1_client_detach(key);
        self.upstream_broke(exchange, failure, "it closed the connection");
    }
}
