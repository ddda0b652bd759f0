//! Requests that ask for a call trace: who may ask, what is noted on the way, and how it is returned.
//!
//! An app asks its own sidecar, over loopback; a sidecar asks the next one over the mesh, which
//! answers with its part only where its policies have let the request in. No other request has any
//! of this.

use std::net::SocketAddr;
use std::time::Instant;

use tollway_http::ResponseHead;
use tollway_model::call_trace::{
    CALL_TRACE_BYTES_LIMIT, CallTrace, EgressTaken, EgressWord, Failure, GATEWAYS_LIMIT,
    LevelShown, Service, ServiceWord, Stage,
};
use tollway_model::egress::{PLAIN_PORT, TLS_PORT};
use tollway_model::{ErrorCode, ServiceName, ServiceState, UnavailableReason};
use tollway_routing::Verdict;

use super::{Exchange, Exchanges};
use crate::call_trace::{CallerTrace, TracePart, WaitsFor};
use crate::conn::{Connection, Connections, ListenerKind};
use crate::cx::Cx;
use crate::egress::ExternalHost;
use crate::event_loop::LoopConfig;
use crate::exchange::ExchangeKey;
use crate::headers;
use crate::observe::Observed;

impl Exchange {
    /// What is recorded for the call trace, if one was asked for.
    fn explained(&mut self) -> Option<&mut TracePart> {
        self.observed.as_mut()?.explained.as_mut()
    }

    pub(crate) fn caller_part(&mut self) -> Option<&mut CallerTrace> {
        match self.explained()? {
            TracePart::Caller(part) => Some(part),
            TracePart::Callee(_) => None,
        }
    }
}

impl Observed {
    /// The request goes out on a connection.
    pub(crate) fn send(&mut self, conn: &Connection, started: Instant) {
        match &mut self.explained {
            Some(TracePart::Caller(part)) => part.send(conn, started, Instant::now()),
            Some(TracePart::Callee(part)) => part.sent = Some(Instant::now()),
            None => {}
        }
    }
}

/// Begins the trace of a request that came from the app's side. Other listeners grant none, so
/// that a sidecar does not reveal what it knows to unknown callers.
pub(crate) fn begin_caller_trace(
    exchanges: &mut Exchanges,
    conns: &mut Connections,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let remote = conns.get(exchange.down.conn).and_then(|conn| conn.remote);
    if !may_ask(&exchange.via, remote) {
        return;
    }
    headers::ask_for_call_trace(&mut exchange.head);
    let part = TracePart::Caller(Box::default());
    exchange.observed.get_or_insert_default().explained = Some(part);
}

/// Begins the trace of a call of a host out of the mesh, by its URL: what the rules that hold decide on it.
/// The call is decided by the same. The name of an endpoint is no URL, and has no trace.
pub(crate) fn begin_egress_trace(
    config: &LoopConfig,
    exchanges: &mut Exchanges,
    conns: &mut Connections,
    key: ExchangeKey,
    url: &str,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let remote = conns.get(exchange.down.conn).and_then(|conn| conn.remote);
    if !headers::asks_for_call_trace(&exchange.head.fields) || !may_ask(&exchange.via, remote) {
        return;
    }
    let plain = url.strip_prefix("http://").map(|rest| (rest, PLAIN_PORT));
    let tls = || url.strip_prefix("https://").map(|rest| (rest, TLS_PORT));
    let Some((rest, port)) = plain.or_else(tls) else { return };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = ExternalHost::read(authority, port);
    let Some((host, rules)) = host.zip(config.egress.rules()) else { return };
    let decided = host.decide(&rules);
    let (decision, egress) = match decided.verdict {
        Verdict::Allowed(name) => (EgressWord::Allowed, Some(name)),
        Verdict::ByDefault if decided.would_refuse => (EgressWord::ShadowRefused, None),
        Verdict::ByDefault => (EgressWord::Default, None),
        Verdict::Refused => (EgressWord::Refused, None),
    };
    let mut part = CallerTrace::default();
    part.egress = Some(EgressTaken { host: host.to_string(), decision, egress });
    let part = TracePart::Caller(Box::new(part));
    exchange.observed.get_or_insert_default().explained = Some(part);
}

/// Begins the trace of a request that was refused before its head was rewritten.
pub(crate) fn begin_undecided_trace(
    exchanges: &mut Exchanges,
    conns: &mut Connections,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get(key) else { return };
    if headers::asks_for_call_trace(&exchange.head.fields) {
        begin_caller_trace(exchanges, conns, key);
    }
}

/// The request waits, and for what.
pub(crate) fn note_wait(exchanges: &mut Exchanges, key: ExchangeKey, what: WaitsFor) {
    if let Some(part) = exchanges.get_mut(key).and_then(Exchange::caller_part) {
        part.wait(what, Instant::now());
    }
}

/// What is known of the service that a request is for; `None` until it is known.
/// `replicas` gives how many get no requests, and what each level takes.
pub(crate) fn note_service(
    exchange: &mut Exchange,
    state: Option<&ServiceState>,
    replicas: impl FnOnce() -> (usize, Vec<LevelShown>),
) {
    if let Some(part) = exchange.caller_part() {
        let (ejected, levels) = replicas();
        let ejected_replicas = u32::try_from(ejected).unwrap_or(u32::MAX);
        part.service = state.map(|state| Service { ejected_replicas, levels, ..service_of(state) });
    }
}

/// An attempt failed and is made again.
pub(crate) fn note_failed_attempt(exchanges: &mut Exchanges, key: ExchangeKey, code: ErrorCode) {
    if let Some(part) = exchanges.get_mut(key).and_then(Exchange::caller_part) {
        part.fail_attempt(code, Instant::now());
    }
}

/// A response came from the mesh.
pub(crate) fn take_callee_trace(exchanges: &mut Exchanges, key: ExchangeKey, head: &ResponseHead) {
    if let Some(part) = exchanges.get_mut(key).and_then(Exchange::caller_part) {
        part.read_response(head);
    }
}

/// Puts the call trace, or the part of it, into a response; `failure` is why the upstream gave none.
pub(crate) fn add_call_trace(
    cx: &mut Cx,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    head: &mut ResponseHead,
    failure: Option<ErrorCode>,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let started = exchange.started;
    match exchange.explained() {
        None => {}
        Some(TracePart::Callee(part)) => {
            let part = part.part(started, Instant::now());
            head.fields.push_sensitive(headers::PART, part.to_string().as_bytes());
        }
        Some(TracePart::Caller(_)) => {
            let text = call_trace(cx, exchanges, key, failure)
                .and_then(|trace| serde_json::to_vec(&trace).ok());
            if let Some(text) = text.filter(|text| text.len() <= CALL_TRACE_BYTES_LIMIT) {
                head.fields.push_sensitive(headers::CALL_TRACE, &text);
            }
        }
    }
}

fn call_trace(
    cx: &mut Cx,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    failure: Option<ErrorCode>,
) -> Option<CallTrace> {
    let reported_by = cx.config.hop.clone();
    let exchange = exchanges.get_mut(key)?;
    let (started, attempts) = (exchange.started, exchange.attempts);
    let name = exchange.destination.service().cloned();
    let route = exchange.steering.as_ref().map(|steering| steering.taken());
    let failover = exchange.network.as_ref().map(|network| network.taken());
    let part = exchange.caller_part()?;
    let times_us = part.times(started, Instant::now());
    let failure = failure.map(|code| Failure {
        code: code.word().to_owned(),
        reported_by: reported_by.clone(),
        at: Stage::of(code, false),
    });
    let failure = failure.or_else(|| part.failure.take());
    let (admission, limit) = (part.admission(), part.limit());
    let (mut connection, egress) = (part.connection.take(), part.egress.take());
    // What a host out of the mesh answers is not the word of a sidecar.
    let (admission, limit) = if egress.is_some() { (None, None) } else { (admission, limit) };
    let failed_attempts = std::mem::take(&mut part.failed_attempts);
    let (service, fault) = (part.service.take(), part.fault);
    if let (Some(connection), Some(service)) = (&mut connection, &service) {
        connection.through_gateway |= service.state == ServiceWord::JoinedNetwork;
    }
    Some(CallTrace {
        reported_by,
        caller: cx.identity.clone(),
        service,
        fault,
        name: name.as_ref().map(ServiceName::to_string),
        route,
        failover,
        connection,
        admission,
        limit,
        egress,
        attempts,
        failed_attempts,
        failure,
        times_us,
    })
}

/// Only who is on this machine and came through a listener of the app's side.
fn may_ask(via: &ListenerKind, remote: Option<SocketAddr>) -> bool {
    let is_app_side = match via {
        ListenerKind::HttpApi
        | ListenerKind::GrpcApi
        | ListenerKind::Loopback
        | ListenerKind::Outbound
        | ListenerKind::Tunnel(_) => true,
        ListenerKind::Public
        | ListenerKind::Inbound
        | ListenerKind::Tcp(_)
        | ListenerKind::Intercepted
        | ListenerKind::Gateway
        | ListenerKind::GatewayInside
        | ListenerKind::Front => false,
    };
    is_app_side && remote.is_some_and(|remote| remote.ip().to_canonical().is_loopback())
}

fn service_of(state: &ServiceState) -> Service {
    let texts = |addresses: &[SocketAddr]| -> Vec<String> {
        addresses.iter().take(GATEWAYS_LIMIT).map(ToString::to_string).collect()
    };
    let (mut gateways, mut remote_gateways) = (Vec::new(), Vec::new());
    let (state, protocol, ready_replicas) = match state {
        ServiceState::Local { endpoints, protocol, .. } => {
            (ServiceWord::OwnNetwork, Some(protocol), endpoints.len())
        }
        ServiceState::Remote { remote, protocol, .. } => {
            (gateways, remote_gateways) = (texts(&remote.gateways), texts(&remote.beyond));
            (ServiceWord::JoinedNetwork, Some(protocol), remote.ready_replicas as usize)
        }
        ServiceState::Failover { .. } => (ServiceWord::NoFailover, None, 0),
        // Requests are for what it is the address of.
        ServiceState::AddressOf(_) => (ServiceWord::UnknownService, None, 0),
        ServiceState::Unavailable(reason) => {
            let word = match reason {
                UnavailableReason::UnknownService => ServiceWord::UnknownService,
                UnavailableReason::UnknownNetwork => ServiceWord::UnknownNetwork,
                UnavailableReason::UnreachableNetwork => ServiceWord::UnreachableNetwork,
                UnavailableReason::NoReadyEndpoint => ServiceWord::NoReadyEndpoint,
                UnavailableReason::NoFailover => ServiceWord::NoFailover,
            };
            (word, None, 0)
        }
    };
    Service {
        state,
        protocol: protocol.map(ToString::to_string),
        ready_replicas: u32::try_from(ready_replicas).unwrap_or(u32::MAX),
        ejected_replicas: 0,
        levels: Vec::new(),
        gateways,
        remote_gateways,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_granted_on_this_machine_and_at_listeners_of_the_app_only() {
        let here = |text: &str| may_ask(&ListenerKind::HttpApi, text.parse().ok());
        assert!(here("127.0.0.1:1") && here("127.9.9.9:1"));
        assert!(here("[::1]:1") && here("[::ffff:127.0.0.1]:1"));
        assert!(!here("10.0.0.1:1") && !here("[2001:db8::1]:1") && !here("[::ffff:10.0.0.1]:1"));
        let loopback = "127.0.0.1:1".parse().ok();
        assert!(!may_ask(&ListenerKind::HttpApi, None));
        assert!(
            may_ask(&ListenerKind::GrpcApi, loopback) && may_ask(&ListenerKind::Outbound, loopback)
        );
        assert!(
            !may_ask(&ListenerKind::Inbound, loopback)
                && !may_ask(&ListenerKind::Gateway, loopback)
        );
    }
}
