//! One workload of a service, called by its name: what is known of it is what its service's state
//! says, and its pool lives no longer than that of its service.

use tollway_model::{Endpoint, Instance, ServiceState, UnavailableReason};

/// A service's state as far as it leads to one workload: endpoints are known in the own network
/// alone.
pub(super) fn only(state: &ServiceState, instance: &Instance) -> ServiceState {
    match (state, endpoint(state, instance)) {
        (ServiceState::Local { protocol, trust_domain, .. }, Some(endpoint)) => {
            ServiceState::Local {
                unready: [].into(),
                endpoints: [endpoint.clone()].into(),
                protocol: *protocol,
                trust_domain: trust_domain.clone(),
            }
        }
        (ServiceState::Unavailable(reason), _) => ServiceState::Unavailable(*reason),
        (
            ServiceState::Local { .. }
            | ServiceState::Remote { .. }
            | ServiceState::AddressOf(_)
            | ServiceState::Failover { .. },
            _,
        ) => ServiceState::Unavailable(UnavailableReason::NoReadyEndpoint),
    }
}

pub(super) fn endpoint<'a>(state: &'a ServiceState, instance: &Instance) -> Option<&'a Endpoint> {
    let ServiceState::Local { endpoints, .. } = state else { return None };
    endpoints.iter().find(|endpoint| endpoint.instance == *instance)
}
