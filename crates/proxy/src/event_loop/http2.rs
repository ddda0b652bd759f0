//! HTTP/2 connections, both sides: the codec's events become calls on exchanges.

use tollway_http::h2::{ErrorCode, Event, StreamId};
use tollway_http::{Fields, Method, RequestHead, ResponseHead, h1};
use tollway_net::Key;
use tollway_routing::Failure;

use super::EventLoop;
use super::request::Arrival;
use crate::cause::Cause;
use crate::connection::{Http2Link, Role};
use crate::exchange::{BodySize, Destination, Side, StreamRef, Upstream};
use crate::headers;
use crate::request_error::RequestError;

impl EventLoop {
    pub(super) fn on_h2_bytes(&mut self, key: Key, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let clock = self.clock();
        let mut events = std::mem::take(&mut self.h2_events);
        let Some(conn) = self.conns.get_mut(key) else { return };
        let (Role::Http2Server(link) | Role::Http2Client(link)) = &mut conn.role else { return };
        link.heard = self.now;
        let was_silent = link.asked.take().is_some() && std::mem::take(&mut link.is_silent);
        let result = link.codec.receive(data, clock, &mut events, conn.io.out());
        if let Role::Http2Server(link) = &mut conn.role {
            self.metrics.requests_refused.add(link.codec.take_mistakes());
        }
        self.mark_dirty(key);
        for event in events.drain(..) {
            self.on_h2_event(key, event, data);
        }
        self.h2_events = events;
        self.look_if_owed(key);
        if was_silent {
            self.on_link_revived(key);
        }
        if let Err(error) = result {
            self.refuse_h2_connection(key, &error.to_string());
        }
    }

    /// The peer broke a rule, or did not go on in time, and the codec has told it so.
    pub(super) fn refuse_h2_connection(&mut self, key: Key, reason: &str) {
        self.metrics.requests_refused.add(1);
        if self.is_server(key) {
            self.tell_refused_connection(key, tollway_model::ErrorCode::MalformedRequest);
        }
        self.on_h2_over(key, reason);
    }

    fn link(&mut self, key: Key) -> Option<&mut Http2Link> {
        match &mut self.conns.get_mut(key)?.role {
            Role::Http2Server(link) | Role::Http2Client(link) => Some(link),
            _ => None,
        }
    }

    /// The next heads of a connection use the memory of this one.
    pub(super) fn recycle(&mut self, key: Key, fields: Fields) {
        if let Some(link) = self.link(key) {
            link.codec.recycle(fields);
        }
    }

    fn exchange_of(&mut self, key: Key, stream: StreamId) -> Option<Key> {
        self.link(key)?.streams.get(&stream.0).copied()
    }

    fn is_server(&self, key: Key) -> bool {
        self.conns.get(key).is_some_and(|conn| matches!(conn.role, Role::Http2Server(_)))
    }

    fn on_h2_event(&mut self, key: Key, event: Event, input: &[u8]) {
        match event {
            Event::Request { stream, head, content_length, end } => {
                self.on_h2_request(key, stream, head, content_length, end);
            }
            Event::Response { stream, head, content_length, end } => {
                self.on_h2_response(key, stream, head, content_length, end);
            }
            Event::Data { stream, range, end, credit } => {
                self.repay_connection(key, credit);
                let Some(exchange) = self.exchange_of(key, stream) else {
                    return self.on_capacity(key);
                };
                let side = if self.is_server(key) { Side::Request } else { Side::Response };
                self.feed(exchange, side, &input[range], credit, end);
                if end && side == Side::Response {
                    self.release_upstream(exchange);
                }
            }
            Event::Trailers { stream, fields } => {
                let Some(exchange) = self.exchange_of(key, stream) else {
                    return self.on_capacity(key);
                };
                if self.is_server(key) {
                    self.end_source(exchange, Side::Request, Some(fields));
                } else {
                    self.on_response_source_ended(exchange, Some(fields));
                }
            }
            Event::Reset { stream, code } => self.on_h2_reset(key, stream, code),
            Event::WindowOpen { stream: None } => self.serve_line(key),
            Event::WindowOpen { stream: Some(stream) } => {
                if let Some(exchange) = self.exchange_of(key, stream) {
                    self.serve_stream(key, exchange);
                }
            }
            Event::GoAway { .. } => self.on_h2_goaway(key),
            Event::SettingsChanged => self.on_capacity(key),
            Event::Refused { stream } => self.refuse_h2(key, stream),
            Event::PingAck(payload) => self.on_ping_answered(key, payload),
        }
    }

    fn on_h2_request(
        &mut self,
        key: Key,
        stream: StreamId,
        head: RequestHead,
        content_length: Option<u64>,
        end: bool,
    ) {
        let size = match content_length {
            _ if end => BodySize::None,
            Some(length) => BodySize::Fixed(length),
            None => BodySize::Unknown,
        };
        let down = StreamRef { conn: key, stream };
        let is_connect = head.method == Method::Connect;
        if let Some(conn) = self.conns.get_mut(key) {
            conn.since = self.now;
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
            self.metrics.requests_refused.add(1);
            return self.answer_http2_error(key, stream, &error, Some(&head));
        }
        self.on_request(Arrival { down, head, size, ended: end, is_upgrade: false });
    }

    fn on_h2_response(
        &mut self,
        key: Key,
        stream: StreamId,
        mut head: ResponseHead,
        content_length: Option<u64>,
        end: bool,
    ) {
        let Some(exchange) = self.exchange_of(key, stream) else { return };
        if headers::is_unprocessed(&head) && self.ask_another(key, exchange) {
            return;
        }
        let is_head = self.exchanges.get(exchange).is_some_and(|e| e.is_head);
        let is_empty = matches!(head.status, 204 | 304);
        let declared = content_length.filter(|_| is_head || head.status == 304);
        // Whole by its head: a body that comes all the same has no meaning, for callers of either
        // version, and the codec ends its stream.
        let end = end || (head.status >= 200 && (is_head || is_empty));
        let size = match content_length {
            _ if end => BodySize::None,
            Some(length) => BodySize::Fixed(length),
            None => BodySize::Unknown,
        };
        if end {
            self.release_upstream(exchange);
        }
        self.on_response(exchange, &mut head, size, declared, end);
        self.recycle(key, head.fields);
    }

    /// The peer's sidecar passed nothing on to its app: other connections are used for a while,
    /// and another replica is asked for this request. False when that was tried often enough: the
    /// answer is the reason; and of the call of an actor, which was for this one.
    fn ask_another(&mut self, key: Key, exchange: Key) -> bool {
        let until = self.now + self.config.timeouts.dial_backoff;
        if self.exchanges.get(exchange).is_none_or(|exchange| exchange.is_of_actors) {
            return false;
        }
        let Some(link) = self.link(key) else { return false };
        // Only sidecars may say so.
        if !matches!(link.destination, Some(Destination::Service(_))) {
            return false;
        }
        link.rests_until = Some(until);
        self.ask_another_replica(exchange)
    }

    /// A request whose head is over the limits.
    fn refuse_h2(&mut self, key: Key, stream: StreamId) {
        self.metrics.requests_refused.add(1);
        self.answer_http2_error(key, stream, &RequestError::HeadTooLarge, None);
    }

    /// Says cause a request is no exchange; its head is there if it could be read.
    fn answer_http2_error(
        &mut self,
        key: Key,
        stream: StreamId,
        error: &RequestError,
        asked: Option<&RequestHead>,
    ) {
        self.tell_refused(key, error, asked);
        let (head, _) = crate::respond::http_error(error, &self.hop());
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http2Server(link) = &mut conn.role else { return };
        let out = conn.io.out();
        // Gone means reset; nothing is left to answer.
        if link.codec.send_response(stream, &head, Some(0), true, out).is_ok() {
            link.codec.reset(stream, ErrorCode::NO_ERROR, out);
        }
        self.mark_dirty(key);
    }

    fn on_h2_reset(&mut self, key: Key, stream: StreamId, code: ErrorCode) {
        let now = self.now;
        let Some(link) = self.link(key) else { return };
        let Some(exchange) = link.close(stream, now) else { return self.on_capacity(key) };
        if self.is_server(key) {
            return self.on_down_gone(exchange);
        }
        let Some(state) = self.exchanges.get_mut(exchange) else { return };
        state.up = Upstream::Gone;
        if state.responding {
            self.metrics.faults.add(1);
            self.abort_down(exchange, code);
        } else if code == ErrorCode::REFUSED_STREAM {
            self.on_attempt_failed(exchange, Failure::Refused, "it refused the request");
        } else {
            let peer = super::finish::describe(&state.destination);
            self.fail(exchange, &RequestError::Reset { peer, reason: code });
        }
        self.on_capacity(key);
    }

    /// The peer takes no new streams: others do.
    fn on_h2_goaway(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if matches!(conn.role, Role::Http2Client(_)) {
            conn.draining = true;
            self.look_in_time(key);
            self.on_link_draining(key);
        }
    }

    /// The connection is over: closed, broken, or refused for what it did.
    pub(super) fn on_h2_over(&mut self, key: Key, cause: impl Into<Cause>) {
        let cause = cause.into();
        let server = self.is_server(key);
        let Some(link) = self.link(key) else { return };
        let mut exchanges: Vec<(u32, Key)> = link.streams.drain().collect();
        exchanges.sort_unstable();
        // Out of its pool, which dials anew: the peer may have been started again at its place.
        self.on_link_draining(key);
        if server {
            for (_, exchange) in exchanges {
                self.on_down_gone(exchange);
            }
        } else {
            for (stream, exchange) in exchanges {
                // Of the first nobody knows that it is not what broke it.
                let is_reused = stream > 1;
                let failure =
                    if is_reused { Failure::ReusedConnectionClosed } else { Failure::Broken };
                self.upstream_broke(exchange, failure, cause.clone());
            }
        }
        tracing::debug!(reason = cause.reason, server, "HTTP/2 connection over");
        self.linger(key);
    }
}
