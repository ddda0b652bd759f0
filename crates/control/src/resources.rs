//! Custom resources of a Kubernetes cluster: each becomes an object of this network, and its status shows
//! whether the object is accepted and which sidecars have applied it.
//!
//! The cluster reports them ([`Resources`], given by the program that starts the control plane); `known`
//! decides what is written and removed. Each is written by itself, so that one that cannot be written hurts
//! no other. Objects that a command has applied are never touched.

mod known;
mod reports;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tollway_model::{Object, ObjectId, ObjectKind, ObjectName, ObjectScope};
use tollway_store::Store;
use tollway_wire::v1::ObjectOrigin;
use tonic::{Code, Status};
use tracing::{info, warn};

use self::known::{Fate, KnownResources, Step};
use self::reports::Reports;
use crate::hub::Hub;
use crate::objects;
use crate::pods::Following;

/// Events that wait for the store; the watch waits with more.
const EVENTS_LIMIT: usize = 256;
/// From one look at what is due to the next.
const TICK: Duration = Duration::from_millis(250);
/// What is due and done at one tick; the rest is done at the next ones.
const LOOKS_PER_TICK: usize = 32;
const TRIES_PER_TICK: usize = 16;
/// From one look at the sidecars of an object to the next, at first and at most.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(250);
const LOOKED_AGAIN_WITHIN: Duration = Duration::from_secs(30);
/// Sidecars that have not applied an object after this are named in its status.
const NAMED_AFTER: Duration = Duration::from_secs(5);
/// What was refused, and may be accepted once something else has changed, is tried again after this, at first
/// and at most.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(10);
const TRIED_AGAIN_WITHIN: Duration = Duration::from_secs(300);
/// For so long after the start sidecars may not have connected yet.
const SIDECARS_WITHIN: Duration = Duration::from_secs(10);
/// Time for a report, and from one that failed to the next.
const REPORT_WITHIN: Duration = Duration::from_secs(10);
const REPORTED_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Longest reason in a status, in characters.
const WHY_CHARACTERS: usize = 1_000;

/// What a resource is, and so which object it becomes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ResourceKind {
    /// A custom resource of Tollway, which becomes the object of its kind and name.
    Own(ObjectKind),
    /// What an HTTPRoute of the Gateway API says of one port of a Service: a route. It has the name of that
    /// route, which begins with [`ResourceKind::prefix`].
    HttpRoute,
    /// The same of a GRPCRoute.
    GrpcRoute,
}

impl ResourceKind {
    /// What the names of its objects begin with; no object of the cluster has a name like that.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Own(_) => "",
            Self::HttpRoute => "http_",
            Self::GrpcRoute => "grpc_",
        }
    }

    /// The kind of what it becomes.
    #[must_use]
    pub fn object(self) -> ObjectKind {
        match self {
            Self::Own(kind) => kind,
            Self::HttpRoute | Self::GrpcRoute => ObjectKind::Route,
        }
    }

    /// As metrics and the log have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Own(kind) => kind.as_str(),
            Self::HttpRoute => "httproute",
            Self::GrpcRoute => "grpcroute",
        }
    }

    /// What an object of the cluster has come from.
    fn of(id: &ObjectId) -> Self {
        let routes = [Self::HttpRoute, Self::GrpcRoute].into_iter();
        let mut routes = routes.filter(|kind| kind.object() == id.kind);
        let found = routes.find(|kind| id.name.name.as_str().starts_with(kind.prefix()));
        found.unwrap_or(Self::Own(id.kind))
    }
}

/// What names a custom resource. Not every name of the cluster is one that an object can have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceName {
    pub kind: ResourceKind,
    pub namespace: String,
    pub name: String,
}

impl ResourceName {
    fn of(id: &ObjectId) -> Self {
        let ObjectName { namespace, name } = &id.name;
        let (namespace, name) = (namespace.to_string(), name.to_string());
        Self { kind: ResourceKind::of(id), namespace, name }
    }

    fn id(&self) -> Option<ObjectId> {
        let name = ObjectName::new(&self.namespace, &self.name).ok()?;
        Some(ObjectId { kind: self.kind.object(), name })
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// A custom resource as the cluster reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    pub name: ResourceName,
    /// The number of its specification.
    pub generation: i64,
    pub created_unix_ms: u64,
    /// Of the specification, as JSON.
    pub bytes: usize,
    /// Its object, or what is wrong with the specification.
    pub object: Result<Object, String>,
}

/// What a watch of a cluster reports of its custom resources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResourceEvent {
    /// All of a kind are about to be reported, now or once the API server answers.
    ListBegins(ResourceKind),
    Listed(Resource),
    /// All of a kind have been reported.
    ListEnds(ResourceKind),
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
pub(crate) struct ResourceCounts(Mutex<BTreeMap<ResourceKind, (usize, usize)>>);

impl ResourceCounts {
    pub(crate) fn get(&self) -> BTreeMap<ResourceKind, (usize, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, counts: BTreeMap<ResourceKind, (usize, usize)>) {
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
        let reports = Arc::<Reports>::default();
        let taking = Taking {
            to: self.clone(),
            known: KnownResources::default(),
            reports: reports.clone(),
            started: Instant::now(),
            spreading: BTreeMap::new(),
            refused: BTreeMap::new(),
            is_unswept: false,
        };
        tokio::join!(
            self.resources.follow(sender),
            taking.run(events),
            reports.send_to(self.resources.clone())
        );
    }
}

/// An object that some sidecars have not applied.
struct Spreading {
    generation: i64,
    scopes: BTreeSet<ObjectScope>,
    revision: u64,
    since: Instant,
    look_at: Instant,
    pause: Duration,
}

/// A resource that was refused.
struct Refused {
    try_at: Instant,
    pause: Duration,
    why: String,
}

/// Takes events, one after the other.
struct Taking {
    to: ResourceObjects,
    known: KnownResources,
    reports: Arc<Reports>,
    started: Instant,
    /// One for each object at most: a newer specification takes the place of the one before.
    spreading: BTreeMap<ResourceName, Spreading>,
    refused: BTreeMap<ResourceName, Refused>,
    /// Whether an object without a resource could not be removed.
    is_unswept: bool,
}

impl Taking {
    async fn run(mut self, mut events: mpsc::Receiver<ResourceEvent>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return };
                    for step in self.known.note(event) {
                        self.act(step).await;
                    }
                }
                _ = ticks.tick() => self.do_due().await,
            }
            self.to.counts.set(self.known.counts().clone());
        }
    }

    async fn act(&mut self, step: Step) {
        match step {
            Step::Write(name) => {
                self.refused.remove(&name);
                self.write(name).await;
            }
            Step::Report(name, reason, why) => {
                self.spreading.remove(&name);
                self.refuse(name, reason, why);
            }
            Step::Remove(id) => self.remove(&id).await,
            Step::RemoveOthers(kind) => self.remove_others(kind).await,
        }
    }

    /// Looks at sidecars, and tries again, as far as it is time: the longest due come first.
    async fn do_due(&mut self) {
        let now = Instant::now();
        for name in due(&self.spreading, now, LOOKS_PER_TICK, |spreading| spreading.look_at) {
            self.look(name, now).await;
        }
        for name in due(&self.refused, now, TRIES_PER_TICK, |refused| refused.try_at) {
            if self.known.is_refused(&name) {
                self.write(name).await;
            } else {
                self.refused.remove(&name);
            }
        }
        if std::mem::take(&mut self.is_unswept) {
            for kind in self.known.complete() {
                self.remove_others(kind).await;
            }
        }
    }

    async fn write(&mut self, name: ResourceName) {
        let Some((object, created, generation)) = self.known.object(&name) else { return };
        let ResourceObjects { store, hub, .. } = &self.to;
        match objects::apply_of_cluster(store, hub, object, created).await {
            Ok(written) => {
                self.known.set_fate(&name, Fate::Stored);
                self.refused.remove(&name);
                let is_change = written.is_change();
                let objects::Written { revision, scopes, .. } = written;
                let (now, pause) = (Instant::now(), LOOKED_AGAIN_AFTER);
                // What is as it was has its status from before, unless it turns out to be another one.
                let look_at = if is_change { now } else { now.max(self.started + SIDECARS_WITHIN) };
                let spreading =
                    Spreading { generation, scopes, revision, since: look_at, look_at, pause };
                self.spreading.insert(name.clone(), spreading);
                if is_change {
                    self.look(name, now).await;
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
                self.refuse(name, reason, status.message().to_owned());
            }
        }
    }

    /// Reports how far an object has spread, and looks again later where it is not everywhere.
    async fn look(&mut self, name: ResourceName, now: Instant) {
        let Some(spreading) = self.spreading.get_mut(&name) else { return };
        let Spreading { generation, revision, since, .. } = *spreading;
        if self.known.generation(&name) != Some(generation) {
            self.spreading.remove(&name);
            return;
        }
        let scopes = &spreading.scopes;
        let (sidecars, lagging) = self.to.hub.applied(scopes, revision, Duration::ZERO).await;
        // None may have connected yet.
        let is_early = sidecars == 0 && now < self.started + SIDECARS_WITHIN;
        let lagging = if is_early || (!lagging.is_empty() && now < since + NAMED_AFTER) {
            None
        } else {
            Some(lagging)
        };
        if lagging.as_ref().is_some_and(Vec::is_empty) {
            self.spreading.remove(&name);
        } else {
            spreading.pause = (spreading.pause * 2).min(LOOKED_AGAIN_WITHIN);
            spreading.look_at = now + spreading.pause;
            if lagging.is_none() {
                spreading.look_at = spreading.look_at.min(since + NAMED_AFTER).max(now + TICK);
            }
        }
        let verdict = Verdict::Accepted { revision, sidecars, lagging };
        self.reports.add(ResourceStatus { name, generation, verdict });
    }

    fn refuse(&mut self, name: ResourceName, reason: RefusalReason, why: String) {
        let Some(generation) = self.known.generation(&name) else { return };
        let why: String = why.chars().take(WHY_CHARACTERS).collect();
        let former = self.refused.remove(&name);
        if former.as_ref().is_none_or(|former| former.why != why) {
            info!(resource = %name, generation, ?reason, why, "a custom resource is not accepted");
        }
        if self.known.is_refused(&name) {
            let pause = former.map_or(TRIED_AGAIN_AFTER, |former| former.pause * 2);
            let pause = pause.min(TRIED_AGAIN_WITHIN);
            let refused = Refused { try_at: Instant::now() + pause, pause, why: why.clone() };
            self.refused.insert(name.clone(), refused);
        }
        let verdict = Verdict::Refused { reason, why };
        self.reports.add(ResourceStatus { name, generation, verdict });
    }

    async fn remove_others(&mut self, kind: ResourceKind) {
        let left: Vec<ObjectId> = self.to.hub.read(|catalogue| {
            let of_cluster = catalogue
                .objects()
                .of_kind(kind.object())
                .filter(|stored| stored.origin == Some(ObjectOrigin::Cluster));
            let ids = of_cluster.map(|stored| stored.object.id());
            ids.filter(|id| ResourceKind::of(id) == kind && !self.known.has(id)).collect()
        });
        for id in left {
            self.remove(&id).await;
        }
    }

    async fn remove(&mut self, id: &ObjectId) {
        let name = ResourceName::of(id);
        self.spreading.remove(&name);
        self.refused.remove(&name);
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

/// The names of what is due, at most so many: those that are due for longest.
fn due<T>(
    of: &BTreeMap<ResourceName, T>,
    now: Instant,
    most: usize,
    at: impl Fn(&T) -> Instant,
) -> Vec<ResourceName> {
    let mut due: Vec<_> =
        of.iter().map(|(name, one)| (at(one), name)).filter(|(at, _)| *at <= now).collect();
    due.sort_unstable();
    due.into_iter().take(most).map(|(_, name)| name.clone()).collect()
}
