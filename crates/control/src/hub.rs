//! Watchers: between the catalogue and the streams of data planes and peers.
//!
//! A watcher has no queue. It holds the set of its services that changed since its last read, or
//! only the revision it was sent, and reads the present state when it has capacity. So a slow
//! watcher costs no memory and skips states that are already replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tollway_model::{Instance, PolicyScope, Revision, ServiceName, ServiceUpdate};
use tollway_wire::SUBSCRIPTIONS_PER_STREAM_LIMIT;

use crate::catalogue::{Catalogue, StoredPolicy, Subject};
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
    next_watcher: u64,
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
    /// The sidecar whose stream it is: it gets the policies that protect its service.
    sidecar: Option<Sidecar>,
}

#[derive(Debug)]
struct Sidecar {
    service: ServiceName,
    instance: Instance,
    /// Policies may have changed since the watcher last read.
    policies_dirty: bool,
    /// What it was sent last.
    policies: Option<Vec<Arc<StoredPolicy>>>,
}

impl Sidecar {
    /// The policies of its service, if they differ from those that it was sent.
    fn changed_policies(&mut self, catalogue: &Catalogue) -> Option<Vec<Arc<StoredPolicy>>> {
        if !std::mem::take(&mut self.policies_dirty) {
            return None;
        }
        let present = catalogue.policies().of_service(&self.service);
        let is_same = self.policies.as_ref().is_some_and(|told| *told == present);
        if is_same {
            return None;
        }
        self.policies = Some(present.clone());
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
    pub(crate) policies: Option<Vec<Arc<StoredPolicy>>>,
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
            next_watcher: 0,
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
        let sidecar = Sidecar { service, instance, policies_dirty: true, policies: None };
        self.enter(false, Some(sidecar), Some(share))
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
    /// as long as its workload is registered: it may take calls by the policies that it has.
    pub(crate) async fn policies_applied(
        &self,
        scopes: &BTreeSet<PolicyScope>,
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

    fn lagging(&self, scopes: &BTreeSet<PolicyScope>, revision: u64) -> (u32, Vec<String>) {
        let inner = self.lock();
        let concerned = inner.watchers.values().filter_map(|waiting| {
            let sidecar = waiting.sidecar.as_ref()?;
            let own = PolicyScope::of_service(&sidecar.service);
            own.iter().any(|scope| scopes.contains(scope)).then_some((waiting, sidecar))
        });
        // A sidecar that has just connected again may have two streams: the newer one counts.
        let mut applied: BTreeMap<String, Revision> = BTreeMap::new();
        for (waiting, Sidecar { service, instance, .. }) in concerned {
            let best = applied.entry(full_name(service, instance)).or_default();
            *best = waiting.acknowledged.max(*best);
        }
        for (service, instance) in inner.catalogue.workloads() {
            let own = PolicyScope::of_service(service);
            if own.iter().any(|scope| scopes.contains(scope)) {
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
                Subject::Service(name) => self.mark_service(name),
                Subject::Network(network) => {
                    self.mark_services_where(|name| name.network == *network);
                }
                Subject::Gateways => {
                    let home = self.catalogue.home().network.clone();
                    self.mark_services_where(|name| name.network != home);
                }
                Subject::Trust => self.watchers.values().for_each(|w| w.wake.notify_one()),
                Subject::Policies => self.mark_policies(),
            }
        }
        self.watchers.values().filter(|w| w.whole).for_each(|w| w.wake.notify_one());
    }

    /// Each sidecar compares its policies when it next reads: changes of policies are rare.
    fn mark_policies(&mut self) {
        for waiting in self.watchers.values_mut() {
            if let Some(sidecar) = &mut waiting.sidecar {
                sidecar.policies_dirty = true;
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

    fn forget_interest(&mut self, id: u64, name: &ServiceName) {
        if let Some(ids) = self.interest.get_mut(name) {
            ids.remove(&id);
            if ids.is_empty() {
                self.interest.remove(name);
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
        self.add(names, |_, _| true)
    }

    /// Adds subscriptions of which states up to `known` were applied already: only those that
    /// changed since are answered.
    pub(crate) fn resume(
        &self,
        names: Vec<ServiceName>,
        known: Revision,
    ) -> Result<(), NotFollowed> {
        self.add(names, |catalogue, name| catalogue.changed_after(name, known.0))
    }

    fn add(
        &self,
        names: Vec<ServiceName>,
        answer: impl Fn(&Catalogue, &ServiceName) -> bool,
    ) -> Result<(), NotFollowed> {
        let mut inner = self.hub.lock();
        let Inner { catalogue, watchers, interest, .. } = &mut *inner;
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
        for name in names {
            let known = interest.get_key_value(&name).map(|(name, _)| name.clone());
            let name = known.unwrap_or_else(|| Arc::new(name));
            waiting.subscribed.insert(name.clone());
            interest.entry(name.clone()).or_default().insert(self.id);
            if answer(catalogue, &name) {
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
        let (mut policies, mut more) = (None, false);
        if let Some(waiting) = watchers.get_mut(&self.id) {
            policies = waiting.sidecar.as_mut().and_then(|s| s.changed_policies(catalogue));
            let names: Vec<_> = waiting.dirty.iter().take(limit).cloned().collect();
            for name in names {
                waiting.dirty.remove(&name);
                services.push(catalogue.update(&name));
            }
            more = !waiting.dirty.is_empty();
            if !more {
                waiting.dirty.shrink_to_fit();
            }
        }
        Updates { revision: catalogue.revision(), services, policies, more }
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
        // One that has gone is waited for only as long as its workload is registered.
        self.hub.acknowledged.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use std::time::Duration;

    use prost::Message as _;
    use tollway_model::{AppProtocol, Label, TrustDomain, Workload};
    use tollway_wire::v1;

    use super::*;
    use crate::catalogue::Home;
    use crate::key::Key;
    use crate::options::EgressMode;
    use crate::stored;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn name(text: &str) -> ServiceName {
        ServiceName::parse_in(text, &label("default"), &label("west")).unwrap()
    }

    fn hub() -> Arc<Hub> {
        Hub::new(Catalogue::new(
            Home {
                network: label("west"),
                trust_domain: TrustDomain::new("west.tollway").unwrap(),
                root: Vec::new(),
                egress: EgressMode::Direct,
                listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
                peer_addresses: Arc::from([]),
            },
            0,
        ))
    }

    fn put(hub: &Hub, key: &Key, value: &[u8], revision: u64) {
        hub.change(|catalogue| {
            let subject = catalogue.put(key, value, revision).unwrap();
            catalogue.advance(revision);
            subject.into_iter().collect()
        });
    }

    fn put_workload(hub: &Hub, app: &str, port: u16, revision: u64) {
        let service = name(app);
        let workload = Workload {
            service: service.clone(),
            instance: label("a"),
            address: ([10, 0, 0, 1], port).into(),
            protocol: AppProtocol::Http,
            ready: true,
        };
        let key =
            Key::Workload { namespace: service.namespace, app: service.app, instance: label("a") };
        put(hub, &key, &v1::Workload::from(&workload).encode_to_vec(), revision);
    }

    fn taken(watcher: &Watcher) -> Vec<String> {
        let updates = watcher.take(100);
        let mut names: Vec<_> = updates.services.iter().map(|u| u.service.to_string()).collect();
        names.sort();
        names
    }

    async fn wakes(watcher: &Watcher) -> bool {
        tokio::time::timeout(Duration::from_millis(50), watcher.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn a_watcher_wakes_for_its_subscriptions_only() {
        let hub = hub();
        let watcher = hub.watch_subscribed();
        watcher.subscribe(vec![name("stock")]).unwrap();
        assert!(wakes(&watcher).await);
        assert_eq!(taken(&watcher), ["stock.default.west"]);
        put_workload(&hub, "orders", 1, 1);
        assert!(!wakes(&watcher).await);
        put_workload(&hub, "stock", 1, 2);
        assert!(wakes(&watcher).await);
        assert_eq!(taken(&watcher), ["stock.default.west"]);
        assert_eq!(taken(&watcher), [""; 0]);
        watcher.unsubscribe(&[name("stock")]);
        put_workload(&hub, "stock", 2, 3);
        assert!(!wakes(&watcher).await);
        assert_eq!(taken(&watcher), [""; 0]);
    }

    #[tokio::test]
    async fn many_changes_of_one_service_are_one_update() {
        let hub = hub();
        let watcher = hub.watch_subscribed();
        watcher.subscribe(vec![name("stock")]).unwrap();
        for port in 1..=1_000 {
            put_workload(&hub, "stock", port, port.into());
        }
        let updates = watcher.take(100);
        assert_eq!(updates.revision, Revision(1_000));
        assert_eq!(updates.services.len(), 1);
    }

    #[tokio::test]
    async fn a_change_of_a_network_concerns_those_who_call_its_services() {
        let hub = hub();
        let (east, north) = (hub.watch_subscribed(), hub.watch_subscribed());
        east.subscribe(vec![name("stock.default.east"), name("stock")]).unwrap();
        north.subscribe(vec![name("stock.default.north")]).unwrap();
        taken(&east);
        taken(&north);
        assert!(wakes(&east).await && wakes(&north).await);
        let link = stored::PeerLink { reachable: true, ..Default::default() };
        put(&hub, &Key::PeerLink { network: label("east") }, &link.encode_to_vec(), 1);
        assert!(wakes(&east).await);
        assert!(!wakes(&north).await);
        assert_eq!(taken(&east), ["stock.default.east"]);
    }

    #[tokio::test]
    async fn what_is_taken_in_pieces_is_whole() {
        let hub = hub();
        let watcher = hub.watch_subscribed();
        let names: Vec<_> = (0..25).map(|n| name(&format!("app-{n}"))).collect();
        watcher.subscribe(names).unwrap();
        let mut sizes = Vec::new();
        loop {
            let updates = watcher.take(10);
            sizes.push(updates.services.len());
            if !updates.more {
                break;
            }
        }
        assert_eq!(sizes, [10, 10, 5]);
    }

    #[test]
    fn subscriptions_are_limited_and_those_held_stay() {
        let hub = hub();
        let watcher = hub.watch_subscribed();
        let names =
            |count: usize| (0..count).map(|n| name(&format!("app-{n}"))).collect::<Vec<_>>();
        watcher.subscribe(names(SUBSCRIPTIONS_PER_STREAM_LIMIT)).unwrap();
        assert_eq!(watcher.subscribe(vec![name("more")]), Err(NotFollowed::TooMany));
        assert_eq!(watcher.subscribe(names(1)), Ok(()));
        watcher.unsubscribe(&names(1));
        assert_eq!(watcher.subscribe(vec![name("more")]), Ok(()));
    }

    #[test]
    fn a_watcher_that_leaves_leaves_nothing_behind() {
        let hub = hub();
        let watcher = hub.watch_subscribed();
        watcher.subscribe(vec![name("stock")]).unwrap();
        watcher.acknowledge(Revision(7));
        watcher.acknowledge(Revision(3));
        assert_eq!(hub.applied_everywhere(), Some(Revision(7)));
        drop(watcher);
        assert_eq!(hub.applied_everywhere(), None);
        let inner = hub.lock();
        assert!(inner.interest.is_empty() && inner.watchers.is_empty());
    }
}
