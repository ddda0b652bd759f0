//! How exchanges end: answered in full, failed, cancelled by either side.

use tollway_http::Fields;
use tollway_http::h2::ErrorCode;
use tollway_net::Key;
use tollway_telemetry::CallEnd;

use super::{EventLoop, dapr, mark};
use crate::connection::Role;
use crate::exchange::{Destination, Exchange, Side, Upstream};
use crate::headers;
use crate::observe::grpc_status;
use crate::request_error::RequestError;
use crate::respond;

impl EventLoop {
    /// The exchange cannot go on: tells the caller if it has not been answered yet, or breaks the
    /// answer off so that it is not taken for whole.
    pub(super) fn fail(&mut self, key: Key, error: &RequestError) {
        let unsent = [Upstream::Waiting, Upstream::FairQueue, Upstream::Slot, Upstream::Gathering];
        let is_unsent = self.exchanges.get(key).is_some_and(|e| unsent.contains(&e.up));
        self.cancel_upstream(key);
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        tracing::debug!(%error, destination = ?exchange.destination, "request failed");
        self.metrics.faults.add(1);
        if let Some(observed) = &mut exchange.observed {
            observed.error = Some(error.code());
            observed.grpc_status = exchange.is_grpc.then(|| u16::from(error.grpc_status()));
        }
        if exchange.responding {
            return self.abort_down(key, ErrorCode::INTERNAL_ERROR);
        }
        exchange.failed = true;
        exchange.grpc_status = exchange.is_grpc.then(|| u16::from(error.grpc_status()));
        let is_of_actors = exchange.is_of_actors;
        let (mut head, body) = if exchange.is_grpc {
            (respond::grpc_error(error, &self.hop()), Vec::new())
        } else {
            respond::http_error(error, &self.hop())
        };
        if is_unsent && is_of_actors {
            head.fields.set(headers::UNPROCESSED, b"1");
        }
        self.tell_way(key, &mut head, Some(error.code()));
        self.respond(key, &head, &body);
    }

    /// This process in words, as one hop of a request.
    pub(super) fn hop(&self) -> String {
        self.config.hop.clone()
    }

    /// Breaks the downstream half off and forgets the exchange.
    pub(super) fn abort_down(&mut self, key: Key, code: ErrorCode) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        let down = exchange.down;
        let code = breaking_off(exchange, code);
        self.count_call(exchange, CallEnd::Failed);
        if let Some(conn) = self.conns.get_mut(down.conn) {
            match &mut conn.role {
                Role::Http1Server(server) => {
                    server.exchange = None;
                    // The beginning of the answer goes out; the reset behind it says that it is
                    // not the whole.
                    let _ = conn.io.flush();
                    conn.io.abort_on_close();
                    self.remove(down.conn);
                }
                Role::Http2Server(link) => {
                    link.close(down.stream, self.now);
                    link.codec.reset(down.stream, code, conn.io.out());
                    mark(&mut self.dirty, &mut conn.dirty, down.conn);
                }
                _ => {}
            }
        }
        self.mark_observed(key, |observed| {
            observed.error.get_or_insert(tollway_model::ErrorCode::ClosedEarly);
        });
        self.forget(key);
    }

    /// The caller is gone: so is the reason to go on.
    pub(super) fn on_down_gone(&mut self, key: Key) {
        self.metrics.cancelled.add(1);
        self.cancel_upstream(key);
        if let Some(exchange) = self.exchanges.get(key) {
            self.count_call(exchange, CallEnd::Cancelled);
        }
        self.mark_observed(key, |observed| observed.cancelled = true);
        self.forget(key);
    }

    /// Ends the upstream half before its time.
    pub(super) fn cancel_upstream(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let up = match std::mem::replace(&mut exchange.up, Upstream::Gone) {
            Upstream::Open(up) => up,
            Upstream::FairQueue => {
                let down = exchange.down.conn;
                return self.leave_late(key, down);
            }
            Upstream::Waiting | Upstream::Slot | Upstream::Gathering | Upstream::Gone => return,
        };
        let code = calling_off(exchange);
        let Some(conn) = self.conns.get_mut(up.conn) else { return };
        match &mut conn.role {
            Role::Http2Client(link) => {
                link.close(up.stream, self.now);
                link.codec.reset(up.stream, code, conn.io.out());
                let worn_at = match link.destination {
                    Some(Destination::App) => self.config.limits.app_resets,
                    // It bears any number; how many wait there is counted over all connections.
                    Some(Destination::Api | Destination::Callback | Destination::Actors) => {
                        usize::MAX
                    }
                    // Its other end keeps to the same limits.
                    Some(Destination::Service(_) | Destination::Workload(_)) | None => {
                        self.config.limits.h2.limits.resets.burst as usize / 2
                    }
                };
                let is_worn = link.codec.resets_owed() >= worn_at;
                mark(&mut self.dirty, &mut conn.dirty, up.conn);
                if is_worn && !conn.draining {
                    // Before its other end takes all who are on it for attackers.
                    self.retire(up.conn);
                } else {
                    self.add_to_backlog(up.conn);
                    self.on_capacity(up.conn);
                }
            }
            Role::Http1Client(client) => {
                client.exchange = None;
                self.drop_h1_client(up.conn);
            }
            _ => {}
        }
    }

    /// Upstream has sent the whole response.
    pub(super) fn on_response_source_ended(&mut self, key: Key, trailers: Option<Fields>) {
        self.release_upstream(key);
        self.end_source(key, Side::Response, trailers);
    }

    /// Gives the upstream stream or connection back; a request still under way is cut off, as
    /// nobody listens to it any more.
    pub(super) fn release_upstream(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let whole = exchange.request.finished;
        let up = std::mem::replace(&mut exchange.up, Upstream::Gone);
        let Upstream::Open(up) = up else { return };
        let code = calling_off(exchange);
        let Some(conn) = self.conns.get_mut(up.conn) else { return };
        match &mut conn.role {
            Role::Http2Client(link) => {
                link.close(up.stream, self.now);
                if !whole {
                    link.codec.reset(up.stream, code, conn.io.out());
                    mark(&mut self.dirty, &mut conn.dirty, up.conn);
                }
                conn.since = self.now;
                if !whole {
                    self.add_to_backlog(up.conn);
                }
                self.on_capacity(up.conn);
            }
            Role::Http1Client(client) => {
                client.exchange = None;
                client.keep_alive &= whole;
                self.on_h1_client_idle(up.conn);
            }
            _ => {}
        }
    }

    /// The request has wholly gone upstream.
    pub(super) fn on_request_sent(&mut self, key: Key) {
        if let Some(exchange) = self.exchanges.get_mut(key) {
            exchange.active = self.now;
        }
    }

    /// The response has wholly gone downstream: the exchange is over.
    pub(super) fn on_response_sent(&mut self, key: Key) {
        self.release_upstream(key);
        let Some(exchange) = self.exchanges.get(key) else { return };
        self.record(exchange);
        let (down, request_ended) = (exchange.down, exchange.request.ended);
        self.forget(key);
        let Some(conn) = self.conns.get_mut(down.conn) else { return };
        conn.since = self.now;
        match &mut conn.role {
            Role::Http1Server(_) => self.h1_server_next(down.conn),
            Role::Http2Server(link) => {
                link.close(down.stream, self.now);
                if !request_ended {
                    link.codec.reset(down.stream, ErrorCode::NO_ERROR, conn.io.out());
                    mark(&mut self.dirty, &mut conn.dirty, down.conn);
                }
            }
            _ => {}
        }
    }

    fn record(&self, exchange: &Exchange) {
        let took = self.now.saturating_duration_since(exchange.started);
        if let Some(metrics) = &self.config.dapr_metrics {
            dapr::count(metrics, exchange, took);
        }
        // Of a call of an actor by another sidecar, that is counted.
        if exchange.is_of_runtime() {
            return;
        }
        let inbound = exchange.via.is_inbound();
        self.metrics.record(inbound, exchange.status, took);
        if let Some(place) = exchange.place {
            self.metrics.services.record(place, end_of(exchange), took);
        }
    }

    /// A call of a service ended without an answer.
    fn count_call(&self, exchange: &Exchange, end: CallEnd) {
        if let Some(place) = exchange.place {
            let took = self.now.saturating_duration_since(exchange.started);
            self.metrics.services.record(place, end, took);
        }
    }

    /// The exchange became a stream of bytes that its connections relay by themselves.
    pub(super) fn exchange_left_http(&mut self, key: Key) {
        if let Some(exchange) = self.exchanges.get_mut(key) {
            exchange.status = 101;
        }
        if let Some(exchange) = self.exchanges.get(key) {
            self.record(exchange);
        }
        self.forget(key);
    }

    fn forget(&mut self, key: Key) {
        if let Some(mut exchange) = self.exchanges.remove(key) {
            self.discard_pipe(&exchange.request);
            self.discard_pipe(&exchange.response);
            self.spare_bodies.keep(exchange.replay.take());
            if exchange.holds_permit {
                self.free_slot();
            }
            if exchange.observed.is_some() {
                self.tell(exchange);
            } else {
                self.recycle(exchange.down.conn, exchange.head.fields);
            }
        }
    }
}

/// The code by which an answer is broken off that is not whole. Common clients take a body that
/// ends by one of the two codes that blame nobody (hyper by `NO_ERROR`, Node.js by either) for
/// whole. Of a gRPC call they do not, as its trailers are missing, and the code is its status.
fn breaking_off(exchange: &Exchange, code: ErrorCode) -> ErrorCode {
    let blames_nobody = matches!(code, ErrorCode::NO_ERROR | ErrorCode::CANCEL);
    if blames_nobody && !exchange.is_grpc { ErrorCode::INTERNAL_ERROR } else { code }
}

/// The code by which a request is called off. A body that is not whole is broken off as an answer
/// is.
fn calling_off(exchange: &Exchange) -> ErrorCode {
    if exchange.request.finished {
        return ErrorCode::CANCEL;
    }
    breaking_off(exchange, ErrorCode::CANCEL)
}

/// How an exchange ended whose response has wholly gone downstream.
fn end_of(exchange: &Exchange) -> CallEnd {
    if exchange.failed {
        return CallEnd::Failed;
    }
    if exchange.is_grpc && told_status(exchange).is_some_and(|code| code > 0) {
        return CallEnd::GrpcError;
    }
    CallEnd::Answered(exchange.status)
}

/// The status of a gRPC call, from the head of its answer or from its end.
pub(super) fn told_status(exchange: &Exchange) -> Option<u16> {
    let in_trailers = || exchange.response.trailers.as_ref().and_then(grpc_status);
    exchange.grpc_status.or_else(in_trailers)
}

/// The upstream in words.
pub(super) fn describe(destination: &Destination) -> String {
    match destination {
        Destination::Service(name) => format!("service {name}"),
        Destination::Workload(of) => format!("workload {} of service {}", of.instance, of.service),
        Destination::App => "the app".to_owned(),
        Destination::Api => "the sidecar's API".to_owned(),
        Destination::Callback => "the sidecar's translation to gRPC".to_owned(),
        Destination::Actors => "the sidecar's actors".to_owned(),
    }
}
