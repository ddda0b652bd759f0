//! Services of the network's Kubernetes cluster: those that have pods with sidecars are called in the mesh,
//! by apps that know nothing of it but the Service's name and address.
//!
//! The cluster reports them ([`Services`], given by the program that starts the control plane); `known`
//! decides which are written to the store, and the catalogue what becomes of their ports and addresses
//! (`catalogue/cluster.rs`).

mod known;
mod record;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tollway_model::{AppProtocol, AreaName, Instance, Label, NetworkName};
use tollway_store::{Store, Transaction};
use tracing::{info, warn};

use self::known::{KnownServices, Step};
use crate::hub::Hub;
use crate::key::Key;
use crate::pods::Following;

/// Events that wait to be taken; the watch waits with more.
const EVENTS_LIMIT: usize = 1_024;
/// Changes of one Service within this time are written as one.
const WRITTEN_AFTER: Duration = Duration::from_millis(100);
/// From a write that failed to the next.
const WRITTEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Services in one transaction, and bytes after which it takes no further one: etcd takes 128 changes and
/// 1.5 MiB.
const SERVICES_PER_WRITE: usize = 64;
const WRITE_BYTES: usize = 256 * 1024;

/// A Service of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterService {
    pub namespace: Label,
    pub name: Label,
    /// Its own addresses; none for a headless one.
    pub addresses: Vec<IpAddr>,
    /// Its ports for TCP.
    pub ports: Vec<u16>,
    pub groups: Vec<PodGroup>,
}

/// Pods in which the ports of a Service lead to the same ports.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct PodGroup {
    pub targets: Vec<PortTarget>,
    pub pods: Vec<ServedPod>,
}

/// Where a port of a Service leads, over TCP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PortTarget {
    pub port: u16,
    /// The port of the pod.
    pub target: u16,
    /// What the pod speaks there, as far as the Service states it; bytes otherwise.
    pub protocol: AppProtocol,
}

/// A pod of a Service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ServedPod {
    pub address: IpAddr,
    /// The names of its sidecar as an instance: of the pod, or its UID.
    pub instances: Vec<Instance>,
    pub is_ready: bool,
    pub ports: PodPorts,
    /// As the cluster states it.
    pub zone: Option<AreaName>,
}

/// At which ports the app of a pod takes calls of the mesh.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PodPorts {
    /// At none: the pod has no sidecar, or its app only makes calls.
    None,
    /// At those to which Services lead; it has none of its own.
    OfServices,
    /// At this one, which is its own, and at those to which Services lead.
    Own(u16),
}

impl PodPorts {
    /// Its own one.
    pub(crate) fn own(self) -> Option<u16> {
        match self {
            Self::None | Self::OfServices => None,
            Self::Own(port) => Some(port),
        }
    }
}

impl ServedPod {
    /// Whether its sidecar takes calls of the mesh.
    pub(crate) fn takes_calls(&self) -> bool {
        self.ports != PodPorts::None
    }
}

impl ClusterService {
    pub(crate) fn pods(&self) -> impl Iterator<Item = &ServedPod> {
        self.groups.iter().flat_map(|group| &group.pods)
    }

    /// Pods to which a port leads, each with the port of the pod.
    pub(crate) fn pods_of(&self, port: u16) -> impl Iterator<Item = (&ServedPod, PortTarget)> {
        self.groups.iter().flat_map(move |group| {
            let target = group.targets.iter().find(|of| of.port == port);
            target.into_iter().flat_map(|of| group.pods.iter().map(move |pod| (pod, *of)))
        })
    }

    /// Pods with the ports of theirs that it leads to.
    pub(crate) fn pods_with_targets(&self) -> impl Iterator<Item = (&ServedPod, &[PortTarget])> {
        self.groups.iter().flat_map(|group| group.pods.iter().map(|pod| (pod, &group.targets[..])))
    }

    /// Whether calls of a port go through the mesh: every pod that is ready takes them there. Until all pods
    /// have sidecars callers reach all of them as without the mesh, and not a few with the load of all.
    /// Where none is ready, some pod has to take them, or there is no pod at all: one that comes will.
    pub(crate) fn is_of_mesh(&self, port: u16) -> bool {
        let takes_calls = |(pod, _): (&ServedPod, PortTarget)| pod.takes_calls();
        let mut ready = self.pods_of(port).filter(|(pod, _)| pod.is_ready);
        self.ports.contains(&port)
            && ready.all(takes_calls)
            && (self.pods().next().is_none() || self.pods_of(port).any(takes_calls))
    }

    /// Ports that some pod takes and that do not go through the mesh, since another one that is ready does not.
    pub(crate) fn mixed_ports(&self) -> Vec<u16> {
        let takes_calls = |(pod, _): (&ServedPod, PortTarget)| pod.takes_calls();
        let is_mixed = |port: &u16| self.pods_of(*port).any(takes_calls) && !self.is_of_mesh(*port);
        self.ports.iter().copied().filter(is_mixed).collect()
    }

    /// Bytes that it takes in the store, roughly, and at most.
    pub(crate) fn size(&self) -> usize {
        let pod = |pod: &ServedPod| {
            let names = pod.instances.iter().map(|name| name.as_str().len() + 2).sum::<usize>();
            32 + names + pod.zone.as_ref().map_or(0, |zone| zone.to_string().len() + 2)
        };
        let pods = self.pods().map(pod).sum::<usize>();
        let targets = self.groups.iter().map(|group| 4 + 14 * group.targets.len()).sum::<usize>();
        pods + targets + 18 * self.addresses.len() + 4 * self.ports.len()
    }
}

/// What a watch of a cluster reports of its Services.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServiceEvent {
    /// A Service has come or changed.
    Changed(ClusterService),
    /// A Service has been deleted; its namespace and name.
    Deleted(Label, Label),
    /// All that there are have been reported, since this watch began.
    Complete,
    /// The watch begins again.
    Begins,
}

/// The API server of a cluster: which Services it has, and which pods serve them.
pub trait Services: Send + Sync + fmt::Debug {
    /// Reports them and their changes; pods with sidecars are those of `network`. While the API server gives
    /// no watch it reports nothing, and tries again.
    fn follow(&self, network: NetworkName, events: mpsc::Sender<ServiceEvent>) -> Following<'_>;
}

/// Where Services come from, and where they are stored.
#[derive(Clone)]
pub(crate) struct FollowedServices {
    pub(crate) services: Arc<dyn Services>,
    pub(crate) store: Store,
    pub(crate) hub: Arc<Hub>,
}

impl FollowedServices {
    /// Runs until it is dropped.
    pub(crate) async fn follow(self) {
        let (sender, events) = mpsc::channel(EVENTS_LIMIT);
        let (stored, network) = self.hub.read(|catalogue| {
            let stored = catalogue.cluster_services().cloned().collect();
            (stored, catalogue.home().network.clone())
        });
        let taking = Taking {
            store: self.store.clone(),
            known: KnownServices::new(stored),
            is_refused: false,
        };
        tokio::join!(self.services.follow(network, sender), taking.run(events));
    }
}

/// Takes events, and writes what has changed.
struct Taking {
    store: Store,
    known: KnownServices,
    is_refused: bool,
}

impl Taking {
    async fn run(mut self, mut events: mpsc::Receiver<ServiceEvent>) {
        let mut ticks = tokio::time::interval(WRITTEN_AFTER);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut not_before = Instant::now();
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return };
                    if let Some(namespace) = self.known.note(event) {
                        warn!(%namespace, "a namespace has more or larger Services than are followed; those that are left out are called as without a mesh");
                    }
                }
                now = ticks.tick(), if self.known.is_due() => {
                    if now >= not_before && !self.write().await {
                        not_before = now + WRITTEN_AGAIN_AFTER;
                    }
                }
            }
        }
    }

    /// Writes some of what is due. False if the store does not take it.
    async fn write(&mut self) -> bool {
        let mut steps = self.known.due(SERVICES_PER_WRITE);
        let (mut transaction, mut taken, mut bytes) = (Transaction::new(), 0, 0);
        for step in &steps {
            if bytes >= WRITE_BYTES {
                break;
            }
            taken += 1;
            transaction = match step {
                Step::Put(service) => {
                    let value = service.write();
                    bytes += value.len();
                    transaction.put(key(&service.namespace, &service.name), value)
                }
                Step::Delete(namespace, name) => transaction.delete(key(namespace, name)),
            };
        }
        steps.truncate(taken);
        match self.store.transact(transaction).await {
            Ok(_) => {
                if std::mem::take(&mut self.is_refused) {
                    info!("the Services of the cluster are stored again");
                }
                for step in &steps {
                    self.report(step);
                }
                self.known.written(steps);
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_refused, true) {
                    let error = tollway_model::chain(&error);
                    warn!(error, "the Services of the cluster are not stored; it is tried again");
                }
                false
            }
        }
    }

    /// Logs which ports of a Service leave the mesh, and which are back.
    fn report(&self, step: &Step) {
        let Step::Put(service) = step else { return };
        let ClusterService { namespace, name, .. } = service.as_ref();
        let before = self.known.stored(namespace, name).map(|of| of.mixed_ports());
        let (before, now) = (before.unwrap_or_default(), service.mixed_ports());
        for port in now.iter().filter(|port| !before.contains(port)) {
            warn!(%namespace, service = %name, port, "calls of a Service do not go through the mesh: a pod that is ready has no sidecar that takes them");
        }
        for port in before.iter().filter(|port| !now.contains(port)) {
            info!(%namespace, service = %name, port, "calls of a Service go through the mesh again, or to no pod with a sidecar");
        }
    }
}

fn key(namespace: &Label, name: &Label) -> bytes::Bytes {
    Key::ClusterService { namespace: namespace.clone(), name: name.clone() }.encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_mixed_if_some_of_its_pods_take_calls_and_one_that_is_ready_does_not() {
        let pod = |is_ready, ports| ServedPod {
            address: IpAddr::from([10, 1, 0, 1]),
            instances: Vec::new(),
            is_ready,
            ports,
            zone: None,
        };
        let mixed = |pods: Vec<ServedPod>| {
            let label = |text: &str| Label::new(text).unwrap();
            let target = |port, target| PortTarget { port, target, protocol: AppProtocol::Tcp };
            let targets = vec![target(80, 8080), target(90, 9090)];
            let service = ClusterService {
                namespace: label("shop"),
                name: label("stock"),
                addresses: Vec::new(),
                ports: vec![80, 90],
                groups: vec![PodGroup { targets, pods }],
            };
            service.mixed_ports()
        };
        let (taken, plain) = (pod(true, PodPorts::Own(8080)), pod(true, PodPorts::None));
        assert_eq!(mixed(vec![taken.clone(), pod(true, PodPorts::OfServices)]), [0; 0]);
        assert_eq!(mixed(vec![taken.clone(), pod(false, PodPorts::None)]), [0; 0]);
        assert_eq!(mixed(vec![taken, plain.clone()]), [80, 90]);
        assert_eq!(mixed(vec![plain]), [0; 0]);
        assert_eq!(mixed(Vec::new()), [0; 0]);
    }
}
