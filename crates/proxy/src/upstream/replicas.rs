//! What the traffic policies of a service have its caller do: which replicas are used, by what this
//! data thread has seen of them, and which requests go wrong on purpose.
//!
//! [`ServiceTraffic`] belongs to the pool of the service. Replicas are known where the service is in
//! the own network: each is an instance at an address, and one that moves is another one. Behind
//! gateways none is known, and none is ejected.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_model::traffic_policy::{Fault, TrafficParts};
use tollway_model::{
    Caller, Endpoint, Instance, Level, Locality, ServiceName, ServiceState, SpiffeId,
};
use tollway_routing::{
    EjectionReason, Mishap, ReplicaId, ReplicaOutcome, ReplicaRules, Replicas, fault_of, mishap,
};
use tollway_telemetry::DataPlaneMetrics;

use super::near::Near;
use super::{Pool, PoolKey, Upstreams};
use crate::conn::{ConnKey, Connections};
use crate::cx::{Cx, Effect};
use crate::exchange::Destination;

/// A replica of a service that has a traffic policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplicaRef {
    /// The pool of the service.
    pool: PoolKey,
    pub(crate) id: ReplicaId,
    /// How near it is, where near replicas are preferred.
    pub(crate) level: Option<Level>,
}

/// What a replica is known by: one that moves is another one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ReplicaAt {
    instance: Instance,
    address: SocketAddr,
}

impl From<&Endpoint> for ReplicaAt {
    fn from(endpoint: &Endpoint) -> Self {
        Self { instance: endpoint.instance.clone(), address: endpoint.address }
    }
}

/// How a request to a replica has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotedOutcome {
    pub(crate) replica: ReplicaRef,
    pub(crate) outcome: ReplicaOutcome,
    /// From the request to the head of its response, or to the failure.
    pub(crate) took: Duration,
}

/// The traffic policies of one service, and what is known of its replicas by them.
pub(crate) struct ServiceTraffic {
    parts: Arc<TrafficParts>,
    /// What goes wrong with requests of this caller.
    fault: Option<Fault>,
    /// `None` if the policies treat all replicas alike.
    pub(super) replicas: Option<Replicas<ReplicaAt>>,
    /// Where those are that get no requests.
    ejected: Vec<SocketAddr>,
    /// `None` where none is preferred for being near.
    near: Option<Near>,
    /// What is near is to be counted again: others are ejected than before.
    is_near_stale: bool,
}

impl ServiceTraffic {
    /// `None` for policies that have nothing for callers.
    pub(super) fn new(
        parts: &Arc<TrafficParts>,
        service: &ServiceName,
        caller: Caller<'_>,
        now: Instant,
    ) -> Option<Self> {
        let rules = rules_of(parts);
        let fault = fault_of(&parts.faults, caller, &service.namespace, &service.network).cloned();
        (rules.is_some() || fault.is_some()).then(|| Self {
            parts: Arc::clone(parts),
            fault,
            replicas: rules.map(|rules| Replicas::new(rules, now)),
            ejected: Vec::new(),
            near: None,
            is_near_stale: false,
        })
    }

    /// Other policies hold; what is known of replicas stays if it is still asked for.
    fn replaced(self, next: Self, now: Instant) -> Self {
        let replicas = match (self.replicas, next.replicas) {
            (Some(mut known), Some(_)) => {
                if let Some(rules) = rules_of(&next.parts) {
                    known.set_rules(rules, now);
                }
                Some(known)
            }
            (_, next) => next,
        };
        Self { replicas, near: self.near, ..next }
    }

    /// The replicas that the policies distinguish.
    pub(super) fn replicas(&self) -> Option<&Replicas<ReplicaAt>> {
        self.replicas.as_ref()
    }

    /// How many replicas get no requests now.
    pub(crate) fn ejected(&self) -> usize {
        self.ejected.len()
    }

    /// The service is in this state from now on. `own` is where this sidecar runs; `seed` gives its order
    /// of replicas that are equally near.
    pub(super) fn update(
        &mut self,
        state: Option<&ServiceState>,
        own: &Locality,
        seed: u64,
        now: Instant,
    ) {
        let Some(replicas) = &mut self.replicas else {
            self.near = None;
            return;
        };
        let endpoints: &[Endpoint] = match state {
            Some(ServiceState::Local { endpoints, .. }) => endpoints,
            Some(
                ServiceState::Remote { .. }
                | ServiceState::Failover { .. }
                | ServiceState::AddressOf(_)
                | ServiceState::Unavailable(_),
            )
            | None => &[],
        };
        replicas.update(endpoints.iter().map(ReplicaAt::from), now);
        self.note_ejected();
        self.near = Near::new(self.parts.locality, own, state, seed);
    }

    /// Draws what goes wrong with a request; `None` where nothing is to.
    pub(crate) fn draw_fault(&self, random: impl FnMut() -> u64) -> Option<Mishap> {
        let drawn = mishap(self.fault.as_ref()?, random);
        (drawn != Mishap::default()).then_some(drawn)
    }

    fn find(&self, instance: &Instance, address: SocketAddr) -> Option<ReplicaId> {
        self.replicas.as_ref()?.find(&ReplicaAt { instance: instance.clone(), address })
    }

    /// Lets those come back whose time is over. Returns whether there were any.
    fn advance(&mut self, service: &ServiceName, now: Instant) -> bool {
        let Some(replicas) = &mut self.replicas else { return false };
        let returned = replicas.advance(now, |ReplicaAt { instance, address }| {
            tracing::info!(%service, %instance, %address, "a replica is tried again");
        });
        if returned > 0 {
            self.note_ejected();
        }
        returned > 0
    }

    /// Returns whether a replica was ejected.
    fn note(
        &mut self,
        service: &ServiceName,
        metrics: &DataPlaneMetrics,
        id: ReplicaId,
        outcome: ReplicaOutcome,
        now: Instant,
    ) -> bool {
        self.advance(service, now);
        let Some(replicas) = &mut self.replicas else { return false };
        let (was_panic, mut is_ejected) = (replicas.is_panic(), false);
        replicas.note(id, outcome, now, |ReplicaAt { instance, address }, reason, time| {
            is_ejected = true;
            let (counter, reason) = match reason {
                EjectionReason::ConsecutiveFailures => {
                    (&metrics.ejections.consecutive, "consecutive failures")
                }
                EjectionReason::SuccessRate => (&metrics.ejections.success_rate, "success rate"),
            };
            counter.add(1);
            let seconds = time.as_secs_f64();
            tracing::info!(%service, %instance, %address, reason, seconds, "a replica is ejected");
        });
        if is_ejected && replicas.is_panic() && !was_panic {
            metrics.replica_panics.add(1);
            tracing::warn!(%service, "so few replicas are left that all are used");
        }
        if is_ejected {
            self.note_ejected();
        }
        is_ejected
    }

    fn note_ejected(&mut self) {
        self.is_near_stale = true;
        self.ejected.clear();
        if let Some(replicas) = self.replicas.as_ref().filter(|replicas| !replicas.is_panic()) {
            self.ejected.extend(replicas.ejected_keys().map(|replica| replica.address));
        }
    }
}

/// What policies have a caller do about replicas; `None` if they have nothing about them.
fn rules_of(parts: &TrafficParts) -> Option<ReplicaRules> {
    let slow_start = parts.slow_start.unwrap_or_default();
    let is_stated = parts.balancing.is_some()
        || parts.locality.is_some()
        || parts.outlier.is_some()
        || !slow_start.is_zero();
    is_stated.then(|| ReplicaRules {
        balancing: parts.balancing.unwrap_or_default(),
        outlier: parts.outlier,
        panic_percent: parts.panic_percent.unwrap_or(TrafficParts::PANIC_PERCENT),
        slow_start,
    })
}

impl Pool {
    /// The replicas of its service, where traffic policies distinguish them.
    pub(super) fn replicas(&self) -> Option<&Replicas<ReplicaAt>> {
        self.traffic.as_ref()?.replicas()
    }

    /// Which replicas of its service are near, where those are preferred.
    pub(crate) fn near(&self) -> Option<&Near> {
        self.traffic.as_ref()?.near.as_ref()
    }

    /// Counts again what is near and can be sent requests, if it is preferred.
    pub(super) fn refresh_near(&mut self, now: Instant) {
        let Some(mut near) = self.traffic.as_mut().and_then(|traffic| traffic.near.take()) else {
            return;
        };
        near.refresh(|address| !self.is_passed_over(address, now));
        if let Some(traffic) = &mut self.traffic {
            (traffic.near, traffic.is_near_stale) = (Some(near), false);
        }
    }

    fn refresh_stale_near(&mut self, now: Instant) {
        if self.traffic.as_ref().is_some_and(|traffic| traffic.is_near_stale) {
            self.refresh_near(now);
        }
    }

    /// Whether the replica at an address is ejected.
    pub(super) fn is_ejected(&self, address: SocketAddr) -> bool {
        self.traffic.as_ref().is_some_and(|traffic| traffic.ejected.contains(&address))
    }

    /// Whether every replica is ejected, so that none may be called.
    pub(super) fn are_all_ejected(&self) -> bool {
        self.replicas().is_some_and(Replicas::are_all_ejected)
    }
}

/// The state of a service has come, with its traffic policies.
pub(super) fn on_service(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    service: &ServiceName,
    parts: &Arc<TrafficParts>,
    caller: &SpiffeId,
) {
    let destination = Destination::Service(service.clone());
    let (now, network) = (cx.now, &cx.config.home.network);
    let Some(pool) = upstreams.pools.get_mut(&destination) else { return };
    let is_same = pool.traffic.as_ref().is_some_and(|traffic| *traffic.parts == **parts);
    if !is_same {
        let before = pool.traffic.take();
        let next = ServiceTraffic::new(parts, service, Caller { spiffe: caller, network }, now);
        if before.is_none() && next.is_none() {
            return;
        }
        pool.traffic = next.map(|next| match before {
            Some(before) => Box::new(before.replaced(next, now)),
            None => Box::new(next),
        });
    }
    if let Some(traffic) = &mut pool.traffic {
        traffic.update(pool.state.as_ref(), &cx.config.locality, pool.seed, now);
        pool.refresh_near(now);
    }
    let workloads = pool.workloads.clone().into_iter();
    let pools = workloads.map(|instance| Destination::workload(service.clone(), instance));
    let pools: Vec<Destination> = [destination].into_iter().chain(pools).collect();
    for destination in pools {
        let members = upstreams.pools.get(&destination).map(|pool| pool.conns.clone());
        for key in members.unwrap_or_default() {
            attach(conns, upstreams, key, &destination);
        }
    }
}

/// Notes to which replica a connection leads, where traffic policies distinguish replicas.
pub(crate) fn attach(
    conns: &mut Connections,
    upstreams: &Upstreams,
    key: ConnKey,
    destination: &Destination,
) {
    let Some(service) = destination.service() else { return };
    let Some(conn) = conns.get_mut(key) else { return };
    conn.replica = conn.instance().zip(conn.remote).and_then(|(instance, address)| {
        let pool = upstreams.pools.key(&Destination::Service(service.clone()))?;
        let traffic = upstreams.pools.at(pool)?.traffic.as_ref()?;
        let id = traffic.find(instance, address)?;
        let level = traffic.near.as_ref().map(|near| near.level(address));
        Some(ReplicaRef { pool, id, level })
    });
}

/// A request to a replica has ended.
pub(crate) fn note(cx: &mut Cx, upstreams: &mut Upstreams, noted: &NotedOutcome) {
    let NotedOutcome { replica: ReplicaRef { pool, id, .. }, outcome, took } = *noted;
    let now = cx.now;
    let Some(pool) = upstreams.pools.at_mut(pool) else { return };
    let Destination::Service(service) = &pool.destination else { return };
    let Some(traffic) = &mut pool.traffic else { return };
    if let Some(replicas) = &mut traffic.replicas {
        match outcome {
            ReplicaOutcome::Success => replicas.note_time(id, took, false, now),
            ReplicaOutcome::Failure => replicas.note_time(id, took, true, now),
            ReplicaOutcome::Overloaded { .. } => {}
        }
    }
    if traffic.note(service, &cx.metrics, id, outcome, now) {
        cx.effects.push(Effect::Scale(pool.destination.clone()));
    }
    pool.refresh_stale_near(now);
}

/// A connection for bytes leads to a replica: that is all that is asked of it.
pub(crate) fn note_dialled(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
    service: &ServiceName,
) {
    attach(conns, upstreams, key, &Destination::Service(service.clone()));
    let Some(conn) = conns.get(key) else { return };
    if let Some(replica) = conn.replica {
        let outcome = ReplicaOutcome::Success;
        note(cx, upstreams, &NotedOutcome { replica, outcome, took: Duration::ZERO });
    }
}

/// The replica at an address cannot be connected to.
pub(crate) fn note_dial_failed(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    destination: &Destination,
    address: SocketAddr,
) {
    let Some(service) = destination.service() else { return };
    let of_service = Destination::Service(service.clone());
    let Some(pool) = upstreams.pools.key(&of_service) else { return };
    let found = upstreams.pools.at(pool).and_then(|of| {
        let Some(ServiceState::Local { endpoints, .. }) = &of.state else { return None };
        let endpoint = endpoints.iter().find(|endpoint| endpoint.address == address)?;
        of.replicas()?.find(&endpoint.into())
    });
    if let Some(id) = found {
        let replica = ReplicaRef { pool, id, level: None };
        let outcome = ReplicaOutcome::Failure;
        note(cx, upstreams, &NotedOutcome { replica, outcome, took: Duration::ZERO });
    }
}

/// Lets replicas come back whose time is over.
pub(super) fn sweep(cx: &mut Cx, upstreams: &mut Upstreams) {
    let mut ejected = 0;
    for pool in upstreams.pools.iter_mut() {
        let Destination::Service(service) = &pool.destination else { continue };
        let Some(traffic) = &mut pool.traffic else { continue };
        if traffic.advance(service, cx.now) {
            cx.effects.push(Effect::Scale(pool.destination.clone()));
        }
        ejected += traffic.replicas().map_or(0, Replicas::ejected);
        pool.refresh_stale_near(cx.now);
    }
    cx.metrics.ejected_replicas.set(u64::try_from(ejected).unwrap_or(u64::MAX));
}
