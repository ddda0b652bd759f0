//! The keys of each instance of a service: which key may renew its certificate.
//!
//! A renewal gives a new key. The former one stays good until the new one is used once, that is, until
//! a handshake shows it: so an answer that is lost locks no instance out, whatever order the answers
//! and requests of several attempts come in. From then on the former key renews no more. A renewal
//! with it shows that two processes have the instance's key, and not which of them is the rightful
//! one; [`ReusedKeys`] decides what happens then. A token that is redeemed for the instance takes the
//! place of all its keys. Of an instance that a pod enrolled the record names the pod: once that has ended, no
//! key of it renews or registers.
//!
//! [`decide_renewal`] and [`decide_registration`] decide, without I/O. A record stays until the last
//! certificate of the instance can renew no more.

mod decide;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message as _;
use tollway_identity::{PeerIdentity, span};
use tollway_model::{Label, NetworkName, ServiceName, TrustDomain, chain};
use tollway_store::{Entry, Expected, KeyRange, ReadError, Store, TransactError, Transaction};
use tollway_telemetry::Page;
use tollway_telemetry::metrics::names;
use tonic::Status;
use tracing::{debug, warn};

use self::decide::{KeyRefusal, Shown, decide_registration, decide_renewal};
use crate::clock::unix_now_s;
use crate::connections::Renewing;
use crate::issue::Claim;
use crate::key::INSTANCE_PREFIX;
use crate::options::{Options, ReusedKeys};
use crate::pods::PodId;
use crate::status::store_status;
use crate::stored::{EnrolledPod, InstanceKeys as Keys};

/// Instances whose keys are remembered, in one namespace and in all.
const INSTANCES_PER_NAMESPACE_LIMIT: usize = 20_000;
const INSTANCES_LIMIT: usize = 200_000;
/// Instances whose keys the store has not taken; more are not renewed until it does.
const UNSAVED_INSTANCES_LIMIT: usize = 20_000;
/// Which part of a namespace's instances is forgotten at a limit, those that ended first or will.
const FORGOTTEN_SHARE: usize = 20;
/// Tries to note that a pod has ended, while the record changes.
const END_TRIES: usize = 8;
/// Entries that are read at once.
const PAGE_ENTRIES: usize = 500;

/// What was read of an instance before a certificate is issued to it.
pub(crate) struct Remembered {
    key: Bytes,
    entry: Option<(Keys, u64)>,
    /// The key that was shown; none when a token was.
    shown: Option<[u8; 32]>,
    /// The pod whose token was shown.
    pod: Option<EnrolledPod>,
}

impl Remembered {
    /// Whether the instance is barred, so that only another use of a token helps it.
    pub(crate) fn is_barred(&self) -> bool {
        self.entry.as_ref().is_some_and(|(keys, _)| keys.is_barred)
    }
}

/// The instances of a network.
pub(crate) struct InstanceKeys {
    store: Store,
    network: NetworkName,
    trust_domain: TrustDomain,
    grace: Duration,
    late_renewal: Duration,
    reused: ReusedKeys,
    /// Instances in each namespace, in lower case.
    counts: Mutex<HashMap<String, usize>>,
    /// What the store has not taken, as of a full disk: it counts in place of what is stored.
    unsaved: Mutex<HashMap<Bytes, Keys>>,
    renewed_late: AtomicU64,
    refused: [AtomicU64; KeyRefusal::ALL.len()],
}

impl InstanceKeys {
    /// Counts what is stored.
    pub(crate) async fn load(store: Store, options: &Options) -> Result<Self, ReadError> {
        let keys = Self {
            store,
            network: options.network.clone(),
            trust_domain: options.trust_domain.clone(),
            grace: options.renewal_grace,
            late_renewal: options.timing.late_renewal,
            reused: options.reused_keys,
            counts: Mutex::default(),
            unsaved: Mutex::default(),
            renewed_late: AtomicU64::new(0),
            refused: Default::default(),
        };
        keys.recount(false).await?;
        Ok(keys)
    }

    /// How long after its end a certificate may renew itself.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Reads what a token's redemption replaces; `pod` is the one whose token it is.
    pub(crate) async fn enrolling(
        &self,
        claim: &Claim,
        pod: Option<PodId>,
    ) -> Result<Remembered, Status> {
        let key = key_of(&claim.service.namespace, &claim.service.app, &claim.instance);
        let entry = self.read(&key).await?;
        let pod = pod.map(|PodId { namespace, name, uid }| EnrolledPod {
            namespace,
            name,
            uid,
            has_ended: false,
        });
        Ok(Remembered { key, entry, shown: None, pod })
    }

    /// Whether the key that was shown may announce its instance. It is refused as `PermissionDenied`; any other
    /// status is the store's.
    pub(crate) async fn registering(&self, who: &Renewing) -> Result<(), Status> {
        let key = key_of(&who.service.namespace, &who.service.app, &who.instance);
        let entry = self.read(&key).await?;
        let keys = entry.as_ref().map(|(keys, _)| keys);
        decide_registration(keys, &who.key, unix_s(who.issued_at)).map_err(Status::from)
    }

    /// Whether the last to enrol as `claim` was this pod.
    pub(crate) async fn is_of_pod(&self, claim: &Claim, uid: &str) -> Result<bool, Status> {
        let key = key_of(&claim.service.namespace, &claim.service.app, &claim.instance);
        let found = self.read(&key).await?;
        Ok(found.and_then(|(keys, _)| keys.pod).is_some_and(|pod| pod.uid == uid))
    }

    /// Takes note that a pod has ended. Returns whether the last to enrol as `claim` was this pod: then no
    /// key of the instance renews or registers until another pod enrols.
    pub(crate) async fn end_pod(&self, claim: &Claim, uid: &str) -> Result<bool, Status> {
        let key = key_of(&claim.service.namespace, &claim.service.app, &claim.instance);
        for _ in 0..END_TRIES {
            let Some((mut keys, revision)) = self.read(&key).await? else { return Ok(false) };
            if !keys.end_pod(uid) {
                return Ok(false);
            }
            match self.replace(&key, revision, &keys).await {
                Ok(()) => return Ok(true),
                Err(TransactError::Conflict { .. }) => {}
                Err(error) => {
                    let is_kept = self.keep(key, keys);
                    warn!(%claim, reason = %chain(&error), is_kept, "that a pod has ended is not stored yet");
                    return Ok(is_kept);
                }
            }
        }
        Err(Status::aborted("the keys of this instance change all the time"))
    }

    /// Calls `note` with each pod that has enrolled and has not ended, and as what.
    pub(crate) async fn each_pod(
        &self,
        mut note: impl FnMut(PodId, Claim),
    ) -> Result<(), ReadError> {
        let range = KeyRange::prefix(INSTANCE_PREFIX);
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.store.list(&range, after.as_deref(), PAGE_ENTRIES).await?;
            for entry in &page.entries {
                let pod = Keys::decode(entry.value.clone()).ok().and_then(|keys| keys.pod);
                let Some(pod) = pod.filter(|pod| !pod.has_ended) else { continue };
                let Some(claim) = self.claim_of(&entry.key) else { continue };
                let EnrolledPod { namespace, name, uid, has_ended: _ } = pod;
                note(PodId { namespace, name, uid }, claim);
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more {
                return Ok(());
            }
        }
    }

    /// The instance of a record's key; its names are in lower case.
    fn claim_of(&self, key: &[u8]) -> Option<Claim> {
        let text = std::str::from_utf8(key).ok()?.strip_prefix(INSTANCE_PREFIX)?;
        let mut labels = text.split('/').map(|label| Label::new(label).ok());
        let [namespace, app, instance] = [labels.next()??, labels.next()??, labels.next()??];
        let service = ServiceName { app, namespace, network: self.network.clone() };
        Some(Claim { service, instance })
    }

    /// Whether the key that was shown may renew.
    pub(crate) async fn renewing(&self, who: &Renewing) -> Result<Remembered, Status> {
        let key = key_of(&who.service.namespace, &who.service.app, &who.instance);
        let entry = self.read(&key).await?;
        let shown = Shown {
            key: &who.key,
            issued_at_unix_s: unix_s(who.issued_at),
            has_ended: who.ended.is_some(),
            now_unix_s: unix_now_s(),
        };
        let keys = entry.as_ref().map(|(keys, _)| keys);
        if let Err(refusal) = decide_renewal(keys, shown, self.late_renewal.as_secs()) {
            self.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
            if refusal == KeyRefusal::Reused && self.reused == ReusedKeys::Bar {
                self.bar(key, entry).await;
            }
            return Err(refusal.into());
        }
        Ok(Remembered { key, entry, shown: Some(who.key), pod: None })
    }

    /// Remembers the certificate that is about to be given out. Two renewals at a time would each
    /// forget the other's key, so the later one fails and is tried again.
    pub(crate) async fn issued(
        &self,
        remembered: Remembered,
        issued: &PeerIdentity,
        ended: Option<Duration>,
    ) -> Result<(), Status> {
        let Remembered { key, entry, shown, pod } = remembered;
        let ends = unix_s(issued.not_after);
        let is_new = entry.is_none();
        let mut change = Transaction::new();
        let keys = match &shown {
            Some(shown) => {
                let expected =
                    entry.as_ref().map_or(Expected::Absent, |(_, at)| Expected::Revision(*at));
                change = change.when(key.clone(), expected);
                let keys = entry.map(|(keys, _)| keys);
                Keys::renewed(keys, shown, &issued.key_hash, unix_now_s(), ends)
            }
            None => Keys::enrolled(&issued.key_hash, unix_now_s(), ends).of_pod(pod),
        };
        if is_new {
            self.make_room(&issued.service.namespace.to_lower()).await?;
        }
        match self.store.transact(change.put(key.clone(), keys.encode_to_vec())).await {
            Ok(_) => {
                self.unsaved().remove(&key);
                if is_new {
                    *self.counts().entry(issued.service.namespace.to_lower()).or_default() += 1;
                }
            }
            Err(TransactError::Conflict { .. }) => {
                let what = "another renewal of this instance is under way; try again";
                return Err(Status::aborted(what));
            }
            // A store that takes no writes, such as one whose disk is full, ends no identity.
            Err(error) if shown.is_some() && self.keep(key, keys) => {
                warn!(reason = %chain(&error), "the key of a renewal is not stored yet");
            }
            Err(error) => return Err(store_status(&error)),
        }
        if let Some(ago) = ended {
            self.renewed_late.fetch_add(1, Ordering::Relaxed);
            let (service, instance) = (&issued.service, &issued.instance);
            let instance = instance.as_ref().map(Label::as_str);
            warn!(%service, instance, "renewed a certificate that ended {} ago", span(ago));
        }
        Ok(())
    }

    /// Takes note that a handshake has shown a certificate. From the first one on with a key, the keys
    /// before it renew no more.
    pub(crate) async fn note_use(&self, identity: &PeerIdentity) {
        let Some(instance) = &identity.instance else { return };
        if identity.spiffe.trust_domain != self.trust_domain {
            return;
        }
        let key = key_of(&identity.spiffe.namespace, &identity.spiffe.app, instance);
        let Ok(Some((mut keys, revision))) = self.read(&key).await else { return };
        if !keys.use_once(&identity.key_hash, unix_now_s()) {
            return;
        }
        // The next handshake with the key, or a renewal, notes it otherwise.
        if let Err(reason) = self.replace(&key, revision, &keys).await {
            debug!(%reason, "the first use of a key was not noted");
        }
    }

    /// Stores keys over the record of this revision, in place of what the store has not taken before.
    async fn replace(&self, key: &Bytes, revision: u64, keys: &Keys) -> Result<(), TransactError> {
        let put = Transaction::new()
            .when(key.clone(), Expected::Revision(revision))
            .put(key.clone(), keys.encode_to_vec());
        self.store.transact(put).await?;
        self.unsaved().remove(key);
        Ok(())
    }

    /// Keeps what the store has not taken. Returns false where that is too much.
    fn keep(&self, key: Bytes, keys: Keys) -> bool {
        let mut unsaved = self.unsaved();
        let has_room = unsaved.len() < UNSAVED_INSTANCES_LIMIT || unsaved.contains_key(&key);
        if has_room {
            unsaved.insert(key, keys);
        }
        has_room
    }

    /// Stores what the store has not taken before.
    async fn save(&self) {
        let unsaved: Vec<Bytes> = self.unsaved().keys().cloned().collect();
        for key in unsaved {
            // The keys of this moment, over the record that they are made of.
            let Ok(entry) = self.store.get(&key).await else { return };
            let Some(keys) = self.unsaved().get(&key).cloned() else { continue };
            let expected = entry.map_or(Expected::Absent, |e| Expected::Revision(e.revision));
            let put = Transaction::new().when(key.clone(), expected);
            match self.store.transact(put.put(key.clone(), keys.encode_to_vec())).await {
                Ok(_) => {
                    let mut unsaved = self.unsaved();
                    if unsaved.get(&key) == Some(&keys) {
                        unsaved.remove(&key);
                    }
                }
                Err(TransactError::Conflict { .. }) => {}
                Err(_) => return,
            }
        }
    }

    fn unsaved(&self) -> MutexGuard<'_, HashMap<Bytes, Keys>> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets instances whose certificates can renew no more.
    pub(crate) async fn sweep(&self) {
        self.save().await;
        if let Err(reason) = self.recount(true).await {
            warn!(%reason, "the keys of instances were not swept");
        }
    }

    pub(crate) fn add_to(&self, page: &mut Page) {
        page.single(&names::INSTANCES_REMEMBERED, self.counts().values().sum::<usize>());
        page.single(&names::RENEWALS_LATE, self.renewed_late.load(Ordering::Relaxed));
        let mut refused = page.family(&names::RENEWALS_REFUSED);
        for (reason, count) in KeyRefusal::ALL.into_iter().zip(&self.refused) {
            refused.sample(&[("reason", reason.word())], count.load(Ordering::Relaxed));
        }
    }

    async fn bar(&self, key: Bytes, entry: Option<(Keys, u64)>) {
        let Some((keys, revision)) = entry else { return };
        let barred = Keys { is_barred: true, ..keys };
        match self.replace(&key, revision, &barred).await {
            Ok(()) => {}
            Err(reason @ TransactError::Conflict { .. }) => {
                // What was tried once is tried again, and the next time the instance is barred.
                warn!(%reason, "an instance was not barred");
            }
            Err(reason) => {
                let is_kept = self.keep(key, barred);
                warn!(reason = %chain(&reason), is_kept, "that an instance is barred is not stored yet");
            }
        }
    }

    async fn read(&self, key: &[u8]) -> Result<Option<(Keys, u64)>, Status> {
        let entry = self.store.get(key).await.map_err(|error| store_status(&error))?;
        let stored = entry.and_then(|e| Some((Keys::decode(e.value).ok()?, e.revision)));
        let unsaved = self.unsaved().get(key).cloned();
        Ok(stored.map(|(stored, revision)| (unsaved.unwrap_or(stored), revision)))
    }

    /// At a limit, forgets those instances of the namespace, or of the one with the most, that ended
    /// first or will. Their certificates renew while they are valid.
    async fn make_room(&self, namespace: &str) -> Result<(), Status> {
        let full = {
            let counts = self.counts();
            let own = counts.get(namespace).copied().unwrap_or_default();
            if own >= INSTANCES_PER_NAMESPACE_LIMIT {
                Some(namespace.to_owned())
            } else if counts.values().sum::<usize>() >= INSTANCES_LIMIT {
                counts.iter().max_by_key(|(_, count)| **count).map(|(name, _)| name.clone())
            } else {
                None
            }
        };
        let Some(full) = full else { return Ok(()) };
        let mut known = Vec::new();
        let range = KeyRange::prefix(format!("{INSTANCE_PREFIX}{full}/"));
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.store.list(&range, after.as_deref(), PAGE_ENTRIES).await;
            let page = page.map_err(|error| store_status(&error))?;
            after = page.entries.last().map(|entry| entry.key.clone());
            known.extend(page.entries.into_iter().map(|entry| (ends_of(&entry), entry.key)));
            if !page.more {
                break;
            }
        }
        known.sort();
        known.truncate((known.len() / FORGOTTEN_SHARE).max(1));
        let count = known.len();
        warn!(namespace = full, count, "too many instances; those that ended first are forgotten");
        for keys in known.chunks(PAGE_ENTRIES) {
            let delete = |change: Transaction, (_, key): &(u64, Bytes)| change.delete(key.clone());
            let change = keys.iter().fold(Transaction::new(), delete);
            self.store.transact(change).await.map_err(|error| store_status(&error))?;
            self.uncount(&full, keys.len());
        }
        Ok(())
    }

    async fn forget(&self, entry: &Entry) {
        let key = entry.key.clone();
        let delete =
            Transaction::new().when(key.clone(), Expected::Revision(entry.revision)).delete(key);
        match self.store.transact(delete).await {
            Ok(_) => {
                if let Some(namespace) = namespace_of(&entry.key) {
                    self.uncount(namespace, 1);
                }
            }
            Err(reason) => debug!(%reason, "an instance was not forgotten; the next sweep tries"),
        }
    }

    /// Counts what is stored, and where `sweeps` forgets what has ended.
    async fn recount(&self, sweeps: bool) -> Result<(), ReadError> {
        let range = KeyRange::prefix(INSTANCE_PREFIX);
        let mut after: Option<Bytes> = None;
        let mut found: HashMap<String, usize> = HashMap::new();
        loop {
            let page = self.store.list(&range, after.as_deref(), PAGE_ENTRIES).await?;
            let now = unix_now_s();
            for entry in &page.entries {
                let renews_until = ends_of(entry).saturating_add(self.grace.as_secs());
                if sweeps && now > renews_until {
                    self.forget(entry).await;
                } else if let Some(namespace) = namespace_of(&entry.key) {
                    *found.entry(namespace.to_owned()).or_default() += 1;
                }
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more {
                break;
            }
        }
        *self.counts() = found;
        Ok(())
    }

    fn uncount(&self, namespace: &str, less: usize) {
        if let Some(count) = self.counts().get_mut(namespace) {
            *count = count.saturating_sub(less);
        }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(namespace: &Label, app: &Label, instance: &Label) -> Bytes {
    let [namespace, app, instance] = [namespace, app, instance].map(Label::to_lower);
    format!("{INSTANCE_PREFIX}{namespace}/{app}/{instance}").into()
}

fn namespace_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(INSTANCE_PREFIX)?.split('/').next()
}

/// When the last certificate of the instance of an entry ends; 0 for one that cannot be read.
fn ends_of(entry: &Entry) -> u64 {
    Keys::decode(entry.value.clone()).map_or(0, |keys| keys.ends_at_unix_s)
}

fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
