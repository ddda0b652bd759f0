//! Applies the routes of a service: the rule that holds for a request decides which service takes it,
//! what changes in it, and how long it may take; or the answer is a redirect.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use tollway_http::{Fields, RequestHead, ResponseHead};
use tollway_model::route::Affinity;
use tollway_routing::{AffinityHash, RequestFields, Routed, RoutedRequest, Rule, RuleAction};
use tollway_telemetry::DataPlaneMetrics;

use crate::conn::Connections;
use crate::cx::Cx;
use crate::exchange::{
    Destination, Exchange, ExchangeKey, Exchanges, Steering, ThreadRoutes, fail, respond,
};
use crate::headers;
use crate::request_error::RequestError;

/// What becomes of a request by the routes of its service.
enum Decided {
    /// It goes to the exchange's destination.
    Sent,
    /// The caller is to look elsewhere.
    Redirected(ResponseHead),
}

/// Decides on a request for a service that has routes. Returns whether it is to be sent on; if not, it is
/// answered.
pub(crate) fn steer(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    routes: &Arc<ThreadRoutes>,
) -> bool {
    let random = cx.next_random();
    let Some(exchange) = exchanges.get_mut(key) else { return false };
    match decide(exchange, routes, &cx.metrics, cx.now, random) {
        Ok(Decided::Sent) => {
            exchanges.set_timer(cx.now, key);
            true
        }
        Ok(Decided::Redirected(head)) => {
            respond::respond(cx, conns, exchanges, key, &head, &[]);
            false
        }
        Err(error) => {
            fail::fail(cx, conns, exchanges, key, &error);
            false
        }
    }
}

/// # Errors
/// No rule is for the request, or its rule has no backend that takes any.
fn decide(
    exchange: &mut Exchange,
    routes: &Arc<ThreadRoutes>,
    metrics: &DataPlaneMetrics,
    now: Instant,
    random: u64,
) -> Result<Decided, RequestError> {
    let Destination::Service(service) = &exchange.destination else { return Ok(Decided::Sent) };
    let head = &exchange.head;
    let request = RoutedRequest {
        method: head.method.as_bytes(),
        target: &head.path,
        is_grpc: exchange.is_grpc,
        fields: &Lines(&head.fields),
    };
    let Some(routed) = routes.routes().set().decide(request) else {
        metrics.route_unmatched.add(1);
        return Err(RequestError::NoRoute { service: service.clone() });
    };
    let rule = Arc::clone(routed.rule);
    let counts = routes.counts(&rule, metrics);
    counts.requests.add(1);
    if let RuleAction::Redirect(_) = rule.action() {
        counts.redirects.add(1);
        return Ok(Decided::Redirected(redirect(&routed, head)));
    }
    let Some((backend, target)) =
        rule.choose(random).and_then(|index| Some((index, rule.backend(index)?)))
    else {
        return Err(RequestError::NoBackend { rule: rule.name().to_string(), service: None });
    };
    let path = routed.rewritten(&head.path);
    let of = service.clone();
    // Its own name as a backend is the Service that was called.
    let to = if target.service == *of.as_app() { of.clone() } else { target.service.clone() };
    exchange.keep_unrouted();
    let head = &mut *exchange.head;
    if let Some(path) = path {
        head.path = path;
    }
    headers::edit(&mut head.fields, &target.request);
    name_host(&rule, head);
    if to != of {
        headers::send_to(head, &to);
        exchange.destination = Destination::Service(to);
    }
    let ends = rule.timeouts().request.filter(|time| !time.is_zero());
    let ends = ends.and_then(|time| exchange.started.checked_add(time));
    if let Some(ends) = ends
        && exchange.deadline.is_none_or(|earlier| ends < earlier)
    {
        exchange.deadline = Some(ends);
        let left = ends.saturating_duration_since(now);
        headers::set_time_left(&mut head.fields, exchange.is_grpc, left);
    }
    if rule.retry().is_some() {
        routes.routes().note_request(now);
    }
    let key = affinity_of(&rule, &head.fields, random);
    let mut steering = Steering::new(of, Arc::clone(routes), rule, backend);
    if let Some((key, cookie)) = key {
        steering = steering.with_affinity(key, cookie);
    }
    exchange.steering = Some(Box::new(steering));
    Ok(Decided::Sent)
}

/// The key by which a request goes to one replica, and the cookie that is to carry it from now on.
fn affinity_of(
    rule: &Rule,
    fields: &Fields,
    random: u64,
) -> Option<(AffinityHash, Option<Vec<u8>>)> {
    match rule.affinity()? {
        Affinity::Header(name) => {
            let value = fields.value(name.to_ascii_lowercase().as_bytes())?;
            Some((AffinityHash::of_key(value), None))
        }
        Affinity::Cookie { name, ttl } => {
            if let Some(value) = cookie(fields, name.as_bytes()) {
                return Some((AffinityHash::of_key(value), None));
            }
            let value = format!("{random:016x}");
            let mut set = format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax");
            if let Some(ttl) = ttl {
                set.push_str(&format!("; Max-Age={}", ttl.as_secs()));
            }
            Some((AffinityHash::of_key(value.as_bytes()), Some(set.into_bytes())))
        }
    }
}

/// The value of a cookie (RFC 6265 section 5.4).
fn cookie<'f>(fields: &'f Fields, name: &'f [u8]) -> Option<&'f [u8]> {
    let pairs = fields.values(b"cookie").flat_map(|line| line.split(|byte| *byte == b';'));
    pairs
        .map(<[u8]>::trim_ascii)
        .find_map(|pair| pair.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")))
}

fn redirect(routed: &Routed<'_>, head: &RequestHead) -> ResponseHead {
    let (status, url) = routed.location(&head.authority, &head.path).unwrap_or_default();
    let mut answer = ResponseHead::new(status);
    answer.fields.push(b"location", &url);
    headers::edit(&mut answer.fields, routed.rule.redirect_edits());
    answer
}

/// The host that the app gets to see as the one that was called.
fn name_host(rule: &Rule, head: &mut RequestHead) {
    if let Some(host) = rule.host() {
        headers::name_called_host(head, host);
    }
}

/// The error for a rule whose backend is no service that exists.
pub(crate) fn unknown_backend(exchange: &Exchange, error: RequestError) -> RequestError {
    let is_unknown =
        matches!(error, RequestError::UnknownService { .. } | RequestError::UnknownNetwork { .. });
    match (&exchange.steering, exchange.destination.service()) {
        (Some(steering), Some(service)) if is_unknown && *service != *steering.service() => {
            let rule = steering.rule().name().to_string();
            RequestError::NoBackend { rule, service: Some(service.clone()) }
        }
        _ => error,
    }
}

struct Lines<'a>(&'a Fields);

impl RequestFields for Lines<'_> {
    fn value(&self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        let first = self.0.value(name)?;
        let mut lines = self.0.iter().filter(|field| field.name == name).skip(1).peekable();
        if lines.peek().is_none() {
            return Some(Cow::Borrowed(first));
        }
        let mut joined = first.to_vec();
        for line in lines {
            joined.push(b',');
            joined.extend_from_slice(line.value);
        }
        Some(Cow::Owned(joined))
    }
}
