//! Where an exchange or a raw connection goes next: to a connection, or in line until its service
//! is known or a connection has room.

use std::collections::VecDeque;
use std::time::Instant;

use tollway_model::{AppProtocol, ServiceName, ServiceState};
use tollway_net::Key;
use tollway_telemetry::SeriesId;

use super::EventLoop;
use super::pool::Pool;
use crate::call_trace::WaitsFor;
use crate::conn::{ListenerKind, Purpose, Role};
use crate::exchange::{Destination, Upstream};
use crate::exchange::{fail, trace};
use crate::protocol::{http1_server, relay};
use crate::request_error::RequestError;
use crate::tls::alpn;

impl EventLoop {
    /// What is known of a service; asks for it when nothing is.
    ///
    /// # Errors
    /// When too many services are in use to ask for one more.
    pub(super) fn service_state(
        &mut self,
        service: &ServiceName,
    ) -> Result<Option<ServiceState>, RequestError> {
        self.placed_state(service).map(|(state, _)| state)
    }

    /// The same, and where its calls are counted.
    fn placed_state(
        &mut self,
        service: &ServiceName,
    ) -> Result<(Option<ServiceState>, SeriesId), RequestError> {
        let destination = Destination::Service(service.clone());
        // As nearly every request finds it.
        if let Some(pool) = self.pools.get_mut(&destination) {
            pool.used = self.cx.now;
            return Ok((pool.state.clone(), pool.place));
        }
        let pool = self.pool_in_use(&destination)?;
        Ok((pool.state.clone(), pool.place))
    }

    /// The pool of a service or a workload that somebody wants to call.
    ///
    /// # Errors
    /// When too many are in use for one more.
    pub(super) fn pool_in_use(
        &mut self,
        destination: &Destination,
    ) -> Result<&mut Pool, RequestError> {
        let (now, limit) = (self.cx.now, self.cx.config.limits.services);
        if self.pools.len() >= limit && !self.pools.contains_key(destination) {
            return Err(RequestError::Overloaded { what: "the list of services in use", limit });
        }
        let pool = self.pool(destination);
        pool.used = now;
        Ok(pool)
    }

    /// A raw connection waits until its service is known.
    pub(super) fn wait_for_service_raw(&mut self, key: Key, service: ServiceName) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.since = self.cx.now;
            conn.raw_target = Some(service.clone());
            self.conns.schedule(&self.cx, key);
        }
        let limit = self.cx.config.limits.waiting_per_service;
        let destination = Destination::Service(service);
        let mut waiting = std::mem::take(&mut self.pool(&destination).waiting_raw);
        if waiting.len() >= limit {
            waiting.retain(|key| self.conns.get(*key).is_some());
        }
        let is_full = waiting.len() >= limit;
        if !is_full {
            waiting.push(key);
        }
        self.pool(&destination).waiting_raw = waiting;
        if is_full {
            let error =
                RequestError::Overloaded { what: "the queue for an unknown service", limit };
            self.fail_raw(key, &error);
        }
    }

    /// Sends an exchange to its destination, or has it wait for a connection.
    pub(super) fn dispatch(&mut self, key: Key) {
        let buffered = self.exchanges.buffered_bytes();
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        if exchange.turn.is_some() && exchange.is_to_gather(&self.cx.config.limits, buffered) {
            exchange.up = Upstream::Gathering;
            return;
        }
        exchange.up = Upstream::Waiting;
        let destination = exchange.destination.clone();
        let is_upgrade = exchange.is_upgrade;
        if destination.is_of_mesh() {
            match self.find_callee(key, &destination) {
                Ok(true) => {}
                Ok(false) => return self.wait(key, &destination),
                Err(error) => {
                    return fail::fail(
                        &mut self.cx,
                        &mut self.conns,
                        &mut self.exchanges,
                        key,
                        &error,
                    );
                }
            }
        }
        if !self.takes_slot(key, &destination) {
            return;
        }
        if is_upgrade && !destination.is_served_here() {
            return self.dispatch_upgrade(key, &destination);
        }
        if destination == Destination::App && self.has_its_share(key) {
            return self.wait_for_share(key);
        }
        match self.choose(&destination) {
            Some(conn) => self.send_request(key, conn),
            None => {
                self.wait(key, &destination);
                self.keep_dialled(&destination);
            }
        }
    }

    /// Whether it is known where a service or a workload is, which can be called then.
    ///
    /// # Errors
    /// Cause it cannot be called.
    fn find_callee(&mut self, key: Key, destination: &Destination) -> Result<bool, RequestError> {
        let Some(service) = destination.service() else { return Ok(true) };
        let (state, place) = self.placed_state(service)?;
        trace::note_service(&mut self.exchanges, key, state.as_ref());
        if let Some(exchange) = self.exchanges.get_mut(key) {
            exchange.place = Some(place);
        }
        if let Some(ServiceState::Unavailable(reason)) = &state {
            return Err(RequestError::unavailable(*reason, service));
        }
        if let Destination::Workload(workload) = destination {
            return self.find_workload(workload, state.as_ref());
        }
        match state {
            Some(ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. })
                if protocol == AppProtocol::Tcp =>
            {
                Err(RequestError::NotHttp { service: service.clone() })
            }
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    /// A request that may leave HTTP has a connection of its own.
    fn dispatch_upgrade(&mut self, key: Key, destination: &Destination) {
        self.note_wait(key, destination);
        if let Err(error) = self.dial_for(destination, Purpose::Upgrade(key), alpn::HTTP1) {
            fail::fail(&mut self.cx, &mut self.conns, &mut self.exchanges, key, &error);
        }
    }

    /// Notes in a call trace what a request waits for.
    pub(super) fn note_wait(&mut self, key: Key, destination: &Destination) {
        let is_known = self.pools.get(destination).is_some_and(|pool| pool.state.is_some());
        let what = if is_known { WaitsFor::Connection } else { WaitsFor::Discovery };
        trace::note_wait(&mut self.exchanges, key, what);
    }

    fn wait(&mut self, key: Key, destination: &Destination) {
        self.note_wait(key, destination);
        let limit = self.cx.config.limits.waiting_per_service;
        let mut waiting = std::mem::take(&mut self.pool(destination).waiting);
        if waiting.len() >= limit {
            // Those that were called off meanwhile take no place.
            waiting.retain(|key| self.exchanges.is_waiting(*key));
        }
        let is_full = waiting.len() >= limit;
        let pool = self.pool(destination);
        pool.waiting = waiting;
        if is_full {
            let error = RequestError::Overloaded { what: "the queue for connections", limit };
            return fail::fail(&mut self.cx, &mut self.conns, &mut self.exchanges, key, &error);
        }
        pool.waiting.push_back(key);
    }

    /// Tells everyone in line for a destination the same error.
    pub(super) fn fail_waiting(&mut self, destination: &Destination, error: &RequestError) {
        self.fail_waiting_behind(destination, 0, error);
    }

    /// The same, but for the first so many.
    pub(super) fn fail_waiting_behind(
        &mut self,
        destination: &Destination,
        first: usize,
        error: &RequestError,
    ) {
        let waiting = &mut self.pool(destination).waiting;
        let late = waiting.split_off(first.min(waiting.len()));
        for key in late {
            if self.exchanges.is_waiting(key) {
                fail::fail(&mut self.cx, &mut self.conns, &mut self.exchanges, key, error);
            }
        }
    }

    /// Tells those who have waited long enough for a service to become known.
    pub(super) fn fail_undiscovered(&mut self, destination: &Destination) {
        let Some(service) = destination.service().cloned() else { return };
        let (now, patience) = (self.cx.now, self.cx.config.timeouts.discovery);
        let is_late = |since: Instant| now.saturating_duration_since(since) > patience;
        let error = RequestError::DiscoveryTimedOut { service };
        let pool = self.pool(destination);
        let waiting = std::mem::take(&mut pool.waiting);
        let raw = std::mem::take(&mut pool.waiting_raw);
        let (late, early): (VecDeque<Key>, VecDeque<Key>) = waiting
            .into_iter()
            .filter(|key| self.exchanges.is_waiting(*key))
            .partition(|key| self.exchanges.get(*key).is_some_and(|e| is_late(e.started)));
        let (late_raw, early_raw): (Vec<Key>, Vec<Key>) = raw
            .into_iter()
            .filter(|key| self.conns.get(*key).is_some())
            .partition(|key| self.conns.get(*key).is_some_and(|conn| is_late(conn.since)));
        let pool = self.pool(destination);
        pool.waiting = early;
        pool.waiting_raw = early_raw;
        for key in late {
            fail::fail(&mut self.cx, &mut self.conns, &mut self.exchanges, key, &error);
        }
        for key in late_raw {
            self.fail_raw(key, &error);
        }
    }

    /// Tells one raw connection: over HTTP if it is a CONNECT, by a reset otherwise.
    pub(super) fn fail_raw(&mut self, key: Key, error: &RequestError) {
        match self.conns.get(key).map(|conn| &conn.role) {
            Some(Role::Relay(_)) => {
                tracing::info!(%error, "TCP call failed");
                relay::refuse_tcp(&mut self.cx, &mut self.conns, key, error.code());
            }
            Some(Role::Http1Server(_)) => {
                self.cx.metrics.faults.add(1);
                http1_server::answer_error(&mut self.cx, &mut self.conns, key, error);
            }
            _ => {}
        }
    }

    /// Sends what waits, as far as connections take it.
    pub(super) fn serve_waiting(&mut self, destination: &Destination) {
        while let Some(pool) = self.pools.get_mut(destination) {
            let Some(key) = pool.waiting.pop_front() else { return };
            if !self.exchanges.is_waiting(key) {
                continue;
            }
            match self.choose(destination) {
                Some(conn) => self.send_request(key, conn),
                None => {
                    self.pool(destination).waiting.push_front(key);
                    return;
                }
            }
        }
    }

    /// A connection has room for another stream, or its pool has one less.
    pub(super) fn on_capacity(&mut self, key: Key) {
        let Some(conn) = self.conns.get(key) else { return };
        let Role::Http2Client(link) = &conn.role else { return };
        let Some(destination) = link.destination.clone() else { return };
        if self.pools.get(&destination).is_some_and(|pool| !pool.waiting.is_empty()) {
            self.serve_waiting(&destination);
        }
    }

    /// A raw connection's service is known now.
    pub(super) fn dispatch_raw(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some(service) = conn.raw_target.take() else { return };
        match (&conn.role, &conn.via) {
            (Role::Relay(_), _) => self.dispatch_tcp(key, service),
            (_, Some(ListenerKind::Outbound)) => self.open_tunnel(key, service),
            _ => {}
        }
    }
}
