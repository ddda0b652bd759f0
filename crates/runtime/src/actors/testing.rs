//! What the unit tests of actors put in place of an app, a control plane and other hosts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use tokio::sync::mpsc;
use tollway_actors::placement::{
    Actor, Epoch, Order, Owners, SHARDS, Shard, ShardSet, TypeOptions,
};
use tollway_model::Label;
use tollway_proxy::TurnLease;
use tollway_wire::v1::Grant;
use tollway_wire::{ActorHost, Reminder, ReminderChange, ReminderKey, ReminderResult};
use tonic::transport::Channel;

use super::alarms::Alarms;
use super::app::{Answer, AppSide, Turn, TurnKind, Unanswered};
use super::clock::Clock;
use super::host::{GivenBack, Granted, Host};
use super::owners::KnownOwners;
use super::reminder_store::{ReminderStore, Written};
use super::reminders::Reminders;
use super::settings::Types;
use super::{Actors, ActorsConfig, Hosting};
use crate::control_link::ControlLink;
use crate::testing::ScriptedLoopback;
pub(super) use crate::testing::service;

/// How long the lease of a test's host lasts.
pub(super) const LEASE: Duration = Duration::from_secs(3);

pub(super) fn actor(id: &str) -> Actor {
    Actor { actor_type: "Cart".into(), id: id.into() }
}

/// The host with this instance name.
pub(super) fn host(instance: &str) -> ActorHost {
    ActorHost { service: service("cart"), instance: Label::new(instance).unwrap() }
}

/// One owner, or none, of all shards.
pub(super) fn owners(owner: Option<ActorHost>) -> KnownOwners {
    KnownOwners::Owners(Arc::new(Owners { version: 1, shards: vec![owner; SHARDS] }))
}

/// The type `Cart`, with options as Dapr has them.
pub(super) fn types(reentrancy: Option<usize>) -> Types {
    let options =
        TypeOptions { idle: Duration::from_secs(3600), drain: Duration::from_secs(2), reentrancy };
    Types::from([("Cart".into(), options)])
}

/// All shards.
pub(super) fn all_shards() -> ShardSet {
    let mut shards = ShardSet::default();
    Shard::all().for_each(|shard| shards.insert(shard));
    shards
}

pub(super) fn grant(epoch: u64) -> Order {
    Order::Grant { actor_type: "Cart".to_owned(), epoch: Epoch(epoch), shards: all_shards() }
}

pub(super) fn give_back() -> Order {
    Order::GiveBack { actor_type: "Cart".to_owned(), shards: all_shards() }
}

/// A host that may run turns, and what it gives back and is granted.
pub(super) struct TestHost {
    pub(super) host: Arc<Host>,
    pub(super) given_back: mpsc::UnboundedReceiver<GivenBack>,
    pub(super) granted: mpsc::UnboundedReceiver<Granted>,
    pub(super) loopback: Arc<ScriptedLoopback>,
}

impl TestHost {
    /// Without lease and shards. The app deactivates each actor at once.
    pub(super) fn idle(types: Types) -> Self {
        let loopback = Arc::new(ScriptedLoopback::new(|_| unreachable!("the app is no HTTP app")));
        let deactivate = Box::new(|_| tokio::spawn(async {}));
        let used = Arc::clone(&loopback);
        let (host, given_back, granted) = Host::new(types, deactivate, None, used, Clock::tokio());
        Self { host, given_back, granted, loopback }
    }

    /// With a lease from now on, and all shards under epoch 1.
    pub(super) fn granted(types: Types) -> Self {
        let test = Self::idle(types);
        test.host.entered(test.host.clock().now(), LEASE);
        test.host.obey(&grant(1));
        test
    }
}

type Run = Box<dyn Fn(&Turn) -> Result<Answer, Unanswered> + Send + Sync>;

/// An app that runs turns as a test says, and records them.
pub(super) struct ScriptedApp {
    run: Run,
    /// How long each turn takes.
    pub(super) takes: Duration,
    turns: Mutex<Vec<Turn>>,
}

impl ScriptedApp {
    pub(super) fn new(
        run: impl Fn(&Turn) -> Result<Answer, Unanswered> + Send + Sync + 'static,
    ) -> Self {
        Self { run: Box::new(run), takes: Duration::ZERO, turns: Mutex::default() }
    }

    /// Responds to each method with its name and body.
    pub(super) fn echo() -> Self {
        Self::new(|turn| {
            let name = match &turn.what {
                TurnKind::Method { name, .. }
                | TurnKind::Timer { name, .. }
                | TurnKind::Reminder { name, .. } => name,
            };
            let text = format!("{name} {}", String::from_utf8_lossy(&turn.body));
            Ok(Answer { body: Bytes::from(text), ..Answer::default() })
        })
    }

    pub(super) fn turns(&self) -> Vec<Turn> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[tonic::async_trait]
impl AppSide for ScriptedApp {
    async fn run(&self, turn: Turn, _: TurnLease) -> Result<Answer, Unanswered> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).push(turn.clone());
        tokio::time::sleep(self.takes).await;
        (self.run)(&turn)
    }

    async fn deactivate(&self, _: &Actor) {}
}

/// Reminders in memory. The control plane's rules that matter here hold: a change under an epoch
/// other than the store's is fenced, and of one name there is one reminder.
pub(super) struct MemoryReminders {
    pub(super) epoch: Mutex<Epoch>,
    stored: Mutex<HashMap<ReminderKey, Reminder>>,
    changes: Mutex<Vec<ReminderChange>>,
    /// Reads fail for as long as this is set.
    pub(super) unreadable: Mutex<Option<String>>,
    /// Writes fail for as long as this is set.
    pub(super) unwritable: Mutex<Option<String>>,
}

impl Default for MemoryReminders {
    fn default() -> Self {
        Self {
            epoch: Mutex::new(Epoch(1)),
            stored: Mutex::default(),
            changes: Mutex::default(),
            unreadable: Mutex::default(),
            unwritable: Mutex::default(),
        }
    }
}

impl MemoryReminders {
    pub(super) fn changes(&self) -> Vec<ReminderChange> {
        self.changes.lock().unwrap().clone()
    }

    pub(super) fn put(&self, reminder: Reminder) {
        let key = ReminderKey {
            actor_type: "Cart".to_owned(),
            actor_id: reminder.actor_id.clone(),
            name: reminder.name.clone(),
        };
        self.stored.lock().unwrap().insert(key, reminder);
    }

    pub(super) fn len(&self) -> usize {
        self.stored.lock().unwrap().len()
    }

    fn make(&self, change: ReminderChange) -> ReminderResult {
        let held = *self.epoch.lock().unwrap();
        let mut stored = self.stored.lock().unwrap();
        let version = self.changes.lock().unwrap().len() as u64;
        match change {
            ReminderChange::Put { epoch, .. }
            | ReminderChange::Advance { epoch, .. }
            | ReminderChange::Delete { epoch, .. }
            | ReminderChange::DeleteOfActor { epoch, .. }
                if epoch != held =>
            {
                return ReminderResult::Fenced;
            }
            ReminderChange::Put { key, if_absent: true, .. } if stored.contains_key(&key) => {
                return ReminderResult::Exists;
            }
            ReminderChange::Put { key, registration, .. } => {
                let (actor_id, name) = (key.actor_id.clone(), key.name.clone());
                stored.insert(key, Reminder { actor_id, name, version, registration });
            }
            ReminderChange::Advance { key, due, firings, .. } => {
                let Some(reminder) = stored.get_mut(&key) else { return ReminderResult::NotFound };
                reminder.registration.schedule.due = due;
                reminder.registration.schedule.firings = firings;
            }
            ReminderChange::Delete { key, .. } => {
                if stored.remove(&key).is_none() {
                    return ReminderResult::NotFound;
                }
            }
            ReminderChange::DeleteOfActor { actor_id, .. } => {
                stored.retain(|key, _| key.actor_id != actor_id);
            }
            ReminderChange::DeleteOfShards { .. } => stored.clear(),
        }
        ReminderResult::Done { version, deleted: 0 }
    }
}

#[tonic::async_trait]
impl ReminderStore for MemoryReminders {
    async fn write(&self, change: ReminderChange) -> Written {
        if let Some(reason) = self.unwritable.lock().unwrap().clone() {
            return Err(reason);
        }
        self.changes.lock().unwrap().push(change.clone());
        Ok(self.make(change))
    }

    async fn list(
        &self,
        _: &str,
        _: Vec<Grant>,
        each: &mut (dyn FnMut(Reminder) + Send),
    ) -> Result<(), String> {
        if let Some(reason) = self.unreadable.lock().unwrap().clone() {
            return Err(reason);
        }
        let all: Vec<_> = self.stored.lock().unwrap().values().cloned().collect();
        all.into_iter().for_each(each);
        Ok(())
    }
}

/// A control plane that does not answer.
#[derive(Default)]
pub(super) struct NoControl(AtomicUsize);

impl NoControl {
    /// How many connections were asked for.
    pub(super) fn connections(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[tonic::async_trait]
impl ControlLink for NoControl {
    async fn connect(&self) -> Result<Channel, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }

    async fn registered(&self) {}
}

/// The actors of the sidecar `me`, whose data loop responds as `loopback` does.
pub(super) fn actors(loopback: Arc<ScriptedLoopback>) -> Arc<Actors> {
    actors_with(loopback, |config| config)
}

/// The actors of the sidecar `me` after a change of their configuration.
pub(super) fn actors_with(
    loopback: Arc<ScriptedLoopback>,
    change: impl FnOnce(ActorsConfig) -> ActorsConfig,
) -> Arc<Actors> {
    Actors::new(change(ActorsConfig {
        me: host("me"),
        control: Arc::new(NoControl::default()),
        loopback,
        clock: Clock::tokio(),
        store: None,
        resiliency: None,
        message_bytes: None,
        actor_app: Arc::default(),
        announcer: None,
        metrics: None,
        in_daprds_place: false,
        has_placement: false,
    }))
}

/// Has `actors` run the turns of `test`'s host by `app`.
pub(super) fn run_here(
    actors: &Actors,
    test: &TestHost,
    app: Arc<ScriptedApp>,
    store: Arc<MemoryReminders>,
) {
    let host = Arc::clone(&test.host);
    let timers = Alarms::new(None, None, Clock::tokio());
    let reminders = Reminders::new(Arc::clone(&host), store, None);
    actors.set_hosting(Some(Hosting { host, app, timers, reminders }));
}

/// A turn of a method without body.
pub(super) fn method(name: &str) -> TurnKind {
    TurnKind::Method { name: name.to_owned(), query: None }
}

/// Fields of a call.
pub(super) fn fields(given: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in given {
        fields.append(*name, value.parse().unwrap());
    }
    fields
}
