//! Requests: begun by a downstream, given a destination, sent to an upstream, sent again when that
//! is safe.

use std::borrow::Cow;

use tollway_http::h2::{self, StreamId};
use tollway_http::{Method, RequestHead, h1};
use tollway_model::{AppProtocol, ErrorCode, ServiceName};
use tollway_net::{Key, boot_time};
use tollway_routing::{Failure, RequestParts, Target, TargetError, decide_target};
use tollway_telemetry::SeriesId;

use super::EventLoop;
use super::interface::{AppTarget, LoopConfig};
use crate::cause::Cause;
use crate::conn::{Connection, ListenerKind, Role};
use crate::error_response;
use crate::exchange::describe;
use crate::exchange::{Destination, Exchange, Pipe, Side, StreamRef, Upstream};
use crate::exchange::{access_log, body, fail, retry, trace};
use crate::headers;
use crate::protocol::Arrival;
use crate::request_error::{RequestError, Within};
use crate::runtime_fields::RuntimeFields;
use crate::tokens::{admit, is_public};

impl EventLoop {
    /// Begins an exchange and sends it on its way; the body follows by `feed`.
    pub(super) fn on_request(&mut self, mut arrival: Arrival) -> Key {
        let conn = self.conns.get(arrival.down.conn);
        let via = conn.and_then(|c| c.via.clone()).unwrap_or(ListenerKind::HttpApi);
        let observed = match &mut self.cx.observer {
            Some(observer) => observer.begin(&mut arrival.head, self.cx.now).map(|mut observed| {
                if let (ListenerKind::Inbound | ListenerKind::Front, Some(conn)) = (&via, conn) {
                    observed.meet(conn);
                }
                observed
            }),
            None => None,
        };
        let is_grpc = error_response::is_grpc(&arrival.head.fields);
        let deadline =
            if is_grpc { headers::deadline(&arrival.head.fields, self.cx.now) } else { None };
        let exchange = Exchange {
            via,
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
            is_bulk: false,
            attempts: 0,
            replay: Some(Vec::new()),
            place: None,
            is_of_actors: false,
            number: None,
            turn: None,
            is_begun: false,
            holds_permit: false,
            failed: false,
            grpc_status: None,
            started: self.cx.now,
            deadline,
            active: self.cx.now,
            observed,
        };
        let key = self.exchanges.insert(exchange);
        self.bind_down(arrival.down, key);
        match self.decide(key) {
            Ok(()) => self.dispatch(key),
            Err(error) => {
                trace::begin_undecided_trace(&mut self.exchanges, &mut self.conns, key);
                self.note_actors_undecided(key);
                fail::fail(&mut self.cx, &mut self.conns, &mut self.exchanges, key, &error);
            }
        }
        key
    }

    fn bind_down(&mut self, down: StreamRef, key: Key) {
        match self.conns.get_mut(down.conn).map(|conn| &mut conn.role) {
            Some(Role::Http1Server(server)) => server.exchange = Some(key),
            Some(Role::Http2Server(link)) => {
                link.streams.insert(down.stream.0, key);
            }
            _ => {}
        }
    }

    /// Decides the destination and makes the head what it is to be upstream.
    fn decide(&mut self, key: Key) -> Result<(), RequestError> {
        let full = self.exchanges.len() > self.cx.config.limits.exchanges;
        let Some(exchange) = self.exchanges.get_mut(key) else { return Ok(()) };
        if full {
            let limit = self.cx.config.limits.exchanges;
            return Err(RequestError::Overloaded { what: "the list of requests under way", limit });
        }
        if exchange.via == ListenerKind::Front {
            self.decide_front(key);
            return Ok(());
        }
        if exchange.via == ListenerKind::Inbound {
            return self.decide_inbound(key);
        }
        if exchange.via == ListenerKind::Public {
            // An app that a field names is none of it.
            exchange.destination = Destination::Api;
            headers::api_request(&mut exchange.head);
            return if is_public(&exchange.head) { Ok(()) } else { Err(RequestError::NotPublic) };
        }
        let asked = match exchange.via {
            ListenerKind::Loopback => RuntimeFields::of(&exchange.head.fields)?,
            _ => RuntimeFields::default(),
        };
        exchange.is_of_actors = asked.is_of_actors();
        (exchange.number, exchange.turn) = (asked.number, asked.turn);
        if asked.to_app {
            return self.decide_own_app(key);
        }
        self.cx.metrics.outbound_requests.add(1);
        let target = outbound_target(&exchange.via, &exchange.head, &self.cx.config);
        if let Some(token) = &self.cx.config.tokens.api {
            let is_own = matches!(target, Ok(Outbound::Api));
            admit(token, &exchange.via, &mut exchange.head, is_own)?;
        }
        if let Some(rules) = &self.cx.config.api_rules {
            let is_call =
                matches!(target, Ok(Outbound::Service { .. } | Outbound::HostServices { .. }));
            if !rules.admit(&exchange.via, &exchange.head, is_call) {
                return Err(RequestError::NotAllowed);
            }
        }
        match target? {
            Outbound::Api if asked.is_of_actors() => return Err(TargetError::NoAppId.into()),
            Outbound::Api => {
                exchange.destination = Destination::Api;
                headers::api_request(&mut exchange.head);
            }
            Outbound::HostServices { .. } if asked.is_of_actors() => {
                return Err(TargetError::NoAppId.into());
            }
            Outbound::HostServices { id, path, credentials_used } => {
                path.apply(&mut exchange.head.path);
                exchange.destination = Destination::Api;
                headers::outside_request(&mut exchange.head, &id, credentials_used);
            }
            Outbound::Service { name, path, credentials_used } => {
                path.apply(&mut exchange.head.path);
                let route =
                    headers::Route { from: &self.cx.config.home, to: &name, credentials_used };
                let down = self.conns.get_mut(exchange.down.conn);
                let client = down.and_then(Connection::caller);
                let limit = self.cx.config.limits.hops;
                if !exchange.is_upgrade && is_ruled(&self.cx.config, &exchange.via, &name) {
                    exchange.destination = Destination::Api;
                    // Seen here alone: attempts come back without the address of a client.
                    let hops = headers::ruled_request(&mut exchange.head, client, &route);
                    return match hops > limit {
                        true => Err(RequestError::Loop { service: name, limit }),
                        false => Ok(()),
                    };
                }
                let out = headers::outbound_request(&mut exchange.head, client, &route);
                if out.hops > limit {
                    return Err(RequestError::Loop { service: name, limit });
                }
                if asked.to_runtime {
                    headers::send_to_runtime(&mut exchange.head);
                }
                exchange.destination = match asked.instance {
                    Some(instance) => Destination::workload(name, instance),
                    None => Destination::Service(name),
                };
                exchange.place = Some(SeriesId::OTHER);
                if out.asks {
                    trace::begin_caller_trace(&mut self.exchanges, &mut self.conns, key);
                }
            }
        }
        Ok(())
    }

    /// The same for a request of another sidecar, to the app or to the runtime.
    fn decide_inbound(&mut self, key: Key) -> Result<(), RequestError> {
        let Some(exchange) = self.exchanges.get_mut(key) else { return Ok(()) };
        let conn = self.conns.get_mut(exchange.down.conn);
        let peer = conn.as_ref().and_then(|c| c.peer.clone());
        self.cx.metrics.inbound_requests.add(1);
        let admitted = self.policy.admit_request(conn, &exchange.head, &self.cx.config.home);
        if matches!(admitted, Err(RequestError::PolicyDenied(_))) {
            self.cx.metrics.policy_denied.add(1);
        }
        if let Some(target) = admitted? {
            exchange.head.path = target;
        }
        let own = peer.map(|peer| headers::inbound_request(&mut exchange.head, &peer));
        let own = own.unwrap_or_default();
        if own.to_runtime {
            exchange.is_of_actors = true;
            exchange.destination = Destination::Actors;
        } else {
            let protocol = http_app(&self.cx.config)?.protocol;
            let is_translated =
                protocol == AppProtocol::Grpc && !exchange.is_grpc && !exchange.is_upgrade;
            exchange.destination =
                if is_translated { Destination::Callback } else { Destination::App };
            headers::show_token(&mut exchange.head, self.cx.config.tokens.app.as_ref());
        }
        if own.asks {
            self.explain_as_callee(key);
        }
        Ok(())
    }

    /// The same for a request of the own runtime to the app.
    fn decide_own_app(&mut self, key: Key) -> Result<(), RequestError> {
        http_app(&self.cx.config)?;
        let Some(exchange) = self.exchanges.get_mut(key) else { return Ok(()) };
        exchange.destination = Destination::App;
        headers::own_app_request(&mut exchange.head);
        headers::show_token(&mut exchange.head, self.cx.config.tokens.app.as_ref());
        Ok(())
    }

    /// A request goes nowhere whose head is as it came: remembers whether it is one of actors.
    fn note_actors_undecided(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.is_of_actors |= match exchange.via {
            ListenerKind::Loopback => {
                RuntimeFields::of(&exchange.head.fields).map_or(true, |a| a.is_of_actors())
            }
            ListenerKind::Inbound => headers::is_for_runtime(&exchange.head.fields),
            _ => false,
        };
    }

    /// Sends the request on an open connection.
    pub(super) fn send_request(&mut self, key: Key, conn_key: Key) {
        let now = self.cx.now;
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        if let Some(deadline) = exchange.deadline
            && now > exchange.started
        {
            // What it has waited here is gone for whoever comes behind.
            headers::set_time_left(
                &mut exchange.head.fields,
                deadline.saturating_duration_since(now),
            );
        }
        if exchange.turn.is_some_and(|turn| turn.is_over(self.lease, boot_time())) {
            return fail::fail(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                &RequestError::TooLate,
            );
        }
        let Some(conn) = self.conns.get_mut(conn_key) else { return };
        exchange.is_begun = false;
        conn.note_turn(key, exchange.turn);
        exchange.attempts += 1;
        let mut ended = exchange.request.is_drained() && exchange.request.trailers.is_none();
        match &mut conn.role {
            Role::Http2Client(link) => {
                let length = exchange.request_size.content_length();
                let opened = link.codec.send_request(&exchange.head, length, ended, conn.io.out());
                let Ok(stream) = opened else { return self.retry_elsewhere(key) };
                link.streams.insert(stream.0, key);
                if exchange.is_bulk {
                    link.begin_bulk(stream);
                }
                exchange.up = Upstream::Open(StreamRef { conn: conn_key, stream });
            }
            Role::Http1Client(client) => {
                let upgrade = exchange.head.fields.value(b"upgrade");
                let connection = match upgrade.filter(|_| exchange.is_upgrade) {
                    Some(protocol) => h1::Connection::Upgrade(protocol),
                    None => h1::Connection::KeepAlive,
                };
                let options = h1::RequestOptions { connection, ..h1::RequestOptions::default() };
                let framing = exchange.request_size.framing(true);
                client.sink = h1::write_request(conn.io.out(), &exchange.head, framing, &options);
                // Chunks have an end of their own, also where there are none.
                ended &= client.sink != h1::BodyLength::Chunked;
                client.exchange = Some(key);
                client.answered = false;
                exchange.up = Upstream::Open(StreamRef { conn: conn_key, stream: StreamId(0) });
            }
            _ => return self.retry_elsewhere(key),
        }
        if let Some(observed) = &mut exchange.observed {
            if exchange.destination.is_of_mesh() {
                observed.meet(conn);
            }
            observed.send(conn, exchange.started);
        }
        exchange.active = self.cx.now;
        exchange.request.finished = ended;
        self.conns.mark_dirty(conn_key);
        if !ended {
            body::drain(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                Side::Request,
                usize::MAX,
            );
        }
    }

    /// The chosen connection turned out to take no request.
    fn retry_elsewhere(&mut self, key: Key) {
        self.on_attempt_failed(key, Failure::NotConnected, "no connection takes requests");
    }

    /// An attempt failed before any response: once more, or the answer to the caller.
    pub(super) fn on_attempt_failed(
        &mut self,
        key: Key,
        failure: Failure,
        cause: impl Into<Cause>,
    ) {
        let (may_retry, cause) = (retry::may_retry(&self.exchanges, key, failure), cause.into());
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let is_unsent = matches!(failure, Failure::NotConnected | Failure::Refused);
        exchange.up = if may_retry || is_unsent { Upstream::Waiting } else { Upstream::Gone };
        if !may_retry {
            let destination = exchange.destination.clone();
            let (peer, reason) = (describe(&destination), cause.reason.clone());
            let error = match failure {
                Failure::NotConnected => self.unreachable(&destination, None, cause),
                Failure::ReusedConnectionClosed | Failure::Broken if cause.code.is_some() => {
                    self.unreachable(&destination, None, cause)
                }
                Failure::Refused => {
                    RequestError::Reset { peer, reason: h2::ErrorCode::REFUSED_STREAM }
                }
                Failure::ReusedConnectionClosed | Failure::Broken => {
                    RequestError::ClosedEarly { peer, reason }
                }
                Failure::Malformed => RequestError::BadResponse { peer, reason },
                // Only asked for where it may be tried again.
                Failure::Silent => {
                    RequestError::Unreachable { code: ErrorCode::Silent, peer, reason }
                }
                Failure::TimedOut => {
                    RequestError::TimedOut { peer, within: Within(self.cx.config.timeouts.request) }
                }
            };
            return fail::fail(&mut self.cx, &mut self.conns, &mut self.exchanges, key, &error);
        }
        self.cx.metrics.retries.add(1);
        if exchange.observed.is_some() {
            access_log::record_attempt(&mut self.cx, &mut self.exchanges, key, failure);
            trace::note_failed_attempt(
                &mut self.exchanges,
                key,
                cause.code.unwrap_or_else(|| access_log::code_of(failure)),
            );
        }
        self.exchanges.rewind(key);
        self.dispatch(key);
    }
}

/// The app, for requests.
///
/// # Errors
/// [`RequestError::NoReadyEndpoint`] without one, [`RequestError::NotHttp`] for one that takes bytes.
fn http_app(config: &LoopConfig) -> Result<AppTarget, RequestError> {
    let service = || config.home.clone();
    let app = config.app.ok_or_else(|| RequestError::NoReadyEndpoint { service: service() })?;
    if app.protocol == AppProtocol::Tcp {
        return Err(RequestError::NotHttp { service: service() });
    }
    Ok(app)
}

/// A target that owns its parts.
enum Outbound {
    Api,
    Service {
        name: ServiceName,
        path: NewPath,
        credentials_used: bool,
    },
    /// Out of the mesh.
    HostServices {
        id: String,
        path: NewPath,
        credentials_used: bool,
    },
}

/// What becomes of a request's path.
enum NewPath {
    /// It begins so many bytes later.
    Later(usize),
    Other(Vec<u8>),
}

impl NewPath {
    fn of(path: Cow<'_, [u8]>, asked: &[u8]) -> Self {
        match path {
            Cow::Borrowed(path) if asked.ends_with(path) => Self::Later(asked.len() - path.len()),
            path => Self::Other(path.into_owned()),
        }
    }

    fn apply(self, path: &mut Vec<u8>) {
        match self {
            Self::Later(begin) => drop(path.drain(..begin)),
            Self::Other(other) => *path = other,
        }
    }
}

/// Whether calls of a service are the runtime's to make; those that it makes itself are not.
fn is_ruled(config: &LoopConfig, via: &ListenerKind, name: &ServiceName) -> bool {
    let may_be =
        matches!(via, ListenerKind::HttpApi | ListenerKind::GrpcApi | ListenerKind::Outbound);
    may_be
        && config
            .resilience
            .as_ref()
            .is_some_and(|rules| rules.of_app(name, &config.home).is_some())
}

fn outbound_target(
    via: &ListenerKind,
    head: &RequestHead,
    config: &LoopConfig,
) -> Result<Outbound, RequestError> {
    let home = &config.home;
    let via = match via {
        ListenerKind::HttpApi | ListenerKind::Loopback | ListenerKind::Public => {
            tollway_routing::Door::HttpApi
        }
        ListenerKind::GrpcApi => tollway_routing::Door::GrpcApi,
        ListenerKind::Tunnel(name) => {
            let (name, path) = (name.clone(), NewPath::Later(0));
            return Ok(Outbound::Service { name, path, credentials_used: false });
        }
        ListenerKind::Outbound
        | ListenerKind::Inbound
        | ListenerKind::Tcp(_)
        | ListenerKind::Gateway
        | ListenerKind::Front => tollway_routing::Door::Outbound,
    };
    let parts = RequestParts {
        door: via,
        is_connect: head.method == Method::Connect,
        authority: &head.authority,
        path: &head.path,
        app_id: head.fields.value(b"dapr-app-id"),
        authorization: head.fields.value(b"authorization"),
        // What is outside is called over HTTP.
        outside: config.outside.as_deref().filter(|_| via == tollway_routing::Door::HttpApi),
    };
    Ok(match decide_target(parts, home)? {
        Target::Api => Outbound::Api,
        Target::Service { name, path, credentials_used } => {
            Outbound::Service { name, path: NewPath::of(path, &head.path), credentials_used }
        }
        Target::Outside { id, path, credentials_used } => {
            Outbound::HostServices { id, path: NewPath::of(path, &head.path), credentials_used }
        }
    })
}
