//! What streams and commands ask of the catalogue.

use std::net::SocketAddr;
use std::sync::Arc;

use tollway_model::failover::FailoverNetwork;
use tollway_model::traffic_policy::TrafficParts;
use tollway_model::{
    Called, Endpoint, Instance, Label, Locality, NetworkName, ObjectScope, PolicyScope, Remote,
    RouteScope, ServiceName, ServiceState, ServiceUpdate, TrustDomain, UnavailableReason,
};
use tollway_wire::{ENDPOINTS_PER_SERVICE_LIMIT, NetworkState, NetworkUpdate, v1};

use super::reverse::Reach;
use super::{Catalogue, Gateway, Objects, Peer, PinnedTrust, Subject};
use crate::addresses::{AddressRefusal, check_named_gateway, check_peer_gateway};
use crate::options::RemoteCalls;
use crate::services::ClusterService;

impl Catalogue {
    /// The state of a service for a caller in this network.
    pub(crate) fn state(&self, name: &ServiceName) -> ServiceState {
        let state = if name.is_in_any_network() {
            self.any_state(name)
        } else if name.network == self.home.network {
            match name.called() {
                Called::App => self.local_state(name),
                Called::Port { service, port } => self.port_state(name, (service, port)),
                Called::Address(address) => self.address_state(name, address),
            }
        } else {
            self.remote_state(name)
        };
        state.unwrap_or_else(ServiceState::Unavailable)
    }

    /// The state of a service, with the routes that hold for callers of a namespace. Without callers,
    /// as a gateway has none, there are no routes.
    pub(crate) fn update(&self, name: &ServiceName, callers: Option<&Label>) -> ServiceUpdate {
        let of = name.as_app();
        let routes = |callers| {
            let own = self.objects.routes_of(name, callers);
            let is_port = *of != *name;
            // Those of the port, or else those of all ports of its Service.
            if is_port && own.is_empty() { self.objects.routes_of(&of, callers) } else { own }
        };
        ServiceUpdate {
            service: name.clone(),
            revision: self.revision(),
            state: self.state(name),
            routes: callers.map(routes).unwrap_or_default(),
            traffic: callers.map(|_| self.traffic_of_callers(&of)).unwrap_or_default(),
        }
    }

    /// What holds at the callers of a service. A service of another network has none: what callers here
    /// do with it is not for its operator to decide, and policies are for services of the own network.
    fn traffic_of_callers(&self, name: &ServiceName) -> Arc<TrafficParts> {
        if name.network != self.home.network {
            return Arc::default();
        }
        Arc::new(self.objects.traffic_of(name).of_callers())
    }

    /// The networks that may serve a service, by the word of this network's operator alone.
    fn any_state(&self, name: &ServiceName) -> Result<ServiceState, UnavailableReason> {
        let failover = self.objects.failover_of(name).ok_or(UnavailableReason::NoFailover)?;
        let of_network = |of: &FailoverNetwork| self.registered(&name.in_network(&of.network));
        let registered = failover.rules.networks.iter().map(of_network).collect();
        Ok(ServiceState::Failover { rules: Arc::new(failover.rules.clone()), registered })
    }

    /// Workloads of a service of this network or of a joined one, ready or not.
    fn registered(&self, name: &ServiceName) -> u32 {
        if name.network == self.home.network {
            return self.services.get(name).map_or(0, |service| service.called_count());
        }
        let joined = self.peers.get(&name.network).filter(|peer| peer.joined().is_some());
        let key = (name.namespace.clone(), name.app.clone());
        let aggregate = joined.and_then(|peer| peer.services.get(&key));
        aggregate.map_or(0, |of| of.registered_replicas.max(of.ready_replicas))
    }

    fn local_state(&self, name: &ServiceName) -> Result<ServiceState, UnavailableReason> {
        let service = self.services.get(name).ok_or(UnavailableReason::UnknownService)?;
        if service.called_count() == 0 {
            return Err(UnavailableReason::UnknownService);
        }
        let endpoints: Arc<[Endpoint]> = service
            .called()
            .filter(|workload| workload.ready)
            .take(ENDPOINTS_PER_SERVICE_LIMIT)
            .map(|w| Endpoint {
                instance: w.instance.clone(),
                address: w.address,
                locality: w.locality.clone(),
                app: None,
                port: None,
            })
            .collect();
        if endpoints.is_empty() {
            return Err(UnavailableReason::NoReadyEndpoint);
        }
        Ok(ServiceState::Local {
            endpoints,
            unready: service.unready(),
            protocol: service.protocol(),
            trust_domain: self.home.trust_domain.clone(),
        })
    }

    fn remote_state(&self, name: &ServiceName) -> Result<ServiceState, UnavailableReason> {
        let (peer, trust) = self
            .peers
            .get(&name.network)
            .and_then(|peer| Some((peer, peer.joined()?)))
            .ok_or(UnavailableReason::UnknownNetwork)?;
        let Reach { gateways, beyond } = self.reach(&name.network, peer);
        let gateways = peer.link.that_answer(gateways);
        if !peer.link.reachable || gateways.is_empty() {
            return Err(UnavailableReason::UnreachableNetwork);
        }
        let key = (name.namespace.clone(), name.app.clone());
        let aggregate = peer.services.get(&key).ok_or(UnavailableReason::UnknownService)?;
        if aggregate.ready_replicas == 0 {
            return Err(UnavailableReason::NoReadyEndpoint);
        }
        let remote = Remote {
            network: name.network.clone(),
            ready_replicas: aggregate.ready_replicas,
            gateways,
            beyond,
        };
        let trust_domain = trust.trust_domain.clone();
        Ok(ServiceState::Remote { remote, protocol: aggregate.protocol, trust_domain })
    }

    /// Whether the state of `name`, or its routes and traffic policies for callers of a namespace, may
    /// differ from what they were at `revision`.
    pub(crate) fn changed_after(
        &self,
        name: &ServiceName,
        callers: Option<&Label>,
        revision: u64,
    ) -> bool {
        if !self.reaches_back_to(revision) || name.called() != Called::App {
            return true;
        }
        let at = |subject: &Subject| self.changes.last(subject) > revision;
        if name.is_in_any_network() {
            let scopes = PolicyScope::of_service(name).map(ObjectScope::Failover);
            let networks = self.objects.failover_of(name).map(|of| &of.rules.networks);
            let is_in = |of: &FailoverNetwork| {
                at(&Subject::Service(name.in_network(&of.network)))
                    || at(&Subject::Network(of.network.clone()))
            };
            return scopes.into_iter().any(|scope| at(&Subject::Objects(scope)))
                || networks.into_iter().flatten().any(is_in);
        }
        let routes = |callers| {
            let scope = RouteScope { service: name.clone(), callers };
            at(&Subject::Objects(ObjectScope::Route(scope)))
        };
        let traffic = || {
            let scopes = PolicyScope::of_service(name).map(ObjectScope::TrafficPolicy);
            scopes.into_iter().any(|scope| at(&Subject::Objects(scope)))
        };
        let foreign = name.network != self.home.network;
        at(&Subject::Service(name.clone()))
            || (foreign && at(&Subject::Network(name.network.clone())))
            || (foreign && self.goes_by_own_gateways(&name.network) && at(&Subject::Gateways))
            || callers.is_some_and(|callers| {
                routes(Some(callers.clone())) || routes(None) || (!foreign && traffic())
            })
    }

    /// Whether differences from `revision` are known: not from before the floor, and not from a
    /// future that a store restored from a copy has forgotten.
    pub(crate) fn reaches_back_to(&self, revision: u64) -> bool {
        revision <= self.revision && self.changes.reaches_back_to(revision)
    }

    /// What changed after `revision`; complete only if [`Catalogue::reaches_back_to`] it.
    pub(crate) fn changes_after(&self, revision: u64) -> impl Iterator<Item = &Subject> {
        self.changes.after(revision)
    }

    /// What other networks are sent of one of this network's services.
    pub(crate) fn aggregate(&self, name: &ServiceName) -> v1::Aggregate {
        let stated = v1::Aggregate {
            app: name.app.as_str().to_owned(),
            namespace: name.namespace.as_str().to_owned(),
            ..v1::Aggregate::default()
        };
        let service = self.services.get(name).filter(|service| service.called_count() > 0);
        let Some(service) = service else {
            return v1::Aggregate { removed: true, ..stated };
        };
        v1::Aggregate {
            ready_replicas: service.ready_replicas(),
            registered_replicas: service.called_count(),
            protocol: v1::AppProtocol::from(service.protocol()).into(),
            ..stated
        }
    }

    /// The gateways of a joined network that may be dialled.
    pub(crate) fn usable_gateways(&self, peer: &Peer) -> Arc<[SocketAddr]> {
        let may = |address: &SocketAddr| self.check_gateway(peer.trust(), *address).is_ok();
        if peer.gateways.iter().all(may) {
            return peer.gateways.clone();
        }
        peer.gateways.iter().copied().filter(may).collect()
    }

    /// Whether the address of a joined network's gateway may be used.
    pub(crate) fn check_gateway(
        &self,
        trust: Option<&PinnedTrust>,
        address: SocketAddr,
    ) -> Result<(), AddressRefusal> {
        let is_named =
            |trust: &PinnedTrust| trust.is_accepted && trust.bundle_gateways.contains(&address);
        if trust.is_some_and(is_named) {
            self.check_named_gateway(address)
        } else {
            check_peer_gateway(address, self.own_addresses(), &self.home.peer_addresses)
        }
    }

    /// Whether a gateway may be used that a bundle names which the operator accepts.
    pub(crate) fn check_named_gateway(&self, address: SocketAddr) -> Result<(), AddressRefusal> {
        let (listen, allowed) = (self.home.listen, &self.home.peer_addresses);
        check_named_gateway(address, self.own_addresses(), listen, allowed)
    }

    /// Where the own gateways and the own control plane listen.
    fn own_addresses(&self) -> impl Iterator<Item = SocketAddr> + Clone {
        let gateways =
            self.gateways.values().flat_map(|g| g.outside.iter().chain(&g.inside)).copied();
        gateways.chain([self.home.listen])
    }

    /// When a network was joined, in seconds of Unix time.
    pub(crate) fn joined_at(&self, network: &NetworkName) -> Option<u64> {
        Some(self.peers.get(network)?.joined()?.joined_at_unix_s)
    }

    /// What this network's gateways are sent of a joined one, without the secret of its probes: they dial
    /// it only where workloads do not.
    pub(crate) fn network_update(&self, network: &NetworkName) -> NetworkUpdate {
        let known = self.peers.get(network).and_then(|peer| Some((peer, peer.trust()?)));
        let state = known.map_or(NetworkState::Removed, |(peer, trust)| NetworkState::Joined {
            trust_domain: trust.trust_domain.clone(),
            gateways: match self.home.remote_calls {
                RemoteCalls::Direct => Arc::from([]),
                RemoteCalls::Gateway => self.usable_gateways(peer),
            },
            reachable: peer.link.reachable,
            dials_out: peer.dials_out(),
            reverse_to: self.usable_gateways(peer),
            probe_secret: None,
        });
        NetworkUpdate { network: network.clone(), revision: self.revision(), state }
    }

    /// The Services of the network's Kubernetes cluster.
    pub(crate) fn cluster_services(&self) -> impl Iterator<Item = &Arc<ClusterService>> {
        self.cluster.all()
    }

    /// The names of the ports of the Service that has the name of an app.
    pub(crate) fn ports_of(&self, name: &ServiceName) -> Vec<ServiceName> {
        self.cluster.ports(name)
    }

    /// Names of this network's services.
    pub(crate) fn local_services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    pub(crate) fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Where the workloads of a service of this network are, how many of them are ready, and how many there
    /// are. Empty if none states where it is.
    pub(crate) fn localities(&self, name: &ServiceName) -> Vec<(Locality, u32, u32)> {
        let Some(service) = self.services.get(name) else { return Vec::new() };
        let known = service.localities();
        if !known.keys().any(|locality| locality.is_stated()) {
            return Vec::new();
        }
        let known = known.into_iter();
        known.map(|(locality, (ready, all))| (locality.clone(), ready, all)).collect()
    }

    /// Registered workloads of a service of this network, whether ready or not.
    pub(crate) fn workload_count(&self, name: &ServiceName) -> usize {
        self.services.get(name).map_or(0, |service| service.workloads.len())
    }

    /// Every registered workload of this network, whether ready or not.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = (&ServiceName, &Instance)> {
        self.services.iter().flat_map(|(name, service)| {
            service.workloads.keys().map(move |instance| (name, instance))
        })
    }

    pub(crate) fn has_workload(&self, name: &ServiceName, instance: &Instance) -> bool {
        self.services.get(name).is_some_and(|s| s.workloads.contains_key(instance))
    }

    pub(crate) fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        self.gateways.values()
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Networks that are joined or being joined.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (&NetworkName, &Peer)> {
        self.peers.iter()
    }

    pub(crate) fn find_peer(&self, network: &NetworkName) -> Option<&Peer> {
        self.peers.get(network)
    }

    /// The joined network whose trust domain this is.
    pub(crate) fn joined_by_trust_domain(&self, domain: &TrustDomain) -> Option<&NetworkName> {
        let same = |peer: &Peer| peer.joined().is_some_and(|t| t.trust_domain == *domain);
        self.peers.iter().find(|(_, peer)| same(peer)).map(|(network, _)| network)
    }

    /// The bundles of this network and every joined one.
    pub(crate) fn trust(&self) -> v1::TrustBundles {
        let own = self.own_trust();
        let joined = self.peers.values().filter_map(|peer| {
            let trust = peer.joined()?;
            Some(v1::TrustBundle {
                trust_domain: trust.trust_domain.to_string(),
                roots: trust.roots.clone(),
                network: trust.network.as_str().to_owned(),
                revoked: trust.revoked.iter().map(Into::into).collect(),
            })
        });
        v1::TrustBundles {
            revision: self.trust_revision,
            bundles: std::iter::once(own).chain(joined).collect(),
        }
    }

    /// The bundle of this network alone.
    pub(crate) fn own_trust(&self) -> v1::TrustBundle {
        v1::TrustBundle {
            trust_domain: self.home.trust_domain.to_string(),
            roots: vec![self.home.root.clone()],
            network: self.home.network.as_str().to_owned(),
            revoked: self.revoked_identities(),
        }
    }

    pub(crate) fn trust_revision(&self) -> u64 {
        self.trust_revision
    }
}
