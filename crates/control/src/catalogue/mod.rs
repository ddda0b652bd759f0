//! What the mesh looks like from this network: its workloads and gateways, and what joined
//! networks say of theirs. Pure: the feed (`feed.rs`) carries the store's changes in, the hub
//! (`hub.rs`) asks for states and differences.
//!
//! Everything is derived from the keys under `mesh/`, so a revision of the catalogue is a
//! revision of the store and survives a restart.

mod changes;
mod peer;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use prost::Message;
use thiserror::Error;
use tollway_model::{
    AppProtocol, Endpoint, Instance, Label, NetworkName, Remote, Revision, ServiceName,
    ServiceState, ServiceUpdate, TrustDomain, UnavailableReason, Workload,
};
use tollway_wire::{
    ConvertError, ENDPOINTS_PER_SERVICE_LIMIT, GATEWAYS_PER_NETWORK_LIMIT, NetworkState,
    NetworkUpdate, v1,
};

use crate::key::Key;
use crate::options::EgressMode;
use crate::stored;
use changes::Changes;
pub(crate) use peer::{Aggregate as PeerAggregate, Peer, PinnedTrust};

/// A stored value that does not read back.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    #[error("the record is not protobuf of the expected message")]
    Decode(#[from] prost::DecodeError),
    #[error("the record holds a wrong value")]
    Convert(#[from] ConvertError),
}

/// What this network is, for the whole life of the process.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) network: NetworkName,
    pub(crate) trust_domain: TrustDomain,
    /// The network's own root certificate, DER.
    pub(crate) root: Vec<u8>,
    pub(crate) egress: EgressMode,
}

/// Something whose changes are told.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Subject {
    Service(ServiceName),
    /// A joined network: its gateways, whether it answers.
    Network(NetworkName),
    /// The gateways of this network.
    Gateways,
    /// The trust bundles.
    Trust,
}

/// A gateway of this network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gateway {
    pub(crate) instance: Instance,
    /// Where other networks reach it.
    pub(crate) outside: SocketAddr,
    /// Where workloads of this network reach it.
    pub(crate) inside: SocketAddr,
}

#[derive(Default, PartialEq, Debug)]
struct Service {
    workloads: BTreeMap<Instance, Workload>,
}

#[derive(Debug)]
pub(crate) struct Catalogue {
    home: Home,
    revision: u64,
    trust_revision: u64,
    services: BTreeMap<ServiceName, Service>,
    gateways: BTreeMap<Instance, Gateway>,
    peers: BTreeMap<NetworkName, Peer>,
    changes: Changes<Subject>,
}

impl Catalogue {
    /// An empty catalogue; differences are known from `revision` on.
    pub(crate) fn new(home: Home, revision: u64) -> Self {
        Self {
            home,
            revision,
            trust_revision: 0,
            services: BTreeMap::new(),
            gateways: BTreeMap::new(),
            peers: BTreeMap::new(),
            changes: Changes::new(revision),
        }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// Everything up to `revision` has been applied.
    pub(crate) fn advance(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// Sets a key. Returns what changed by it.
    ///
    /// # Errors
    /// [`RecordError`]; the catalogue is then as before.
    pub(crate) fn put(
        &mut self,
        key: &Key,
        value: &[u8],
        revision: u64,
    ) -> Result<Option<Subject>, RecordError> {
        let subject = match key {
            Key::Workload { .. } => self.put_workload(value)?,
            Key::Gateway { .. } => self.put_gateway(value)?,
            Key::Trust => {
                self.trust_revision = revision;
                Subject::Trust
            }
            Key::PeerTrust { network } => {
                self.peer(network).set_trust(PinnedTrust::read(value)?);
                Subject::Network(network.clone())
            }
            Key::PeerGateways { network } => {
                let stored = v1::Gateways::decode(value)?;
                let gateways = tollway_wire::addresses(
                    &stored.addresses,
                    "addresses",
                    GATEWAYS_PER_NETWORK_LIMIT,
                )?;
                self.peer(network).gateways = gateways.into();
                Subject::Network(network.clone())
            }
            Key::PeerLink { network } => {
                let link = stored::PeerLink::decode(value)?;
                self.peer(network).link = link;
                Subject::Network(network.clone())
            }
            Key::PeerCursor { network } => {
                self.peer(network).cursor = stored::PeerCursor::decode(value)?.revision;
                return Ok(None);
            }
            Key::PeerService { network, namespace, app } => {
                let aggregate = v1::Aggregate::decode(value)?;
                self.peer(network).put_service(aggregate)?;
                Subject::Service(service(app, namespace, network))
            }
        };
        self.changes.touch(&subject, revision);
        Ok(Some(subject))
    }

    /// Removes a key. Returns what changed by it.
    pub(crate) fn delete(&mut self, key: &Key, revision: u64) -> Option<Subject> {
        let subject = match key {
            Key::Workload { namespace, app, instance } => {
                let name = service(app, namespace, &self.home.network);
                let known = self.services.get_mut(&name)?;
                known.workloads.remove(instance)?;
                if known.workloads.is_empty() {
                    self.services.remove(&name);
                    return self.removed(Subject::Service(name), revision);
                }
                Subject::Service(name)
            }
            Key::Gateway { instance } => {
                self.gateways.remove(instance)?;
                Subject::Gateways
            }
            Key::Trust => return None,
            Key::PeerTrust { network } => {
                self.peers.get_mut(network)?.forget_trust();
                self.drop_empty_peer(network);
                return self.removed(Subject::Network(network.clone()), revision);
            }
            Key::PeerGateways { network } => {
                self.peers.get_mut(network)?.gateways = Arc::from([]);
                self.drop_empty_peer(network);
                Subject::Network(network.clone())
            }
            Key::PeerLink { network } => {
                self.peers.get_mut(network)?.link = stored::PeerLink::default();
                self.drop_empty_peer(network);
                Subject::Network(network.clone())
            }
            Key::PeerCursor { network } => {
                self.peers.get_mut(network)?.cursor = 0;
                return None;
            }
            Key::PeerService { network, namespace, app } => {
                let peer = self.peers.get_mut(network)?;
                peer.services.remove(&(namespace.clone(), app.clone()))?;
                self.drop_empty_peer(network);
                return self.removed(Subject::Service(service(app, namespace, network)), revision);
            }
        };
        self.changes.touch(&subject, revision);
        Some(subject)
    }

    /// Takes over what a full list gave; what differs counts as changed at its revision.
    /// Returns what differs.
    pub(crate) fn replace(&mut self, newer: Self) -> Vec<Subject> {
        let revision = newer.revision;
        let mut different = Vec::new();
        differences(
            &self.services,
            &newer.services,
            |name| Subject::Service(name.clone()),
            &mut different,
        );
        differences(
            &self.peers,
            &newer.peers,
            |name| Subject::Network(name.clone()),
            &mut different,
        );
        let names: std::collections::BTreeSet<_> =
            self.peers.keys().chain(newer.peers.keys()).cloned().collect();
        for network in names {
            let none = BTreeMap::new();
            let of = |peers: &BTreeMap<NetworkName, Peer>| {
                peers.get(&network).map_or(none.clone(), |p| p.services.clone())
            };
            let subject = |(namespace, app): &(Label, Label)| {
                Subject::Service(service(app, namespace, &network))
            };
            differences(&of(&self.peers), &of(&newer.peers), subject, &mut different);
        }
        if self.gateways != newer.gateways {
            different.push((Subject::Gateways, false));
        }
        if self.trust_revision != newer.trust_revision {
            different.push((Subject::Trust, false));
        }
        for (subject, removed) in &different {
            if *removed {
                self.changes.remove(subject, revision);
            } else {
                self.changes.touch(subject, revision);
            }
        }
        self.revision = revision;
        self.trust_revision = newer.trust_revision;
        self.services = newer.services;
        self.gateways = newer.gateways;
        self.peers = newer.peers;
        different.into_iter().map(|(subject, _)| subject).collect()
    }

    fn removed(&mut self, subject: Subject, revision: u64) -> Option<Subject> {
        self.changes.remove(&subject, revision);
        Some(subject)
    }

    fn drop_empty_peer(&mut self, network: &NetworkName) {
        if self.peers.get(network).is_some_and(Peer::is_empty) {
            self.peers.remove(network);
        }
    }

    fn put_workload(&mut self, value: &[u8]) -> Result<Subject, RecordError> {
        let workload = tollway_wire::workload(&v1::Workload::decode(value)?)?;
        let name = workload.service.clone();
        let known = self.services.entry(name.clone()).or_default();
        known.workloads.insert(workload.instance.clone(), workload);
        Ok(Subject::Service(name))
    }

    fn put_gateway(&mut self, value: &[u8]) -> Result<Subject, RecordError> {
        let stored = v1::Gateway::decode(value)?;
        let gateway = Gateway {
            instance: tollway_wire::instance(&stored.instance)?,
            outside: tollway_wire::address(stored.outside.as_ref(), "outside")?,
            inside: tollway_wire::address(stored.inside.as_ref(), "inside")?,
        };
        self.gateways.insert(gateway.instance.clone(), gateway);
        Ok(Subject::Gateways)
    }

    fn peer(&mut self, network: &NetworkName) -> &mut Peer {
        self.peers.entry(network.clone()).or_default()
    }
}

/// Questions.
impl Catalogue {
    /// The state of a service for a caller in this network.
    pub(crate) fn state(&self, name: &ServiceName) -> ServiceState {
        let state = if name.network == self.home.network {
            self.local_state(name)
        } else {
            self.remote_state(name)
        };
        state.unwrap_or_else(ServiceState::Unavailable)
    }

    pub(crate) fn update(&self, name: &ServiceName) -> ServiceUpdate {
        ServiceUpdate { service: name.clone(), revision: self.revision(), state: self.state(name) }
    }

    fn local_state(&self, name: &ServiceName) -> Result<ServiceState, UnavailableReason> {
        let service = self.services.get(name).ok_or(UnavailableReason::UnknownService)?;
        let ready = service.workloads.values().filter(|w| w.ready);
        let endpoints: Arc<[Endpoint]> = ready
            .take(ENDPOINTS_PER_SERVICE_LIMIT)
            .map(|w| Endpoint { instance: w.instance.clone(), address: w.address })
            .collect();
        if endpoints.is_empty() {
            return Err(UnavailableReason::NoReadyEndpoint);
        }
        Ok(ServiceState::Local {
            endpoints,
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
        let gateways = match self.home.egress {
            EgressMode::Direct => peer.gateways.clone(),
            EgressMode::Gateway => self.gateways.values().map(|g| g.inside).collect(),
        };
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
        };
        let trust_domain = trust.trust_domain.clone();
        Ok(ServiceState::Remote { remote, protocol: aggregate.protocol, trust_domain })
    }

    /// Whether the state of `name` may differ from what it was at `revision`.
    pub(crate) fn changed_after(&self, name: &ServiceName, revision: u64) -> bool {
        if !self.reaches_back_to(revision) {
            return true;
        }
        let at = |subject: &Subject| self.changes.last(subject) > revision;
        let foreign = name.network != self.home.network;
        at(&Subject::Service(name.clone()))
            || (foreign && at(&Subject::Network(name.network.clone())))
            || (foreign && self.home.egress == EgressMode::Gateway && at(&Subject::Gateways))
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

    /// What other networks are told of one of this network's services.
    pub(crate) fn aggregate(&self, name: &ServiceName) -> v1::Aggregate {
        let stated = v1::Aggregate {
            app: name.app.as_str().to_owned(),
            namespace: name.namespace.as_str().to_owned(),
            ..v1::Aggregate::default()
        };
        let Some(service) = self.services.get(name) else {
            return v1::Aggregate { removed: true, ..stated };
        };
        v1::Aggregate {
            ready_replicas: service.ready_replicas(),
            protocol: v1::AppProtocol::from(service.protocol()).into(),
            ..stated
        }
    }

    /// What this network's gateways are told of a joined one.
    pub(crate) fn network_update(&self, network: &NetworkName) -> NetworkUpdate {
        let known = self.peers.get(network).and_then(|peer| Some((peer, peer.trust()?)));
        let state = known.map_or(NetworkState::Removed, |(peer, trust)| NetworkState::Joined {
            trust_domain: trust.trust_domain.clone(),
            gateways: peer.gateways.clone(),
            reachable: peer.link.reachable,
        });
        NetworkUpdate { network: network.clone(), revision: self.revision(), state }
    }

    /// Names of this network's services.
    pub(crate) fn local_services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    pub(crate) fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Registered workloads of a service of this network, whether ready or not.
    pub(crate) fn workload_count(&self, name: &ServiceName) -> usize {
        self.services.get(name).map_or(0, |service| service.workloads.len())
    }

    pub(crate) fn has_workload(&self, name: &ServiceName, instance: &Instance) -> bool {
        self.services.get(name).is_some_and(|s| s.workloads.contains_key(instance))
    }

    pub(crate) fn gateways(&self) -> impl Iterator<Item = &Gateway> {
        self.gateways.values()
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
        }
    }

    pub(crate) fn trust_revision(&self) -> u64 {
        self.trust_revision
    }
}

impl Service {
    fn ready_replicas(&self) -> u32 {
        let ready = self.workloads.values().filter(|w| w.ready).count();
        u32::try_from(ready).unwrap_or(u32::MAX)
    }

    /// What most workloads declare; of equals the first in the order of the protocol's numbers,
    /// so that every replica of the control plane says the same during a change.
    fn protocol(&self) -> AppProtocol {
        const ALL: [AppProtocol; 4] =
            [AppProtocol::Http, AppProtocol::H2c, AppProtocol::Grpc, AppProtocol::Tcp];
        let votes = |p: &AppProtocol| self.workloads.values().filter(|w| w.protocol == *p).count();
        ALL.into_iter().rev().max_by_key(votes).unwrap_or_default()
    }
}

fn service(app: &Label, namespace: &Label, network: &NetworkName) -> ServiceName {
    ServiceName { app: app.clone(), namespace: namespace.clone(), network: network.clone() }
}

/// Collects keys whose values differ; the flag says that the newer map lacks it.
fn differences<K: Ord, V: PartialEq>(
    older: &BTreeMap<K, V>,
    newer: &BTreeMap<K, V>,
    subject: impl Fn(&K) -> Subject,
    into: &mut Vec<(Subject, bool)>,
) {
    for (key, value) in newer {
        if older.get(key) != Some(value) {
            into.push((subject(key), false));
        }
    }
    into.extend(
        older.keys().filter(|key| !newer.contains_key(key)).map(|key| (subject(key), true)),
    );
}

#[cfg(test)]
mod tests;
