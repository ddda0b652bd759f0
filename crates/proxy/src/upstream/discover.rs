//! What is known of a service that is to be called; the first question asks the control plane.

use super::workload;
use crate::cx::Cx;
use crate::exchange::{Destination, ExchangeKey, Exchanges, WorkloadName, trace};
use crate::request_error::RequestError;
use crate::upstream::{Upstreams, pools};
use std::sync::Arc;
use tollway_model::AppProtocol;
use tollway_model::ServiceName;
use tollway_model::ServiceState;
use tollway_telemetry::SeriesId;

/// What is known of a service; asks for it when nothing is.
///
/// # Errors
/// When too many services are in use to ask for one more.
pub(crate) fn service_state(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    service: &ServiceName,
) -> Result<Option<ServiceState>, RequestError> {
    state_and_series(cx, upstreams, service).map(|(state, _)| state)
}

/// What is known of a service, and the series in which its calls are counted.
fn state_and_series(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    service: &ServiceName,
) -> Result<(Option<ServiceState>, SeriesId), RequestError> {
    let destination = Destination::Service(service.clone());
    // As nearly every request finds it.
    if let Some(pool) = upstreams.pools.get_mut(&destination) {
        pool.used = cx.now;
        return Ok((pool.state.clone(), pool.series));
    }
    let pool = pools::pool_in_use(cx, upstreams, &destination)?;
    Ok((pool.state.clone(), pool.series))
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
    let (state, series) = state_and_series(cx, upstreams, service)?;
    trace::note_service(exchanges, key, state.as_ref());
    if let Some(exchange) = exchanges.get_mut(key) {
        exchange.series = Some(series);
    }
    if let Some(ServiceState::Unavailable(reason)) = &state {
        return Err(RequestError::unavailable(*reason, service));
    }
    if let Destination::Workload(workload) = destination {
        return find_workload(cx, upstreams, workload, state.as_ref());
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
