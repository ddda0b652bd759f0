//! Watchers: between the catalogue and the streams of data planes and peers.
//!
//! A watcher has no queue. It holds the set of its services that changed since its last read, or
//! only the revision it was sent, and reads the present state when it has capacity. So a slow
//! watcher costs no memory and skips states that are already replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tollway_model::traffic_policy::TrafficParts;
use tollway_model::{
    ANY_NETWORK, Called, Egress, Instance, Label, NetworkName, ObjectScope, PolicyScope, Revision,
    RouteScope, ServedPort, ServiceName, ServiceUpdate,
};
use tollway_wire::{SUBSCRIPTIONS_PER_STREAM_LIMIT, v1};

use crate::catalogue::{Catalogue, Stored, Subject};
use crate::connections::{NAME_OVERHEAD_BYTES, Refused, Share};

/// Longest wait until a change of one's own is seen in the catalogue.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Least time between two checks of the acknowledgements.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// The catalogue and its watchers.
#[derive(Debug)]
pub(crate) struct Hub {
    inner: Mutex<Inner>,
    /// The trust revision, for those who rebuild TLS configurations.
    trust: watch::Sender<u64>,
    /// The catalogue's revision.
    revision: watch::Sender<Revision>,
    /// Rises with every change of the joined networks or of any gateway.
    peers: watch::Sender<u64>,
    /// Wakes those who wait for acknowledgements.
    acknowledged: Notify,
}

#[derive(Debug)]
struct Inner {
    catalogue: Catalogue,
    watchers: HashMap<u64, Waiting>,
    /// One copy of a name serves all that follow it.
    interest: HashMap<Arc<ServiceName>, HashSet<u64>>,
    /// Of these the names of ports and addresses of the Kubernetes cluster.
    in_cluster: HashMap<InCluster, HashSet<Arc<ServiceName>>>,
    /// The streams of sidecars, by namespace and instance.
    sidecars: HashMap<(Label, Instance), HashSet<u64>>,
    next_watcher: u64,
    /// In the place of a network in the names of services that are called in any.
    any: NetworkName,
}

#[derive(Debug)]
struct Waiting {
    wake: Arc<Notify>,
    /// Services that changed since the watcher last read. A subset of its subscriptions.
    dirty: HashSet<Arc<ServiceName>>,
    subscribed: HashSet<Arc<ServiceName>>,
    /// Wakes on every change.
    whole: bool,
    acknowledged: Revision,
    /// The sidecar whose stream it is: it gets the policies that protect its service, and the routes
    /// that hold for its calls.
    sidecar: Option<Sidecar>,
}

#[derive(Debug)]
struct Sidecar {
    service: ServiceName,
    instance: Instance,
    /// Policies, traffic policies or egress may have changed since the watcher last read.
    policies_dirty: bool,
    /// What it was sent last.
    policies: Option<Vec<Arc<Stored>>>,
    traffic: Option<TrafficParts>,
    egress: Option<Vec<Arc<Egress>>>,
    /// Services may lead to other ports since the watcher last read.
    ports_dirty: bool,
    ports: Option<Vec<ServedPort>>,
}

impl Sidecar {
    fn new(service: ServiceName, instance: Instance) -> Self {
        Self {
            service,
            instance,
            policies_dirty: true,
            policies: None,
            traffic: None,
            egress: None,
            ports_dirty: true,
            ports: None,
        }
    }

    /// The pod that it is in, as Services have it.
    fn pod(&self) -> (Label, Instance) {
        (self.service.namespace.clone(), self.instance.clone())
    }

    /// Where the callers are whose sidecar it is.
    fn namespace(&self) -> &Label {
        &self.service.namespace
    }

    /// The policies of its service, if they differ from those that it was sent.
    fn changed_policies(&mut self, catalogue: &Catalogue) -> Option<Vec<Arc<Stored>>> {
        let present = catalogue.objects().policies_of(&self.service);
        let is_same = self.policies.as_ref().is_some_and(|told| *told == present);
        if is_same {
            return None;
        }
        self.policies = Some(present.clone());
        Some(present)
    }

    /// What the traffic policies of its service come to at a replica, if it is other than what it was
    /// sent.
    fn changed_traffic(&mut self, catalogue: &Catalogue) -> Option<TrafficParts> {
        let present = catalogue.objects().traffic_of(&self.service).of_replicas();
        if self.traffic.as_ref() == Some(&present) {
            return None;
        }
        self.traffic = Some(present.clone());
        Some(present)
    }

    /// What its app may call out of the mesh, if it is other than what it was sent.
    fn changed_egress(&mut self, catalogue: &Catalogue) -> Option<v1::EgressRules> {
        let present = catalogue.objects().egress_of(&self.service);
        if self.egress.as_ref() == Some(&present) {
            return None;
        }
        let rules = v1::EgressRules {
            by_default: v1::EgressDefault::from(catalogue.home().egress).into(),
            egresses: present.iter().map(|egress| (&**egress).into()).collect(),
        };
        self.egress = Some(present);
        Some(rules)
    }

    /// The ports of its app that Services lead to, if they are others than those that it was sent.
    fn changed_ports(&mut self, catalogue: &Catalogue) -> Option<Vec<ServedPort>> {
        let present = catalogue.served_ports(&self.pod());
        if self.ports.as_ref() == Some(&present) {
            return None;
        }
        self.ports = Some(present.clone());
        Some(present)
    }
}

/// One stream's place in the hub; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    hub: Arc<Hub>,
    id: u64,
    wake: Arc<Notify>,
    /// What counts its subscriptions.
    share: Option<Share>,
}

/// The present states of what changed for one watcher.
#[derive(Debug)]
pub(crate) struct Updates {
    pub(crate) revision: Revision,
    pub(crate) services: Vec<ServiceUpdate>,
    /// Every policy of the watcher's own service, when they changed or were never sent.
    pub(crate) policies: Option<Vec<Arc<Stored>>>,
    /// What the traffic policies of that service come to at a replica, likewise.
    pub(crate) traffic: Option<TrafficParts>,
    /// What the app of that service may call out of the mesh, likewise.
    pub(crate) egress: Option<v1::EgressRules>,
    /// The ports of that app that Services of a cluster lead to, likewise.
    pub(crate) ports: Option<Vec<ServedPort>>,
    /// More services changed than were requested; read again.
    pub(crate) more: bool,
}

/// How far the watchers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Followed {
    pub(crate) watchers: usize,
    /// Revisions that the slowest has not acknowledged yet.
    pub(crate) lag: u64,
}

/// Why more services are not followed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotFollowed {
    /// More subscriptions than one stream may have.
    TooMany,
    Share(Refused),
}

impl Hub {
    pub(crate) fn new(catalogue: Catalogue) -> Arc<Self> {
        let trust = watch::Sender::new(catalogue.trust_revision());
        let revision = watch::Sender::new(catalogue.revision());
        let inner = Inner {
            catalogue,
            watchers: HashMap::new(),
            interest: HashMap::new(),
            in_cluster: HashMap::new(),
            sidecars: HashMap::new(),
            next_watcher: 0,
            any: NetworkName::new(ANY_NETWORK).expect("it is a label"),
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            trust,
            revision,
            peers: watch::Sender::new(0),
            acknowledged: Notify::new(),
        })
    }

    /// Reads the catalogue. Keep it short: every reader and writer waits.
    pub(crate) fn read<T>(&self, question: impl FnOnce(&Catalogue) -> T) -> T {
        question(&self.lock().catalogue)
    }

    /// Changes the catalogue by `change`, which returns what changed, and wakes the watchers
    /// concerned.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Catalogue) -> Vec<Subject>) {
        let (revision, trust, peers_changed) = {
            let mut inner = self.lock();
            let subjects = change(&mut inner.catalogue);
            inner.mark(&subjects);
            // A wait for an absent workload ends with the workload's lease.
            self.acknowledged.notify_waiters();
            let concerns_peers = |s: &Subject| matches!(s, Subject::Network(_) | Subject::Gateways);
            let peers = subjects.iter().any(concerns_peers);
            (inner.catalogue.revision(), inner.catalogue.trust_revision(), peers)
        };
        self.revision.send_replace(revision);
        self.trust.send_if_modified(|known| std::mem::replace(known, trust) != trust);
        if peers_changed {
            self.peers.send_modify(|count| *count += 1);
        }
    }

    /// The trust revision as it changes.
    pub(crate) fn trust_revision(&self) -> watch::Receiver<u64> {
        self.trust.subscribe()
    }

    /// Signals changes of joined networks and of gateways, the own ones too.
    pub(crate) fn peer_changes(&self) -> watch::Receiver<u64> {
        self.peers.subscribe()
    }

    /// Returns once the catalogue has reached `revision`.
    pub(crate) async fn reached(&self, revision: u64) {
        let mut seen = self.revision.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = seen.wait_for(|at| at.0 >= revision).await;
    }

    /// Waits until watchers see `revision`, for at most [`VISIBLE_TIMEOUT`]: beyond it an answer is
    /// still right, only watchers are late.
    pub(crate) async fn visible(&self, revision: u64) {
        let _ = tokio::time::timeout(VISIBLE_TIMEOUT, self.reached(revision)).await;
    }

    /// A watcher of subscriptions, none at first, that gets no policies.
    #[cfg(test)]
    pub(crate) fn watch_subscribed(self: &Arc<Self>) -> Watcher {
        self.enter(false, None, None)
    }

    /// A watcher of subscriptions, none at first, and of the policies that protect `service`. Its
    /// subscriptions count in `share`.
    pub(crate) fn watch_as(
        self: &Arc<Self>,
        service: ServiceName,
        instance: Instance,
        share: Share,
    ) -> Watcher {
        self.enter(false, Some(Sidecar::new(service, instance)), Some(share))
    }

    /// The watcher of the sidecar of `app.namespace`, without a share.
    #[cfg(test)]
    pub(crate) fn watch_of(self: &Arc<Self>, service: ServiceName, instance: Instance) -> Watcher {
        self.enter(false, Some(Sidecar::new(service, instance)), None)
    }

    /// A watcher that wakes on every change.
    pub(crate) fn watch_whole(self: &Arc<Self>) -> Watcher {
        self.enter(true, None, None)
    }

    fn enter(
        self: &Arc<Self>,
        whole: bool,
        sidecar: Option<Sidecar>,
        share: Option<Share>,
    ) -> Watcher {
        let mut inner = self.lock();
        let id = inner.next_watcher;
        inner.next_watcher += 1;
        let wake = Arc::new(Notify::new());
        if let Some(sidecar) = &sidecar {
            inner.sidecars.entry(sidecar.pod()).or_default().insert(id);
        }
        let waiting = Waiting {
            wake: wake.clone(),
            dirty: HashSet::new(),
            subscribed: HashSet::new(),
            whole,
            acknowledged: Revision::default(),
            sidecar,
        };
        inner.watchers.insert(id, waiting);
        Watcher { hub: self.clone(), id, wake, share }
    }

    /// The lowest revision that every connected watcher has applied, `None` without watchers.
    pub(crate) fn applied_everywhere(&self) -> Option<Revision> {
        self.lock().watchers.values().map(|waiting| waiting.acknowledged).min()
    }

    /// How many follow the catalogue, and how far behind it the slowest is.
    pub(crate) fn followed(&self) -> Followed {
        let inner = self.lock();
        let newest = inner.catalogue.revision();
        let behind = |waiting: &Waiting| newest.0.saturating_sub(waiting.acknowledged.0);
        let lag = inner.watchers.values().map(behind).max().unwrap_or_default();
        Followed { watchers: inner.watchers.len(), lag }
    }

    /// Waits until every sidecar that `scopes` concern has applied `revision`, for at most
    /// `timeout`. Returns how many there are, and which of them lag. One that is not connected lags
    /// as long as its workload is registered: it may take calls by the policies that it has. Which
    /// services it calls is not known then, so routes are not waited for.
    pub(crate) async fn applied(
        &self,
        scopes: &BTreeSet<ObjectScope>,
        revision: u64,
        timeout: Duration,
    ) -> (u32, Vec<String>) {
        let wait = async {
            loop {
                let acknowledged = self.acknowledged.notified();
                tokio::pin!(acknowledged);
                acknowledged.as_mut().enable();
                if self.lagging(scopes, revision).1.is_empty() {
                    return;
                }
                acknowledged.await;
                // Many acknowledge at once, and every check covers all of them.
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        };
        let _ = tokio::time::timeout(timeout, wait).await;
        self.lagging(scopes, revision)
    }

    fn lagging(&self, scopes: &BTreeSet<ObjectScope>, revision: u64) -> (u32, Vec<String>) {
        let inner = self.lock();
        let is_protected = |service: &ServiceName| {
            let own = PolicyScope::of_service(service);
            let scopes_of = |of: fn(PolicyScope) -> ObjectScope| own.clone().map(of);
            let kinds = [ObjectScope::Policy, ObjectScope::TrafficPolicy, ObjectScope::Egress];
            let all = kinds.map(scopes_of);
            all.as_flattened().iter().any(|scope| scopes.contains(scope))
        };
        let catalogue = &inner.catalogue;
        let routes: Vec<(&RouteScope, Vec<ServiceName>)> = scopes
            .iter()
            .filter_map(|scope| match scope {
                ObjectScope::Route(scope) => Some((scope, catalogue.ports_of(&scope.service))),
                ObjectScope::Policy(_)
                | ObjectScope::TrafficPolicy(_)
                | ObjectScope::Failover(_)
                | ObjectScope::Egress(_) => None,
            })
            .collect();
        let home = &inner.catalogue.home().network;
        let is_managed = |service: &Arc<ServiceName>| {
            let own = PolicyScope::of_service(&service.as_app()).map(ObjectScope::TrafficPolicy);
            service.network == *home && own.iter().any(|scope| scopes.contains(scope))
        };
        let is_carried_over = |service: &Arc<ServiceName>| {
            let own = PolicyScope::of_service(service).map(ObjectScope::Failover);
            service.is_in_any_network() && own.iter().any(|scope| scopes.contains(scope))
        };
        let concerned = inner.watchers.values().filter_map(|waiting| {
            let sidecar = waiting.sidecar.as_ref()?;
            let is_routed = |(scope, ports): &(&RouteScope, Vec<ServiceName>)| {
                let mut names = std::iter::once(&scope.service).chain(ports);
                names.any(|name| waiting.subscribed.contains(name))
                    && catalogue.objects().holds_for(scope, sidecar.namespace())
            };
            let is_concerned = is_protected(&sidecar.service)
                || routes.iter().any(is_routed)
                || waiting.subscribed.iter().any(is_managed)
                || waiting.subscribed.iter().any(is_carried_over);
            is_concerned.then_some((waiting, sidecar))
        });
        // A sidecar that has just connected again may have two streams: the newer one counts.
        let mut applied: BTreeMap<String, Revision> = BTreeMap::new();
        for (waiting, Sidecar { service, instance, .. }) in concerned {
            let best = applied.entry(full_name(service, instance)).or_default();
            *best = waiting.acknowledged.max(*best);
        }
        for (service, instance) in inner.catalogue.workloads() {
            if is_protected(service) {
                applied.entry(full_name(service, instance)).or_default();
            }
        }
        let count = u32::try_from(applied.len()).unwrap_or(u32::MAX);
        let lags = |(name, at): (String, Revision)| (at.0 < revision).then_some(name);
        (count, applied.into_iter().filter_map(lags).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in another holder of the lock leaves the maps usable, so the hub continues.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a name of the Kubernetes cluster is a part of.
#[derive(PartialEq, Eq, Hash, Debug)]
enum InCluster {
    /// Namespace and name.
    Service((Label, Label)),
    Address(IpAddr),
}

impl InCluster {
    fn of(name: &ServiceName) -> Option<Self> {
        match name.called() {
            Called::App => None,
            Called::Port { .. } => {
                let app = name.as_app();
                Some(Self::Service((app.namespace.clone(), app.app.clone())))
            }
            Called::Address(address) => Some(Self::Address(address.ip().to_canonical())),
        }
    }
}

/// What a subscription counts in the share of its identity.
fn weight(name: &ServiceName) -> u64 {
    let ServiceName { app, namespace, network } = name;
    let bytes = [app, namespace, network].map(|label| label.as_str().len() as u64);
    bytes.iter().sum::<u64>() + NAME_OVERHEAD_BYTES
}

fn full_name(service: &ServiceName, instance: &Instance) -> String {
    format!("{instance}.{}.{}", service.app, service.namespace)
}

impl Inner {
    fn mark(&mut self, subjects: &[Subject]) {
        if subjects.is_empty() {
            return;
        }
        for subject in subjects {
            match subject {
                Subject::Service(name) => {
                    self.mark_service(name);
                    // It has more or fewer replicas.
                    let in_any = name.in_network(&self.any);
                    self.mark_service(&in_any);
                }
                Subject::ClusterService(of) => {
                    self.mark_in_cluster(&InCluster::Service(of.clone()));
                }
                Subject::Address(ip) => self.mark_in_cluster(&InCluster::Address(*ip)),
                Subject::Ports(pod) => {
                    let ids = self.sidecars.get(pod).into_iter().flatten().copied();
                    self.mark_ports(ids.collect());
                }
                Subject::Cluster => {
                    self.mark_services_where(|name| name.called() != Called::App);
                    self.mark_ports(self.watchers.keys().copied().collect());
                }
                Subject::Network(network) => {
                    self.mark_services_where(|name| {
                        name.network == *network || name.is_in_any_network()
                    });
                }
                Subject::Gateways => {
                    let home = self.catalogue.home().network.clone();
                    self.mark_services_where(|name| name.network != home);
                }
                Subject::Trust => self.watchers.values().for_each(|w| w.wake.notify_one()),
                Subject::Objects(ObjectScope::Policy(scope) | ObjectScope::Egress(scope)) => {
                    self.mark_policies(scope);
                }
                Subject::Objects(ObjectScope::Route(scope)) => self.mark_routes(scope),
                Subject::Objects(ObjectScope::TrafficPolicy(scope)) => {
                    self.mark_policies(scope);
                    let home = self.catalogue.home().network.clone();
                    self.mark_services_where(|name| {
                        name.network == home && scope.covers(&name.as_app())
                    });
                }
                Subject::Objects(ObjectScope::Failover(scope)) => {
                    self.mark_services_where(|name| name.is_in_any_network() && scope.covers(name));
                }
            }
        }
        self.watchers.values().filter(|w| w.whole).for_each(|w| w.wake.notify_one());
    }

    fn mark_in_cluster(&mut self, part: &InCluster) {
        let names = self.in_cluster.get(part).into_iter().flatten();
        let names: Vec<_> = names.cloned().collect();
        names.iter().for_each(|name| self.mark_service(name));
    }

    fn mark_ports(&mut self, watchers: Vec<u64>) {
        for id in watchers {
            if let Some(Waiting { sidecar: Some(sidecar), wake, .. }) = self.watchers.get_mut(&id) {
                sidecar.ports_dirty = true;
                wake.notify_one();
            }
        }
    }

    fn mark_policies(&mut self, scope: &PolicyScope) {
        for waiting in self.watchers.values_mut() {
            if let Some(sidecar) = &mut waiting.sidecar
                && scope.covers(&sidecar.service)
            {
                sidecar.policies_dirty = true;
                waiting.wake.notify_one();
            }
        }
    }

    /// Those that follow the service of `scope` and may have to change their routes.
    fn mark_routes(&mut self, scope: &RouteScope) {
        let objects = self.catalogue.objects();
        let ports = self.catalogue.ports_of(&scope.service);
        let followed = std::iter::once(&scope.service).chain(&ports);
        let followed = followed.filter_map(|name| self.interest.get_key_value(name));
        for (name, id) in followed.flat_map(|(name, ids)| ids.iter().map(move |id| (name, id))) {
            if let Some(waiting) = self.watchers.get_mut(id)
                && let Some(sidecar) = &waiting.sidecar
                && objects.holds_for(scope, sidecar.namespace())
            {
                waiting.dirty.insert(name.clone());
                waiting.wake.notify_one();
            }
        }
    }

    fn mark_services_where(&mut self, concerned: impl Fn(&ServiceName) -> bool) {
        let names: Vec<_> = self.interest.keys().filter(|name| concerned(name)).cloned().collect();
        names.iter().for_each(|name| self.mark_service(name));
    }

    fn mark_service(&mut self, name: &ServiceName) {
        let Some((name, ids)) = self.interest.get_key_value(name) else { return };
        for id in ids {
            if let Some(watcher) = self.watchers.get_mut(id) {
                watcher.dirty.insert(name.clone());
                watcher.wake.notify_one();
            }
        }
    }

    fn forget_in_cluster(&mut self, name: &ServiceName) {
        let Some(part) = InCluster::of(name) else { return };
        if let Some(names) = self.in_cluster.get_mut(&part) {
            names.remove(name);
            if names.is_empty() {
                self.in_cluster.remove(&part);
            }
        }
        let capacity = self.in_cluster.capacity();
        if capacity > 1_024 && self.in_cluster.len() < capacity / 4 {
            self.in_cluster.shrink_to_fit();
        }
    }

    fn forget_interest(&mut self, id: u64, name: &ServiceName) {
        if let Some(ids) = self.interest.get_mut(name) {
            ids.remove(&id);
            if ids.is_empty() {
                self.interest.remove(name);
                self.forget_in_cluster(name);
            }
        }
        // Memory that many names took is given back.
        let capacity = self.interest.capacity();
        if capacity > 1_024 && self.interest.len() < capacity / 4 {
            self.interest.shrink_to_fit();
        }
    }
}

impl Watcher {
    /// Returns when something may have changed for this watcher since its last read.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Returns when the stream has to end, because its identity follows most.
    pub(crate) async fn evicted(&self) {
        match &self.share {
            Some(share) => share.evicted().cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Adds subscriptions; each is answered by the next [`Watcher::take`]. One that was there
    /// already is answered again.
    pub(crate) fn subscribe(&self, names: Vec<ServiceName>) -> Result<(), NotFollowed> {
        self.add(names, |_, _, _| true)
    }

    /// Adds subscriptions of which states up to `known` were applied already: only those that
    /// changed since are answered.
    pub(crate) fn resume(
        &self,
        names: Vec<ServiceName>,
        known: Revision,
    ) -> Result<(), NotFollowed> {
        self.add(names, |catalogue, name, callers| catalogue.changed_after(name, callers, known.0))
    }

    fn add(
        &self,
        names: Vec<ServiceName>,
        answer: impl Fn(&Catalogue, &ServiceName, Option<&Label>) -> bool,
    ) -> Result<(), NotFollowed> {
        let mut inner = self.hub.lock();
        let Inner { catalogue, watchers, interest, in_cluster, .. } = &mut *inner;
        let Some(waiting) = watchers.get_mut(&self.id) else { return Ok(()) };
        let is_new = |name: &&ServiceName| !waiting.subscribed.contains(*name);
        let new: HashSet<&ServiceName> = names.iter().filter(is_new).collect();
        if waiting.subscribed.len() + new.len() > SUBSCRIPTIONS_PER_STREAM_LIMIT {
            return Err(NotFollowed::TooMany);
        }
        if let Some(share) = &self.share {
            let bytes = new.into_iter().map(weight).sum();
            share.grow(bytes).map_err(NotFollowed::Share)?;
        }
        let callers = waiting.sidecar.as_ref().map(Sidecar::namespace);
        for name in names {
            let known = interest.get_key_value(&name).map(|(name, _)| name.clone());
            let name = known.unwrap_or_else(|| Arc::new(name));
            waiting.subscribed.insert(name.clone());
            if let Some(part) = InCluster::of(&name) {
                in_cluster.entry(part).or_default().insert(name.clone());
            }
            interest.entry(name.clone()).or_default().insert(self.id);
            if answer(catalogue, &name, callers) {
                waiting.dirty.insert(name);
            }
        }
        waiting.wake.notify_one();
        Ok(())
    }

    pub(crate) fn unsubscribe(&self, names: &[ServiceName]) {
        let mut inner = self.hub.lock();
        for name in names {
            if let Some(waiting) = inner.watchers.get_mut(&self.id) {
                if waiting.subscribed.remove(name)
                    && let Some(share) = &self.share
                {
                    share.shrink(weight(name));
                }
                waiting.dirty.remove(name);
            }
            inner.forget_interest(self.id, name);
        }
    }

    /// The present state of up to `limit` services that changed.
    pub(crate) fn take(&self, limit: usize) -> Updates {
        let mut inner = self.hub.lock();
        let Inner { catalogue, watchers, .. } = &mut *inner;
        let mut services = Vec::new();
        let (mut policies, mut traffic, mut egress) = (None, None, None);
        let (mut ports, mut more) = (None, false);
        if let Some(waiting) = watchers.get_mut(&self.id) {
            if let Some(sidecar) = &mut waiting.sidecar
                && std::mem::take(&mut sidecar.ports_dirty)
            {
                ports = sidecar.changed_ports(catalogue);
            }
            if let Some(sidecar) = &mut waiting.sidecar
                && std::mem::take(&mut sidecar.policies_dirty)
            {
                policies = sidecar.changed_policies(catalogue);
                traffic = sidecar.changed_traffic(catalogue);
                egress = sidecar.changed_egress(catalogue);
            }
            let names: Vec<_> = waiting.dirty.iter().take(limit).cloned().collect();
            let callers = waiting.sidecar.as_ref().map(Sidecar::namespace);
            for name in names {
                waiting.dirty.remove(&name);
                services.push(catalogue.update(&name, callers));
            }
            more = !waiting.dirty.is_empty();
            if !more {
                waiting.dirty.shrink_to_fit();
            }
        }
        Updates { revision: catalogue.revision(), services, policies, traffic, egress, ports, more }
    }

    /// The stream has applied everything up to `revision`.
    pub(crate) fn acknowledge(&self, revision: Revision) {
        if let Some(waiting) = self.hub.lock().watchers.get_mut(&self.id) {
            waiting.acknowledged = waiting.acknowledged.max(revision);
        }
        self.hub.acknowledged.notify_waiters();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut inner = self.hub.lock();
        let Some(waiting) = inner.watchers.remove(&self.id) else { return };
        waiting.subscribed.iter().for_each(|name| inner.forget_interest(self.id, name));
        if let Some(pod) = waiting.sidecar.as_ref().map(Sidecar::pod)
            && let Some(ids) = inner.sidecars.get_mut(&pod)
        {
            ids.remove(&self.id);
            if ids.is_empty() {
                inner.sidecars.remove(&pod);
            }
        }
        // One that has gone is waited for only as long as its workload is registered.
        self.hub.acknowledged.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
