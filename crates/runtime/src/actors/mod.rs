//! Actors: those that this sidecar's app hosts, and calls of all others.
//!
//! `tollway_actors::placement` decides about turns, leases and shards; this module carries the
//! decisions out. A call (`call`) looks up the actor's host (`owners`). It becomes a turn at this
//! host (`host`), or a request to the runtime of that sidecar. The app gets a turn as a request to
//! one of its routes (`app`) or as a message (`stream`). A host renews its lease and gets its
//! shards in a conversation with the control plane (`session`). Timers (`timers`) and reminders
//! (`reminders`) fire as turns (`alarms`).

mod alarms;
#[cfg(test)]
mod api_tests;
mod app;
mod call;
mod clock;
#[cfg(test)]
mod documented;
mod host;
pub(crate) mod http;
mod json_object;
mod location;
mod names;
mod owners;
mod pause;
mod problem;
mod remind;
#[cfg(test)]
mod reminder_api_tests;
mod reminder_document;
mod reminder_store;
mod reminders;
mod rpc;
mod session;
mod settings;
mod state;
mod stream;
#[cfg(test)]
mod testing;
mod timers;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Method};
use tokio::sync::watch;
use tollway_actors::placement::Actor;
use tollway_model::ErrorCode;
use tollway_proxy::{ActorApp, Announcer};
use tollway_telemetry::DaprMetrics;
use tollway_telemetry::metrics::dapr::{ActorGauges, Runtime};
use tollway_wire::ActorHost;

use self::alarms::{Alarms, Counted};
use self::app::{AppSide, Event, HttpApp, NoAnswer, TurnKind};
pub(crate) use self::clock::Clock;
use self::host::Host;
use self::location::PLACED_WITHIN;
use self::owners::Directory;
pub(crate) use self::problem::Problem;
use self::reminder_store::ControlReminders;
use self::reminders::Reminders;
use self::session::Session;
use self::settings::Types;
pub(crate) use self::state::ActorStore;
use self::stream::Streams;
pub(crate) use self::stream::ToAppStream;
use crate::body_collector::MESSAGE_BYTES;
use crate::control_link::ControlLink;
use crate::loopback::Loopback;
use crate::resiliency::ResiliencyState;

/// Pause before an app that did not respond is asked again for the types it offers.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Time for the app to respond which types it offers.
const TYPES_WITHIN: Duration = Duration::from_secs(10);

/// What runs turns while the app offers types.
#[derive(Clone)]
struct Hosting {
    host: Arc<Host>,
    app: Arc<dyn AppSide>,
    timers: Arc<Alarms>,
    reminders: Arc<Reminders>,
}

/// The actors of this sidecar's app, and calls of all others.
pub(crate) struct Actors {
    me: ActorHost,
    control: Arc<dyn ControlLink>,
    directory: Arc<Directory>,
    loopback: Arc<dyn Loopback>,
    clock: Clock,
    /// The number of the next call to another host.
    next_call: AtomicU64,
    store: Option<ActorStore>,
    /// The app's Resiliency rules.
    resiliency: Option<Arc<ResiliencyState>>,
    /// The app, if it is called over HTTP.
    http_app: Option<Arc<HttpApp>>,
    /// Where data threads read whether the app runs actors.
    actor_app: Arc<ActorApp>,
    /// Set where the sidecar is announced because of its actors alone.
    announcer: Option<Announcer>,
    /// Metrics under Dapr's names.
    metrics: Option<Arc<DaprMetrics>>,
    in_daprds_place: bool,
    has_placement: bool,
    /// Those of an app that hosts its actors over streams.
    streams: Arc<Streams>,
    hosting: RwLock<Option<Hosting>>,
    /// Whether the app has been asked which types it offers, and they are hosted.
    types_known: watch::Sender<bool>,
    /// Whether the host's conversation with the control plane is open.
    connected: watch::Sender<bool>,
    /// Set when the sidecar ends.
    ending: watch::Sender<bool>,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

/// The parts that [`Actors`] is made of.
pub(crate) struct ActorsConfig {
    /// This sidecar, as the control plane names it.
    pub(crate) me: ActorHost,
    pub(crate) control: Arc<dyn ControlLink>,
    pub(crate) loopback: Arc<dyn Loopback>,
    pub(crate) clock: Clock,
    /// `None` where no component is the store of actors.
    pub(crate) store: Option<ActorStore>,
    pub(crate) resiliency: Option<Arc<ResiliencyState>>,
    /// The largest message, in bytes, where the app is called over HTTP; else `None`.
    pub(crate) message_bytes: Option<usize>,
    /// Where data threads read whether the app runs actors.
    pub(crate) actor_app: Arc<ActorApp>,
    /// Set where the sidecar is announced because of its actors alone.
    pub(crate) announcer: Option<Announcer>,
    /// Set where actors are counted under Dapr's names.
    pub(crate) metrics: Option<Arc<DaprMetrics>>,
    /// Calls wait for a type that no host offers, and are made again where an actor had to move before
    /// they had ended.
    pub(crate) in_daprds_place: bool,
    /// In daprd's place: a placement service is named.
    pub(crate) has_placement: bool,
}

/// How far the actors of an app are, in the words of the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActorPhase {
    /// It is not known yet which types the app offers.
    Initializing,
    /// The app offers no types.
    Disabled,
    /// It offers types; in daprd's place also where it offers none, if a placement service is named.
    Running,
}

/// The state of actors, as the metadata of the sidecar show it.
pub(crate) struct ActorStatus {
    pub(crate) phase: ActorPhase,
    in_daprds_place: bool,
    /// The control plane has answered.
    is_connected: bool,
    /// Active actors by type that is hosted here.
    pub(crate) counts: Vec<(String, usize)>,
    /// The types that the app offers and that are not hosted here, with the reason.
    pub(crate) refused: BTreeMap<String, Problem>,
}

impl ActorStatus {
    /// The status in the words of the metadata.
    pub(crate) fn status_word(&self) -> &'static str {
        match self.phase {
            ActorPhase::Initializing => "INITIALIZING",
            ActorPhase::Disabled => "DISABLED",
            ActorPhase::Running => "RUNNING",
        }
    }

    /// Whether turns can run here.
    pub(crate) fn is_ready(&self) -> bool {
        self.phase == ActorPhase::Running && self.is_connected
    }

    /// The state of the connection to the control plane, in the words of the metadata.
    pub(crate) fn placement(&self) -> &'static str {
        match (self.phase, self.is_connected) {
            (ActorPhase::Running, true) => "placement: connected",
            (ActorPhase::Running, false) => "placement: disconnected",
            (ActorPhase::Disabled, _) if self.in_daprds_place => "placement: disconnected",
            (ActorPhase::Initializing | ActorPhase::Disabled, _) => "",
        }
    }
}

impl Actors {
    pub(crate) fn new(config: ActorsConfig) -> Arc<Self> {
        let ActorsConfig { loopback, message_bytes, clock, metrics, .. } = config;
        let http_app = message_bytes.map(|message_bytes| {
            // A smaller limit is one of requests, not of what the app answers.
            let message_bytes = message_bytes.max(MESSAGE_BYTES);
            Arc::new(HttpApp { loopback: Arc::clone(&loopback), clock, message_bytes })
        });
        let counted = metrics.clone();
        let types_known = watch::Sender::new(http_app.is_none());
        let actors = Arc::new(Self {
            me: config.me,
            control: config.control,
            directory: Directory::new(),
            loopback,
            clock,
            next_call: AtomicU64::new(0),
            store: config.store,
            resiliency: config.resiliency,
            http_app,
            actor_app: config.actor_app,
            announcer: config.announcer,
            metrics,
            in_daprds_place: config.in_daprds_place,
            has_placement: config.has_placement,
            streams: Streams::new(),
            hosting: RwLock::new(None),
            types_known,
            connected: watch::Sender::new(false),
            ending: watch::Sender::new(false),
            tasks: Mutex::default(),
        });
        if let Some(metrics) = counted {
            let weak = Arc::downgrade(&actors);
            metrics.runtime().set_actors(move || {
                weak.upgrade().map(|actors| actors.gauges()).unwrap_or_default()
            });
        }
        actors
    }

    /// Numbers by actor type.
    fn gauges(&self) -> Vec<ActorGauges> {
        let Some(Hosting { host, timers, reminders, .. }) = self.hosting() else {
            return Vec::new();
        };
        let (timers, reminders) = (timers.counts(), reminders.alarms().counts());
        let of = |counts: &HashMap<Arc<str>, usize>, name: &str| {
            counts.get(name).copied().unwrap_or_default()
        };
        let gauge = |(actor_type, pending): (String, usize)| ActorGauges {
            pending,
            timers: of(&timers, &actor_type),
            reminders: of(&reminders, &actor_type),
            actor_type,
        };
        host.waiting().into_iter().map(gauge).collect()
    }

    /// Starts to follow the control plane, and the app while `ready` is true.
    pub(crate) fn start(self: &Arc<Self>, ready: watch::Receiver<bool>) {
        let directory = tokio::spawn(Arc::clone(&self.directory).run(Arc::clone(&self.control)));
        let mut tasks = vec![directory];
        if let Some(app) = &self.http_app {
            tasks.push(tokio::spawn(Arc::clone(self).host_when_ready(Arc::clone(app), ready)));
        }
        self.tasks().extend(tasks);
    }

    /// Begins nothing new, gives all shards back, and returns when that is done.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.tasks());
        // The first task only watches; it may end at any time.
        if let Some(directory) = (!tasks.is_empty()).then(|| tasks.remove(0)) {
            for task in tasks {
                // A panic was logged where it happened.
                let _ = task.await;
            }
            directory.abort();
        }
    }

    /// The state of actors, where the sidecar is connected to the control plane or not.
    pub(crate) fn status(&self, is_connected: bool) -> ActorStatus {
        let hosting = self.hosting();
        let phase = match &hosting {
            Some(_) => ActorPhase::Running,
            None if self.in_daprds_place && !*self.types_known.borrow() => ActorPhase::Initializing,
            None if self.has_placement => ActorPhase::Running,
            None => ActorPhase::Disabled,
        };
        let refused = hosting.as_ref().map(|hosting| hosting.host.refused()).unwrap_or_default();
        let mut counts = hosting.as_ref().map(|hosting| hosting.host.counts()).unwrap_or_default();
        counts.retain(|(actor_type, _)| !refused.contains_key(actor_type));
        ActorStatus {
            phase,
            in_daprds_place: self.in_daprds_place,
            is_connected: hosting.map_or(is_connected, |_| *self.connected.borrow()),
            counts,
            refused,
        }
    }

    /// What is missing until the app's actors can be called; `None` if nothing is.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        if !*self.types_known.borrow() {
            return Some("actor types");
        }
        // An app over a stream may open it at any time, and calls wait for it.
        let hosting = self.http_app.as_ref().and_then(|_| self.hosting())?;
        (!hosting.host.has_entered()).then_some("actor placement")
    }

    /// Waits until it is known which types the app offers, for at most [`PLACED_WITHIN`].
    async fn until_types_known(&self) {
        let mut known = self.types_known.subscribe();
        let known = known.wait_for(|known| *known);
        // A request that comes sooner is answered by what is known then.
        let _ = tokio::time::timeout(PLACED_WITHIN, known).await;
    }

    /// In daprd's place, Dapr's text where no host offers the type of an actor.
    fn lookup_failed(&self, problem: &Problem) -> Option<String> {
        let is_unfound = self.in_daprds_place && problem.code == ErrorCode::ActorNoAddress;
        is_unfound.then(|| {
            let text = &problem.text;
            format!("failed to lookup actor: api error: code = FailedPrecondition desc = {text}")
        })
    }

    /// Whether the sidecar ends.
    fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    fn hosting(&self) -> Option<Hosting> {
        self.hosting.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, Vec<tokio::task::JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hosts the types that the app offers, whenever the app is ready.
    async fn host_when_ready(self: Arc<Self>, app: Arc<HttpApp>, mut ready: watch::Receiver<bool>) {
        let mut ending = self.ending.subscribe();
        let mut has_failed = false;
        loop {
            tokio::select! {
                // The end comes first, even if the app is ready.
                biased;
                _ = is_set(&mut ending) => return,
                is_ready = is_set(&mut ready) => if !is_ready { return },
            }
            if !has_failed {
                self.types_known.send_replace(false);
            }
            let types = ask_types(&app, self.me.service.app.as_str()).await;
            has_failed = types.is_err();
            match &types {
                Ok(types) => self.actor_app.set(!types.is_empty()),
                Err(NoTypes::NotUnderstood(_)) => self.actor_app.set(false),
                Err(NoTypes::NoAnswer(_)) => {}
            }
            match types {
                Ok(types) if types.is_empty() => drop(self.types_known.send_replace(true)),
                Ok(types) => {
                    let app: Arc<dyn AppSide> = app.clone();
                    self.host(types, app, ready.clone()).await;
                    continue;
                }
                Err(why) => {
                    self.types_known.send_replace(true);
                    tracing::warn!(reason = %why, "what the app says of its actors cannot be used");
                    tokio::time::sleep(ASK_AGAIN).await;
                    continue;
                }
            }
            tokio::select! {
                is_known = is_unset(&mut ready) => if !is_known { return },
                _ = is_set(&mut ending) => return,
            }
        }
    }

    /// Hosts these types until the app is not ready, or the sidecar ends.
    async fn host(
        self: &Arc<Self>,
        types: Types,
        app: Arc<dyn AppSide>,
        mut ready: watch::Receiver<bool>,
    ) {
        let names: Vec<&str> = types.keys().map(|name| &**name).collect();
        tracing::info!(types = names.join(", "), "the app offers actors");
        let timers = Alarms::new(None, self.counted(Runtime::timer_fired), self.clock);
        let (letting_go, forgetting) = (Arc::clone(&app), Arc::clone(&timers));
        let deactivate = Box::new(move |actor: Actor| {
            forgetting.forget(&actor);
            let app = Arc::clone(&letting_go);
            tokio::spawn(async move { app.deactivate(&actor).await })
        });
        let loopback = Arc::clone(&self.loopback);
        let (host, given_back, granted) =
            Host::new(types, deactivate, self.metrics.clone(), loopback, self.clock);
        let life = uuid::Uuid::new_v4().as_u64_pair().0;
        let store = ControlReminders::new(Arc::clone(&self.control), life);
        let fired = self.counted(Runtime::reminder_fired);
        let reminders = Reminders::new(Arc::clone(&host), store, fired);
        let as_timer = |name, event| TurnKind::Timer { name, event };
        // As Dapr 1.18 fires them: with their data alone.
        let as_reminder = |name, Event { data, .. }| TurnKind::Reminder {
            name,
            event: Event { data, ..Event::default() },
        };
        let fire = |alarms: &Arc<Alarms>, what| {
            let (alarms, host, app) = (Arc::clone(alarms), Arc::clone(&host), Arc::clone(&app));
            tokio::spawn(alarms.run(host, app, what))
        };
        let tasks = [
            fire(&timers, as_timer),
            fire(reminders.alarms(), as_reminder),
            tokio::spawn(Arc::clone(&reminders).follow(granted)),
        ];
        self.set_hosting(Some(Hosting { host: Arc::clone(&host), app, timers, reminders }));
        self.types_known.send_replace(true);
        let (retire, retired) = watch::channel(false);
        let session = Session {
            control: Arc::clone(&self.control),
            host,
            life,
            attempt: 0,
            shares_types: self.in_daprds_place,
            given_back,
            retire: retired,
            connected: self.connected.clone(),
        };
        let mut session = tokio::spawn(session.run());
        let mut ending = self.ending.subscribe();
        tokio::select! {
            _ = is_unset(&mut ready) => {
                tracing::info!("the app is not there for its actors: they go elsewhere");
            }
            _ = is_set(&mut ending) => {}
            _ = &mut session => {}
        }
        retire.send_replace(true);
        if !session.is_finished() {
            let _ = session.await;
        }
        tasks.into_iter().for_each(|task| task.abort());
        self.set_hosting(None);
        self.connected.send_replace(false);
    }

    /// Counts fires under Dapr's names, if that is enabled.
    fn counted(&self, count: fn(&Runtime, &str, bool)) -> Option<Counted> {
        let metrics = self.metrics.clone()?;
        Some(Box::new(move |actor_type, took| count(metrics.runtime(), actor_type, took)))
    }

    fn set_hosting(&self, hosting: Option<Hosting>) {
        *self.hosting.write().unwrap_or_else(PoisonError::into_inner) = hosting;
    }
}

/// Why it is not known which types an app offers.
#[derive(Debug, thiserror::Error)]
enum NoTypes {
    #[error("{0}")]
    NoAnswer(String),
    #[error("{0}")]
    NotUnderstood(String),
}

/// The types that the app offers; none if it does not know the route. The request names the app.
///
/// # Errors
/// [`NoTypes`].
async fn ask_types(app: &HttpApp, id: &str) -> Result<Types, NoTypes> {
    let id = HeaderValue::from_str(id).map(|id| (call::APP_ID, id));
    let fields = HeaderMap::from_iter(id);
    let asked = app.ask(Method::GET, "/dapr/config", fields, Bytes::new(), None);
    // The request counts for the app's concurrency limit, so it must end.
    let asked = tokio::time::timeout(TYPES_WITHIN, asked).await;
    let late = |_| NoTypes::NoAnswer("the app does not say in time what it offers".to_owned());
    let none = |none: NoAnswer| NoTypes::NoAnswer(format!("the app does not answer: {}", none.why));
    let (status, _, body) = asked.map_err(late)?.map_err(none)?;
    match status.as_u16() {
        200 => settings::read(&body).map_err(NoTypes::NotUnderstood),
        _ => Ok(Types::new()),
    }
}

/// Waits until the flag is true. Returns false if its sender is gone.
async fn is_set(flag: &mut watch::Receiver<bool>) -> bool {
    flag.wait_for(|flag| *flag).await.is_ok()
}

/// Waits until the flag is false. Returns false if its sender is gone.
async fn is_unset(flag: &mut watch::Receiver<bool>) -> bool {
    flag.wait_for(|flag| !*flag).await.is_ok()
}
