//! This network's view of the mesh: its workloads and gateways, and those of joined networks. Pure:
//! the feed (`feed.rs`) applies the store's changes, the hub (`hub.rs`) reads states and
//! differences.
//!
//! Everything is derived from the keys under `mesh/`, so a revision of the catalogue is a
//! revision of the store and survives a restart.

mod changes;
mod cluster;
mod objects;
mod peer;
mod questions;
mod reverse;
mod revoked;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use prost::Message;
use thiserror::Error;
use tollway_model::{
    AddressRange, AppProtocol, EgressDefault, Instance, Label, Locality, NetworkName, ObjectId,
    ObjectScope, Revision, ServiceName, TrustDomain, Unready, Workload,
};
use tollway_wire::{ConvertError, GATEWAYS_PER_NETWORK_LIMIT, v1};

use crate::key::Key;
use crate::options::RemoteCalls;
use crate::services::ClusterService;
use crate::stored;
use changes::Changes;
use cluster::ClusterServices;
pub(crate) use objects::{Objects, Stored};
pub(crate) use peer::{Aggregate as PeerAggregate, Peer, PinnedTrust};
use revoked::Revoked;
pub(crate) use revoked::Span;

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
    pub(crate) remote_calls: RemoteCalls,
    /// What becomes of calls of external hosts that no egress allows.
    pub(crate) egress: EgressDefault,
    /// Where the control plane listens.
    pub(crate) listen: SocketAddr,
    /// What a joined network may state for its gateways beside public addresses.
    pub(crate) peer_addresses: Arc<[AddressRange]>,
}

/// A part of the state whose changes are sent to watchers.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Subject {
    Service(ServiceName),
    /// A joined network: its gateways, whether it answers.
    Network(NetworkName),
    /// The gateways of this network.
    Gateways,
    /// The trust bundles.
    Trust,
    /// Objects that concern the same sidecars.
    Objects(ObjectScope),
    /// What serves the ports of a Service of the Kubernetes cluster; its namespace and name.
    ClusterService((Label, Label)),
    /// What an address of that cluster stands for.
    Address(IpAddr),
    /// To which ports of a pod Services of that cluster lead; its namespace and instance.
    Ports((Label, Instance)),
    /// All ports of Services and of pods, and all addresses, of that cluster.
    Cluster,
}

/// A gateway of this network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gateway {
    pub(crate) instance: Instance,
    /// Where other networks reach it; empty where it only dials out.
    pub(crate) outside: Vec<SocketAddr>,
    /// Where workloads of this network reach it for calls to other networks, if it takes those.
    pub(crate) inside: Vec<SocketAddr>,
    /// Joined networks that only dial out, of which it holds reverse connections.
    pub(crate) reaches: BTreeSet<NetworkName>,
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
    objects: Objects,
    cluster: ClusterServices,
    revoked: Revoked,
    /// Of what is derived from the cluster there is no note: a follower that comes back is sent it again.
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
            objects: Objects::default(),
            cluster: ClusterServices::default(),
            revoked: Revoked::default(),
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
    ) -> Result<Vec<Subject>, RecordError> {
        let subject = match key {
            Key::Workload { .. } => {
                let (name, mut subjects) = self.put_workload(value)?;
                let subject = Subject::Service(name);
                self.changes.touch(&subject, revision);
                subjects.push(subject);
                return Ok(subjects);
            }
            Key::Gateway { .. } => self.put_gateway(value)?,
            Key::Trust => {
                self.trust_revision = revision;
                Subject::Trust
            }
            Key::Revoked(revocation) => {
                self.revoked.put(revocation.clone(), value);
                Subject::Trust
            }
            Key::Object(_) => {
                let stored = Stored::read(value, revision, &self.home.network)?;
                let scopes = self.objects.put(stored);
                return Ok(self.objects_changed(scopes, revision));
            }
            Key::ClusterService { namespace, name } => {
                let service = ClusterService::read(namespace, name, value)?;
                return Ok(self.cluster.put(service));
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
                return Ok(Vec::new());
            }
            Key::PeerService { network, namespace, app } => {
                let aggregate = v1::Aggregate::decode(value)?;
                self.peer(network).put_service(aggregate)?;
                Subject::Service(service(app, namespace, network))
            }
        };
        self.changes.touch(&subject, revision);
        Ok(vec![subject])
    }

    /// A stored object cannot be read. Returns what changed by it.
    pub(crate) fn put_unreadable(&mut self, id: &ObjectId, revision: u64) -> Vec<Subject> {
        let scopes = self.objects.put_unreadable(id, revision, &self.home.network);
        self.objects_changed(scopes, revision)
    }

    fn objects_changed(&mut self, scopes: Vec<ObjectScope>, revision: u64) -> Vec<Subject> {
        let mut subjects = Vec::with_capacity(scopes.len());
        for scope in scopes {
            let is_gone = !self.objects.has_scope(&scope);
            let subject = Subject::Objects(scope);
            if is_gone {
                self.changes.remove(&subject, revision);
            } else {
                self.changes.touch(&subject, revision);
            }
            subjects.push(subject);
        }
        subjects
    }

    /// Removes a key. Returns what changed by it.
    pub(crate) fn delete(&mut self, key: &Key, revision: u64) -> Vec<Subject> {
        if let Key::Object(id) = key {
            let scopes = self.objects.remove(id);
            return self.objects_changed(scopes, revision);
        }
        if let Key::ClusterService { namespace, name } = key {
            return self.cluster.remove(&(namespace.clone(), name.clone()));
        }
        if let Key::Workload { namespace, app, instance } = key {
            let name = service(app, namespace, &self.home.network);
            return self.delete_workload(name, instance, revision);
        }
        self.delete_other(key, revision).into_iter().collect()
    }

    fn delete_workload(
        &mut self,
        name: ServiceName,
        instance: &Instance,
        revision: u64,
    ) -> Vec<Subject> {
        let known = self.services.get_mut(&name);
        let Some(gone) = known.and_then(|known| known.workloads.remove(instance)) else {
            return Vec::new();
        };
        let mut subjects = self.cluster.leave(&gone);
        let is_last = self.services.get(&name).is_none_or(|known| known.workloads.is_empty());
        if is_last {
            self.services.remove(&name);
        }
        let subject = Subject::Service(name);
        if is_last {
            self.changes.remove(&subject, revision);
        } else {
            self.changes.touch(&subject, revision);
        }
        subjects.push(subject);
        subjects
    }

    fn delete_other(&mut self, key: &Key, revision: u64) -> Option<Subject> {
        let subject = match key {
            Key::Gateway { instance } => {
                self.gateways.remove(instance)?;
                Subject::Gateways
            }
            Key::Trust | Key::Object(_) | Key::Workload { .. } | Key::ClusterService { .. } => {
                return None;
            }
            Key::Revoked(revocation) => {
                if !self.revoked.remove(revocation) {
                    return None;
                }
                Subject::Trust
            }
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
        let names: BTreeSet<_> = self.peers.keys().chain(newer.peers.keys()).cloned().collect();
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
        if self.trust_revision != newer.trust_revision || self.revoked != newer.revoked {
            different.push((Subject::Trust, false));
        }
        differences(
            self.objects.scopes(),
            newer.objects.scopes(),
            |scope| Subject::Objects(scope.clone()),
            &mut different,
        );
        let has_none = self.cluster.is_empty() && newer.cluster.is_empty();
        // Which workloads are where is a part of it.
        let is_cluster_same =
            has_none || (self.cluster == newer.cluster && self.services == newer.services);
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
        self.objects = newer.objects;
        self.cluster = newer.cluster;
        self.revoked = newer.revoked;
        let different = different.into_iter().map(|(subject, _)| subject);
        different.chain((!is_cluster_same).then_some(Subject::Cluster)).collect()
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

    /// Returns its service, and what of the cluster changed by it.
    fn put_workload(&mut self, value: &[u8]) -> Result<(ServiceName, Vec<Subject>), RecordError> {
        let workload = tollway_wire::workload(&v1::Workload::decode(value)?)?;
        let name = workload.service.clone();
        let mut subjects = Vec::new();
        let known = self.services.entry(name.clone()).or_default();
        if let Some(before) = known.workloads.insert(workload.instance.clone(), workload.clone()) {
            subjects.extend(self.cluster.leave(&before));
        }
        subjects.extend(self.cluster.enter(&workload));
        Ok((name, subjects))
    }

    fn put_gateway(&mut self, value: &[u8]) -> Result<Subject, RecordError> {
        let stored = v1::Gateway::decode(value)?;
        let gateway = Gateway::read(&stored)?;
        self.gateways.insert(gateway.instance.clone(), gateway);
        Ok(Subject::Gateways)
    }

    fn peer(&mut self, network: &NetworkName) -> &mut Peer {
        self.peers.entry(network.clone()).or_default()
    }
}

impl Service {
    fn ready_replicas(&self) -> u32 {
        u32::try_from(self.called().filter(|of| of.ready).count()).unwrap_or(u32::MAX)
    }

    /// Workloads that are not ready, by where they are, if some workload states where it is.
    fn unready(&self) -> Arc<[Unready]> {
        if !self.called().any(|of| of.locality.is_stated()) {
            return Arc::default();
        }
        unready_by_place(self.called().filter(|of| !of.ready).map(|of| &of.locality))
    }

    /// Where workloads are: of each zone or region those that are ready and all.
    fn localities(&self) -> BTreeMap<&Locality, (u32, u32)> {
        let mut counts: BTreeMap<&Locality, (u32, u32)> = BTreeMap::new();
        for workload in self.called() {
            let (ready, all) = counts.entry(&workload.locality).or_default();
            *ready += u32::from(workload.ready);
            *all += 1;
        }
        counts
    }

    /// The protocol that most workloads declare. Every replica of the control plane decides alike during a
    /// change.
    fn protocol(&self) -> AppProtocol {
        most_common(self.called().filter_map(|workload| workload.protocol))
    }

    /// The workloads that are called by its name: those whose app has a port of its own.
    fn called(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.values().filter(|workload| workload.protocol.is_some())
    }

    fn called_count(&self) -> u32 {
        u32::try_from(self.called().count()).unwrap_or(u32::MAX)
    }
}

/// Of protocols that are as common the first in the order of the protocols' numbers.
fn most_common(declared: impl Iterator<Item = AppProtocol>) -> AppProtocol {
    let mut votes = AppProtocol::ALL.map(|protocol| (0, protocol));
    for protocol in declared {
        votes.iter_mut().filter(|(_, of)| *of == protocol).for_each(|(count, _)| *count += 1);
    }
    let winner = votes.into_iter().rev().max_by_key(|(count, _)| *count);
    winner.map(|(_, protocol)| protocol).unwrap_or_default()
}

fn unready_by_place<'a>(places: impl Iterator<Item = &'a Locality>) -> Arc<[Unready]> {
    let mut counts: BTreeMap<&Locality, u32> = BTreeMap::new();
    places.for_each(|place| *counts.entry(place).or_default() += 1);
    let unready =
        |(place, replicas): (&Locality, u32)| Unready { locality: place.clone(), replicas };
    counts.into_iter().map(unready).collect()
}

fn service(app: &Label, namespace: &Label, network: &NetworkName) -> ServiceName {
    ServiceName { app: app.clone(), namespace: namespace.clone(), network: network.clone() }
}

/// Collects the keys whose values differ, each with whether the newer map lacks it.
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
