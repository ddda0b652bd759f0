//! Begins a request and routes it: decides its destination, after its policies, tokens and API rules.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use tollway_http::{Method, RequestHead};
use tollway_identity::PeerIdentity;
use tollway_model::egress::PLAIN_PORT;
use tollway_model::{AppProtocol, ServiceName};
use tollway_routing::{RequestParts, Target, TargetError, clean_target, decide_target};
use tollway_telemetry::{LogLimiter, SeriesId};

use crate::as_daprd::{self, AsDaprd};
use crate::conn::{Connection, Connections, ListenerKind, Role};
use crate::cx::{Cx, Effect};
use crate::event_loop::{AppTarget, LoopConfig};
use crate::exchange::{
    Destination, Exchange, ExchangeKey, Exchanges, StreamRef, fail, respond, trace,
};
use crate::headers::{self, TimeLeft};
use crate::inbound::{PolicyGate, why_admitted};
use crate::outbound::external;
use crate::protocol::Arrival;
use crate::request_error::{RequestError, limited as limited_words};
use crate::runtime_protocol::{ActorCaller, RuntimeRequest, RuntimeTarget};
use crate::tokens::admit;
use crate::tokens::is_public;

/// Begins a request at a sidecar: routes it, and has it dispatched or answered with an error. Its body
/// follows by `feed`.
pub(crate) fn begin(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    policy: &mut PolicyGate,
    arrival: Arrival,
) {
    let key = begin_exchange(cx, conns, exchanges, arrival);
    if let Some(daprd) = &cx.config.as_daprd
        && let Some(exchange) = exchanges.get_mut(key)
        && let Some(answer) = as_daprd::begin(daprd, cx.config.dapr_metrics.as_deref(), exchange)
    {
        return respond::respond(cx, conns, exchanges, key, &answer, &[]);
    }
    match check_room(cx, exchanges).and_then(|()| route(cx, conns, exchanges, policy, key)) {
        Ok(()) => cx.effects.push(Effect::Dispatch(key)),
        Err(error) => {
            trace::begin_undecided_trace(exchanges, conns, key);
            note_undecided(exchanges, key);
            fail::fail(cx, conns, exchanges, key, &error);
        }
    }
}

/// Begins a request at a front: it goes to the app; what is said of its client is what was seen here.
pub(crate) fn begin_front(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    arrival: Arrival,
) {
    let key = begin_exchange(cx, conns, exchanges, arrival);
    if let Err(error) = check_room(cx, exchanges) {
        return fail::fail(cx, conns, exchanges, key, &error);
    }
    cx.metrics.inbound_requests.add(1);
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.destination = Destination::App;
    let conn = conns.get(exchange.down.conn);
    if let Some(client) = conn.and_then(|conn| conn.client.as_ref()) {
        headers::front_request(&mut exchange.head, client);
    }
    cx.effects.push(Effect::Dispatch(key));
}

fn begin_exchange(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    mut arrival: Arrival,
) -> ExchangeKey {
    let conn = conns.get(arrival.down.conn);
    let via = conn.and_then(|c| c.via.clone()).unwrap_or(ListenerKind::HttpApi);
    // A translated call is recorded where it came in.
    let is_recorded =
        via != ListenerKind::Loopback || !RuntimeRequest::is_for_call(&arrival.head.fields);
    let observed = match &mut cx.observer {
        Some(observer) if is_recorded => {
            observer.begin(&mut arrival.head, cx.now).map(|mut observed| {
                if let (ListenerKind::Inbound | ListenerKind::Front, Some(conn)) = (&via, conn) {
                    observed.record_peer(conn);
                }
                observed
            })
        }
        _ => None,
    };
    let down = arrival.down;
    let key = exchanges.insert(Exchange::new(via, arrival, cx.now, observed));
    bind_down(conns, down, key);
    key
}

/// # Errors
/// [`RequestError::Overloaded`] when more requests are under way than may be.
fn check_room(cx: &Cx, exchanges: &Exchanges) -> Result<(), RequestError> {
    let limit = cx.config.limits.exchanges;
    if exchanges.len() > limit {
        return Err(RequestError::Overloaded { what: "the list of requests under way", limit });
    }
    Ok(())
}

fn bind_down(conns: &mut Connections, down: StreamRef, key: ExchangeKey) {
    match conns.get_mut(down.conn).map(|conn| &mut conn.role) {
        Some(Role::Http1Server(server)) => server.exchange = Some(key),
        Some(Role::Http2Server(link)) => {
            link.streams.insert(down.stream.0, key);
        }
        _ => {}
    }
}

/// Decides the destination and makes the head what it is to be upstream.
fn route(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    policy: &mut PolicyGate,
    key: ExchangeKey,
) -> Result<(), RequestError> {
    let Some(exchange) = exchanges.get_mut(key) else { return Ok(()) };
    if exchange.via == ListenerKind::Inbound {
        return route_inbound(cx, conns, exchanges, policy, key);
    }
    if exchange.via == ListenerKind::Public {
        // An app that a field names is none of it.
        exchange.destination = Destination::Api;
        headers::api_request(&mut exchange.head);
        return if is_public(&exchange.head) { Ok(()) } else { Err(RequestError::NotPublic) };
    }
    let asked = match exchange.via {
        ListenerKind::Loopback => RuntimeRequest::read(&exchange.head.fields)?,
        _ => RuntimeRequest::default(),
    };
    exchange.is_of_actors = asked.is_of_actors();
    (exchange.number, exchange.turn) = (asked.number, asked.turn);
    if matches!(asked.to, RuntimeTarget::App | RuntimeTarget::AppForCall) {
        exchange.needs_permit = asked.to == RuntimeTarget::App;
        return route_own_app(cx, exchanges, key);
    }
    cx.metrics.outbound_requests.add(1);
    admit_page(&cx.config, conns, exchange)?;
    if cx.config.as_daprd.is_some() {
        as_daprd::check_baggage(exchange)?;
    }
    let target = outbound_target(&exchange.via, &exchange.head, &cx.config);
    let target = or_external(cx, exchange, target);
    if let Some(token) = &cx.config.tokens.api {
        let is_own = matches!(target, Ok(Outbound::Api));
        admit(token, &exchange.via, &mut exchange.head, is_own)?;
    }
    if let Some(rules) = &cx.config.api_rules {
        let is_call = matches!(target, Ok(Outbound::Service { .. } | Outbound::External { .. }));
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
        Outbound::External { .. } if asked.is_of_actors() => {
            return Err(TargetError::NoAppId.into());
        }
        Outbound::Proxied(url) => {
            trace::begin_egress_trace(&cx.config, exchanges, conns, key, &url);
            let Some(exchange) = exchanges.get_mut(key) else { return Ok(()) };
            exchange.destination = Destination::Api;
            mark_external(exchange);
            headers::proxied_request(&mut exchange.head, url);
        }
        Outbound::External { id, path, credentials_used } => {
            trace::begin_egress_trace(&cx.config, exchanges, conns, key, &id);
            let Some(exchange) = exchanges.get_mut(key) else { return Ok(()) };
            path.apply(&mut exchange.head.path);
            clean_path(&cx.config, exchange, &id)?;
            exchange.destination = Destination::Api;
            mark_external(exchange);
            headers::external_request(&mut exchange.head, id, credentials_used);
        }
        Outbound::Service { name, path, credentials_used } => {
            path.apply(&mut exchange.head.path);
            clean_path(&cx.config, exchange, name.app.as_str())?;
            if cx.config.as_daprd.is_some() && !exchange.is_grpc && !asked.is_of_actors() {
                as_daprd::name_no_trace(&mut exchange.head.fields);
            }
            let route = headers::Route { from: &cx.config.home, to: &name, credentials_used };
            let down = conns.get_mut(exchange.down.conn);
            let client = down.and_then(Connection::caller);
            let limit = cx.config.limits.hops;
            if !exchange.is_upgrade && has_resiliency_rules(&cx.config, &exchange.via, &name) {
                exchange.destination = Destination::Api;
                // Seen here alone: attempts come back without the address of a client.
                let out = headers::resiliency_request(&mut exchange.head, client, &route);
                if out.hops > limit {
                    return Err(RequestError::Loop { service: name, limit });
                }
                return limit_time(cx.now, exchanges, key, out.time_left);
            }
            let out = headers::outbound_request(&mut exchange.head, client, &route);
            if out.hops > limit {
                return Err(RequestError::Loop { service: name, limit });
            }
            if let RuntimeTarget::Actors(lookup) = asked.to {
                lookup.push(&mut exchange.head.fields);
            }
            if let Some(caller) = &asked.caller {
                caller.push(&mut exchange.head.fields);
            }
            exchange.destination = match asked.instance {
                Some(instance) => Destination::workload(name, instance),
                None => Destination::Service(name),
            };
            exchange.series = Some(SeriesId::OTHER);
            if out.wants_call_trace {
                trace::begin_caller_trace(exchanges, conns, key);
            }
            limit_time(cx.now, exchanges, key, out.time_left)?;
        }
    }
    Ok(())
}

/// The runtime sends it on out of the mesh: it is recorded as what other data planes answer.
fn mark_external(exchange: &mut Exchange) {
    if let Some(observed) = &mut exchange.observed {
        observed.is_external = true;
    }
}

/// Gives a request no more time than its caller waits.
///
/// # Errors
/// [`RequestError::BadRequest`].
fn limit_time(
    now: Instant,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    time_left: TimeLeft,
) -> Result<(), RequestError> {
    if let Some(ends) = time_left.deadline(now)?
        && let Some(exchange) = exchanges.get_mut(key)
        && exchange.deadline.is_none_or(|earlier| ends < earlier)
    {
        exchange.deadline = Some(ends);
        if exchange.is_grpc {
            let left = ends.saturating_duration_since(now);
            headers::set_time_left(&mut exchange.head.fields, true, left);
        }
        exchanges.set_timer(now, key);
    }
    Ok(())
}

/// Brings the path of a call of `id` into the form in which daprd sends it on, in its place.
fn clean_path(config: &LoopConfig, of: &mut Exchange, id: &str) -> Result<(), RequestError> {
    let Some(daprd) = config.as_daprd.as_ref().filter(|_| AsDaprd::answers(of)) else {
        return Ok(());
    };
    as_daprd::limit_body(daprd, of, id)?;
    match clean_target(&of.head.path) {
        Ok(None) => Ok(()),
        Ok(Some(path)) => {
            of.head.path = path;
            Ok(())
        }
        Err(why) => Err(RequestError::Method { id: id.to_owned(), why }),
    }
}

/// Whether a request at a port of the app's side may come from a web page. A token is looked at in place
/// of this where there is one; the outbound port takes none.
fn admit_page(config: &LoopConfig, conns: &Connections, of: &Exchange) -> Result<(), RequestError> {
    let pages = &config.web_pages;
    match of.via {
        ListenerKind::Outbound => pages.admit_site(&of.head),
        ListenerKind::HttpApi | ListenerKind::GrpcApi if config.tokens.api.is_none() => {
            pages.admit_site(&of.head)?;
            // No browser speaks HTTP/2 without TLS.
            let conn = conns.get(of.down.conn);
            match conn.is_some_and(|conn| matches!(conn.role, Role::Http1Server(_))) {
                true => pages.admit_host(&of.head),
                false => Ok(()),
            }
        }
        ListenerKind::HttpApi
        | ListenerKind::GrpcApi
        | ListenerKind::Loopback
        | ListenerKind::Public
        | ListenerKind::Tunnel(_)
        | ListenerKind::Inbound
        | ListenerKind::Tcp(_)
        | ListenerKind::Intercepted
        | ListenerKind::Gateway
        | ListenerKind::GatewayInside
        | ListenerKind::Front => Ok(()),
    }
}

/// Routes a request of another sidecar, to the app or to the runtime.
fn route_inbound(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    policy: &mut PolicyGate,
    key: ExchangeKey,
) -> Result<(), RequestError> {
    let Some(exchange) = exchanges.get_mut(key) else { return Ok(()) };
    let conn = conns.get_mut(exchange.down.conn);
    let peer = conn.as_ref().and_then(|c| c.peer.clone());
    cx.metrics.inbound_requests.add(1);
    let home = &cx.config.home;
    // Another replica of this service may pass on the call of an actor, and says whose it is.
    let passed_on = match &peer {
        Some(peer) if peer.service == *home => ActorCaller::read(&exchange.head.fields)?,
        _ => None,
    };
    let admitted = policy.admit_request(conn, &exchange.head, home, passed_on.as_ref());
    if let Err(RequestError::PolicyDenied(denial)) = &admitted {
        cx.metrics.policy_denials.add(1);
        denial.log(&mut cx.log, cx.now);
        // What another replica passes on is not its own call.
        let caller = peer.as_deref().filter(|_| passed_on.is_none());
        why_admitted::begin_refused_trace(exchange, caller, &cx.config.home, denial);
    }
    let admitted = admitted?;
    if policy.has_shadow()
        && let Some(denial) = policy.shadow_denial(
            conns.get_mut(exchange.down.conn),
            &exchange.head,
            home,
            passed_on.as_ref(),
        )
    {
        cx.metrics.policy_shadow_denials.add(1);
        denial.log_shadow(&mut cx.log, cx.now);
    }
    if let Some(target) = admitted {
        exchange.head.path = target;
    }
    let limited = policy.rates.admit(conns.get_mut(exchange.down.conn), cx.now);
    if let Err(RequestError::RateLimited { limit, .. }) = &limited {
        cx.metrics.rate_limited.add(1);
        let caller = peer.as_deref().filter(|_| passed_on.is_none());
        why_admitted::begin_limited_trace(exchange, caller, &cx.config.home, *limit);
    }
    let taken = limited?;
    exchange.under_way = taken.under_way.map(Box::new);
    let over_shadow = taken.over_shadow;
    if let Some(limit) = over_shadow {
        cx.metrics.rate_shadow_limited.add(1);
        log_shadow_limit(&mut cx.log, peer.as_deref(), limited_words(limit), cx.now);
    }
    let caller = passed_on.as_ref().map(|caller| &caller.spiffe);
    let caller = caller.or_else(|| peer.as_ref().map(|peer| &peer.spiffe));
    let own = caller.map(|caller| headers::inbound_request(&mut exchange.head, caller, home));
    let own = own.unwrap_or_default();
    if let Some(lookup) = own.actor {
        lookup.push(&mut exchange.head.fields);
        let of_peer = |peer: &Arc<PeerIdentity>| ActorCaller {
            spiffe: peer.spiffe.clone(),
            network: peer.service.network.clone(),
        };
        if let Some(caller) = passed_on.or_else(|| peer.as_ref().map(of_peer)) {
            caller.push(&mut exchange.head.fields);
        }
        exchange.is_of_actors = true;
        exchange.destination = Destination::Actors;
    } else if let Some(port) = conns.get(exchange.down.conn).and_then(|conn| conn.app_port) {
        let served = cx.ports.for_requests(port, cx.config.app_ip);
        let served =
            served.ok_or_else(|| RequestError::NoReadyEndpoint { service: home.clone() })?;
        exchange.destination = Destination::AppPort(served);
        cx.config.actor_app.admit(&exchange.head.path, home)?;
    } else {
        let AppTarget { protocol, host, names_host, .. } = http_app(&cx.config)?;
        let is_translated =
            *protocol == AppProtocol::Grpc && !exchange.is_grpc && !exchange.is_upgrade;
        exchange.destination = if is_translated { Destination::Callback } else { Destination::App };
        cx.config.actor_app.admit(&exchange.head.path, home)?;
        if *names_host {
            headers::name_host(&mut exchange.head, host);
        }
        headers::show_token(&mut exchange.head, cx.config.tokens.app.as_ref());
    }
    if own.wants_call_trace {
        why_admitted::begin_callee_trace(cx, conns, exchanges, policy, key, over_shadow);
    }
    limit_time(cx.now, exchanges, key, own.time_left)
}

/// A request is over a limit in shadow mode. It goes on.
fn log_shadow_limit(log: &mut LogLimiter, peer: Option<&PeerIdentity>, what: &str, now: Instant) {
    let caller = peer.map(|peer| peer.spiffe.to_string()).unwrap_or_default();
    if let Some(left_out) = log.admit("limit in shadow mode", caller.clone(), now) {
        tracing::info!(caller, what, left_out, "a limit in shadow mode would refuse requests");
    }
}

/// Routes a request of the own runtime to the app.
fn route_own_app(cx: &Cx, exchanges: &mut Exchanges, key: ExchangeKey) -> Result<(), RequestError> {
    let app = http_app(&cx.config)?;
    let Some(exchange) = exchanges.get_mut(key) else { return Ok(()) };
    exchange.destination = Destination::App;
    headers::own_app_request(&mut exchange.head, &app.host);
    headers::show_token(&mut exchange.head, cx.config.tokens.app.as_ref());
    Ok(())
}

/// Routing failed, so the head is as it was received. Notes whether it is a call of an actor, on which
/// depends how the failure is reported.
fn note_undecided(exchanges: &mut Exchanges, key: ExchangeKey) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    exchange.is_of_actors |= match exchange.via {
        ListenerKind::Loopback => {
            RuntimeRequest::read(&exchange.head.fields).map_or(true, |a| a.is_of_actors())
        }
        ListenerKind::Inbound => headers::is_of_actors(&exchange.head.fields),
        _ => false,
    };
}

/// The app, for requests.
///
/// # Errors
/// [`RequestError::NoReadyEndpoint`] without one, [`RequestError::NotHttp`] for one that takes bytes.
fn http_app(config: &LoopConfig) -> Result<&AppTarget, RequestError> {
    let service = || config.home.clone();
    let app = config.app.as_ref();
    let app = app.ok_or_else(|| RequestError::NoReadyEndpoint { service: service() })?;
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
        path: PathRewrite,
        credentials_used: bool,
    },
    /// Out of the mesh.
    External {
        id: String,
        path: PathRewrite,
        credentials_used: bool,
    },
    /// Out of the mesh, through the outbound proxy, to the host of this URL.
    Proxied(String),
}

/// How routing changes the path of a request.
enum PathRewrite {
    /// Removes this many bytes from its start.
    StripPrefix(usize),
    Replace(Vec<u8>),
}

impl PathRewrite {
    fn of(path: Cow<'_, [u8]>, asked: &[u8]) -> Self {
        match path {
            Cow::Borrowed(path) if asked.ends_with(path) => {
                Self::StripPrefix(asked.len() - path.len())
            }
            path => Self::Replace(path.into_owned()),
        }
    }

    fn apply(self, path: &mut Vec<u8>) {
        match self {
            Self::StripPrefix(begin) => drop(path.drain(..begin)),
            Self::Replace(other) => *path = other,
        }
    }
}

/// At the outbound proxy, what is no service may be a host out of the mesh that egress allows.
fn or_external(
    cx: &Cx,
    exchange: &Exchange,
    target: Result<Outbound, RequestError>,
) -> Result<Outbound, RequestError> {
    match target {
        Err(RequestError::Target(TargetError::NotMesh(_)))
            if exchange.via == ListenerKind::Outbound =>
        {
            let authority = String::from_utf8_lossy(&exchange.head.authority);
            let (host, _) = external::decide_proxied(cx, &authority, Some(PLAIN_PORT))?;
            Ok(Outbound::Proxied(format!("http://{host}")))
        }
        target => target,
    }
}

/// Whether the runtime makes the calls of a service, under its resiliency rules. Calls that the runtime
/// itself makes are not handed to it again.
fn has_resiliency_rules(config: &LoopConfig, via: &ListenerKind, name: &ServiceName) -> bool {
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
            tollway_routing::AppListener::HttpApi
        }
        ListenerKind::GrpcApi => tollway_routing::AppListener::GrpcApi,
        ListenerKind::Tunnel(name) => {
            let (name, path) = (name.clone(), PathRewrite::StripPrefix(0));
            return Ok(Outbound::Service { name, path, credentials_used: false });
        }
        ListenerKind::Outbound
        | ListenerKind::Inbound
        | ListenerKind::Tcp(_)
        | ListenerKind::Intercepted
        | ListenerKind::Gateway
        | ListenerKind::GatewayInside
        | ListenerKind::Front => tollway_routing::AppListener::Outbound,
    };
    let parts = RequestParts {
        listener: via,
        is_connect: head.method == Method::Connect,
        authority: &head.authority,
        path: &head.path,
        app_id: head.fields.value(b"dapr-app-id"),
        authorization: head.fields.value(b"authorization"),
        // External endpoints are called over HTTP only.
        external_endpoints: config
            .external_endpoints
            .as_deref()
            .filter(|_| via == tollway_routing::AppListener::HttpApi),
    };
    Ok(match decide_target(parts, home)? {
        Target::Api => Outbound::Api,
        Target::Service { name, path, credentials_used } => {
            Outbound::Service { name, path: PathRewrite::of(path, &head.path), credentials_used }
        }
        Target::External { id, path, credentials_used } => {
            Outbound::External { id, path: PathRewrite::of(path, &head.path), credentials_used }
        }
    })
}
