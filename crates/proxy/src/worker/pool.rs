//! Upstream connections: which there are for each destination, which takes a request, when more
//! are dialled and when one is let go.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use tollway_http::{h1, h2};
use tollway_model::{AppProtocol, Instance, ServiceName, ServiceState, ServiceUpdate, TrustDomain};
use tollway_net::{Conn, Key};
use tollway_routing::{Dialled, Failure, SpreadLimits, pick_of_two, plan_spread};

use super::Worker;
use super::accept::proven_identity;
use crate::connection::{Connection, Dial, Door, H1Client, H2Link, Purpose, Role};
use crate::exchange::{Destination, Upstream};
use crate::fault::Fault;
use crate::tls::alpn;

/// Endpoints of one service in its own network that a thread keeps connections to.
const LOCAL_ENDPOINTS: usize = 16;
/// Streams that a queue of bulk bytes counts for when a connection is chosen.
const BULK_LOAD: u32 = 1000;

/// One destination's connections and what waits for them.
pub(super) struct Pool {
    /// Established connections.
    conns: Vec<Key>,
    /// Established HTTP/1.1 connections without a request, last used last.
    idle: Vec<Key>,
    /// Connections being made.
    dialling: Vec<Key>,
    /// Exchanges without a connection.
    waiting: VecDeque<Key>,
    /// Connections (TCP, CONNECT, ClientHello) that wait for the service to be known.
    waiting_raw: Vec<Key>,
    /// Addresses that could not be dialled, and until when they are left alone.
    backoff: HashMap<SocketAddr, Instant>,
    /// Relays through here to each address (in a gateway).
    relays: HashMap<SocketAddr, usize>,
    /// `None` until the control plane has answered.
    state: Option<ServiceState>,
    asked: Instant,
    pub(super) used: Instant,
    turn: usize,
}

impl Pool {
    fn new(now: Instant) -> Self {
        Self {
            conns: Vec::new(),
            idle: Vec::new(),
            dialling: Vec::new(),
            waiting: VecDeque::new(),
            waiting_raw: Vec::new(),
            backoff: HashMap::new(),
            relays: HashMap::new(),
            state: None,
            asked: now,
            used: now,
            turn: 0,
        }
    }

    fn is_unused(&self) -> bool {
        self.conns.is_empty()
            && self.dialling.is_empty()
            && self.waiting.is_empty()
            && self.waiting_raw.is_empty()
    }
}

/// Where a service's connections can go.
pub(super) struct Candidates {
    addresses: Vec<SocketAddr>,
    trust_domain: Option<TrustDomain>,
    /// Ready replicas behind gateways; `None` for addresses of endpoints.
    remote_replicas: Option<u32>,
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

impl Worker {
    fn pool(&mut self, destination: &Destination) -> &mut Pool {
        if !self.pools.contains_key(destination) {
            if let Destination::Service(service) = destination {
                self.outside.subscribe(service);
            }
            self.pools.insert(destination.clone(), Pool::new(self.now));
        }
        let now = self.now;
        let pool = self.pools.get_mut(destination).expect("inserted above");
        pool.used = now;
        pool
    }

    /// What is known of a service; asks for it when nothing is.
    pub(super) fn service_state(&mut self, service: &ServiceName) -> Option<ServiceState> {
        let destination = Destination::Service(service.clone());
        if !self.pools.contains_key(&destination) && self.pools.len() >= self.config.limits.services
        {
            return Some(ServiceState::Unavailable(
                tollway_model::UnavailableReason::UnknownService,
            ));
        }
        self.pool(&destination).state.clone()
    }

    /// What is known of a service, without asking.
    pub(super) fn known_state(&self, service: &ServiceName) -> Option<&ServiceState> {
        self.pools.get(&Destination::Service(service.clone()))?.state.as_ref()
    }

    /// A raw connection waits until its service is known.
    pub(super) fn wait_for_service_raw(&mut self, key: Key, service: ServiceName) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.since = self.now;
            conn.raw_target = Some(service.clone());
        }
        self.pool(&Destination::Service(service)).waiting_raw.push(key);
    }

    /// Sends an exchange to its destination, or has it wait for a connection.
    pub(super) fn dispatch(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.up = Upstream::Waiting;
        let destination = exchange.destination.clone();
        let is_upgrade = exchange.is_upgrade;
        if let Destination::Service(service) = &destination {
            match self.service_state(service) {
                None => return self.wait(key, &destination),
                Some(ServiceState::Unavailable(reason)) => {
                    let fault = Fault::unavailable(reason, service);
                    return self.fail(key, &fault);
                }
                Some(
                    ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. },
                ) if protocol == AppProtocol::Tcp => {
                    return self.fail(key, &Fault::NotHttp { service: service.clone() });
                }
                Some(ServiceState::Local { .. } | ServiceState::Remote { .. }) => {}
            }
        }
        if is_upgrade {
            return self.dispatch_upgrade(key, &destination);
        }
        match self.choose(&destination) {
            Some(conn) => self.send_request(key, conn),
            None => {
                self.wait(key, &destination);
                self.keep_dialled(&destination);
            }
        }
    }

    /// A request that may leave HTTP has a connection of its own.
    fn dispatch_upgrade(&mut self, key: Key, destination: &Destination) {
        if let Err(fault) = self.dial_for(destination, Purpose::Upgrade(key), alpn::HTTP1) {
            self.fail(key, &fault);
        }
    }

    fn wait(&mut self, key: Key, destination: &Destination) {
        let limit = self.config.limits.waiting_per_service;
        let pool = self.pool(destination);
        if pool.waiting.len() >= limit {
            let fault = Fault::Overloaded { what: "the queue for connections", limit };
            return self.fail(key, &fault);
        }
        pool.waiting.push_back(key);
    }

    /// A connection that takes a request now.
    fn choose(&mut self, destination: &Destination) -> Option<Key> {
        if self.speaks_h1(destination) {
            return self.choose_idle(destination);
        }
        let random = self.next_random();
        let pool = self.pools.get(destination)?;
        let is_remote = matches!(pool.state, Some(ServiceState::Remote { .. }));
        if is_remote {
            self.choose_by_instance(pool, random)
        } else {
            self.choose_of_two(pool, random)
        }
    }

    fn choose_idle(&mut self, destination: &Destination) -> Option<Key> {
        loop {
            let key = self.pools.get_mut(destination)?.idle.pop()?;
            let fresh = self.conns.get(key).is_some_and(|conn| {
                !conn.draining && !conn.io.may_read() && matches!(conn.role, Role::H1Client(_))
            });
            if fresh {
                return Some(key);
            }
            // Something came or it closed: a read will tell; it is not for a request.
            self.queue_read(key);
        }
    }

    /// Requests under way on a connection; `None` if it takes no more. One with a queue of bytes
    /// carries bulk: a request behind them would wait, so it counts as much busier.
    fn load(&self, key: Key) -> Option<u32> {
        let conn = self.conns.get(key)?;
        let Role::H2Client(link) = &conn.role else { return None };
        if conn.draining || !link.codec.can_open() {
            return None;
        }
        let streams = u32::try_from(link.codec.active_streams()).unwrap_or(u32::MAX);
        let carries_bulk = conn.io.pending() > self.config.limits.out_bytes / 2;
        Some(streams.saturating_add(if carries_bulk { BULK_LOAD } else { 0 }))
    }

    fn choose_of_two(&self, pool: &Pool, random: u64) -> Option<Key> {
        let index = pick_of_two(pool.conns.len(), random, |at| self.load(pool.conns[at]))?;
        Some(pool.conns[index])
    }

    /// Two choices over the replicas that answered, then the least loaded of the connections to
    /// the chosen one: a replica with two connections gets no more than one with one.
    fn choose_by_instance(&self, pool: &Pool, random: u64) -> Option<Key> {
        let mut replicas: Vec<(Option<&Instance>, u32, Key, u32)> = Vec::with_capacity(8);
        for key in &pool.conns {
            let Some(load) = self.load(*key) else { continue };
            let instance = self.instance(*key);
            match replicas.iter_mut().find(|(known, ..)| *known == instance) {
                Some((_, total, best, best_load)) => {
                    *total += load;
                    if load < *best_load {
                        (*best, *best_load) = (*key, load);
                    }
                }
                None => replicas.push((instance, load, *key, load)),
            }
        }
        let index = pick_of_two(replicas.len(), random, |at| Some(replicas[at].1))?;
        Some(replicas[index].2)
    }

    fn instance(&self, key: Key) -> Option<&Instance> {
        self.conns.get(key)?.peer.as_ref()?.instance.as_ref()
    }

    fn speaks_h1(&self, destination: &Destination) -> bool {
        match destination {
            Destination::Service(_) => false,
            Destination::Api => true,
            Destination::App => self.config.app.is_none_or(|app| app.protocol == AppProtocol::Http),
        }
    }

    /// Dials what the destination is short of.
    pub(super) fn keep_dialled(&mut self, destination: &Destination) {
        if self.draining.is_some() && self.pool(destination).waiting.is_empty() {
            return;
        }
        match destination {
            Destination::Service(service) => {
                let service = service.clone();
                self.keep_service_dialled(&service);
            }
            Destination::App => self.keep_app_dialled(),
            Destination::Api => self.open_api(),
        }
    }

    fn keep_service_dialled(&mut self, service: &ServiceName) {
        let destination = Destination::Service(service.clone());
        let Some(pool) = self.pools.get(&destination) else { return };
        let Some(state) = &pool.state else { return };
        let candidates = Candidates::of(state);
        let (count, retire) = match candidates.remote_replicas {
            Some(replicas) => self.plan_remote(pool, replicas),
            None => (self.missing_endpoints(pool, &candidates).len(), Vec::new()),
        };
        for key in retire {
            self.retire(key);
        }
        for _ in 0..count {
            let purpose = Purpose::PoolH2(destination.clone());
            if let Err(fault) = self.dial_for(&destination, purpose, alpn::H2) {
                if self.pools.get(&destination).is_some_and(|p| p.dialling.is_empty()) {
                    self.fail_waiting(&destination, &fault);
                }
                return;
            }
        }
    }

    fn plan_remote(&self, pool: &Pool, replicas: u32) -> (usize, Vec<Key>) {
        let standing = pool.conns.iter().filter(|key| self.takes_requests(**key));
        let dialled: Vec<Dialled<Key, Instance>> = standing
            .map(|key| Dialled {
                key: *key,
                instance: self.instance(*key).cloned(),
                outstanding: self.load(*key).unwrap_or(u32::MAX),
            })
            .chain(pool.dialling.iter().map(|key| Dialled {
                key: *key,
                instance: None,
                outstanding: 0,
            }))
            .collect();
        let plan = plan_spread(replicas as usize, &dialled, SpreadLimits::default());
        (plan.dial, plan.retire)
    }

    fn takes_requests(&self, key: Key) -> bool {
        self.conns.get(key).is_some_and(|conn| !conn.draining)
    }

    /// Endpoints without a connection, as far as this thread connects to that many.
    fn missing_endpoints(&self, pool: &Pool, candidates: &Candidates) -> Vec<SocketAddr> {
        let standing = pool.conns.iter().filter(|key| self.takes_requests(**key));
        let connected: HashSet<SocketAddr> =
            standing.chain(&pool.dialling).filter_map(|key| self.conns.get(*key)?.remote).collect();
        let room = LOCAL_ENDPOINTS.saturating_sub(connected.len());
        let missing = candidates.addresses.iter().filter(|address| {
            !connected.contains(*address)
                && pool.backoff.get(*address).is_none_or(|until| *until <= self.now)
        });
        missing.take(room).copied().collect()
    }

    fn keep_app_dialled(&mut self) {
        let Some(app) = self.config.app else { return };
        let limit = self.config.limits.app_connections;
        let h1 = app.protocol == AppProtocol::Http;
        let pool = self.pool(&Destination::App);
        let standing = pool.conns.len() + pool.dialling.len();
        let wanted = if h1 { pool.waiting.len().min(limit) } else { 1 };
        let missing = if h1 {
            wanted.saturating_sub(pool.dialling.len()).min(limit.saturating_sub(standing))
        } else {
            wanted.saturating_sub(standing)
        };
        for _ in 0..missing {
            let purpose = if h1 {
                Purpose::PoolH1(Destination::App)
            } else {
                Purpose::PoolH2(Destination::App)
            };
            match self.dial_plain(app.address, purpose) {
                Ok(key) => self.pool(&Destination::App).dialling.push(key),
                Err(reason) => {
                    let fault = Fault::Unreachable { peer: app_peer(app.address), reason };
                    return self.fail_waiting(&Destination::App, &fault);
                }
            }
        }
    }

    /// A connection to the process's own API: a socket pair, served on the other side.
    fn open_api(&mut self) {
        let pair = UnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            Ok((ours, theirs))
        });
        let (ours, theirs) = match pair {
            Ok(pair) => pair,
            Err(error) => {
                let fault = Fault::Unreachable {
                    peer: "the sidecar's API".to_owned(),
                    reason: error.to_string(),
                };
                return self.fail_waiting(&Destination::Api, &fault);
            }
        };
        self.outside.serve_api(theirs);
        let conn = Connection::new(
            Conn::local(ours),
            Role::H1Client(Box::new(h1_client(Destination::Api, false))),
            self.now,
        );
        if let Some(key) = self.insert(conn) {
            let pool = self.pool(&Destination::Api);
            pool.conns.push(key);
            pool.idle.push(key);
            self.serve_waiting(&Destination::Api);
        }
    }

    /// Dials one of the destination's addresses, those that failed lately last.
    pub(super) fn dial_for(
        &mut self,
        destination: &Destination,
        purpose: Purpose,
        protocol: &'static [u8],
    ) -> Result<Key, Fault> {
        let Destination::Service(service) = destination else {
            return match self.config.app {
                Some(app) => self
                    .dial_plain(app.address, purpose)
                    .map_err(|reason| Fault::Unreachable { peer: app_peer(app.address), reason }),
                None => Err(Fault::NoReadyEndpoint { service: self.config.home.clone() }),
            };
        };
        let unready = || Fault::NoReadyEndpoint { service: service.clone() };
        let state = self.service_state(service).ok_or_else(unready)?;
        let candidates = Candidates::of(&state);
        let trust_domain = candidates.trust_domain.clone().ok_or_else(unready)?;
        let address = self.next_address(destination, &candidates).ok_or_else(unready)?;
        let peer = || format!("service {service} at {address}");
        let tls = self
            .tls
            .client(service, &trust_domain, protocol)
            .map_err(|error| Fault::Unreachable { peer: peer(), reason: error.to_string() })?;
        let io = Conn::connect(address, Some(tls))
            .map_err(|error| Fault::Unreachable { peer: peer(), reason: error.to_string() })?;
        let pooled = matches!(purpose, Purpose::PoolH2(_) | Purpose::PoolH1(_));
        let dial = Dial { address: Some(address), purpose };
        let mut conn = Connection::new(io, Role::Dialling(dial), self.now);
        conn.remote = Some(address);
        let key = self.insert(conn).ok_or_else(|| Fault::Unreachable {
            peer: peer(),
            reason: "no descriptors are left".to_owned(),
        })?;
        if pooled {
            self.pool(destination).dialling.push(key);
        }
        self.metrics.dials.add(1);
        Ok(key)
    }

    fn next_address(
        &mut self,
        destination: &Destination,
        candidates: &Candidates,
    ) -> Option<SocketAddr> {
        let now = self.now;
        let missing = match candidates.remote_replicas {
            Some(_) => Vec::new(),
            None => {
                let pool = self.pools.get(destination)?;
                self.missing_endpoints(pool, candidates)
            }
        };
        let pool = self.pool(destination);
        pool.turn = pool.turn.wrapping_add(1);
        let turn = pool.turn;
        let rested =
            |address: &&SocketAddr| pool.backoff.get(*address).is_none_or(|until| *until <= now);
        let pick = |addresses: &[SocketAddr]| {
            let usable: Vec<_> = addresses.iter().filter(rested).copied().collect();
            let from = if usable.is_empty() { addresses } else { &usable };
            (!from.is_empty()).then(|| from[turn % from.len()])
        };
        pick(&missing).or_else(|| pick(&candidates.addresses))
    }

    /// The address with the fewest relays, the next one in turn among equals.
    pub(super) fn pick_least_relayed(
        &mut self,
        service: &ServiceName,
        candidates: &Candidates,
    ) -> Option<SocketAddr> {
        let now = self.now;
        let pool = self.pool(&Destination::Service(service.clone()));
        pool.turn = pool.turn.wrapping_add(1);
        let (turn, count) = (pool.turn, candidates.addresses.len());
        let in_turn = (0..count).map(|step| candidates.addresses[(turn + step) % count]);
        let resting =
            |address: &SocketAddr| pool.backoff.get(address).is_some_and(|until| *until > now);
        in_turn.min_by_key(|address| {
            (resting(address), pool.relays.get(address).copied().unwrap_or(0))
        })
    }

    /// One relay more to an address.
    pub(super) fn count_relay(&mut self, service: ServiceName, address: SocketAddr) {
        *self.pool(&Destination::Service(service)).relays.entry(address).or_default() += 1;
    }

    /// One relay less to an address.
    pub(super) fn uncount_relay(&mut self, service: ServiceName, address: SocketAddr) {
        let Some(pool) = self.pools.get_mut(&Destination::Service(service)) else { return };
        if let Some(count) = pool.relays.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                pool.relays.remove(&address);
            }
        }
    }

    /// A dial stands: the connection takes its role.
    pub(super) fn on_dialled(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        if let Some(peer) = conn.io.peer() {
            match proven_identity(&peer) {
                Ok(identity) => conn.peer = Some(Arc::new(identity)),
                Err(error) => {
                    self.on_dial_failed(key, &error);
                    return false;
                }
            }
        }
        let Role::Dialling(dial) = &conn.role else { return false };
        let (purpose, address) = (dial.purpose.clone(), dial.address);
        conn.since = self.now;
        match purpose {
            Purpose::PoolH2(destination) => self.join_pool_h2(key, destination, address),
            Purpose::PoolH1(destination) => {
                let client = h1_client(destination.clone(), false);
                conn.role = Role::H1Client(Box::new(client));
                let pool = self.pool(&destination);
                pool.dialling.retain(|dialling| *dialling != key);
                pool.conns.push(key);
                pool.idle.push(key);
                self.serve_waiting(&destination);
            }
            Purpose::Upgrade(exchange) => self.start_upgrade(key, exchange),
            Purpose::Relay(down) => self.on_relay_dialled(key, down),
        }
        true
    }

    fn join_pool_h2(&mut self, key: Key, destination: Destination, address: Option<SocketAddr>) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let codec = h2::Connection::client(self.config.limits.h2.clone(), conn.io.out());
        let mut link = H2Link::new(codec);
        link.destination = Some(destination.clone());
        link.address = address;
        conn.role = Role::H2Client(Box::new(link));
        self.mark_dirty(key);
        let pool = self.pool(&destination);
        pool.dialling.retain(|dialling| *dialling != key);
        pool.conns.push(key);
        if let Some(address) = address {
            pool.backoff.remove(&address);
        }
        self.serve_waiting(&destination);
        self.keep_dialled(&destination);
    }

    fn start_upgrade(&mut self, key: Key, exchange: Key) {
        let waits = self.exchanges.get(exchange).filter(|e| e.up == Upstream::Waiting);
        let Some(state) = waits else { return self.remove(key) };
        let destination = state.destination.clone();
        if let Some(conn) = self.conns.get_mut(key) {
            conn.role = Role::H1Client(Box::new(h1_client(destination, true)));
        }
        self.send_request(exchange, key);
    }

    /// A dial failed: its address rests; who waits tries another or is told.
    pub(super) fn on_dial_failed(&mut self, key: Key, reason: &str) {
        let Some(conn) = self.conns.remove(key) else { return };
        let Role::Dialling(dial) = conn.role else { return };
        self.metrics.dials_failed.add(1);
        let until = self.now + self.config.timeouts.dial_backoff;
        match dial.purpose {
            Purpose::PoolH2(destination) | Purpose::PoolH1(destination) => {
                tracing::debug!(?destination, address = ?dial.address, reason, "dial failed");
                let pool = self.pool(&destination);
                pool.dialling.retain(|dialling| *dialling != key);
                if let Some(address) = dial.address {
                    pool.backoff.insert(address, until);
                }
                self.after_failed_dial(&destination, dial.address, reason);
            }
            Purpose::Upgrade(exchange) => {
                if let Some(state) = self.exchanges.get_mut(exchange) {
                    state.attempts += 1;
                    self.on_attempt_failed(exchange, Failure::NotConnected, reason);
                }
            }
            Purpose::Relay(down) => {
                self.rest_relayed(down, until);
                self.on_relay_dial_failed(down, reason);
            }
        }
    }

    /// A gateway leaves an endpoint alone for a while that it could not dial.
    fn rest_relayed(&mut self, down: Key, until: Instant) {
        let Some(conn) = self.conns.get(down) else { return };
        let Some((service, address)) = conn.relays_to.clone() else { return };
        self.pool(&Destination::Service(service)).backoff.insert(address, until);
    }

    fn after_failed_dial(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        reason: &str,
    ) {
        let now = self.now;
        let pool = self.pool(destination);
        if !pool.dialling.is_empty() || pool.waiting.is_empty() {
            return;
        }
        let untried = match (&pool.state, destination) {
            (Some(state), Destination::Service(_)) => Candidates::of(state)
                .addresses
                .iter()
                .any(|address| pool.backoff.get(address).is_none_or(|until| *until <= now)),
            _ => false,
        };
        if untried {
            return self.keep_dialled(destination);
        }
        let peer = match address {
            Some(address) => format!("{} at {address}", super::exchange::describe(destination)),
            None => super::exchange::describe(destination),
        };
        let fault = Fault::Unreachable { peer, reason: reason.to_owned() };
        self.fail_waiting(destination, &fault);
    }

    fn fail_waiting(&mut self, destination: &Destination, fault: &Fault) {
        let waiting = std::mem::take(&mut self.pool(destination).waiting);
        for key in waiting {
            if self.exchanges.get(key).is_some_and(|e| e.up == Upstream::Waiting) {
                self.fail(key, fault);
            }
        }
    }

    /// Sends what waits, as far as connections take it.
    fn serve_waiting(&mut self, destination: &Destination) {
        while let Some(pool) = self.pools.get_mut(destination) {
            let Some(key) = pool.waiting.pop_front() else { return };
            if self.exchanges.get(key).is_none_or(|e| e.up != Upstream::Waiting) {
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
        let Role::H2Client(link) = &conn.role else { return };
        let Some(destination) = link.destination.clone() else { return };
        if self.pools.get(&destination).is_some_and(|pool| !pool.waiting.is_empty()) {
            self.serve_waiting(&destination);
        }
    }

    /// An HTTP/1.1 upstream has answered: the next request, the pool, or the end.
    pub(super) fn on_h1_client_idle(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.since = self.now;
        let Role::H1Client(client) = &mut conn.role else { return };
        client.served += 1;
        client.answered = false;
        client.scanner = h1::HeadScanner::new();
        let destination = client.destination.clone();
        if !client.keep_alive || client.dedicated || conn.draining || conn.io.read_ended() {
            return self.drop_h1_client(key);
        }
        client.keep_alive = true;
        if let Some(pool) = self.pools.get_mut(&destination) {
            pool.idle.push(key);
        }
        self.serve_waiting(&destination);
    }

    pub(super) fn drop_h1_client(&mut self, key: Key) {
        self.leave_pool(key);
        let destination = match self.conns.get(key).map(|conn| &conn.role) {
            Some(Role::H1Client(client)) => Some(client.destination.clone()),
            _ => None,
        };
        self.remove(key);
        if let Some(destination) = destination
            && self.pools.get(&destination).is_some_and(|pool| !pool.waiting.is_empty())
        {
            self.keep_dialled(&destination);
        }
    }

    /// Takes a connection out of its pool; the pool is filled again if it is in use.
    pub(super) fn leave_pool(&mut self, key: Key) {
        let Some(conn) = self.conns.get(key) else { return };
        let destination = match &conn.role {
            Role::H2Client(link) => link.destination.clone(),
            Role::H1Client(client) => Some(client.destination.clone()),
            _ => None,
        };
        let Some(pool) = destination.and_then(|d| self.pools.get_mut(&d)) else { return };
        pool.conns.retain(|member| *member != key);
        pool.idle.retain(|member| *member != key);
    }

    /// No new requests on this connection; it closes when the present ones are done.
    pub(super) fn retire(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.draining = true;
        self.on_link_draining(key);
    }

    /// A connection takes no more requests: another is dialled if its service is in use.
    pub(super) fn on_link_draining(&mut self, key: Key) {
        let Some(conn) = self.conns.get(key) else { return };
        let Role::H2Client(link) = &conn.role else { return };
        let Some(destination) = link.destination.clone() else { return };
        self.leave_pool(key);
        if self.pools.contains_key(&destination) {
            self.keep_dialled(&destination);
        }
    }

    /// The control plane tells of a service.
    pub(super) fn on_service(&mut self, update: ServiceUpdate) {
        let destination = Destination::Service(update.service.clone());
        if self.config.gateway.is_some() {
            let now = self.now;
            self.pools.entry(destination.clone()).or_insert_with(|| Pool::new(now));
        }
        let Some(pool) = self.pools.get_mut(&destination) else { return };
        pool.state = Some(update.state);
        let conns = pool.conns.clone();
        let raw = std::mem::take(&mut pool.waiting_raw);
        let candidates = pool.state.as_ref().map(Candidates::of);
        let listed = candidates.map(|c| c.addresses).unwrap_or_default();
        for key in conns {
            let remote = self.conns.get(key).and_then(|conn| conn.remote);
            if remote.is_none_or(|address| !listed.contains(&address)) {
                self.retire(key);
            }
        }
        let waiting = std::mem::take(&mut self.pool(&destination).waiting);
        for key in waiting {
            if self.exchanges.get(key).is_some_and(|e| e.up == Upstream::Waiting) {
                self.dispatch(key);
            }
        }
        for key in raw {
            self.dispatch_raw(key);
        }
        let in_use = self.pools.get(&destination).is_some_and(|pool| !pool.is_unused());
        if in_use && !listed.is_empty() {
            self.keep_dialled(&destination);
        }
    }

    /// A raw connection's service is known now.
    fn dispatch_raw(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some(service) = conn.raw_target.take() else { return };
        match (&conn.role, &conn.door) {
            (Role::Relay(_), _) => self.dispatch_tcp(key, service),
            (_, Some(Door::Outbound)) => self.open_tunnel(key, service),
            _ => {}
        }
    }

    /// Whose discovery or dial took too long; whom nobody calls any more.
    pub(super) fn sweep_pools(&mut self) {
        let (now, timeouts) = (self.now, self.config.timeouts);
        let mut late = Vec::new();
        let mut unused = Vec::new();
        let mut rested = Vec::new();
        for (destination, pool) in &mut self.pools {
            let resting = pool.backoff.len();
            pool.backoff.retain(|_, until| *until > now);
            if pool.backoff.len() < resting && !pool.is_unused() {
                rested.push(destination.clone());
            }
            let Destination::Service(service) = destination else { continue };
            if pool.state.is_none()
                && !(pool.waiting.is_empty() && pool.waiting_raw.is_empty())
                && now.saturating_duration_since(pool.asked.max(pool.used)) > timeouts.discovery
            {
                late.push(service.clone());
            }
            if pool.is_unused() && now.saturating_duration_since(pool.used) > timeouts.service_idle
            {
                unused.push(service.clone());
            }
        }
        for service in late {
            let destination = Destination::Service(service.clone());
            self.fail_waiting(&destination, &Fault::DiscoveryTimedOut { service });
        }
        for destination in rested {
            self.keep_dialled(&destination);
        }
        for service in unused {
            self.outside.unsubscribe(&service);
            self.tls.forget(&service);
            self.pools.remove(&Destination::Service(service));
        }
    }

    /// Credentials changed: connections made with the old ones make room for new ones.
    pub(super) fn retire_mesh_connections(&mut self) {
        let services: Vec<Destination> = self.pools.keys().cloned().collect();
        for destination in services {
            let conns = self.pools.get(&destination).map(|p| p.conns.clone()).unwrap_or_default();
            if matches!(destination, Destination::Service(_)) {
                for key in conns {
                    self.retire(key);
                }
            }
        }
    }
}

fn app_peer(address: SocketAddr) -> String {
    format!("the app at {address}")
}

fn h1_client(destination: Destination, dedicated: bool) -> H1Client {
    H1Client {
        destination,
        scanner: h1::HeadScanner::new(),
        input: Vec::new(),
        exchange: None,
        body: None,
        keep_alive: true,
        sink: h1::BodyLength::None,
        served: 0,
        dedicated,
        answered: false,
    }
}
