//! Custom resources of a Kubernetes cluster: each becomes an object of this network, and its status shows
//! whether the object is accepted and which sidecars have applied it.
//!
//! The cluster reports them ([`Resources`], given by the program that starts the control plane); `known`
//! decides what is written and removed. Each is written by itself, so that one that cannot be written hurts
//! no other. Objects that a command has applied are never touched.

mod known;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tollway_model::{Object, ObjectId, ObjectKind, ObjectName, ObjectScope};
use tollway_store::Store;
use tollway_wire::v1::ObjectOrigin;
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use self::known::{Fate, KnownResources, Step};
use crate::hub::Hub;
use crate::objects;
use crate::pods::Following;

/// Events that wait for the store; the watch waits with more.
const EVENTS_LIMIT: usize = 256;
/// Reports that wait for the API server; the store waits with more.
const REPORTS_LIMIT: usize = 256;
/// What was refused, and may be accepted once something else has changed, is tried again after this.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Sidecars that have not applied an object after this are named in its status.
const NAMED_AFTER: Duration = Duration::from_secs(5);
const NAMED_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Objects for whose sidecars is waited at the same time.
const WAITS_LIMIT: usize = 16;

/// What names a custom resource. Not every name of the cluster is one that an object can have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceName {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

impl ResourceName {
    fn of(id: &ObjectId) -> Self {
        let ObjectName { namespace, name } = &id.name;
        Self { kind: id.kind, namespace: namespace.to_string(), name: name.to_string() }
    }

    fn id(&self) -> Option<ObjectId> {
        let name = ObjectName::new(&self.namespace, &self.name).ok()?;
        Some(ObjectId { kind: self.kind, name })
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A custom resource as the cluster reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    pub name: ResourceName,
    /// The number of its specification.
    pub generation: i64,
    pub created_unix_ms: u64,
    /// Its object, or what is wrong with the specification.
    pub object: Result<Object, String>,
}

/// What a watch of a cluster reports of its custom resources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResourceEvent {
    /// All of a kind are about to be reported, now or once the API server answers.
    ListBegins(ObjectKind),
    Listed(Resource),
    /// All of a kind have been reported.
    ListEnds(ObjectKind),
    Changed(Resource),
    Deleted(ResourceName),
}

/// What is reported to the cluster about a custom resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceStatus {
    pub name: ResourceName,
    /// The specification that it is about.
    pub generation: i64,
    pub verdict: Verdict,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The object is stored.
    Accepted {
        /// What sidecars have to acknowledge.
        revision: u64,
        /// How many are concerned.
        sidecars: u32,
        /// Which of them have not acknowledged it; `None` while it has just been stored.
        lagging: Option<Vec<String>>,
    },
    /// It is not stored. What the resource was before stays in effect.
    Refused { reason: RefusalReason, why: String },
}

/// Why an object is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// The specification has a mistake.
    Invalid,
    /// A command has applied an object of this name.
    NameTaken,
    /// The network has as many or as large ones as it may have.
    LimitReached,
    /// The control plane cannot store it now.
    Unavailable,
}

impl RefusalReason {
    fn of(status: &Status) -> Self {
        if status.code() == Code::InvalidArgument {
            Self::Invalid
        } else if status.code() == Code::FailedPrecondition {
            Self::NameTaken
        } else if status.code() == Code::ResourceExhausted {
            Self::LimitReached
        } else {
            Self::Unavailable
        }
    }
}

/// The outcome of a report, once it is there; an error says why the cluster does not have it.
pub type Reporting<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// The API server of a cluster: which custom resources it has, and their status.
pub trait Resources: Send + Sync + fmt::Debug {
    /// Reports which resources there are and what becomes of them. While the API server gives no watch it
    /// reports nothing, and tries again.
    fn follow(&self, events: mpsc::Sender<ResourceEvent>) -> Following<'_>;

    /// Writes the status of a resource, unless it is there already.
    fn report<'a>(&'a self, status: &'a ResourceStatus) -> Reporting<'a>;
}

/// How many resources of each kind are in effect and how many are not, for the admin port.
#[derive(Default, Debug)]
pub(crate) struct ResourceCounts(Mutex<BTreeMap<ObjectKind, (usize, usize)>>);

impl ResourceCounts {
    pub(crate) fn get(&self) -> BTreeMap<ObjectKind, (usize, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, counts: BTreeMap<ObjectKind, (usize, usize)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

/// Where resources come from, and where their objects go.
#[derive(Clone)]
pub(crate) struct ResourceObjects {
    pub(crate) resources: Arc<dyn Resources>,
    pub(crate) store: Store,
    pub(crate) hub: Arc<Hub>,
    pub(crate) counts: Arc<ResourceCounts>,
}

impl ResourceObjects {
    /// Runs until it is dropped.
    pub(crate) async fn follow(self) {
        let (sender, events) = mpsc::channel(EVENTS_LIMIT);
        let (reports, reported) = mpsc::channel(REPORTS_LIMIT);
        let taking = Taking {
            to: self.clone(),
            known: KnownResources::default(),
            reports,
            waits: JoinSet::new(),
            permits: Arc::new(Semaphore::new(WAITS_LIMIT)),
            is_unswept: false,
        };
        tokio::join!(
            self.resources.follow(sender),
            taking.run(events),
            report(self.resources.clone(), reported)
        );
    }
}

async fn report(resources: Arc<dyn Resources>, mut reported: mpsc::Receiver<ResourceStatus>) {
    let mut is_away = false;
    while let Some(status) = reported.recv().await {
        match resources.report(&status).await {
            Ok(()) => is_away = false,
            Err(error) if is_away => {
                debug!(resource = %status.name, error, "its status is not written")
            }
            Err(error) => {
                is_away = true;
                warn!(resource = %status.name, error, "the status of custom resources cannot be written; they are in effect all the same");
            }
        }
    }
}

/// An object whose sidecars have been looked at.
struct Looked {
    name: ResourceName,
    generation: i64,
    scopes: BTreeSet<ObjectScope>,
    revision: u64,
    sidecars: u32,
    lagging: Vec<String>,
}

/// Takes events, one after the other.
struct Taking {
    to: ResourceObjects,
    known: KnownResources,
    reports: mpsc::Sender<ResourceStatus>,
    /// One for each object that some sidecars have not applied.
    waits: JoinSet<Looked>,
    permits: Arc<Semaphore>,
    /// Whether an object without a resource could not be removed.
    is_unswept: bool,
}

impl Taking {
    async fn run(mut self, mut events: mpsc::Receiver<ResourceEvent>) {
        let mut tries = tokio::time::interval(TRIED_AGAIN_AFTER);
        tries.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return };
                    for step in self.known.note(event) {
                        self.act(step).await;
                    }
                }
                Some(looked) = self.waits.join_next() => {
                    if let Ok(looked) = looked {
                        self.note_looked(looked).await;
                    }
                }
                _ = tries.tick() => self.try_again().await,
            }
            self.to.counts.set(self.known.counts());
        }
    }

    async fn act(&mut self, step: Step) {
        match step {
            Step::Write(name) => self.write(name).await,
            Step::Report(name, why) => {
                let reason = RefusalReason::Invalid;
                self.refuse(name, reason, why).await;
            }
            Step::Remove(id) => self.remove(&id).await,
            Step::RemoveOthers(kind) => self.remove_others(kind).await,
        }
    }

    async fn try_again(&mut self) {
        for name in self.known.refused() {
            self.write(name).await;
        }
        if std::mem::take(&mut self.is_unswept) {
            for kind in self.known.counts().into_keys() {
                self.remove_others(kind).await;
            }
        }
    }

    async fn write(&mut self, name: ResourceName) {
        let Some((object, created, generation)) = self.known.object(&name) else { return };
        let ResourceObjects { store, hub, .. } = &self.to;
        match objects::apply_of_cluster(store, hub, object, created).await {
            Ok(objects::Written { revision, scopes, .. }) => {
                self.known.set_fate(&name, Fate::Stored);
                let (sidecars, lagging) =
                    self.to.hub.applied(&scopes, revision, Duration::ZERO).await;
                if lagging.is_empty() {
                    self.accept(name, generation, revision, sidecars, Some(lagging)).await;
                } else {
                    self.accept(name.clone(), generation, revision, sidecars, None).await;
                    self.wait(name, generation, scopes, revision, NAMED_AFTER);
                }
            }
            Err(status) => {
                let reason = RefusalReason::of(&status);
                let fate = match reason {
                    RefusalReason::Invalid => Fate::Unreadable,
                    RefusalReason::NameTaken
                    | RefusalReason::LimitReached
                    | RefusalReason::Unavailable => Fate::Refused,
                };
                self.known.set_fate(&name, fate);
                self.refuse(name, reason, status.message().to_owned()).await;
            }
        }
    }

    fn wait(
        &mut self,
        name: ResourceName,
        generation: i64,
        scopes: BTreeSet<ObjectScope>,
        revision: u64,
        within: Duration,
    ) {
        let (hub, permits) = (self.to.hub.clone(), self.permits.clone());
        self.waits.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let (sidecars, lagging) = hub.applied(&scopes, revision, within).await;
            Looked { name, generation, scopes, revision, sidecars, lagging }
        });
    }

    async fn note_looked(&mut self, looked: Looked) {
        let Looked { name, generation, scopes, revision, sidecars, lagging } = looked;
        if self.known.generation(&name) != Some(generation) {
            // Another specification has taken its place.
            return;
        }
        let is_everywhere = lagging.is_empty();
        self.accept(name.clone(), generation, revision, sidecars, Some(lagging)).await;
        if !is_everywhere {
            self.wait(name, generation, scopes, revision, NAMED_AGAIN_AFTER);
        }
    }

    async fn accept(
        &self,
        name: ResourceName,
        generation: i64,
        revision: u64,
        sidecars: u32,
        lagging: Option<Vec<String>>,
    ) {
        let verdict = Verdict::Accepted { revision, sidecars, lagging };
        self.report(ResourceStatus { name, generation, verdict }).await;
    }

    async fn refuse(&self, name: ResourceName, reason: RefusalReason, why: String) {
        let Some(generation) = self.known.generation(&name) else { return };
        info!(resource = %name, generation, ?reason, why, "a custom resource is not accepted");
        let verdict = Verdict::Refused { reason, why };
        self.report(ResourceStatus { name, generation, verdict }).await;
    }

    async fn report(&self, status: ResourceStatus) {
        // Both ends are dropped together.
        let _ = self.reports.send(status).await;
    }

    async fn remove_others(&mut self, kind: ObjectKind) {
        let left: Vec<ObjectId> = self.to.hub.read(|catalogue| {
            let of_cluster = catalogue
                .objects()
                .of_kind(kind)
                .filter(|stored| stored.origin == Some(ObjectOrigin::Cluster));
            of_cluster.map(|stored| stored.object.id()).filter(|id| !self.known.has(id)).collect()
        });
        for id in left {
            self.remove(&id).await;
        }
    }

    async fn remove(&mut self, id: &ObjectId) {
        let present =
            self.to.hub.read(|catalogue| catalogue.objects().get(id).map(|stored| stored.origin));
        if present != Some(Some(ObjectOrigin::Cluster)) {
            return;
        }
        if let Err(status) = objects::delete_of_cluster(&self.to.store, &self.to.hub, id).await {
            let reason = status.message();
            warn!(object = %id, reason, "the object of a deleted custom resource stays for now");
            self.is_unswept = true;
        }
    }
}
