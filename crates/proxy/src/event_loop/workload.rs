//! One workload of a service, called by its name: what is known of it is what its service's state
//! says, and its pool lives no longer than that of its service.

use std::sync::Arc;

use tollway_model::{Endpoint, Instance, ServiceState, UnavailableReason};

use super::EventLoop;
use crate::exchange::{Destination, WorkloadName};
use crate::request_error::RequestError;

/// A service's state as far as it leads to one workload: endpoints are known in the own network
/// alone.
pub(super) fn only(state: &ServiceState, instance: &Instance) -> ServiceState {
    match (state, endpoint(state, instance)) {
        (ServiceState::Local { protocol, trust_domain, .. }, Some(endpoint)) => {
            ServiceState::Local {
                endpoints: [endpoint.clone()].into(),
                protocol: *protocol,
                trust_domain: trust_domain.clone(),
            }
        }
        (ServiceState::Unavailable(reason), _) => ServiceState::Unavailable(*reason),
        (ServiceState::Local { .. } | ServiceState::Remote { .. }, _) => {
            ServiceState::Unavailable(UnavailableReason::NoReadyEndpoint)
        }
    }
}

fn endpoint<'a>(state: &'a ServiceState, instance: &Instance) -> Option<&'a Endpoint> {
    let ServiceState::Local { endpoints, .. } = state else { return None };
    endpoints.iter().find(|endpoint| endpoint.instance == *instance)
}

impl EventLoop {
    /// Whether it is known where a workload is; `state` is its service's.
    ///
    /// # Errors
    /// When it takes no calls, or too many are in use to call one more.
    pub(super) fn find_workload(
        &mut self,
        workload: &Arc<WorkloadName>,
        state: Option<&ServiceState>,
    ) -> Result<bool, RequestError> {
        let WorkloadName { service, instance } = workload.as_ref();
        if state.is_some_and(|state| endpoint(state, instance).is_none()) {
            return Err(RequestError::unready(service, Some(instance)));
        }
        self.pool_in_use(&Destination::Workload(Arc::clone(workload)))?;
        Ok(state.is_some())
    }

    /// A workload gets a pool: its service tells it of changes. Gives what is known now.
    pub(super) fn add_workload(&mut self, workload: &WorkloadName) -> Option<ServiceState> {
        let WorkloadName { service, instance } = workload;
        let pool = self.pool(&Destination::Service(service.clone()));
        pool.workloads.push(instance.clone());
        pool.state.as_ref().map(|state| only(state, instance))
    }

    /// The pool of a workload has gone.
    pub(super) fn remove_workload(&mut self, workload: &WorkloadName) {
        let WorkloadName { service, instance } = workload;
        if let Some(pool) = self.pools.get_mut(&Destination::Service(service.clone())) {
            pool.workloads.retain(|other| other != instance);
        }
        if let Some(mesh) = self.tls.as_mesh() {
            mesh.forget_workload(service, instance);
        }
    }
}
