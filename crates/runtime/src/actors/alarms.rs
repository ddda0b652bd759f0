//! Timers and reminders: those that are due run as turns of their actors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::HeaderMap;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tollway_actors::placement::{Actor, Epoch, NoTurn};
use tollway_actors::schedule::{
    Agenda, Due, FailurePolicy, Moment, Next, Popped, Schedule, Ticket,
};

use super::app::{AppSide, Event, Turn, TurnKind};
use super::call::REENTRANCY;
use super::clock::Clock;
use super::host::{Host, NotRun};

/// Most fires under way at once. Further ones wait; the one that is due longest goes first.
const AT_ONCE: usize = 256;
/// Time until a fire is repeated whose actor has too many waiting turns.
const CROWDED: Duration = Duration::from_millis(100);
/// How often the system time is read at least, because it may be set.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// An actor, and the name of one of its timers or reminders.
pub(crate) type Key = (Actor, Arc<str>);

/// A timer or reminder: what the app gets when it is due, and what happens if the app fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Alarm {
    pub(crate) event: Event,
    pub(crate) ttl: String,
    pub(crate) policy: FailurePolicy,
    /// Rises with each registration of a reminder. Of a timer it is the epoch in which it was
    /// registered: it ends with that epoch.
    pub(crate) version: u64,
}

/// Stores the outcome of reminders that fired.
#[tonic::async_trait]
pub(crate) trait RecordFire: Send + Sync {
    /// Stores what is left of the registration of this version; `None` if it is over. It fired, or
    /// ended, under the grant of `epoch`.
    async fn record(&self, key: &Key, version: u64, left: Option<Schedule>, epoch: Epoch);
}

/// Called after each fire with the type of the actor, and whether the app accepted it.
pub(crate) type Counted = Box<dyn Fn(&str, bool) + Send + Sync>;

/// The timers of an app's actors, or their reminders.
pub(crate) struct Alarms {
    inner: Mutex<Inner>,
    /// Notified when something is due earlier than before.
    sooner: Notify,
    at_once: Arc<Semaphore>,
    /// `None` for timers, which end with their actor.
    recorder: Option<Arc<dyn RecordFire>>,
    counted: Option<Counted>,
    clock: Clock,
}

#[derive(Default)]
struct Inner {
    agenda: Agenda<Key>,
    alarms: HashMap<Key, Arc<Alarm>>,
}

/// The outcome of a fire.
enum Fired {
    Done {
        cancels: bool,
    },
    Failed,
    /// The actor has too many waiting turns.
    Crowded,
    /// The actor is no longer at this host.
    Elsewhere,
}

impl Alarms {
    /// Timers, which end with their actor, or reminders, whose outcome goes to `recorder`.
    pub(crate) fn new(
        recorder: Option<Arc<dyn RecordFire>>,
        counted: Option<Counted>,
        clock: Clock,
    ) -> Arc<Self> {
        let at_once = Arc::new(Semaphore::new(AT_ONCE));
        Arc::new(Self {
            inner: Mutex::default(),
            sooner: Notify::new(),
            at_once,
            recorder,
            counted,
            clock,
        })
    }

    /// Registers an alarm. It replaces one of the same name.
    pub(crate) fn insert(&self, key: Key, schedule: Schedule, alarm: Alarm) {
        let mut inner = self.inner();
        inner.agenda.insert(key.clone(), schedule, alarm.policy);
        inner.alarms.insert(key, Arc::new(alarm));
        drop(inner);
        self.sooner.notify_one();
    }

    /// Registers an alarm, unless the same or a later registration exists.
    pub(crate) fn insert_newer(&self, key: Key, schedule: Schedule, alarm: Alarm) {
        let known = self.get(&key).map(|known| known.version);
        if known.is_none_or(|known| known < alarm.version) {
            self.insert(key, schedule, alarm);
        }
    }

    /// Removes an alarm if it is the registration of this version.
    pub(crate) fn remove_version(&self, key: &Key, version: u64) {
        if self.get(key).is_some_and(|known| known.version == version) {
            self.remove(key);
        }
    }

    /// Removes an alarm. Returns whether it existed.
    pub(crate) fn remove(&self, key: &Key) -> bool {
        let mut inner = self.inner();
        inner.alarms.remove(key);
        inner.agenda.remove(key)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Alarm>> {
        self.inner().alarms.get(key).cloned()
    }

    /// The alarms of an actor, by name.
    pub(crate) fn of(&self, actor: &Actor) -> Vec<(Arc<str>, Arc<Alarm>)> {
        let inner = self.inner();
        let first = (actor.clone(), Arc::from(""));
        let keys = inner.agenda.keys_from(&first).take_while(|(other, _)| other == actor);
        let found =
            keys.filter_map(|key| Some((Arc::clone(&key.1), inner.alarms.get(key)?.clone())));
        found.collect()
    }

    /// The alarms whose key is `wanted`, in the order of the keys.
    pub(crate) fn all_of(&self, wanted: impl Fn(&Key) -> bool) -> Vec<(Key, Arc<Alarm>)> {
        let inner = self.inner();
        let keys = inner.agenda.keys().filter(|key| wanted(key));
        keys.filter_map(|key| Some((key.clone(), inner.alarms.get(key)?.clone()))).collect()
    }

    /// Removes the timers of epochs that are over.
    pub(crate) fn remove_of_former_epochs(&self, host: &Host) {
        let gone = |(key, alarm): &(Key, Arc<Alarm>)| !is_of_epoch(host, &key.0, alarm.version);
        for (key, alarm) in self.all_of(|_| true).into_iter().filter(gone) {
            self.remove_version(&key, alarm.version);
        }
    }

    /// Removes the alarms for which `goes` returns true.
    pub(crate) fn remove_where(&self, goes: impl Fn(&Key) -> bool) {
        let mut inner = self.inner();
        let gone: Vec<Key> = inner.agenda.keys().filter(|key| goes(key)).cloned().collect();
        for key in gone {
            inner.agenda.remove(&key);
            inner.alarms.remove(&key);
        }
    }

    /// Removes all alarms of an actor.
    pub(crate) fn forget(&self, actor: &Actor) {
        for (name, _) in self.of(actor) {
            self.remove(&(actor.clone(), name));
        }
    }

    /// The number of alarms by actor type.
    pub(crate) fn counts(&self) -> HashMap<Arc<str>, usize> {
        let mut counts = HashMap::new();
        for (actor, _) in self.inner().agenda.keys() {
            *counts.entry(Arc::clone(&actor.actor_type)).or_default() += 1;
        }
        counts
    }

    pub(crate) fn len(&self) -> usize {
        self.inner().agenda.len()
    }

    /// Fires what is due, until the future is dropped. `what` makes a turn of a name and an event.
    pub(crate) async fn run(
        self: Arc<Self>,
        host: Arc<Host>,
        app: Arc<dyn AppSide>,
        what: fn(String, Event) -> TurnKind,
    ) {
        loop {
            let Ok(permit) = Arc::clone(&self.at_once).acquire_owned().await else { return };
            let popped = self.inner().agenda.pop(self.clock.wall());
            match popped {
                Some(Popped::Due(due)) => {
                    let alarm = self.get(&due.key);
                    let Some(alarm) = alarm else { continue };
                    let what = what(due.key.1.to_string(), alarm.event.clone());
                    let firing = Arc::clone(&self).fire(
                        due,
                        alarm.version,
                        what,
                        Arc::clone(&host),
                        Arc::clone(&app),
                        permit,
                    );
                    tokio::spawn(firing);
                }
                Some(Popped::Over(key)) => {
                    let over = self.inner().alarms.remove(&key);
                    let unstored = host.unstored(&key.0);
                    if let (Some(recorder), Some(over), Some(unstored)) =
                        (self.recorder.clone(), over, unstored)
                    {
                        tokio::spawn(async move {
                            recorder.record(&key, over.version, None, unstored.epoch).await;
                        });
                    }
                }
                None => {
                    drop(permit);
                    let next = self.inner().agenda.next_moment();
                    let wait = next
                        .map_or(CHECK_EVERY, |next| next.after(self.clock.wall()).min(CHECK_EVERY));
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.sooner.notified() => {}
                    }
                }
            }
        }
    }

    async fn fire(
        self: Arc<Self>,
        due: Due<Key>,
        version: u64,
        what: TurnKind,
        host: Arc<Host>,
        app: Arc<dyn AppSide>,
        permit: OwnedSemaphorePermit,
    ) {
        let Due { key, ticket, .. } = due;
        let began = self.clock.wall();
        // Until the outcome is stored.
        let unstored = self.recorder.as_ref().and_then(|_| host.unstored(&key.0));
        let is_over = self.recorder.is_none() && !is_of_epoch(&host, &key.0, version);
        let fired = match is_over {
            true => Fired::Elsewhere,
            false => fire_one(&key.0, what, &host, app).await,
        };
        drop(permit);
        if let (Some(counted), Fired::Done { .. } | Fired::Failed) = (&self.counted, &fired) {
            counted(&key.0.actor_type, matches!(fired, Fired::Done { .. }));
        }
        let left = self.note(&key, ticket, began, fired);
        self.sooner.notify_one();
        if let (Some(left), Some(recorder), Some(unstored)) = (left, &self.recorder, &unstored) {
            recorder.record(&key, version, left, unstored.epoch).await;
        }
    }

    /// Notes the outcome of a fire. Returns what is left of the registration if that has changed.
    fn note(
        &self,
        key: &Key,
        ticket: Ticket,
        began: Moment,
        fired: Fired,
    ) -> Option<Option<Schedule>> {
        let mut inner = self.inner();
        let next = match fired {
            Fired::Done { cancels: true } => {
                // It stays if it was registered again in the same turn.
                match inner.agenda.succeeded(key, ticket, began) {
                    Next::Unknown => Next::Unknown,
                    Next::Over | Next::Again(_) | Next::Then(_) => {
                        inner.agenda.remove(key);
                        Next::Over
                    }
                }
            }
            Fired::Done { cancels: false } => inner.agenda.succeeded(key, ticket, began),
            Fired::Failed => inner.agenda.failed(key, ticket, began, self.clock.wall()),
            Fired::Crowded => {
                let again = self.clock.wall().checked_add(CROWDED).unwrap_or(began);
                inner.agenda.put_back(key, ticket, again);
                return None;
            }
            Fired::Elsewhere => {
                // The actor's new host has read when it is due.
                if inner.agenda.put_back(key, ticket, began) {
                    inner.agenda.remove(key);
                    inner.alarms.remove(key);
                }
                return None;
            }
        };
        match next {
            Next::Unknown | Next::Again(_) => None,
            Next::Over => {
                inner.alarms.remove(key);
                Some(None)
            }
            Next::Then(schedule) => Some(Some(schedule)),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a timer was registered in the epoch under which this host holds its actor.
pub(super) fn is_of_epoch(host: &Host, actor: &Actor, version: u64) -> bool {
    host.epoch(actor).is_some_and(|epoch| epoch.0 == version)
}

async fn fire_one(actor: &Actor, what: TurnKind, host: &Arc<Host>, app: Arc<dyn AppSide>) -> Fired {
    let chain = host.chain(&actor.actor_type, None);
    let mut fields = HeaderMap::new();
    if let Some(id) = chain.as_deref().and_then(|id| id.parse().ok()) {
        fields.insert(REENTRANCY, id);
    }
    let turn = Turn { actor: actor.clone(), what, fields, body: bytes::Bytes::new() };
    let run = host.turn(actor, chain, move |lease| async move { app.run(turn, lease).await });
    match run.await {
        Ok(answer) => Fired::Done { cancels: answer.cancels },
        Err(NotRun::Failed(problem)) => {
            let (kind, id) = (&actor.actor_type, &actor.id);
            tracing::debug!(%kind, %id, reason = problem.text, "a timer or reminder failed");
            Fired::Failed
        }
        Err(NotRun::No(NoTurn::Crowded { .. } | NoTurn::TooDeep { .. })) => Fired::Crowded,
        Err(NotRun::No(NoTurn::Elsewhere(_)) | NotRun::CalledOff) => Fired::Elsewhere,
    }
}

#[cfg(test)]
mod tests;
