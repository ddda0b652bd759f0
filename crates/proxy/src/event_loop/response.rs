//! Responses: from an upstream, or made here, to the downstream.

use tollway_http::{ResponseHead, h1};
use tollway_net::Key;

use super::finish::describe;
use super::{EventLoop, mark};
use crate::connection::Role;
use crate::exchange::{BodySize, Side};
use crate::headers::{self, ResponseOrigin};
use crate::observe::grpc_status;
use crate::request_error::RequestError;

impl EventLoop {
    /// A response's head came from upstream.
    pub(super) fn on_response(
        &mut self,
        key: Key,
        head: &mut ResponseHead,
        size: BodySize,
        declared: Option<u64>,
        ended: bool,
    ) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.active = self.now;
        let origin = ResponseOrigin::of(exchange);
        if head.status < 200 {
            if let Some(observed) = &mut exchange.observed {
                observed.grpc_status = grpc_status(&head.fields);
            }
            headers::response(head, origin);
            return self.on_informational(key, head);
        }
        self.spare_bodies.keep(exchange.replay.take());
        if exchange.place.is_some() && (head.status >= 400 || exchange.is_grpc) {
            // Another hop of the mesh may speak for the service.
            exchange.failed = head.fields.value(headers::ERROR).is_some();
        }
        let is_counted = exchange.place.is_some() || self.config.dapr_metrics.is_some();
        if exchange.is_grpc && is_counted {
            exchange.grpc_status = grpc_status(&head.fields);
        }
        let is_observed = exchange.observed.is_some();
        if is_observed {
            self.hear_of_way(key, head);
        }
        headers::response(head, origin);
        if is_observed {
            self.tell_way(key, head, None);
        }
        self.start_response(key, head, size, declared, ended);
    }

    fn on_informational(&mut self, key: Key, head: &ResponseHead) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.informational = exchange.informational.saturating_add(1);
        if exchange.informational > self.config.limits.informational {
            let peer = describe(&exchange.destination);
            let reason = "too many informational responses".to_owned();
            return self.fail(key, &RequestError::BadResponse { peer, reason });
        }
        let down = exchange.down;
        let Some(conn) = self.conns.get_mut(down.conn) else { return };
        match &mut conn.role {
            // HTTP/1.0 knows no informational responses.
            Role::Http1Server(server) if server.version == h1::Version::Http11 => {
                let options = h1::ResponseOptions::default();
                h1::write_response(conn.io.out(), head, h1::BodyLength::None, &options);
            }
            Role::Http2Server(link) => {
                // Gone means reset; an event tells.
                let _ = link.codec.send_response(down.stream, head, None, false, conn.io.out());
            }
            _ => return,
        }
        mark(&mut self.dirty, &mut conn.dirty, down.conn);
    }

    /// Writes a response's head downstream; the body follows by `feed`.
    fn start_response(
        &mut self,
        key: Key,
        head: &ResponseHead,
        size: BodySize,
        declared: Option<u64>,
        ended: bool,
    ) {
        let draining = self.draining.is_some();
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let down = exchange.down;
        let Some(conn) = self.conns.get_mut(down.conn) else { return };
        exchange.responding = true;
        exchange.status = head.status;
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
                // Gone means reset; an event tells.
                let _ = link.codec.send_response(down.stream, head, length, ended, out);
                exchange.response.finished |= ended;
            }
            _ => {}
        }
        mark(&mut self.dirty, &mut conn.dirty, down.conn);
        if exchange.response.finished {
            exchange.response.ended = true;
            self.on_response_sent(key);
        } else if ended {
            self.end_source(key, Side::Response, None);
        }
    }

    /// Answers from here: the head, a body of known length, the end.
    pub(super) fn respond(&mut self, key: Key, head: &ResponseHead, body: &[u8]) {
        let size =
            if body.is_empty() { BodySize::None } else { BodySize::Fixed(body.len() as u64) };
        let is_head = self.exchanges.get(key).is_some_and(|e| e.is_head);
        let declared = is_head.then_some(body.len() as u64);
        let ended = is_head || body.is_empty();
        self.start_response(key, head, size, declared, ended);
        if !ended {
            self.feed(key, Side::Response, body, 0, true);
        }
    }
}
