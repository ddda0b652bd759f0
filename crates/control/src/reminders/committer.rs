//! Decides what requests change in the file of reminders, and keeps its counts and ends equal to what
//! is durable. `tollway_store::Sequencer` runs it: it is the only writer of the file.
//!
//! Whether a host may write is checked when its request is decided. A later holder of the shard
//! reads after `Sequencer::settle`, so it sees every write that an earlier holder got a response
//! for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;
use tollway_actors::placement::{Epoch, Shard};
use tollway_actors::schedule::Moment;
use tollway_model::Label;
use tollway_store::{
    CommitOutcome, Decide, KeyRange, OpenError, Pending, ReadError, Store, TransactError,
};
use tollway_wire::{Registration, ReminderChange, ReminderKey, ReminderResult, v1};

use super::counts::Counts;
use super::record::{self, Head};
use super::{decide, key};
use crate::placement::{Host, Placements};
use crate::quota::{self, Delta, Full, Limit, Quotas};
use crate::stores::Stores;

/// Name of the file in the directory of the store.
pub(crate) const FILE_NAME: &str = "tollway.reminders";
/// Bytes of one page of a list.
pub(super) const PAGE_BYTES: usize = 256 << 10;
/// Most reminders of a namespace.
const NAMESPACE_REMINDERS: u64 = 500_000;
/// Most bytes of the names and data of a namespace's reminders.
const NAMESPACE_REMINDER_BYTES: u64 = 128 << 20;
/// Most reminders of all namespaces; one takes about 150 bytes besides those that are counted.
const REMINDERS: u64 = 1_000_000;
/// Most bytes of the names and data of all: the control plane has them in memory.
const REMINDER_BYTES: u64 = 256 << 20;
/// For the operator.
pub(super) const QUOTAS: v1::ReminderQuotas = v1::ReminderQuotas {
    namespace_entries: NAMESPACE_REMINDERS,
    namespace_bytes: NAMESPACE_REMINDER_BYTES,
    entries: REMINDERS,
    bytes: REMINDER_BYTES,
};
pub(super) const LIMITS: quota::Limits = quota::Limits {
    owner_bytes: Limit {
        what: "bytes of the namespace's reminders",
        most: NAMESPACE_REMINDER_BYTES,
    },
    owner_entries: Limit {
        what: "the number of the namespace's reminders",
        most: NAMESPACE_REMINDERS,
    },
    bytes: Limit { what: "bytes of all reminders", most: REMINDER_BYTES },
    entries: Limit { what: "the number of all reminders", most: REMINDERS },
};
/// Reminders that are read at once in a pass over all of them.
const PAGE: usize = 1_000;
/// What is over is removed at most so often.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Why reminders cannot be read or written.
#[derive(Debug, Error)]
pub(super) enum RemindersError {
    #[error("reminders cannot be opened")]
    Open(#[from] OpenError),
    #[error("reminders cannot be read")]
    Read(#[from] ReadError),
    #[error("reminders cannot be written")]
    Write(#[from] Arc<TransactError>),
    #[error("the host has not entered, or its lease has ended; enter, and then ask again")]
    NotEntered,
    #[error(
        "the actor type {namespace}/{actor_type} has hosts, which go by the reminders that they know; stop the app, and try again"
    )]
    HasHosts { namespace: Label, actor_type: String },
    #[error("the reminder {key} is of a later version of Tollway, or damaged")]
    Foreign { key: String },
}

/// The changes of one request. After an error each of them may or may not have been made.
pub(super) struct Write {
    pub(super) namespace: Label,
    pub(super) host: Host,
    pub(super) changes: Vec<ReminderChange>,
}

/// What an operator removes of a type that has no hosts.
pub(super) struct Removal {
    pub(super) namespace: Label,
    pub(super) actor_type: String,
    pub(super) range: KeyRange,
}

pub(super) enum Request {
    Write(Write),
    Remove(Removal),
}

pub(super) struct Committer {
    placements: Arc<Placements>,
    counts: Arc<Counts>,
    limits: quota::Limits,
    quotas: Quotas,
    /// Keys of reminders that have an end.
    ends: BTreeSet<(Moment, Bytes)>,
    /// Of the last registration.
    version: u64,
    swept: Instant,
    store: Store,
}

impl Decide for Committer {
    type Request = Request;
    type Response = Vec<ReminderResult>;
    type Error = RemindersError;

    async fn decide(
        &mut self,
        pending: &mut Pending<Self>,
        request: Request,
    ) -> Result<Vec<ReminderResult>, RemindersError> {
        let Write { namespace, host, changes } = match request {
            Request::Write(write) => write,
            Request::Remove(Removal { namespace, actor_type, range }) => {
                // A host that enters afterwards reads after this request.
                if self.placements.has_hosts(&namespace, &actor_type) {
                    return Err(RemindersError::HasHosts { namespace, actor_type });
                }
                return Ok(vec![self.remove_all(pending, vec![range]).await?]);
            }
        };
        let allowed = self.placements.holding(&namespace, &host, |holds| {
            changes.iter().map(|change| may_change(change, holds)).collect::<Vec<bool>>()
        });
        let allowed = allowed.ok_or(RemindersError::NotEntered)?;
        let mut results = Vec::with_capacity(changes.len());
        for (change, is_allowed) in changes.into_iter().zip(allowed) {
            results.push(match is_allowed {
                true => self.change(pending, &namespace, change).await?,
                false => ReminderResult::Fenced,
            });
            pending.make_room_for(0, self).await?;
        }
        Ok(results)
    }

    async fn committed(&mut self, outcome: &CommitOutcome) {
        if outcome.written.is_err()
            && let Err(error) = self.recount().await
        {
            let reason = tollway_model::chain(&error);
            tracing::warn!(reason, "reminders could not be counted");
        }
        self.counts.set_usage(self.quotas.all());
    }

    fn answer(
        &mut self,
        results: Vec<ReminderResult>,
        outcome: &CommitOutcome,
    ) -> Result<Vec<ReminderResult>, RemindersError> {
        outcome.written.clone()?;
        results.iter().for_each(|result| self.counts.result(result));
        Ok(results)
    }

    fn upkeep_at(&self) -> Option<Instant> {
        let (ends, _) = self.ends.first()?;
        Some((Instant::now() + ends.after(now())).max(self.swept + SWEEP_EVERY))
    }

    async fn upkeep(&mut self, pending: &mut Pending<Self>) {
        self.sweep(pending).await;
    }
}

impl Committer {
    /// Opens or makes the file, and counts what is in it.
    pub(super) async fn open(
        stores: &Stores,
        limits: quota::Limits,
        placements: Arc<Placements>,
        counts: Arc<Counts>,
    ) -> Result<(Self, Store), RemindersError> {
        let bounds = tollway_store::Limits {
            // No watch reads reminders.
            history_changes: 1,
            history_bytes: 1,
            page_bytes: PAGE_BYTES,
            ..Default::default()
        };
        let store = stores.open(FILE_NAME, bounds).await?;
        let recorder = counts.clone();
        store.observe_commits(move |commit| recorder.commits.record(commit));
        let mut committer = Self {
            store: store.clone(),
            placements,
            counts,
            limits,
            quotas: Quotas::new(limits),
            ends: BTreeSet::new(),
            version: 0,
            swept: Instant::now(),
        };
        committer.recount().await?;
        Ok((committer, store))
    }

    async fn change(
        &mut self,
        pending: &mut Pending<Self>,
        namespace: &Label,
        change: ReminderChange,
    ) -> Result<ReminderResult, RemindersError> {
        match change {
            ReminderChange::Put { key, registration, if_absent, .. } => {
                self.put(pending, namespace, &key, registration, if_absent).await
            }
            ReminderChange::Advance { key, version, due, firings, .. } => {
                let (key, present) = read(pending, namespace, &key).await?;
                let head = present.as_ref().map(|(head, _)| *head);
                match (decide::advance(head, version, due, firings), present) {
                    (Ok(head), Some((_, record))) => {
                        pending.put(key, head.put_before(&record));
                        Ok(ReminderResult::Done { version, deleted: 0 })
                    }
                    (Ok(_), None) => Ok(ReminderResult::NotFound),
                    (Err(refused), _) => Ok(refused),
                }
            }
            ReminderChange::Delete { key, version, .. } => {
                let (key, present) = read(pending, namespace, &key).await?;
                let head = present.as_ref().map(|(head, _)| head);
                if let Err(refused) = decide::may_delete(head, version) {
                    return Ok(refused);
                }
                self.remove(pending, key, present);
                Ok(ReminderResult::Done { version: 0, deleted: 1 })
            }
            ReminderChange::DeleteOfActor { actor_type, actor_id, .. } => {
                let range = key::of_actor(namespace, &actor_type, &actor_id);
                self.remove_all(pending, vec![range]).await
            }
            ReminderChange::DeleteOfShards { actor_type, grants } => {
                let shards = grants.iter().flat_map(|(_, shards)| shards.iter()).collect();
                let ranges = key::of_shards(namespace, &actor_type, &shards);
                self.remove_all(pending, ranges).await
            }
        }
    }

    async fn put(
        &mut self,
        pending: &mut Pending<Self>,
        namespace: &Label,
        named: &ReminderKey,
        registration: Registration,
        if_absent: bool,
    ) -> Result<ReminderResult, RemindersError> {
        if let Err(refused) = decide::check_size(named, &registration) {
            return Ok(refused);
        }
        let (key, present) = read(pending, namespace, named).await?;
        let now = now();
        if let Err(refused) =
            decide::may_put(present.as_ref().map(|(head, _)| head), if_absent, now)
        {
            return Ok(refused);
        }
        // Higher than any before, even if the clock was put back.
        let version = (self.version + 1).max(u64::try_from(now.unix_micros()).unwrap_or(0));
        let (head, record) = record::write(version, registration);
        let mut delta = Delta::default();
        let old = present.as_ref().map(|(_, record)| key.len() + record.len());
        delta.replace(old, Some(key.len() + record.len()));
        if let Err(Full { what, found, limit }) = self.quotas.reserve(key::namespace(&key), delta) {
            return Ok(ReminderResult::Excess { what: what.to_owned(), found, limit });
        }
        self.version = version;
        self.forget_end(&key, present.as_ref().and_then(|(head, _)| head.ends));
        if let Some(ends) = head.ends {
            self.ends.insert((ends, key.clone()));
        }
        pending.put(key, record);
        Ok(ReminderResult::Done { version, deleted: 0 })
    }

    fn remove(&mut self, pending: &mut Pending<Self>, key: Bytes, present: Option<(Head, Bytes)>) {
        let Some((head, record)) = present else { return };
        self.forget_end(&key, head.ends);
        let mut delta = Delta::default();
        delta.replace(Some(key.len() + record.len()), None);
        self.quotas.count(key::namespace(&key), delta);
        pending.delete(key);
    }

    fn forget_end(&mut self, key: &Bytes, ends: Option<Moment>) {
        if let Some(ends) = ends {
            self.ends.remove(&(ends, key.clone()));
        }
    }

    async fn remove_all(
        &mut self,
        pending: &mut Pending<Self>,
        ranges: Vec<KeyRange>,
    ) -> Result<ReminderResult, RemindersError> {
        // What is listed is what is durable.
        pending.commit(self).await?;
        let mut deleted = 0;
        for range in ranges {
            let mut after: Option<Bytes> = None;
            loop {
                let page = self.store.list(&range, after.as_deref(), PAGE).await?;
                for entry in &page.entries {
                    let head = Head::read(&entry.value).ok_or_else(|| foreign(&entry.key))?;
                    // The page's entries share a buffer, which a pending key would hold.
                    let key = Bytes::copy_from_slice(&entry.key);
                    self.remove(pending, key, Some((head, entry.value.clone())));
                    deleted += 1;
                }
                pending.make_room_for(0, self).await?;
                after = page.entries.last().map(|entry| entry.key.clone());
                if !page.more {
                    break;
                }
            }
        }
        Ok(ReminderResult::Done { version: 0, deleted })
    }

    /// Counts what is durable. What is more than a limit allows stays.
    async fn recount(&mut self) -> Result<(), RemindersError> {
        self.quotas = Quotas::new(self.limits);
        self.ends.clear();
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.store.list(&KeyRange::all(), after.as_deref(), PAGE).await?;
            for entry in &page.entries {
                let mut delta = Delta::default();
                delta.replace(None, Some(entry.key.len() + entry.value.len()));
                self.quotas.count(key::namespace(&entry.key), delta);
                let Some(head) = Head::read(&entry.value) else { continue };
                self.version = self.version.max(head.version);
                if let Some(ends) = head.ends {
                    self.ends.insert((ends, Bytes::copy_from_slice(&entry.key)));
                }
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more {
                break;
            }
        }
        self.counts.set_usage(self.quotas.all());
        Ok(())
    }

    /// Removes reminders that are over, at most a group of them.
    async fn sweep(&mut self, pending: &mut Pending<Self>) {
        self.swept = Instant::now();
        let now = now();
        let mut expired = 0;
        while let Some((_, key)) = self.ends.first().filter(|(ends, _)| *ends <= now).cloned() {
            let present = match pending.get(&key).await {
                Ok(record) => record.and_then(|record| Some((Head::read(&record)?, record))),
                Err(_) => return,
            };
            self.ends.pop_first();
            self.remove(pending, key, present.filter(|(head, _)| head.is_over(now)));
            expired += 1;
            if pending.is_full() {
                break;
            }
        }
        if let Err(error) = pending.commit(self).await {
            let reason = tollway_model::chain(error.as_ref());
            tracing::warn!(reason, "reminders whose time has come were not removed");
            return;
        }
        self.counts.expired(expired);
    }
}

/// The key of a reminder, and its record if there is one.
async fn read(
    pending: &Pending<Committer>,
    namespace: &Label,
    named: &ReminderKey,
) -> Result<(Bytes, Option<(Head, Bytes)>), RemindersError> {
    let key = key::of_reminder(namespace, named);
    let Some(record) = pending.get(&key).await? else { return Ok((key, None)) };
    let head = Head::read(&record).ok_or_else(|| foreign(&key))?;
    Ok((key, Some((head, record))))
}

/// Whether the host holds what the change is about.
fn may_change(change: &ReminderChange, holds: &dyn Fn(&str, Shard, Epoch) -> bool) -> bool {
    match change {
        ReminderChange::Put { key, epoch, .. }
        | ReminderChange::Advance { key, epoch, .. }
        | ReminderChange::Delete { key, epoch, .. } => holds(&key.actor_type, key.shard(), *epoch),
        ReminderChange::DeleteOfActor { actor_type, actor_id, epoch } => {
            holds(actor_type, Shard::of(actor_id), *epoch)
        }
        ReminderChange::DeleteOfShards { actor_type, grants } => grants
            .iter()
            .all(|(epoch, shards)| shards.iter().all(|shard| holds(actor_type, shard, *epoch))),
    }
}

fn foreign(key: &Bytes) -> RemindersError {
    let (id, name) = key::id_and_name(key).unwrap_or_default();
    RemindersError::Foreign { key: format!("{name} of {id}").escape_debug().to_string() }
}

pub(super) fn now() -> Moment {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment::since_unix_epoch(elapsed)
}

#[cfg(test)]
mod tests;
