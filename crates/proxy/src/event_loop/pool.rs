//! The upstream connections of each destination and what waits for them: who joins, who leaves,
//! what a change of the service or of the credentials does to them.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollway_http::h1;
use tollway_model::{
    AppProtocol, Instance, ServiceName, ServiceState, ServiceUpdate, TrustDomain, UnavailableReason,
};
use tollway_net::Key;
use tollway_routing::Flight;
use tollway_telemetry::SeriesId;

use super::EventLoop;
use super::workload::only;
use crate::conn::{Connection, Role};
use crate::exchange::Destination;

/// How long after a gateway beyond the own ones has come or gone connections are made anew: by
/// then the own gateways know, and one that has gone takes no new connection. It serves those it
/// has for longer ([`Timeouts::drain`](crate::limits::Timeouts::drain)).
const RENEW_AFTER: Duration = Duration::from_secs(1);
/// Over how long sidecars spread that, so that they do not all shake hands at once.
const RENEW_SPREAD: Duration = Duration::from_secs(2);

/// One destination's connections and what waits for them.
pub(super) struct Pool {
    /// Established connections.
    pub(super) conns: Vec<Key>,
    /// Established HTTP/1.1 connections without a request, last used last.
    pub(super) idle: Vec<Key>,
    /// Connections being made.
    pub(super) dialling: Vec<Key>,
    /// Exchanges without a connection.
    pub(super) waiting: VecDeque<Key>,
    /// Connections (TCP, CONNECT, ClientHello) that wait for the service to be known.
    pub(super) waiting_raw: Vec<Key>,
    /// Addresses that could not be dialled, and until when they are left alone.
    pub(super) backoff: HashMap<SocketAddr, Instant>,
    /// Since when no address can be dialled.
    pub(super) outage: Option<Instant>,
    /// Relays through here to each address (in a gateway).
    pub(super) relays: HashMap<SocketAddr, usize>,
    /// `None` until the control plane has answered. Of a workload it is its service's, as far as
    /// that leads there.
    pub(super) state: Option<ServiceState>,
    /// The workloads of a service that have a pool of their own.
    pub(super) workloads: Vec<Instance>,
    pub(super) asked: Instant,
    /// When connections are made anew, since the gateways that they may lead through are others.
    renew_at: Option<Instant>,
    /// When somebody last wanted to go there.
    pub(super) used: Instant,
    pub(super) turn: usize,
    /// Requests under way at once; none are counted while the service is near.
    pub(super) flight: Flight,
    /// Where calls of the service are counted.
    pub(super) place: SeriesId,
}

impl Pool {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            conns: Vec::new(),
            idle: Vec::new(),
            dialling: Vec::new(),
            waiting: VecDeque::new(),
            waiting_raw: Vec::new(),
            backoff: HashMap::new(),
            outage: None,
            relays: HashMap::new(),
            state: None,
            workloads: Vec::new(),
            asked: now,
            renew_at: None,
            used: now,
            turn: 0,
            flight: Flight::default(),
            place: SeriesId::OTHER,
        }
    }

    /// Of a gateway: the service is not there any more, and nothing leads to it.
    fn is_gone(&self) -> bool {
        matches!(self.state, Some(ServiceState::Unavailable(_))) && self.relays.is_empty()
    }

    /// Whether its service's apps speak HTTP/1.1.
    pub(super) fn is_of_h1(&self) -> bool {
        self.state.as_ref().and_then(protocol_of) == Some(AppProtocol::Http)
    }

    /// Connections that stand or are being made.
    pub(super) fn made(&self) -> usize {
        self.conns.len() + self.dialling.len()
    }

    pub(super) fn is_unused(&self) -> bool {
        self.conns.is_empty()
            && self.dialling.is_empty()
            && self.waiting.is_empty()
            && self.waiting_raw.is_empty()
    }
}

/// Where a service's connections can go.
pub(super) struct Candidates {
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) trust_domain: Option<TrustDomain>,
    /// Ready replicas behind gateways; `None` for addresses of endpoints.
    pub(super) remote_replicas: Option<u32>,
}

impl Candidates {
    pub(super) fn of(state: &ServiceState) -> Self {
        match state {
            ServiceState::Local { endpoints, trust_domain, .. } => Self {
                addresses: endpoints.iter().map(|endpoint| endpoint.address).collect(),
                trust_domain: Some(trust_domain.clone()),
                remote_replicas: None,
            },
            ServiceState::Remote { remote, trust_domain, .. } => Self {
                addresses: remote.gateways.to_vec(),
                trust_domain: Some(trust_domain.clone()),
                remote_replicas: Some(remote.ready_replicas),
            },
            ServiceState::Unavailable(_) => {
                Self { addresses: Vec::new(), trust_domain: None, remote_replicas: None }
            }
        }
    }
}

impl EventLoop {
    /// The pool of a destination, made (and its service asked for) on first use.
    pub(super) fn pool(&mut self, destination: &Destination) -> &mut Pool {
        if !self.pools.contains_key(destination) {
            let mut pool = Pool::new(self.cx.now);
            match destination {
                Destination::Service(service) => self.outside.subscribe(service),
                Destination::Workload(workload) => pool.state = self.add_workload(workload),
                Destination::App
                | Destination::Api
                | Destination::Callback
                | Destination::Actors => {}
            }
            self.pools.insert(destination.clone(), pool);
        }
        self.pools.get_mut(destination).expect("inserted above")
    }

    /// What is known of a service, without asking.
    pub(super) fn known_state(&self, service: &ServiceName) -> Option<&ServiceState> {
        self.pools.get(&Destination::Service(service.clone()))?.state.as_ref()
    }

    /// An HTTP/1.1 upstream has answered: the next request, the pool, or the end.
    pub(super) fn on_h1_client_idle(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.since = self.cx.now;
        let Role::Http1Client(client) = &mut conn.role else { return };
        client.served += 1;
        client.answered = false;
        client.scanner = h1::HeadScanner::new();
        let destination = client.destination.clone();
        let is_over = conn.io.read_ended() || conn.io.is_finished();
        if !client.keep_alive || client.dedicated || conn.draining || is_over {
            return self.conns.close(&mut self.cx, key);
        }
        client.keep_alive = true;
        if let Some(pool) = self.pools.get_mut(&destination) {
            pool.idle.push(key);
        }
        self.serve_waiting(&destination);
    }

    /// A connection is no member of the pool of `destination` any more.
    pub(super) fn on_left_pool(&mut self, key: Key, destination: &Destination, refill: bool) {
        let Some(pool) = self.pools.get_mut(destination) else { return };
        pool.conns.retain(|member| *member != key);
        pool.idle.retain(|member| *member != key);
        if refill || !pool.waiting.is_empty() {
            self.keep_dialled(destination);
        }
    }

    /// Takes a connection out of its pool at once.
    pub(super) fn leave_pool(&mut self, key: Key) {
        let destination = self.conns.get(key).and_then(Connection::destination);
        let Some(pool) = destination.and_then(|d| self.pools.get_mut(d)) else { return };
        pool.conns.retain(|member| *member != key);
        pool.idle.retain(|member| *member != key);
    }

    /// Drops the idle connections to the replica that this one leads to. Its address rests, unless
    /// it is a gateway's, behind which there may be others.
    pub(super) fn leave_replica(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        instance: Option<&Instance>,
    ) {
        let Some(pool) = self.pools.get(destination) else { return };
        let is_local = matches!(pool.state, Some(ServiceState::Local { .. }));
        let leads_there = |other: &&Key| self.instance(**other) == instance;
        let idle: Vec<Key> = pool.idle.iter().filter(leads_there).copied().collect();
        if is_local {
            self.rest(destination, address, self.cx.now + self.cx.config.timeouts.dial_backoff);
        }
        for other in idle {
            self.conns.close(&mut self.cx, other);
        }
    }

    /// No new requests on this connection; it closes when the present ones are done.
    pub(super) fn retire(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.draining = true;
        if matches!(&conn.role, Role::Http1Client(client) if client.exchange.is_none()) {
            return self.conns.close(&mut self.cx, key);
        }
        self.conns.schedule(&self.cx, key);
        self.conns.leave_pool(&mut self.cx, key, true);
    }

    /// The control plane tells of a service.
    pub(super) fn on_service(&mut self, update: ServiceUpdate) {
        let destination = Destination::Service(update.service.clone());
        if self.cx.config.gateway.is_some() {
            let now = self.cx.now;
            self.pools.entry(destination.clone()).or_insert_with(|| Pool::new(now));
        }
        let now = self.cx.now;
        let spread =
            RENEW_SPREAD.mul_f64((self.cx.next_random() >> 40) as f64 / f64::from(1 << 24));
        let Some(pool) = self.pools.get_mut(&destination) else { return };
        if are_ways_others(pool.state.as_ref(), &update.state) {
            pool.renew_at = Some(now + RENEW_AFTER + spread);
        }
        if self.cx.config.gateway.is_none() && is_there(&update.state) {
            // However it is written, it is one service.
            let name = update.service.to_string().to_ascii_lowercase();
            pool.place = self.cx.metrics.services.series(&name);
        }
        let workloads = pool.workloads.clone();
        let states: Vec<_> = workloads.iter().map(|of| only(&update.state, of)).collect();
        self.take_state(&destination, update.state);
        for (instance, state) in workloads.into_iter().zip(states) {
            self.take_state(&Destination::workload(update.service.clone(), instance), state);
        }
    }

    /// Retires connections to what a service or a workload is not any more, and sends what waits.
    fn take_state(&mut self, destination: &Destination, state: ServiceState) {
        let Some(pool) = self.pools.get_mut(destination) else { return };
        // What carries them depends on it.
        let other = pool.state.as_ref().and_then(protocol_of) != protocol_of(&state);
        pool.state = Some(state);
        let conns = pool.conns.clone();
        let dialling = pool.dialling.clone();
        let raw = std::mem::take(&mut pool.waiting_raw);
        let candidates = pool.state.as_ref().map(Candidates::of);
        let listed = candidates.map(|c| c.addresses).unwrap_or_default();
        let is_listed = |worker: &Self, key: Key| {
            let remote = worker.conns.get(key).and_then(|conn| conn.remote);
            remote.is_some_and(|address| listed.contains(&address))
        };
        for key in conns {
            if other || !is_listed(self, key) {
                self.retire(key);
            }
        }
        for key in dialling {
            if other || !is_listed(self, key) {
                self.pool(destination).dialling.retain(|dialling| *dialling != key);
                self.conns.close(&mut self.cx, key);
            }
        }
        let waiting = std::mem::take(&mut self.pool(destination).waiting);
        for key in waiting {
            if self.exchanges.is_waiting(key) {
                self.dispatch(key);
            }
        }
        for key in raw {
            self.dispatch_raw(key);
        }
        let in_use = self.pools.get(destination).is_some_and(|pool| !pool.is_unused());
        if in_use && !listed.is_empty() {
            self.keep_dialled(destination);
        }
    }

    /// Whose discovery or dial took too long; whom nobody calls any more.
    pub(super) fn sweep_pools(&mut self) {
        let (now, timeouts) = (self.cx.now, self.cx.config.timeouts);
        let is_gateway = self.cx.config.gateway.is_some();
        let mut unknown = Vec::new();
        let mut gone = Vec::new();
        let mut unused = Vec::new();
        let mut again = Vec::new();
        let mut renewed = Vec::new();
        self.note_flights();
        for (destination, pool) in &mut self.pools {
            let resting = pool.backoff.len();
            pool.backoff.retain(|_, until| *until > now);
            let has_rested = pool.backoff.len() < resting && !pool.is_unused();
            let is_awaited =
                pool.outage.is_some() && pool.dialling.is_empty() && !pool.waiting.is_empty();
            if has_rested || is_awaited {
                again.push(destination.clone());
            }
            if pool.renew_at.take_if(|at| *at <= now).is_some() {
                renewed.push(destination.clone());
            }
            let idle = now.saturating_duration_since(pool.used);
            if pool.waiting.is_empty() && idle > timeouts.connect {
                pool.outage = None;
            }
            // While nobody calls, it remembers what the connections that are kept were made for.
            if pool.conns.is_empty() {
                pool.flight = Flight::default();
            }
            if !destination.is_of_mesh() {
                continue;
            }
            if pool.state.is_none()
                && now.saturating_duration_since(pool.asked) > timeouts.discovery
                && !(pool.waiting.is_empty() && pool.waiting_raw.is_empty())
            {
                unknown.push(destination.clone());
            }
            if is_gateway {
                // It is told of every service once, so it may forget only what has gone.
                if pool.is_gone() {
                    gone.push(destination.clone());
                }
            } else if pool.is_unused()
                && pool.workloads.is_empty()
                && now.saturating_duration_since(pool.used) > timeouts.service_idle
            {
                unused.push(destination.clone());
            }
        }
        for destination in unknown {
            self.fail_undiscovered(&destination);
        }
        for destination in gone {
            self.pools.remove(&destination);
        }
        for destination in renewed {
            self.renew(&destination);
        }
        for destination in again {
            self.keep_dialled(&destination);
        }
        for destination in unused {
            self.forget_unused(&destination);
        }
    }

    /// Nobody calls a service or a workload any more.
    fn forget_unused(&mut self, destination: &Destination) {
        self.pools.remove(destination);
        if let Destination::Service(service) = destination {
            self.outside.unsubscribe(service);
            if let Some(mesh) = self.tls.as_mesh() {
                mesh.forget(service);
            }
        } else if let Destination::Workload(workload) = destination {
            self.remove_workload(workload);
        }
    }

    /// Credentials changed: connections made with the old ones make room for new ones.
    pub(super) fn retire_mesh_connections(&mut self) {
        let services: Vec<Destination> = self.pools.keys().cloned().collect();
        for destination in services {
            if destination.is_of_mesh() {
                self.renew(&destination);
            }
        }
    }

    /// Makes the connections of a pool anew; what is under way finishes where it is.
    pub(super) fn renew(&mut self, destination: &Destination) {
        let conns = self.pools.get(destination).map(|pool| pool.conns.clone()).unwrap_or_default();
        for key in conns {
            self.retire(key);
        }
    }
}

fn protocol_of(state: &ServiceState) -> Option<AppProtocol> {
    match state {
        ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. } => {
            Some(*protocol)
        }
        ServiceState::Unavailable(_) => None,
    }
}

/// Whether the control plane knows a service of that name.
fn is_there(state: &ServiceState) -> bool {
    match state {
        ServiceState::Local { .. } | ServiceState::Remote { .. } => true,
        ServiceState::Unavailable(reason) => *reason == UnavailableReason::NoReadyEndpoint,
    }
}

/// Whether the gateways beyond those that are dialled have changed: any connection may lead
/// through one that has gone, and one that has come should get its share.
fn are_ways_others(before: Option<&ServiceState>, now: &ServiceState) -> bool {
    match (before, now) {
        (
            Some(ServiceState::Remote { remote: before, .. }),
            ServiceState::Remote { remote, .. },
        ) => {
            let is_in = |all: &[SocketAddr], some: &[SocketAddr]| {
                some.iter().all(|gateway| all.contains(gateway))
            };
            !is_in(&before.beyond, &remote.beyond) || !is_in(&remote.beyond, &before.beyond)
        }
        _ => false,
    }
}
