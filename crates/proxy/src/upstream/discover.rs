//! What is known of a service that is to be called; the first question asks the control plane.

use std::sync::Arc;

use tollway_model::{AppProtocol, ServiceName, ServiceState};

use super::workload;
use crate::cx::Cx;
use crate::exchange::{Destination, ExchangeKey, Exchanges, WorkloadName, trace};
use crate::request_error::RequestError;
use crate::upstream::{Pool, Upstreams, pools};

/// What is known of a service; asks for it when nothing is.
///
/// # Errors
/// When too many services are in use to ask for one more.
pub(crate) fn service_state(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    service: &ServiceName,
) -> Result<Option<ServiceState>, RequestError> {
    let pool = pools::pool_in_use(cx, upstreams, &Destination::Service(service.clone()))?;
    Ok(pool.state.clone())
}

/// Whether it is known where a service or a workload is, which can be called then.
///
/// # Errors
/// Why it cannot be called.
pub(crate) fn find_callee(
    cx: &mut Cx,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    key: ExchangeKey,
    destination: &Destination,
) -> Result<bool, RequestError> {
    let Some(service) = destination.service() else { return Ok(true) };
    if let Destination::Workload(workload) = destination {
        let of_service = Destination::Service(service.clone());
        let pool = pools::pool_in_use(cx, upstreams, &of_service)?;
        let is_known = note_callee(exchanges, key, service, pool)?;
        let state = pool.state.clone();
        return Ok(find_workload(cx, upstreams, workload, state.as_ref())? && is_known);
    }
    // As nearly every request finds it.
    if let Some(pool) = upstreams.pools.get_mut(destination) {
        pool.used = cx.now;
        return note_callee(exchanges, key, service, pool);
    }
    let pool = pools::pool_in_use(cx, upstreams, destination)?;
    note_callee(exchanges, key, service, pool)
}

/// Notes which service a request is for. Returns whether the control plane has said where it is.
///
/// # Errors
/// The service takes no requests.
fn note_callee(
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    service: &ServiceName,
    pool: &Pool,
) -> Result<bool, RequestError> {
    trace::note_service(exchanges, key, pool.state.as_ref());
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.series = Some(pool.series);
    }
    match &pool.state {
        Some(ServiceState::Unavailable(reason)) => {
            Err(RequestError::unavailable(*reason, service))
        }
        Some(ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. })
            if *protocol == AppProtocol::Tcp =>
        {
            Err(RequestError::NotHttp { service: service.clone() })
        }
        Some(_) => Ok(true),
        None => Ok(false),
    }
}

/// Whether it is known where a workload is; `state` is its service's.
///
/// # Errors
/// When it takes no calls, or too many are in use to call one more.
pub(crate) fn find_workload(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    workload: &Arc<WorkloadName>,
    state: Option<&ServiceState>,
) -> Result<bool, RequestError> {
    let WorkloadName { service, instance } = workload.as_ref();
    if state.is_some_and(|state| workload::endpoint(state, instance).is_none()) {
        return Err(RequestError::unready(service, Some(instance)));
    }
    pools::pool_in_use(cx, upstreams, &Destination::Workload(Arc::clone(workload)))?;
    Ok(state.is_some())
}
