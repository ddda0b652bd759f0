//! The services of the own network, as a gateway sees them: which endpoint takes the next connection.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tollway_model::{Endpoint, ServiceName, ServiceState, ServiceUpdate};

use super::rotation::Rotation;

/// The control plane sends a gateway the state of every service.
#[derive(Default)]
pub(super) struct LocalServices(HashMap<ServiceName, LocalService>);

#[derive(Default)]
struct LocalService {
    endpoints: Arc<[Endpoint]>,
    /// Relays to each address; none is zero.
    relays: HashMap<SocketAddr, usize>,
    rotation: Rotation,
}

impl LocalServices {
    /// The control plane has sent the state of a service.
    pub(super) fn replace(&mut self, update: ServiceUpdate) {
        let endpoints = match update.state {
            ServiceState::Local { endpoints, .. } => endpoints,
            // This network's own services are not behind another one's gateway.
            ServiceState::Remote { .. }
            | ServiceState::Failover { .. }
            | ServiceState::AddressOf(_)
            | ServiceState::Unavailable(_) => Arc::default(),
        };
        let service = self.0.entry(update.service.clone()).or_default();
        service.rotation.retain(|address| endpoints.iter().any(|e| e.address == *address));
        service.endpoints = endpoints;
        self.forget_if_over(&update.service);
    }

    /// The address with the fewest relays, the next one among equals; one in backoff only if all
    /// are. `None` for a service without a ready endpoint here.
    pub(super) fn pick(&mut self, name: &ServiceName, now: Instant) -> Option<SocketAddr> {
        let LocalService { endpoints, relays, rotation } = self.0.get_mut(name)?;
        let rotated = rotation.next(endpoints.len()).map(|index| endpoints[index].address);
        let relays = |address| relays.get(&address).copied().unwrap_or(0);
        rotated.min_by_key(|address| (rotation.is_passed_over(*address, now), relays(*address)))
    }

    /// The address of one workload of a service.
    pub(super) fn instance(&self, name: &ServiceName, instance: &str) -> Option<SocketAddr> {
        let is_meant =
            |endpoint: &&Endpoint| endpoint.instance.as_str().eq_ignore_ascii_case(instance);
        self.0.get(name)?.endpoints.iter().find(is_meant).map(|endpoint| endpoint.address)
    }

    /// A relay to an address of a service begins.
    pub(super) fn begin_relay(&mut self, name: &ServiceName, address: SocketAddr) {
        if let Some(service) = self.0.get_mut(name) {
            *service.relays.entry(address).or_default() += 1;
        }
    }

    /// A relay to an address of a service has ended.
    pub(super) fn end_relay(&mut self, name: &ServiceName, address: SocketAddr) {
        let Some(service) = self.0.get_mut(name) else { return };
        let Some(count) = service.relays.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            service.relays.remove(&address);
            self.forget_if_over(name);
        }
    }

    /// Passes an address over until then. One that is not listed any more is not remembered.
    pub(super) fn back_off(&mut self, name: &ServiceName, address: SocketAddr, until: Instant) {
        let Some(service) = self.0.get_mut(name) else { return };
        if service.endpoints.iter().any(|endpoint| endpoint.address == address) {
            service.rotation.back_off(address, until);
        }
    }

    /// A service that has gone is forgotten with its last relay.
    fn forget_if_over(&mut self, name: &ServiceName) {
        let is_over =
            self.0.get(name).is_some_and(|s| s.endpoints.is_empty() && s.relays.is_empty());
        if is_over {
            self.0.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_model::{AppProtocol, Label, Revision, TrustDomain, UnavailableReason};

    use super::*;

    fn stock() -> ServiceName {
        let [namespace, network] = ["default", "west"].map(|name| Label::new(name).unwrap());
        ServiceName::parse_in("stock", &namespace, &network).unwrap()
    }

    fn address(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    /// Endpoints at these ports, of instances with the port as their name.
    fn update(ports: &[u16]) -> ServiceUpdate {
        let endpoints = ports
            .iter()
            .map(|port| Endpoint::new(Label::new(&format!("i{port}")).unwrap(), address(*port)))
            .collect();
        let state = match ports {
            [] => ServiceState::Unavailable(UnavailableReason::NoReadyEndpoint),
            _ => ServiceState::Local {
                unready: [].into(),
                protocol: AppProtocol::Http,
                trust_domain: TrustDomain::default_for(&Label::new("west").unwrap()),
                endpoints,
            },
        };
        ServiceUpdate {
            service: stock(),
            revision: Revision(1),
            state,
            routes: Arc::default(),
            traffic: Arc::default(),
        }
    }

    #[test]
    fn the_endpoint_with_the_fewest_relays_is_next() {
        let (mut services, now) = (LocalServices::default(), Instant::now());
        assert_eq!(services.pick(&stock(), now), None);
        services.replace(update(&[1, 2, 3]));
        for _ in 0..2 {
            for _ in 0..3 {
                let next = services.pick(&stock(), now).unwrap();
                services.begin_relay(&stock(), next);
            }
            let counts: Vec<_> = services.0[&stock()].relays.values().copied().collect();
            assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
        }
        services.end_relay(&stock(), address(2));
        assert_eq!(services.pick(&stock(), now), Some(address(2)));
    }

    #[test]
    fn an_endpoint_that_does_not_answer_is_passed_over_while_others_do() {
        let (mut services, now) = (LocalServices::default(), Instant::now());
        services.replace(update(&[1, 2]));
        let until = now + Duration::from_secs(1);
        services.back_off(&stock(), address(1), until);
        services.back_off(&stock(), address(9), until);
        for _ in 0..4 {
            assert_eq!(services.pick(&stock(), now), Some(address(2)));
            services.begin_relay(&stock(), address(2));
        }
        assert_eq!(services.pick(&stock(), until), Some(address(1)));
        assert_eq!(
            services.0[&stock()].rotation.passed_over(),
            1,
            "one that is not listed is not kept"
        );
        services.replace(update(&[2]));
        assert_eq!(services.0[&stock()].rotation.passed_over(), 0);
    }

    #[test]
    fn a_service_that_has_gone_is_forgotten_with_its_last_relay() {
        let mut services = LocalServices::default();
        services.replace(update(&[1]));
        services.begin_relay(&stock(), address(1));
        services.replace(update(&[]));
        assert_eq!(services.pick(&stock(), Instant::now()), None);
        services.end_relay(&stock(), address(7));
        assert_eq!(services.0.len(), 1);
        services.end_relay(&stock(), address(1));
        assert!(services.0.is_empty());
        services.replace(update(&[]));
        assert!(services.0.is_empty(), "one that never was here");
    }

    #[test]
    fn a_workload_is_found_by_its_name() {
        let mut services = LocalServices::default();
        services.replace(update(&[1, 2]));
        assert_eq!(services.instance(&stock(), "I2"), Some(address(2)));
        assert_eq!(services.instance(&stock(), "i3"), None);
    }
}
