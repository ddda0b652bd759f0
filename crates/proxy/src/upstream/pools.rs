//! The upstream connections of each destination and what waits for them: who joins, who leaves,
//! what a change of the service or of the credentials does to them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tollway_http::h1;
use tollway_model::{
    AppProtocol, Endpoint, Instance, ServiceName, ServiceState, ServiceUpdate, SpiffeId,
    TrustDomain, UnavailableReason,
};
use tollway_net::{Key, Slab};
use tollway_routing::Flight;
use tollway_telemetry::SeriesId;

use super::replicas::{self, ServiceTraffic};
use super::workload;
use crate::conn::{ConnKey, Connection, Connections, Role, SLOW_DIAL};
use crate::cx::{Cx, Effect, EjectedReplica};
use crate::exchange::{Destination, ExchangeKey, ThreadRoutes, WorkloadName};
use crate::mesh::RoutesUpdate;
use crate::request_error::RequestError;
use crate::tls::MeshTls;
use crate::upstream::networks::Networks;
use crate::upstream::{Upstreams, pick, scale};

/// Addresses of a Kubernetes cluster that a data thread asks for at a time; connections to further ones leave
/// the mesh.
pub(crate) const ADDRESSES_LIMIT: usize = 2_048;
/// An address that is nothing of the mesh is forgotten so long after the last connection to it.
const ADDRESS_IDLE: Duration = Duration::from_secs(60);
/// From the change of a joined network's gateways to the replacement of the connections through
/// them: by then the own gateways know of it, and a gateway that leaves takes no new connection. It
/// serves those it has for longer ([`Timeouts::drain`](crate::limits::Timeouts::drain)).
const RENEW_AFTER: Duration = Duration::from_secs(1);
/// Over how long sidecars spread that, so that they do not all shake hands at once.
const RENEW_SPREAD: Duration = Duration::from_secs(2);

/// The key of a pool. It is stale once nothing uses the destination any more.
pub(crate) type PoolKey = Key<Pool>;

/// The pools of one event loop: by destination, and by keys that need no look-up of a name.
#[derive(Default)]
pub(crate) struct Pools {
    keys: HashMap<Destination, PoolKey, RandomState>,
    slab: Slab<Pool>,
    /// How many of them are of addresses.
    addresses: usize,
}

impl Pools {
    pub(crate) fn key(&self, destination: &Destination) -> Option<PoolKey> {
        self.keys.get(destination).copied()
    }

    /// `None` for a destination that nothing uses.
    pub(crate) fn get(&self, destination: &Destination) -> Option<&Pool> {
        self.at(self.key(destination)?)
    }

    /// `None` for a destination that nothing uses.
    pub(crate) fn get_mut(&mut self, destination: &Destination) -> Option<&mut Pool> {
        self.at_mut(self.key(destination)?)
    }

    /// `None` for a key whose pool has gone.
    pub(crate) fn at(&self, key: PoolKey) -> Option<&Pool> {
        self.slab.get(key)
    }

    /// `None` for a key whose pool has gone.
    pub(crate) fn at_mut(&mut self, key: PoolKey) -> Option<&mut Pool> {
        self.slab.get_mut(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.slab.iter().map(|(_, pool)| pool)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.slab.iter_mut()
    }

    fn insert(&mut self, pool: Pool) -> PoolKey {
        let destination = pool.destination.clone();
        self.addresses += usize::from(is_address(&destination));
        let key = self.slab.insert(pool);
        self.keys.insert(destination, key);
        key
    }

    fn remove(&mut self, destination: &Destination) {
        if let Some(key) = self.keys.remove(destination) {
            self.slab.remove(key);
            self.addresses -= usize::from(is_address(destination));
        }
    }
}

/// Whether the control plane can be asked for an address, or has been.
pub(crate) fn may_be_asked(upstreams: &Upstreams, address: &Destination) -> bool {
    upstreams.pools.addresses < ADDRESSES_LIMIT || upstreams.pools.key(address).is_some()
}

/// Whether it is an address, of which the control plane says what it stands for.
fn is_address(destination: &Destination) -> bool {
    destination.service().is_some_and(ServiceName::is_address)
}

/// One destination's connections and what waits for them.
pub(crate) struct Pool {
    pub(crate) destination: Destination,
    /// Established connections.
    pub(crate) conns: Vec<ConnKey>,
    /// Established HTTP/1.1 connections without a request, last used last.
    pub(crate) idle: Vec<ConnKey>,
    /// Connections being made.
    pub(crate) dialling: Vec<ConnKey>,
    /// Exchanges without a connection.
    pub(crate) waiting: VecDeque<ExchangeKey>,
    /// Connections (TCP, CONNECT) that wait for the service to be known.
    pub(crate) waiting_raw: Vec<ConnKey>,
    /// Addresses that failed, and until when they are passed over.
    pub(crate) backoff: HashMap<SocketAddr, Instant>,
    /// Since when no address can be dialled.
    pub(crate) outage: Option<Instant>,
    /// `None` until the control plane has answered. Of a workload it is its service's, as far as
    /// that leads there.
    pub(crate) state: Option<ServiceState>,
    /// What is done with requests for the service; `None` where no route holds.
    pub(crate) routes: Option<Arc<ThreadRoutes>>,
    /// The networks of a service that is called in any.
    pub(crate) networks: Option<Box<Networks>>,
    /// Requests for a service in any network use it, so failed addresses are dialled again.
    pub(crate) is_of_any_network: bool,
    /// What traffic policies of the service have this caller do; `None` where none holds.
    pub(crate) traffic: Option<Box<ServiceTraffic>>,
    /// The workloads of a service that have a pool of their own.
    pub(crate) workloads: Vec<Instance>,
    pub(crate) asked: Instant,
    /// When connections are replaced, since the gateways that they may lead through have changed.
    renew_at: Option<Instant>,
    /// When a request was last sent there.
    pub(crate) used: Instant,
    /// Index of the address that the next dial begins with.
    pub(crate) next_address: usize,
    /// Requests under way at once; none are counted while the service is near.
    pub(crate) flight: Flight,
    /// Where calls of the service are counted.
    pub(crate) series: SeriesId,
    /// Gives the order in which this thread takes replicas where it does not connect to all.
    pub(crate) seed: u64,
}

impl Pool {
    /// Whether an address is passed over since it failed, or since its replica is ejected.
    pub(crate) fn is_passed_over(&self, address: SocketAddr, now: Instant) -> bool {
        self.backoff.get(&address).is_some_and(|until| *until > now) || self.is_ejected(address)
    }

    /// `seed` is any number.
    pub(crate) fn new(destination: Destination, now: Instant, seed: u64) -> Self {
        Self {
            destination,
            conns: Vec::new(),
            idle: Vec::new(),
            dialling: Vec::new(),
            waiting: VecDeque::new(),
            waiting_raw: Vec::new(),
            backoff: HashMap::new(),
            outage: None,
            state: None,
            routes: None,
            networks: None,
            is_of_any_network: false,
            traffic: None,
            workloads: Vec::new(),
            asked: now,
            renew_at: None,
            used: now,
            next_address: 0,
            flight: Flight::default(),
            series: SeriesId::OTHER,
            seed,
        }
    }

    /// Whether its service's apps speak HTTP/1.1.
    pub(crate) fn is_of_h1(&self) -> bool {
        self.state.as_ref().and_then(protocol_of) == Some(AppProtocol::Http)
    }

    /// Connections that stand or are being made.
    pub(crate) fn made(&self) -> usize {
        self.conns.len() + self.dialling.len()
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.conns.is_empty()
            && self.dialling.is_empty()
            && self.waiting.is_empty()
            && self.waiting_raw.is_empty()
    }
}

/// Where a service's connections can go.
pub(crate) struct Candidates {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) trust_domain: Option<TrustDomain>,
    /// Ready replicas behind gateways; `None` for addresses of endpoints.
    pub(crate) remote_replicas: Option<u32>,
}

impl Candidates {
    pub(crate) fn of(state: &ServiceState) -> Self {
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
            ServiceState::Failover { .. }
            | ServiceState::AddressOf(_)
            | ServiceState::Unavailable(_) => {
                Self { addresses: Vec::new(), trust_domain: None, remote_replicas: None }
            }
        }
    }
}

/// The pool of a destination, made (and its service asked for) on first use.
pub(crate) fn pool<'u>(
    cx: &mut Cx,
    upstreams: &'u mut Upstreams,
    destination: &Destination,
) -> &'u mut Pool {
    let key = find_or_make(cx, upstreams, destination);
    upstreams.pools.at_mut(key).expect("found or made above")
}

fn find_or_make(cx: &mut Cx, upstreams: &mut Upstreams, destination: &Destination) -> PoolKey {
    if let Some(key) = upstreams.pools.key(destination) {
        return key;
    }
    let mut pool = Pool::new(destination.clone(), cx.now, cx.next_random());
    match destination {
        Destination::Service(service) => upstreams.services.subscribe(service),
        Destination::Workload(workload) => pool.state = add_workload(cx, upstreams, workload),
        Destination::App
        | Destination::AppPort(_)
        | Destination::Api
        | Destination::Callback
        | Destination::Actors => {}
    }
    upstreams.pools.insert(pool)
}

/// The pool of a service or a workload that a request is for.
///
/// # Errors
/// When too many are in use for one more.
pub(crate) fn pool_in_use<'u>(
    cx: &mut Cx,
    upstreams: &'u mut Upstreams,
    destination: &Destination,
) -> Result<(PoolKey, &'u mut Pool), RequestError> {
    let limit = cx.config.limits.services;
    let key = match upstreams.pools.key(destination) {
        Some(key) => key,
        None if upstreams.pools.keys.len() >= limit => {
            return Err(RequestError::Overloaded { what: "the list of services in use", limit });
        }
        None => find_or_make(cx, upstreams, destination),
    };
    let pool = upstreams.pools.at_mut(key).expect("found or made above");
    pool.used = cx.now;
    Ok((key, pool))
}

/// Has a service pass changes on to the pool of one of its workloads. Gives what is known now.
pub(crate) fn add_workload(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    workload: &WorkloadName,
) -> Option<ServiceState> {
    let WorkloadName { service, instance } = workload;
    let pool = pool(cx, upstreams, &Destination::Service(service.clone()));
    pool.workloads.push(instance.clone());
    pool.state.as_ref().map(|state| workload::only(state, instance))
}

/// The pool of a workload has gone.
pub(crate) fn remove_workload(
    upstreams: &mut Upstreams,
    mesh: Option<&mut MeshTls>,
    workload: &WorkloadName,
) {
    let WorkloadName { service, instance } = workload;
    if let Some(pool) = upstreams.pools.get_mut(&Destination::Service(service.clone())) {
        pool.workloads.retain(|other| other != instance);
    }
    if let Some(mesh) = mesh {
        mesh.forget_workload(service, instance);
    }
}

/// Passes an address over until then. Not for a destination that is one workload: it has no other
/// address, and its callers get the result of a dial at once.
pub(crate) fn back_off(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    destination: &Destination,
    address: Option<SocketAddr>,
    until: Instant,
) {
    if let Some(address) = address
        && !matches!(destination, Destination::Workload(_))
    {
        let now = cx.now;
        let pool = pool(cx, upstreams, destination);
        pool.backoff.insert(address, until);
        pool.refresh_near(now);
    }
}

/// A workload could not be reached that was chosen among those of its service: its address is passed
/// over there.
pub(crate) fn pass_over_workload(cx: &mut Cx, upstreams: &mut Upstreams, of: &Destination) {
    let Destination::Workload(workload) = of else { return };
    let state = upstreams.pools.get(of).and_then(|pool| pool.state.as_ref());
    let address = state.and_then(|state| workload::endpoint(state, &workload.instance));
    let address = address.map(|endpoint| endpoint.address);
    let until = cx.now + cx.config.timeouts.dial_backoff;
    back_off(cx, upstreams, &Destination::Service(workload.service.clone()), address, until);
}

/// An HTTP/1.1 upstream has answered: the next request, the pool, or the end.
pub(crate) fn on_http1_idle(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    conn.since = cx.now;
    let Role::Http1Client(client) = &mut conn.role else { return };
    let pool = client.pool.and_then(|pool| upstreams.pools.at_mut(pool));
    client.served += 1;
    client.answered = false;
    client.scanner = h1::HeadScanner::new();
    let is_over = conn.io.read_ended() || conn.io.is_finished();
    let Some(pool) = pool.filter(|_| client.keep_alive && !conn.draining && !is_over) else {
        return conns.close(cx, key);
    };
    pool.idle.push(key);
    if !pool.waiting.is_empty() {
        cx.effects.push(Effect::ServeWaiting(pool.destination.clone()));
    }
}

/// A connection is no member of the pool of `destination` any more.
pub(crate) fn on_left_pool(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    key: ConnKey,
    destination: &Destination,
    refill: bool,
) {
    let Some(pool) = upstreams.pools.get_mut(destination) else { return };
    pool.conns.retain(|member| *member != key);
    pool.idle.retain(|member| *member != key);
    if refill || !pool.waiting.is_empty() {
        cx.effects.push(Effect::Scale(destination.clone()));
    }
}

/// Takes a connection out of its pool at once.
pub(crate) fn remove(conns: &Connections, upstreams: &mut Upstreams, key: ConnKey) {
    let destination = conns.get(key).and_then(Connection::destination);
    let Some(pool) = destination.and_then(|d| upstreams.pools.get_mut(d)) else { return };
    pool.conns.retain(|member| *member != key);
    pool.idle.retain(|member| *member != key);
}

/// Closes the idle connections to a replica whose app could not be reached. Its address is passed
/// over, unless it is a gateway's, behind which there may be other replicas.
pub(crate) fn eject_replica(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    replica: &EjectedReplica,
) {
    let EjectedReplica { destination, address, instance } = replica;
    let Some(pool) = upstreams.pools.get(destination) else { return };
    let is_local = matches!(pool.state, Some(ServiceState::Local { .. }));
    let leads_there = |other: &&ConnKey| pick::instance(conns, **other) == instance.as_ref();
    let idle: Vec<ConnKey> = pool.idle.iter().filter(leads_there).copied().collect();
    if is_local {
        back_off(cx, upstreams, destination, *address, cx.now + cx.config.timeouts.dial_backoff);
    }
    for other in idle {
        conns.close(cx, other);
    }
}

/// No new requests on this connection; it closes when the present ones are done.
pub(crate) fn retire(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    conn.draining = true;
    if matches!(&conn.role, Role::Http1Client(client) if client.exchange.is_none()) {
        return conns.close(cx, key);
    }
    conns.schedule(cx, key);
    conns.leave_pool(cx, key, true);
}

/// The control plane has sent the state of a service, which `caller` calls.
pub(crate) fn on_service(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    caller: &SpiffeId,
    update: ServiceUpdate,
) {
    let destination = Destination::Service(update.service.clone());
    let now = cx.now;
    let spread = RENEW_SPREAD.mul_f64((cx.next_random() >> 40) as f64 / f64::from(1 << 24));
    let Some(pool) = upstreams.pools.get_mut(&destination) else { return };
    if have_gateways_changed(pool.state.as_ref(), &update.state) {
        pool.renew_at = Some(now + RENEW_AFTER + spread);
    }
    let before = pool.networks.take();
    pool.networks = match &update.state {
        ServiceState::Failover { rules, registered } => {
            let before = before.as_deref();
            Some(Box::new(Networks::new(&update.service, rules, registered, before)))
        }
        ServiceState::Local { .. }
        | ServiceState::Remote { .. }
        | ServiceState::AddressOf(_)
        | ServiceState::Unavailable(_) => None,
    };
    for gone in before.iter().flat_map(|of| of.gone(pool.networks.as_deref())) {
        cx.effects.push(Effect::LeaveNetwork(gone.clone()));
    }
    // Pods of one Service have an address each.
    if is_there(&update.state) && !is_address(&destination) {
        // However it is written, it is one service.
        let name = update.service.to_string().to_ascii_lowercase();
        pool.series = cx.metrics.services.series(&name);
    }
    let has_left =
        matches!(update.state, ServiceState::Unavailable(UnavailableReason::UnknownService));
    if let Some(ServiceState::AddressOf(port)) = pool.state.as_ref().filter(|_| has_left) {
        cx.effects.push(Effect::RetireCallers(port.clone()));
    }
    let workloads = pool.workloads.clone();
    let states: Vec<_> = workloads.iter().map(|of| workload::only(&update.state, of)).collect();
    take_state(cx, conns, upstreams, &destination, update.state);
    replicas::on_service(cx, conns, upstreams, &update.service, &update.traffic, caller);
    for (instance, state) in workloads.into_iter().zip(states) {
        take_state(
            cx,
            conns,
            upstreams,
            &Destination::workload(update.service.clone(), instance),
            state,
        );
    }
}

/// The routes of a service have changed. What waits for the service is decided by them.
pub(crate) fn on_routes(cx: &mut Cx, upstreams: &mut Upstreams, update: RoutesUpdate) {
    let destination = Destination::Service(update.service.clone());
    let Some(pool) = upstreams.pools.get_mut(&destination) else { return };
    let of_thread = |routes| Arc::new(ThreadRoutes::new(routes, &cx.metrics));
    pool.routes = update.routes.map(of_thread);
    for key in std::mem::take(&mut pool.waiting) {
        cx.effects.push(Effect::Dispatch(key));
    }
}

/// Addresses at which another port of the app is called than before.
fn moved(before: &ServiceState, now: &ServiceState) -> HashSet<SocketAddr> {
    let (ServiceState::Local { endpoints: before, .. }, ServiceState::Local { endpoints: now, .. }) =
        (before, now)
    else {
        return HashSet::new();
    };
    // Of most services the port of the app is called.
    if before.iter().chain(&**now).all(|endpoint| endpoint.port.is_none()) {
        return HashSet::new();
    }
    let called: HashMap<_, _> = before.iter().map(|of| (of.address, of.port)).collect();
    let is_moved = |of: &&Endpoint| called.get(&of.address).is_some_and(|port| *port != of.port);
    now.iter().filter(is_moved).map(|of| of.address).collect()
}

/// Retires connections to what a service or a workload is not any more, and sends what waits.
fn take_state(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    destination: &Destination,
    state: ServiceState,
) {
    let Some(of) = upstreams.pools.get_mut(destination) else { return };
    // What carries them depends on it.
    let other = of.state.as_ref().and_then(protocol_of) != protocol_of(&state);
    let moved = of.state.as_ref().map(|before| moved(before, &state)).unwrap_or_default();
    of.backoff.retain(|address, _| !moved.contains(address));
    of.state = Some(state);
    let members = of.conns.clone();
    let dialling = of.dialling.clone();
    let raw = std::mem::take(&mut of.waiting_raw);
    let candidates = of.state.as_ref().map(Candidates::of);
    let listed = candidates.map(|c| c.addresses).unwrap_or_default();
    let is_listed = |conns: &Connections, key: ConnKey| {
        let remote = conns.get(key).and_then(|conn| conn.remote);
        remote.is_some_and(|address| listed.contains(&address) && !moved.contains(&address))
    };
    for key in members {
        if other || !is_listed(conns, key) {
            retire(cx, conns, key);
        }
    }
    for key in dialling {
        if other || !is_listed(conns, key) {
            pool(cx, upstreams, destination).dialling.retain(|dialling| *dialling != key);
            conns.close(cx, key);
        }
    }
    let waiting = std::mem::take(&mut pool(cx, upstreams, destination).waiting);
    for key in waiting {
        cx.effects.push(Effect::Dispatch(key));
    }
    for key in raw {
        cx.effects.push(Effect::DispatchRaw(key));
    }
    let in_use = upstreams.pools.get(destination).is_some_and(|pool| !pool.is_unused());
    if in_use && !listed.is_empty() {
        cx.effects.push(Effect::Scale(destination.clone()));
    }
}

/// Ends waits for discovery that took too long, dials again after a backoff, and forgets services
/// that are no longer called.
pub(crate) fn sweep_pools(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mut mesh: Option<&mut MeshTls>,
) {
    let (now, timeouts) = (cx.now, cx.config.timeouts);
    let mut unknown = Vec::new();
    let mut unused = Vec::new();
    let mut again = Vec::new();
    let mut renewed = Vec::new();
    scale::note_flights(cx, conns, upstreams);
    replicas::sweep(cx, upstreams);
    let Pools { keys, slab, .. } = &mut upstreams.pools;
    for (destination, key) in keys.iter() {
        let Some(pool) = slab.get_mut(*key) else { continue };
        let passed_over = pool.backoff.len();
        pool.backoff.retain(|_, until| *until > now);
        if pool.backoff.len() < passed_over {
            pool.refresh_near(now);
        }
        let is_backoff_over = pool.backoff.len() < passed_over && !pool.is_unused();
        let is_awaited =
            pool.outage.is_some() && pool.dialling.is_empty() && !pool.waiting.is_empty();
        if pool.is_of_any_network && pool.outage.is_none() && is_dialled_in_vain(conns, pool, now) {
            pool.outage = Some(now);
            cx.effects.push(Effect::LeaveNetwork(destination.clone()));
        }
        let is_to_be_probed = pool.is_of_any_network
            && pool.outage.is_some()
            && pool.dialling.is_empty()
            && pool.backoff.is_empty();
        if is_backoff_over || is_awaited || is_to_be_probed {
            again.push(destination.clone());
        }
        if pool.renew_at.take_if(|at| *at <= now).is_some() {
            renewed.push(destination.clone());
        }
        let idle = now.saturating_duration_since(pool.used);
        if pool.waiting.is_empty() && idle > timeouts.connect {
            pool.outage = None;
        }
        // While connections stay open, it remembers the load that they were made for.
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
        let idle_for = match pool.state {
            Some(ServiceState::Unavailable(_)) if is_address(destination) => {
                timeouts.service_idle.min(ADDRESS_IDLE)
            }
            _ => timeouts.service_idle,
        };
        if pool.is_unused() && pool.workloads.is_empty() && idle > idle_for {
            unused.push(destination.clone());
        }
    }
    for destination in unknown {
        cx.effects.push(Effect::Undiscovered(destination.clone()));
    }
    for destination in renewed {
        renew(cx, conns, upstreams, &destination);
    }
    for destination in again {
        cx.effects.push(Effect::Scale(destination.clone()));
    }
    if unused.is_empty() || !upstreams.services.is_followed() {
        return;
    }
    for destination in unused {
        if !leads_to_used(upstreams, &destination) {
            forget_unused(upstreams, mesh.as_deref_mut(), &destination);
        }
    }
}

/// Whether it is the address of a Service that is called: connections to it end when it leaves the mesh.
fn leads_to_used(upstreams: &Upstreams, destination: &Destination) -> bool {
    let state = upstreams.pools.get(destination).and_then(|pool| pool.state.as_ref());
    let Some(ServiceState::AddressOf(port)) = state else { return false };
    upstreams.pools.key(&Destination::Service(port.clone())).is_some()
}

/// Whether nothing answers at a destination although it has been dialled for long.
fn is_dialled_in_vain(conns: &Connections, pool: &Pool, now: Instant) -> bool {
    let is_slow = |key: &ConnKey| {
        let began = conns.get(*key).map(|conn| conn.since);
        began.is_none_or(|began| now.saturating_duration_since(began) >= SLOW_DIAL)
    };
    !pool.dialling.is_empty()
        && pool.dialling.iter().all(is_slow)
        && !scale::has_usable(conns, pool)
}

/// Removes the pool of a service or a workload that is not called any more, and what belongs to it.
fn forget_unused(upstreams: &mut Upstreams, mesh: Option<&mut MeshTls>, destination: &Destination) {
    upstreams.pools.remove(destination);
    if let Destination::Service(service) = destination {
        upstreams.services.unsubscribe(service);
        if let Some(mesh) = mesh {
            mesh.forget(service);
        }
    } else if let Destination::Workload(workload) = destination {
        remove_workload(upstreams, mesh, workload);
    }
}

/// Credentials changed: connections made with the old ones make room for new ones.
pub(crate) fn renew_all(cx: &mut Cx, conns: &mut Connections, upstreams: &mut Upstreams) {
    let services: Vec<Destination> = upstreams.pools.keys.keys().cloned().collect();
    for destination in services {
        if destination.is_of_mesh() {
            renew(cx, conns, upstreams, &destination);
        }
    }
}

/// Retires the connections of a pool, so that others are made; what is under way on them finishes
/// there.
pub(crate) fn renew(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    destination: &Destination,
) {
    let members =
        upstreams.pools.get(destination).map(|pool| pool.conns.clone()).unwrap_or_default();
    for key in members {
        retire(cx, conns, key);
    }
}

fn protocol_of(state: &ServiceState) -> Option<AppProtocol> {
    match state {
        ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. } => {
            Some(*protocol)
        }
        ServiceState::Failover { .. }
        | ServiceState::AddressOf(_)
        | ServiceState::Unavailable(_) => None,
    }
}

/// Whether the control plane knows a service of that name.
fn is_there(state: &ServiceState) -> bool {
    match state {
        ServiceState::Local { .. } | ServiceState::Remote { .. } => true,
        // Each call counts for the service in one of the networks.
        ServiceState::Failover { .. } | ServiceState::AddressOf(_) => false,
        ServiceState::Unavailable(reason) => *reason == UnavailableReason::NoReadyEndpoint,
    }
}

/// Whether the remote network's gateways have changed, so that connections must be replaced: one may
/// lead through a gateway that has gone, and a new gateway should get its share.
fn have_gateways_changed(before: Option<&ServiceState>, now: &ServiceState) -> bool {
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
