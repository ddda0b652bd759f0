//! Reminders: stored by the control plane, and fired by the host of their actor.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tollway_actors::placement::{Actor, Epoch, Shard, ShardSet};
use tollway_actors::schedule::{FailurePolicy, Schedule, Terms};
use tollway_model::{ErrorCode, chain};
use tollway_wire::{
    REMINDER_DATA_BYTES, Registration, Reminder, ReminderChange, ReminderKey, ReminderResult,
};

use super::alarms::{Alarm, Alarms, Counted, Key, RecordFire};
use super::app::{Data, Event};
use super::host::{Granted, Host};
use super::pause::Pause;
use super::problem::Problem;
use super::reminder_store::{ReminderStore, grants};

/// How long a request for a reminder waits until the reminders of a granted shard have been read.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Attempts to store the outcome of a fire. After the last one, the next host may fire the reminder
/// again.
const RECORD_ATTEMPTS: u32 = 10;
const RECORD_AGAIN: Duration = Duration::from_secs(1);

/// The registration of a reminder.
#[derive(Clone, Debug)]
pub(crate) struct ReminderTerms {
    pub(crate) terms: Terms,
    pub(crate) data: Option<Data>,
    pub(crate) policy: FailurePolicy,
    /// Whether it replaces one of the same name.
    pub(crate) overwrite: bool,
}

/// Why a request was not carried out.
pub(crate) enum Refused {
    Problem(Problem),
    /// The actor is at another host.
    Elsewhere,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

/// The reminders of the actors that this host runs.
pub(crate) struct Reminders {
    host: Arc<Host>,
    store: Arc<dyn ReminderStore>,
    alarms: Arc<Alarms>,
    /// Shards whose reminders have not been read yet.
    unread: Mutex<HashSet<(Arc<str>, Shard)>>,
    read: Notify,
}

/// Stores the outcome of fires.
struct FireRecorder {
    host: Arc<Host>,
    store: Arc<dyn ReminderStore>,
    alarms: std::sync::OnceLock<std::sync::Weak<Alarms>>,
}

#[tonic::async_trait]
impl RecordFire for FireRecorder {
    async fn record(&self, key: &Key, version: u64, left: Option<Schedule>, epoch: Epoch) {
        let (actor, name) = key;
        for _ in 0..RECORD_ATTEMPTS {
            // A shard that is about to be given back is still granted under the same epoch.
            let epoch = self.host.epoch(actor).unwrap_or(epoch);
            let change = change(actor, name, epoch, version, left);
            match self.store.write(change).await {
                Ok(ReminderResult::Fenced) => {
                    if let Some(alarms) = self.alarms.get().and_then(std::sync::Weak::upgrade) {
                        alarms.remove_version(key, version);
                    }
                    return;
                }
                Ok(_) => return,
                Err(why) => {
                    tracing::debug!(reason = why, "the outcome of a reminder cannot be stored yet");
                    tokio::time::sleep(RECORD_AGAIN).await;
                }
            }
        }
        let (kind, id) = (&actor.actor_type, &actor.id);
        tracing::warn!(%kind, %id, %name, "a reminder that has fired may fire again");
    }
}

fn change(
    actor: &Actor,
    name: &str,
    epoch: Epoch,
    version: u64,
    left: Option<Schedule>,
) -> ReminderChange {
    let key = key_of(actor, name);
    match left {
        Some(Schedule { due, firings, .. }) => {
            ReminderChange::Advance { key, epoch, version, due, firings }
        }
        None => ReminderChange::Delete { key, epoch, version: Some(version) },
    }
}

fn key_of(actor: &Actor, name: &str) -> ReminderKey {
    ReminderKey {
        actor_type: actor.actor_type.to_string(),
        actor_id: actor.id.to_string(),
        name: name.to_owned(),
    }
}

impl Reminders {
    /// `counted` is called after each fire.
    pub(crate) fn new(
        host: Arc<Host>,
        store: Arc<dyn ReminderStore>,
        counted: Option<Counted>,
    ) -> Arc<Self> {
        let clock = host.clock();
        let (for_host, for_store) = (Arc::clone(&host), Arc::clone(&store));
        let recorder =
            Arc::new(FireRecorder { host: for_host, store: for_store, alarms: Default::default() });
        let alarms =
            Alarms::new(Some(Arc::clone(&recorder) as Arc<dyn RecordFire>), counted, clock);
        let _ = recorder.alarms.set(Arc::downgrade(&alarms));
        Arc::new(Self { host, store, alarms, unread: Mutex::default(), read: Notify::new() })
    }

    pub(crate) fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }

    /// Reads the reminders of granted shards, until the future is dropped.
    pub(crate) async fn follow(self: Arc<Self>, mut granted: mpsc::UnboundedReceiver<Granted>) {
        while let Some(Granted { actor_type, shards, epoch }) = granted.recv().await {
            self.alarms.remove_where(|(actor, _)| {
                actor.actor_type == actor_type && shards.contains(Shard::of(&actor.id))
            });
            let new = shards.iter().map(|shard| (Arc::clone(&actor_type), shard));
            self.unread().extend(new);
            let reminders = Arc::clone(&self);
            tokio::spawn(async move { reminders.read_all(&actor_type, &shards, epoch).await });
        }
    }

    async fn read_all(&self, actor_type: &Arc<str>, shards: &ShardSet, epoch: Epoch) {
        let mut pause = Pause::default();
        // Until they have been read, or no shard is held any more.
        while shards.iter().any(|shard| self.host.holds(actor_type, shard, epoch)) {
            let mut put = |reminder: Reminder| self.put_read(actor_type, reminder);
            match self.store.list(actor_type, grants(shards, epoch), &mut put).await {
                Ok(()) => break,
                Err(why) => {
                    tracing::info!(%actor_type, reason = why, "reminders cannot be read yet");
                    tokio::time::sleep(pause.next(Duration::ZERO)).await;
                }
            }
        }
        for shard in shards.iter() {
            self.unread().remove(&(Arc::clone(actor_type), shard));
        }
        self.read.notify_waiters();
    }

    fn put_read(&self, actor_type: &Arc<str>, reminder: Reminder) {
        let Reminder { actor_id, name, version, registration } = reminder;
        let key =
            (Actor { actor_type: Arc::clone(actor_type), id: actor_id.into() }, Arc::from(name));
        let Registration { terms, schedule, data, policy } = registration;
        let data = (!data.is_empty()).then(|| Data(data.into()));
        let event = Event {
            due_time: terms.due_time.into(),
            period: terms.period.into(),
            callback: String::new(),
            data,
        };
        let alarm = Alarm { event, ttl: terms.ttl.into(), policy, version };
        self.alarms.insert_newer(key, schedule, alarm);
    }

    /// Waits until the reminders of the actor's shard have been read.
    ///
    /// # Errors
    /// [`Refused::Elsewhere`] if that takes too long, or the shard is not held here.
    async fn until_read(&self, actor: &Actor) -> Result<(), Refused> {
        self.host.epoch(actor).ok_or(Refused::Elsewhere)?;
        let shard = (Arc::clone(&actor.actor_type), Shard::of(&actor.id));
        let waiting = async {
            loop {
                let read = self.read.notified();
                if !self.unread().contains(&shard) {
                    return;
                }
                read.await;
            }
        };
        let in_time = tokio::time::timeout(READ_WITHIN, waiting).await;
        in_time.map_err(|_| Refused::Elsewhere)?;
        // Reading ends, too, if the shard is lost meanwhile.
        self.host.epoch(actor).map(|_| ()).ok_or(Refused::Elsewhere)
    }

    /// Registers a reminder of an actor at this host. It is durable when this returns.
    pub(crate) async fn put(
        &self,
        actor: &Actor,
        name: &str,
        wanted: ReminderTerms,
    ) -> Result<(), Refused> {
        let failed = |why: &str| {
            let text = format!("error creating actor reminder: {why}");
            Refused::Problem(Problem::new(ErrorCode::ActorReminderCreate, text))
        };
        let epoch = self.host.epoch(actor).ok_or(Refused::Elsewhere)?;
        let bytes = wanted.data.as_ref().map_or(0, |data| data.0.len());
        if bytes > REMINDER_DATA_BYTES {
            return Err(failed(&format!(
                "its data have {bytes} bytes; they may have {REMINDER_DATA_BYTES}"
            )));
        }
        let ReminderTerms { terms, data, policy, overwrite } = wanted;
        let schedule =
            terms.read(self.host.clock().wall()).map_err(|error| failed(&chain(&error)))?;
        let bytes = data.as_ref().map_or_else(Bytes::new, |data| data.0.clone());
        let registration =
            Registration { terms: terms.clone(), schedule, data: bytes.into(), policy };
        let key = key_of(actor, name);
        let change = ReminderChange::Put { key, epoch, registration, if_absent: !overwrite };
        let version = match self.store.write(change).await.map_err(|why| failed(&why))? {
            ReminderResult::Done { version, .. } => version,
            ReminderResult::Fenced => return Err(Refused::Elsewhere),
            ReminderResult::Exists | ReminderResult::NotFound => {
                let text = format!("actor reminder already exists: {name}");
                return Err(Problem::new(ErrorCode::ActorReminderExists, text).into());
            }
            ReminderResult::Excess { what, found, limit } => {
                return Err(failed(&format!("{what}: {found}; the limit is {limit}")));
            }
        };
        let event = Event {
            due_time: terms.due_time.into(),
            period: terms.period.into(),
            callback: String::new(),
            data,
        };
        let alarm = Alarm { event, ttl: terms.ttl.into(), policy, version };
        self.alarms.insert_newer((actor.clone(), Arc::from(name)), schedule, alarm);
        Ok(())
    }

    /// Returns a reminder as it was registered.
    pub(crate) async fn get(
        &self,
        actor: &Actor,
        name: &str,
    ) -> Result<Option<Arc<Alarm>>, Refused> {
        self.until_read(actor).await?;
        Ok(self.alarms.get(&(actor.clone(), Arc::from(name))))
    }

    /// The reminders of one actor, by name.
    pub(crate) async fn of(&self, actor: &Actor) -> Result<Vec<(Arc<str>, Arc<Alarm>)>, Refused> {
        self.until_read(actor).await?;
        Ok(self.alarms.of(actor))
    }

    /// The reminders of a type at this host.
    pub(crate) fn of_type(&self, actor_type: &str) -> Vec<(Key, Arc<Alarm>)> {
        self.alarms.all_of(|(actor, _)| {
            &*actor.actor_type == actor_type && self.host.epoch(actor).is_some()
        })
    }

    /// Removes a reminder. Succeeds if there is none.
    pub(crate) async fn delete(&self, actor: &Actor, name: &str) -> Result<(), Refused> {
        let epoch = self.host.epoch(actor).ok_or(Refused::Elsewhere)?;
        let change = ReminderChange::Delete { key: key_of(actor, name), epoch, version: None };
        self.removed(change).await?;
        self.alarms.remove(&(actor.clone(), Arc::from(name)));
        Ok(())
    }

    /// Removes all reminders of one actor.
    pub(crate) async fn delete_of(&self, actor: &Actor) -> Result<(), Refused> {
        let epoch = self.host.epoch(actor).ok_or(Refused::Elsewhere)?;
        let (actor_type, actor_id) = (actor.actor_type.to_string(), actor.id.to_string());
        self.removed(ReminderChange::DeleteOfActor { actor_type, actor_id, epoch }).await?;
        self.alarms.forget(actor);
        Ok(())
    }

    /// Removes all reminders of a type at this host.
    pub(crate) async fn delete_of_type(&self, actor_type: &str) -> Result<(), Refused> {
        let held = self.host.held(actor_type);
        let grants = tollway_wire::grants(&held);
        let read = grants.iter().map(tollway_wire::read_grant).collect::<Result<Vec<_>, _>>();
        let failed = |why: &dyn std::fmt::Display| delete_failed(&why.to_string());
        let grants = read.map_err(|error| failed(&error))?;
        let change = ReminderChange::DeleteOfShards { actor_type: actor_type.to_owned(), grants };
        self.removed(change).await?;
        self.alarms.remove_where(|(actor, _)| &*actor.actor_type == actor_type);
        Ok(())
    }

    async fn removed(&self, change: ReminderChange) -> Result<(), Refused> {
        match self.store.write(change).await.map_err(|why| delete_failed(&why))? {
            ReminderResult::Fenced => Err(Refused::Elsewhere),
            ReminderResult::Done { .. } | ReminderResult::NotFound | ReminderResult::Exists => {
                Ok(())
            }
            ReminderResult::Excess { what, found, limit } => {
                Err(delete_failed(&format!("{what}: {found}; the limit is {limit}")))
            }
        }
    }

    fn unread(&self) -> MutexGuard<'_, HashSet<(Arc<str>, Shard)>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn delete_failed(why: &str) -> Refused {
    let text = format!("error deleting actor reminder: {why}");
    Problem::new(ErrorCode::ActorReminderDelete, text).into()
}

#[cfg(test)]
mod tests;
