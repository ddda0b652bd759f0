//! What is known of a service that is to be called; the first question asks the control plane.

use std::sync::Arc;
use std::time::Instant;

use tollway_model::{AppProtocol, Endpoint, Instance, ServiceName, ServiceState};
use tollway_routing::{AffinityHash, Mishap, pick_by_key};

use super::workload;
use crate::cx::Cx;
use crate::exchange::{Destination, Exchange, ThreadRoutes, WorkloadName, trace};
use crate::request_error::RequestError;
use crate::upstream::{Pool, PoolKey, Upstreams, pools};

/// What is known of a service; asks for it when nothing is.
///
/// # Errors
/// When too many services are in use to ask for one more.
pub(crate) fn service_state(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    service: &ServiceName,
) -> Result<Option<ServiceState>, RequestError> {
    let (_, pool) = pools::pool_in_use(cx, upstreams, &Destination::Service(service.clone()))?;
    Ok(pool.state.clone())
}

/// What is known of the destination of a request to a service or a workload.
pub(crate) enum Callee {
    /// Nothing yet.
    Unknown,
    /// Its service has routes, which are to be applied first.
    Routed(Arc<ThreadRoutes>),
    /// It is called in any network, one of which is to be chosen.
    InAnyNetwork,
    Found(PoolKey),
    /// It goes wrong on purpose.
    Faulty(Mishap),
}

impl From<Option<PoolKey>> for Callee {
    fn from(pool: Option<PoolKey>) -> Self {
        pool.map_or(Self::Unknown, Self::Found)
    }
}

/// What is known of the destination of a request to a service or a workload.
///
/// # Errors
/// Why it cannot be called.
pub(crate) fn find_callee(
    cx: &mut Cx,
    exchange: &mut Exchange,
    upstreams: &mut Upstreams,
) -> Result<Callee, RequestError> {
    if let Destination::Workload(workload) = &exchange.destination {
        let workload = Arc::clone(workload);
        let of_service = Destination::Service(workload.service.clone());
        let (_, pool) = pools::pool_in_use(cx, upstreams, &of_service)?;
        note_callee(exchange, pool)?;
        let state = pool.state.clone();
        return find_workload(cx, upstreams, &workload, state.as_ref()).map(Callee::from);
    }
    let (key, pool) = pools::pool_in_use(cx, upstreams, &exchange.destination)?;
    if let Some(routes) = &pool.routes
        && exchange.steering.is_none()
        && !exchange.is_of_actors
    {
        return Ok(Callee::Routed(Arc::clone(routes)));
    }
    let is_known = match note_callee(exchange, pool)? {
        Noted::InAnyNetwork => return Ok(Callee::InAnyNetwork),
        Noted::Known => true,
        Noted::Unknown => false,
    };
    if let Some(traffic) = pool.traffic.as_ref().filter(|_| is_known) {
        if exchange.is_fault_due() {
            exchange.is_fault_drawn = true;
            if let Some(mishap) = traffic.draw_fault(|| cx.next_random()) {
                return Ok(Callee::Faulty(mishap));
            }
        }
        if pool.are_all_ejected()
            && let Destination::Service(service) = &exchange.destination
        {
            return Err(RequestError::AllEjected { service: service.clone() });
        }
    }
    if is_known
        && let Some(of) = exchange.steering.as_mut().and_then(|steering| steering.take_affinity())
        && let Some((instance, is_kept)) = replica_of(pool, of, cx.now)
    {
        if let Some(steering) = &exchange.steering {
            let counts = steering.counts(&cx.metrics);
            let count = if is_kept { &counts.affinity_kept } else { &counts.affinity_moved };
            count.add(1);
        }
        let service = exchange.destination.service().cloned();
        let Some(service) = service else { return Ok(Callee::Found(key)) };
        let (workload, state) = (Arc::new(WorkloadName { service, instance }), pool.state.clone());
        exchange.destination = Destination::Workload(Arc::clone(&workload));
        return find_workload(cx, upstreams, &workload, state.as_ref()).map(Callee::from);
    }
    Ok(is_known.then_some(key).into())
}

/// The replica that takes the requests of a key, among those that can be reached, and whether it is that
/// of the key. `None` for a service of another network: its gateways choose.
fn replica_of(pool: &Pool, key: AffinityHash, now: Instant) -> Option<(Instance, bool)> {
    let Some(ServiceState::Local { endpoints, .. }) = &pool.state else { return None };
    let hash = |endpoint: &Endpoint| AffinityHash::of_instance(&endpoint.instance);
    let is_usable = |endpoint: &Endpoint| !pool.is_passed_over(endpoint.address, now);
    let usable = endpoints.iter().map(|endpoint| is_usable(endpoint).then(|| hash(endpoint)));
    let chosen = pick_by_key(key, usable)?;
    let is_kept = endpoints.iter().all(is_usable)
        || pick_by_key(key, endpoints.iter().map(|endpoint| Some(hash(endpoint)))) == Some(chosen);
    endpoints.get(chosen).map(|endpoint| (endpoint.instance.clone(), is_kept))
}

/// Whether the control plane has said where a service is.
enum Noted {
    Unknown,
    Known,
    InAnyNetwork,
}

/// Notes which service a request is for.
///
/// # Errors
/// The service takes no requests. A workload of a TCP service does: its runtime serves actors.
fn note_callee(exchange: &mut Exchange, pool: &Pool) -> Result<Noted, RequestError> {
    let replicas = || {
        let ejected = pool.traffic.as_ref().map_or(0, |traffic| traffic.ejected());
        (ejected, pool.near().map_or_else(Vec::new, |near| near.shown()))
    };
    trace::note_service(exchange, pool.state.as_ref(), replicas);
    exchange.series = Some(pool.series);
    match (&pool.state, &exchange.destination) {
        (Some(ServiceState::Unavailable(reason)), to) => {
            let unavailable = |service| RequestError::unavailable(*reason, service);
            to.service().map(unavailable).map_or(Ok(Noted::Known), Err)
        }
        (
            Some(ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. }),
            Destination::Service(service),
        ) if *protocol == AppProtocol::Tcp => {
            Err(RequestError::NotHttp { service: service.clone() })
        }
        (Some(ServiceState::Failover { .. }), Destination::Service(_)) => Ok(Noted::InAnyNetwork),
        (Some(_), _) => Ok(Noted::Known),
        (None, _) => Ok(Noted::Unknown),
    }
}

/// The pool of a workload; `None` while it is not known where that is. `state` is its service's.
///
/// # Errors
/// When it takes no calls, or too many are in use to call one more.
pub(crate) fn find_workload(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    workload: &Arc<WorkloadName>,
    state: Option<&ServiceState>,
) -> Result<Option<PoolKey>, RequestError> {
    let WorkloadName { service, instance } = workload.as_ref();
    if state.is_some_and(|state| workload::endpoint(state, instance).is_none()) {
        return Err(RequestError::unready(service, Some(instance)));
    }
    let (key, _) = pools::pool_in_use(cx, upstreams, &Destination::Workload(Arc::clone(workload)))?;
    Ok(state.is_some().then_some(key))
}
