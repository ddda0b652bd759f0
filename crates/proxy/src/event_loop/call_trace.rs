//! Requests of which the way was asked for: who may ask, what is noted on the way, how it is told.
//!
//! An app asks its own sidecar, over loopback; a sidecar asks the next one over the mesh, which
//! tells its part only of requests that its policies have let in. None of this runs for others.

use std::net::SocketAddr;
use std::time::Instant;

use tollway_http::ResponseHead;
use tollway_model::way::{
    Failure, GATEWAYS_LIMIT, Place, Service, ServiceWord, WAY_BYTES_LIMIT, Way,
};
use tollway_model::{ErrorCode, ServiceName, ServiceState, UnavailableReason};
use tollway_net::Key;

use super::EventLoop;
use crate::call_trace::{CalleeTrace, CallerTrace, TracePart, WaitsFor};
use crate::cause::Cause;
use crate::connection::{Connection, ListenerKind};
use crate::exchange::{Destination, Exchange};
use crate::headers;
use crate::observe::Observed;

impl Exchange {
    /// What is remembered for the way, if it was asked for.
    fn explained(&mut self) -> Option<&mut TracePart> {
        self.observed.as_mut()?.explained.as_mut()
    }

    fn caller_part(&mut self) -> Option<&mut CallerTrace> {
        match self.explained()? {
            TracePart::Caller(part) => Some(part),
            TracePart::Callee(_) => None,
        }
    }
}

impl Observed {
    /// The request goes out on a connection.
    pub(super) fn send(&mut self, conn: &Connection, started: Instant) {
        match &mut self.explained {
            Some(TracePart::Caller(part)) => part.send(conn, started, Instant::now()),
            Some(TracePart::Callee(part)) => part.sent = Some(Instant::now()),
            None => {}
        }
    }
}

impl EventLoop {
    /// The way of a request that came from the app's side is asked for. Elsewhere nobody may ask,
    /// so that no sidecar tells strangers whom it knows.
    pub(super) fn explain_as_caller(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let remote = self.conns.get(exchange.down.conn).and_then(|conn| conn.remote);
        if !may_ask(&exchange.via, remote) {
            return;
        }
        headers::ask_for_way(&mut exchange.head);
        let part = TracePart::Caller(Box::default());
        exchange.observed.get_or_insert_default().explained = Some(part);
    }

    /// The same for a request that goes nowhere, of which the head is as it came.
    pub(super) fn explain_undecided(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        if headers::asks_for_way(&exchange.head.fields) {
            self.explain_as_caller(key);
        }
    }

    /// A caller's sidecar asks for the way of a request that was let in.
    pub(super) fn explain_as_callee(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let conn = self.conns.get_mut(exchange.down.conn);
        let admission = self.policy.admission(conn, &exchange.head, &self.config.home);
        let part = TracePart::Callee(Box::new(CalleeTrace { admission, sent: None }));
        exchange.observed.get_or_insert_default().explained = Some(part);
    }

    /// The request is held up on its way to `destination`.
    pub(super) fn note_wait(&mut self, key: Key, destination: &Destination) {
        let Some(part) = self.exchanges.get_mut(key).and_then(Exchange::caller_part) else {
            return;
        };
        let is_known = self.pools.get(destination).is_some_and(|pool| pool.state.is_some());
        let what = if is_known { WaitsFor::Connection } else { WaitsFor::Discovery };
        part.wait(what, Instant::now());
    }

    /// An attempt failed and is made again.
    pub(super) fn note_failed_attempt(&mut self, key: Key, code: ErrorCode) {
        if let Some(part) = self.exchanges.get_mut(key).and_then(Exchange::caller_part) {
            part.fail_attempt(code, Instant::now());
        }
    }

    /// A connection could not be made that requests wait for.
    pub(super) fn note_failed_dial(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        cause: &Cause,
    ) {
        let Some(pool) = self.pools.get(destination) else { return };
        let is_explained = |key: &Key| {
            let observed = self.exchanges.get(*key).and_then(|e| e.observed.as_ref());
            observed.is_some_and(|observed| observed.explained.is_some())
        };
        let waiting: Vec<Key> = pool.waiting.iter().copied().filter(is_explained).collect();
        if waiting.is_empty() {
            return;
        }
        let code = self.unreachable(destination, address, cause.clone()).code();
        for key in waiting {
            if let Some(part) = self.exchanges.get_mut(key).and_then(Exchange::caller_part) {
                part.fail_dial(code, address);
            }
        }
    }

    /// An answer came from the mesh.
    pub(super) fn hear_of_way(&mut self, key: Key, head: &ResponseHead) {
        if let Some(part) = self.exchanges.get_mut(key).and_then(Exchange::caller_part) {
            part.hear(head);
        }
    }

    /// Puts into an answer what was asked for; `failure` is cause there is none of the upstream.
    pub(super) fn tell_way(
        &mut self,
        key: Key,
        head: &mut ResponseHead,
        failure: Option<ErrorCode>,
    ) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let started = exchange.started;
        match exchange.explained() {
            None => {}
            Some(TracePart::Callee(part)) => {
                let part = part.told(started, Instant::now());
                head.fields.push_sensitive(headers::PART, part.to_string().as_bytes());
            }
            Some(TracePart::Caller(_)) => {
                let text = self.way(key, failure).and_then(|way| serde_json::to_vec(&way).ok());
                if let Some(text) = text.filter(|text| text.len() <= WAY_BYTES_LIMIT) {
                    head.fields.push_sensitive(headers::WAY, &text);
                }
            }
        }
    }

    fn way(&mut self, key: Key, failure: Option<ErrorCode>) -> Option<Way> {
        let told_by = self.hop();
        let exchange = self.exchanges.get_mut(key)?;
        let (started, attempts) = (exchange.started, exchange.attempts);
        let name = exchange.destination.service().cloned();
        let part = exchange.caller_part()?;
        let times_us = part.times(started, Instant::now());
        let failure = failure.map(|code| Failure {
            code: code.word().to_owned(),
            told_by: told_by.clone(),
            at: Place::of(code, false),
        });
        let failure = failure.or_else(|| part.failure.take());
        let (admission, mut connection) = (part.admission(), part.connection.take());
        let failed_attempts = std::mem::take(&mut part.failed_attempts);
        let state = name.as_ref().and_then(|name| self.known_state(name));
        if let (Some(connection), Some(ServiceState::Remote { .. })) = (&mut connection, state) {
            connection.through_gateway = true;
        }
        Some(Way {
            told_by,
            caller: self
                .tls
                .credentials()
                .map(|own| own.spiffe_id().to_string())
                .unwrap_or_default(),
            service: state.map(service_of),
            name: name.as_ref().map(ServiceName::to_string),
            connection,
            admission,
            attempts,
            failed_attempts,
            failure,
            times_us,
        })
    }
}

/// Only who is on this machine and came through a listener of the app's side.
fn may_ask(via: &ListenerKind, remote: Option<SocketAddr>) -> bool {
    let is_own_door = match via {
        ListenerKind::HttpApi
        | ListenerKind::GrpcApi
        | ListenerKind::Loopback
        | ListenerKind::Outbound
        | ListenerKind::Tunnel(_) => true,
        ListenerKind::Public
        | ListenerKind::Inbound
        | ListenerKind::Tcp(_)
        | ListenerKind::Gateway
        | ListenerKind::Front => false,
    };
    is_own_door && remote.is_some_and(|remote| remote.ip().to_canonical().is_loopback())
}

fn service_of(state: &ServiceState) -> Service {
    let texts = |addresses: &[SocketAddr]| -> Vec<String> {
        addresses.iter().take(GATEWAYS_LIMIT).map(ToString::to_string).collect()
    };
    let (mut gateways, mut gateways_beyond) = (Vec::new(), Vec::new());
    let (state, protocol, ready_replicas) = match state {
        ServiceState::Local { endpoints, protocol, .. } => {
            (ServiceWord::OwnNetwork, Some(protocol), endpoints.len())
        }
        ServiceState::Remote { remote, protocol, .. } => {
            (gateways, gateways_beyond) = (texts(&remote.gateways), texts(&remote.beyond));
            (ServiceWord::JoinedNetwork, Some(protocol), remote.ready_replicas as usize)
        }
        ServiceState::Unavailable(reason) => {
            let word = match reason {
                UnavailableReason::UnknownService => ServiceWord::UnknownService,
                UnavailableReason::UnknownNetwork => ServiceWord::UnknownNetwork,
                UnavailableReason::UnreachableNetwork => ServiceWord::UnreachableNetwork,
                UnavailableReason::NoReadyEndpoint => ServiceWord::NoReadyEndpoint,
            };
            (word, None, 0)
        }
    };
    Service {
        state,
        protocol: protocol.map(ToString::to_string),
        ready_replicas: u32::try_from(ready_replicas).unwrap_or(u32::MAX),
        gateways,
        gateways_beyond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_told_on_this_machine_and_at_the_apps_doors_only() {
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
