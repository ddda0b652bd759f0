//! Exchanges: begun by a downstream, sent to an upstream, answered, ended or failed.

use tollway_http::h2::{ErrorCode, StreamId};
use tollway_http::{Fields, Method, RequestHead, ResponseHead, h1};
use tollway_model::AppProtocol;
use tollway_net::Key;
use tollway_routing::{Attempt, Failure, RequestParts, Retry, Target, decide_retry, decide_target};

use super::{Worker, mark};
use crate::connection::{Door, Role};
use crate::edit;
use crate::exchange::{BodySize, Destination, Exchange, Side, StreamRef, Upstream};
use crate::fault::Fault;
use crate::pipe::Pipe;
use crate::respond;

/// A request as a downstream codec hands it over.
pub(super) struct Arrival {
    pub(super) down: StreamRef,
    pub(super) head: RequestHead,
    pub(super) size: BodySize,
    /// Nothing follows the head.
    pub(super) ended: bool,
    pub(super) is_upgrade: bool,
}

impl Exchange {
    /// Keeps request bytes that were sent, while they are few enough to be sent again.
    pub(super) fn remember(&mut self, data: &[u8], limit: usize) {
        let Some(kept) = &mut self.replay else { return };
        if kept.len() + data.len() > limit {
            self.replay = None;
        } else {
            kept.extend_from_slice(data);
        }
    }
}

impl Worker {
    /// Begins an exchange and sends it on its way; the body follows by `feed`.
    pub(super) fn on_request(&mut self, arrival: Arrival) -> Key {
        let conn = self.conns.get(arrival.down.conn);
        let door = conn.and_then(|c| c.door.clone()).unwrap_or(Door::HttpApi);
        let is_grpc = respond::is_grpc(&arrival.head.fields);
        let exchange = Exchange {
            door,
            down: arrival.down,
            up: Upstream::Waiting,
            destination: Destination::Api,
            is_grpc,
            is_head: arrival.head.method == Method::Head,
            is_upgrade: arrival.is_upgrade,
            head: arrival.head,
            request_size: arrival.size,
            request: Pipe::new(arrival.ended),
            response: Pipe::new(false),
            responding: false,
            status: 0,
            informational: 0,
            attempts: 0,
            replay: Some(Vec::new()),
            started: self.now,
            active: self.now,
        };
        let key = self.exchanges.insert(exchange);
        self.bind_down(arrival.down, key);
        match self.decide(key) {
            Ok(()) => self.dispatch(key),
            Err(fault) => self.fail(key, &fault),
        }
        key
    }

    fn bind_down(&mut self, down: StreamRef, key: Key) {
        match self.conns.get_mut(down.conn).map(|conn| &mut conn.role) {
            Some(Role::H1Server(server)) => server.exchange = Some(key),
            Some(Role::H2Server(link)) => {
                link.streams.insert(down.stream.0, key);
            }
            _ => {}
        }
    }

    /// Decides the destination and makes the head what it is to be upstream.
    fn decide(&mut self, key: Key) -> Result<(), Fault> {
        let full = self.exchanges.len() > self.config.limits.exchanges;
        let Some(exchange) = self.exchanges.get_mut(key) else { return Ok(()) };
        if full {
            let limit = self.config.limits.exchanges;
            return Err(Fault::Overloaded { what: "the sidecar", limit });
        }
        let conn = self.conns.get(exchange.down.conn);
        if exchange.door == Door::Inbound {
            let peer = conn.and_then(|c| c.peer.clone());
            let Some(app) = &self.config.app else {
                let service = self.config.home.clone();
                return Err(Fault::NoReadyEndpoint { service });
            };
            if app.protocol == AppProtocol::Tcp {
                return Err(Fault::NotHttp { service: self.config.home.clone() });
            }
            if let Some(peer) = peer {
                edit::inbound_request(&mut exchange.head, &peer);
            }
            exchange.destination = Destination::App;
            self.metrics.inbound_requests.add(1);
            return Ok(());
        }
        self.metrics.outbound_requests.add(1);
        let remote = conn.and_then(|c| c.remote);
        let target = outbound_target(&exchange.door, &exchange.head, &self.config.home)?;
        match target {
            Outbound::Api if exchange.door == Door::GrpcApi => {
                return Err(Fault::Unimplemented { what: "this call of the gRPC API" });
            }
            Outbound::Api => exchange.destination = Destination::Api,
            Outbound::Service { name, path, credentials_used } => {
                exchange.head.path = path;
                let route = edit::Route { from: &self.config.home, to: &name, credentials_used };
                edit::outbound_request(&mut exchange.head, remote.map(|r| r.ip()), &route);
                exchange.destination = Destination::Service(name);
            }
        }
        Ok(())
    }

    /// Sends the request on an open connection.
    pub(super) fn send_request(&mut self, key: Key, conn_key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let Some(conn) = self.conns.get_mut(conn_key) else { return };
        exchange.attempts += 1;
        let ended = exchange.request.is_drained() && exchange.request.trailers.is_none();
        match &mut conn.role {
            Role::H2Client(link) => {
                let length = exchange.request_size.content_length();
                let opened = link.codec.send_request(&exchange.head, length, ended, conn.io.out());
                let Ok(stream) = opened else { return self.retry_elsewhere(key) };
                link.streams.insert(stream.0, key);
                exchange.up = Upstream::Open(StreamRef { conn: conn_key, stream });
            }
            Role::H1Client(client) => {
                let upgrade = exchange.head.fields.value(b"upgrade");
                let connection = match upgrade.filter(|_| exchange.is_upgrade) {
                    Some(protocol) => h1::Connection::Upgrade(protocol),
                    None => h1::Connection::KeepAlive,
                };
                let options = h1::RequestOptions { connection, ..h1::RequestOptions::default() };
                let framing = exchange.request_size.framing(true);
                client.sink = h1::write_request(conn.io.out(), &exchange.head, framing, &options);
                client.exchange = Some(key);
                client.answered = false;
                exchange.up = Upstream::Open(StreamRef { conn: conn_key, stream: StreamId(0) });
            }
            _ => return self.retry_elsewhere(key),
        }
        exchange.active = self.now;
        exchange.request.finished = ended;
        mark(&mut self.dirty, &mut conn.dirty, conn_key);
        if !ended {
            self.drain(key, Side::Request, usize::MAX);
        }
    }

    /// The chosen connection turned out to take no request.
    fn retry_elsewhere(&mut self, key: Key) {
        self.on_attempt_failed(key, Failure::NotConnected, "no connection takes requests");
    }

    /// An attempt failed before any response: once more, or the answer to the caller.
    pub(super) fn on_attempt_failed(&mut self, key: Key, failure: Failure, reason: &str) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.up = Upstream::Waiting;
        let attempt = Attempt {
            made: exchange.attempts,
            idempotent: exchange.head.method.is_idempotent(),
            body_held: exchange.replay.is_some(),
        };
        let peer = describe(&exchange.destination);
        if decide_retry(failure, attempt) == Retry::GiveUp || exchange.is_upgrade {
            let fault = match failure {
                Failure::NotConnected => Fault::Unreachable { peer, reason: reason.to_owned() },
                Failure::Refused => Fault::Reset { peer },
                Failure::ReusedConnectionClosed | Failure::Broken => {
                    Fault::ClosedEarly { peer, reason: reason.to_owned() }
                }
                Failure::Malformed => Fault::BadResponse { peer, reason: reason.to_owned() },
                Failure::TimedOut => {
                    Fault::TimedOut { peer, seconds: self.config.timeouts.request.as_secs() }
                }
            };
            return self.fail(key, &fault);
        }
        self.metrics.retries.add(1);
        let sent = exchange.replay.replace(Vec::new()).unwrap_or_default();
        self.held_bytes += sent.len();
        exchange.request.push_front(sent);
        exchange.request.finished = false;
        self.dispatch(key);
    }

    /// A response's head came from upstream.
    pub(super) fn on_response(
        &mut self,
        key: Key,
        mut head: ResponseHead,
        size: BodySize,
        declared: Option<u64>,
        ended: bool,
    ) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.active = self.now;
        if head.status < 200 {
            return self.on_informational(key, &head);
        }
        exchange.replay = None;
        edit::response(&mut head);
        self.start_response(key, &head, size, declared, ended);
    }

    fn on_informational(&mut self, key: Key, head: &ResponseHead) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.informational = exchange.informational.saturating_add(1);
        if exchange.informational > self.config.limits.informational {
            let peer = describe(&exchange.destination);
            let reason = "too many informational responses".to_owned();
            return self.fail(key, &Fault::BadResponse { peer, reason });
        }
        let down = exchange.down;
        let Some(conn) = self.conns.get_mut(down.conn) else { return };
        match &mut conn.role {
            // HTTP/1.0 knows no informational responses.
            Role::H1Server(server) if server.version == h1::Version::Http11 => {
                let options = h1::ResponseOptions::default();
                h1::write_response(conn.io.out(), head, h1::BodyLength::None, &options);
            }
            Role::H2Server(link) => {
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
            Role::H1Server(server) => {
                server.keep_alive &= !draining && server.body.is_none();
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
            Role::H2Server(link) => {
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

    /// The exchange cannot go on: tells the caller if it has not been answered yet, or breaks the
    /// answer off so that it is not taken for whole.
    pub(super) fn fail(&mut self, key: Key, fault: &Fault) {
        self.cancel_upstream(key);
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        tracing::debug!(%fault, destination = ?exchange.destination, "request failed");
        self.metrics.faults.add(1);
        if exchange.responding {
            return self.abort_down(key, ErrorCode::INTERNAL_ERROR);
        }
        exchange.request.ended = true;
        if exchange.is_grpc {
            let head = respond::grpc_fault(fault);
            return self.respond(key, &head, &[]);
        }
        let (head, body) = respond::http_fault(fault);
        self.respond(key, &head, &body);
    }

    /// Breaks the downstream half off and forgets the exchange.
    pub(super) fn abort_down(&mut self, key: Key, code: ErrorCode) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        let down = exchange.down;
        if let Some(conn) = self.conns.get_mut(down.conn) {
            match &mut conn.role {
                Role::H1Server(server) => {
                    server.exchange = None;
                    // The beginning of the answer goes out; the reset behind it says that it is
                    // not the whole.
                    let _ = conn.io.flush();
                    conn.io.abort_on_close();
                    self.remove(down.conn);
                }
                Role::H2Server(link) => {
                    link.streams.remove(&down.stream.0);
                    link.codec.reset(down.stream, code, conn.io.out());
                    mark(&mut self.dirty, &mut conn.dirty, down.conn);
                }
                _ => {}
            }
        }
        self.forget(key);
    }

    /// The caller is gone: so is the reason to go on.
    pub(super) fn on_down_gone(&mut self, key: Key) {
        self.metrics.cancelled.add(1);
        self.cancel_upstream(key);
        self.forget(key);
    }

    /// Ends the upstream half before its time.
    pub(super) fn cancel_upstream(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let up = std::mem::replace(&mut exchange.up, Upstream::Gone);
        let Upstream::Open(up) = up else { return };
        let Some(conn) = self.conns.get_mut(up.conn) else { return };
        match &mut conn.role {
            Role::H2Client(link) => {
                link.streams.remove(&up.stream.0);
                link.codec.reset(up.stream, ErrorCode::CANCEL, conn.io.out());
                mark(&mut self.dirty, &mut conn.dirty, up.conn);
                self.on_capacity(up.conn);
            }
            Role::H1Client(client) => {
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
        let Some(conn) = self.conns.get_mut(up.conn) else { return };
        match &mut conn.role {
            Role::H2Client(link) => {
                link.streams.remove(&up.stream.0);
                if !whole {
                    link.codec.reset(up.stream, ErrorCode::CANCEL, conn.io.out());
                    mark(&mut self.dirty, &mut conn.dirty, up.conn);
                }
                conn.since = self.now;
                self.on_capacity(up.conn);
            }
            Role::H1Client(client) => {
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
            Role::H1Server(_) => self.h1_server_next(down.conn),
            Role::H2Server(link) => {
                link.streams.remove(&down.stream.0);
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
        let inbound = exchange.door == Door::Inbound;
        self.metrics.record(inbound, exchange.status, took);
    }

    /// The exchange became a stream of bytes that its connections relay by themselves.
    pub(super) fn exchange_left_http(&mut self, key: Key) {
        if let Some(exchange) = self.exchanges.get(key) {
            let took = self.now.saturating_duration_since(exchange.started);
            self.metrics.record(exchange.door == Door::Inbound, 101, took);
        }
        self.forget(key);
    }

    fn forget(&mut self, key: Key) {
        if let Some(exchange) = self.exchanges.remove(key) {
            self.discard_pipe(&exchange.request);
            self.discard_pipe(&exchange.response);
        }
    }
}

/// A target that owns its parts.
enum Outbound {
    Api,
    Service { name: tollway_model::ServiceName, path: Vec<u8>, credentials_used: bool },
}

fn outbound_target(
    door: &Door,
    head: &RequestHead,
    home: &tollway_model::ServiceName,
) -> Result<Outbound, Fault> {
    let door = match door {
        Door::HttpApi => tollway_routing::Door::HttpApi,
        Door::GrpcApi => tollway_routing::Door::GrpcApi,
        Door::Tunnel(name) => {
            let (name, path) = (name.clone(), head.path.clone());
            return Ok(Outbound::Service { name, path, credentials_used: false });
        }
        Door::Outbound | Door::Inbound | Door::Tcp(_) | Door::Gateway => {
            tollway_routing::Door::Outbound
        }
    };
    let parts = RequestParts {
        door,
        is_connect: head.method == Method::Connect,
        authority: &head.authority,
        path: &head.path,
        app_id: head.fields.value(b"dapr-app-id"),
        authorization: head.fields.value(b"authorization"),
    };
    Ok(match decide_target(parts, home)? {
        Target::Api => Outbound::Api,
        Target::Service { name, path, credentials_used } => {
            Outbound::Service { name, path: path.into_owned(), credentials_used }
        }
    })
}

/// The upstream in words.
pub(super) fn describe(destination: &Destination) -> String {
    match destination {
        Destination::Service(name) => format!("service {name}"),
        Destination::App => "the app".to_owned(),
        Destination::Api => "the sidecar's API".to_owned(),
    }
}
