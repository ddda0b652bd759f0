//! The one task that changes reminders: it takes what waits, decides it one after the other, and
//! writes what was decided as one transaction.
//!
//! What comes while the disk works is the next transaction, so that those who come together share
//! a commit. Whether a host may write is looked at when its request is decided; since nothing else
//! is decided before that is durable, a later holder of the shard, whose reading waits its turn
//! here too ([`Job::Settle`]), misses nothing that the former one was told is written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tollway_model::Label;
use tollway_placement::{Epoch, Shard};
use tollway_schedule::Moment;
use tollway_store::{KeyRange, OpenError, ReadError, Store, TransactError};
use tollway_wire::{Registration, ReminderChange, ReminderKey, ReminderResult};

use super::batch::Batch;
use super::counts::Counts;
use super::record::{self, Head};
use super::{decide, key};
use crate::book::{self, Book, Delta, Full, Limit};
use crate::placement::{Host, Placements};
use crate::stores::Stores;

/// Most reminders of a namespace.
const NAMESPACE_REMINDERS: u64 = 500_000;
/// Most bytes of the names and data of a namespace's reminders.
const NAMESPACE_REMINDER_BYTES: u64 = 128 << 20;
/// Most reminders of all namespaces; one takes about 150 bytes besides those that are counted.
const REMINDERS: u64 = 1_000_000;
/// Most bytes of the names and data of all: the control plane has them in memory.
const REMINDER_BYTES: u64 = 256 << 20;
pub(super) const BOOK: book::Limits = book::Limits {
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
/// Reminders that are read at once where all are looked at.
const PAGE: usize = 1_000;
/// What is over is removed at most so often.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Why reminders cannot be read or written.
#[derive(Debug, Error)]
pub(super) enum KeeperError {
    #[error("reminders cannot be opened")]
    Open(#[from] OpenError),
    #[error("reminders cannot be read")]
    Read(#[from] ReadError),
    #[error("reminders cannot be written")]
    Write(#[source] Arc<TransactError>),
    #[error("the host has not entered, or its lease has ended; enter, and then ask again")]
    NotEntered,
    #[error("the reminder {key} is of a later version of Tollway, or damaged")]
    Foreign { key: String },
}

/// What the keeper is asked for.
pub(super) enum Job {
    Write(Write),
    /// To answer when everything that was asked for before is durable.
    Settle(oneshot::Sender<()>),
}

pub(super) struct Write {
    pub(super) namespace: Label,
    pub(super) host: Host,
    pub(super) changes: Vec<ReminderChange>,
    /// Told when everything is durable; on an error each change may have been made or not.
    pub(super) reply: Reply,
}

type Reply = oneshot::Sender<Result<Vec<ReminderResult>, KeeperError>>;

pub(super) struct Keeper {
    store: Store,
    placements: Arc<Placements>,
    counts: Arc<Counts>,
    limits: book::Limits,
    book: Book,
    /// Keys of reminders that have an end.
    ends: BTreeSet<(Moment, Bytes)>,
    /// Of the last registration.
    version: u64,
    swept: Instant,
    batch: Batch,
    /// Who is told when the batch is durable.
    waiting: Vec<(Reply, Vec<ReminderResult>)>,
}

impl Keeper {
    /// Opens or makes the file.
    pub(super) async fn open(
        stores: &Stores,
        limits: book::Limits,
        placements: Arc<Placements>,
        counts: Arc<Counts>,
    ) -> Result<(Self, Store), KeeperError> {
        let bounds = tollway_store::Limits {
            // Nobody follows reminders.
            history_changes: 1,
            history_bytes: 1,
            page_bytes: super::PAGE_BYTES,
            ..Default::default()
        };
        let store = stores.open(super::FILE_NAME, bounds).await?;
        let recorder = counts.clone();
        store.observe_commits(move |commit| recorder.commits.record(commit));
        let mut keeper = Self {
            store: store.clone(),
            placements,
            counts,
            limits,
            book: Book::new(limits),
            ends: BTreeSet::new(),
            version: 0,
            swept: Instant::now(),
            batch: Batch::default(),
            waiting: Vec::new(),
        };
        keeper.recount().await?;
        Ok((keeper, store))
    }

    /// Serves until `stop`, or until nobody can ask any more.
    pub(super) async fn run(mut self, mut jobs: mpsc::Receiver<Job>, stop: CancellationToken) {
        loop {
            let sweep = self.next_sweep();
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(job) => self.serve(job, &mut jobs).await,
                    None => return,
                },
                () = sleep_until(sweep) => self.sweep().await,
                () = stop.cancelled() => return,
            }
        }
    }

    fn next_sweep(&self) -> Option<Instant> {
        let (ends, _) = self.ends.first()?;
        Some((Instant::now() + ends.after(now())).max(self.swept + SWEEP_EVERY))
    }

    /// Decides a job and what waits behind it, and writes that.
    async fn serve(&mut self, first: Job, jobs: &mut mpsc::Receiver<Job>) {
        let mut next = Some(first);
        while let Some(job) = next.take() {
            match job {
                Job::Write(write) => self.write(write).await,
                Job::Settle(reply) => {
                    self.commit().await.ok();
                    let _ = reply.send(());
                }
            }
            if !self.batch.is_full() {
                next = jobs.try_recv().ok();
            }
        }
        self.commit().await.ok();
    }

    async fn write(&mut self, write: Write) {
        let Write { namespace, host, changes, reply } = write;
        let allowed = self.placements.holding(&namespace, &host, |holds| {
            changes.iter().map(|change| may_change(change, holds)).collect::<Vec<bool>>()
        });
        let Some(allowed) = allowed else {
            let _ = reply.send(Err(KeeperError::NotEntered));
            return;
        };
        let mut results = Vec::with_capacity(changes.len());
        for (change, is_allowed) in changes.into_iter().zip(allowed) {
            let made = match is_allowed {
                true => self.change(&namespace, change).await,
                false => Ok(ReminderResult::Fenced),
            };
            let made = match made {
                Ok(result) => {
                    results.push(result);
                    if self.batch.is_full() { self.commit().await } else { Ok(()) }
                }
                Err(error) => Err(error),
            };
            if let Err(error) = made {
                let _ = reply.send(Err(error));
                return;
            }
        }
        self.waiting.push((reply, results));
    }

    async fn change(
        &mut self,
        namespace: &Label,
        change: ReminderChange,
    ) -> Result<ReminderResult, KeeperError> {
        match change {
            ReminderChange::Put { key, registration, if_absent, .. } => {
                self.put(namespace, &key, registration, if_absent).await
            }
            ReminderChange::Advance { key, version, due, firings, .. } => {
                let (key, standing) = self.standing(namespace, &key).await?;
                let head = standing.as_ref().map(|(head, _)| *head);
                match (decide::advance(head, version, due, firings), standing) {
                    (Ok(head), Some((_, record))) => {
                        self.batch.set(key, Some(head.put_before(&record)));
                        Ok(ReminderResult::Done { version, deleted: 0 })
                    }
                    (Ok(_), None) => Ok(ReminderResult::NotFound),
                    (Err(refused), _) => Ok(refused),
                }
            }
            ReminderChange::Delete { key, version, .. } => {
                let (key, standing) = self.standing(namespace, &key).await?;
                let head = standing.as_ref().map(|(head, _)| head);
                if let Err(refused) = decide::may_delete(head, version) {
                    return Ok(refused);
                }
                self.remove(key, standing);
                Ok(ReminderResult::Done { version: 0, deleted: 1 })
            }
            ReminderChange::DeleteOfActor { actor_type, actor_id, .. } => {
                self.remove_all(vec![key::of_actor(namespace, &actor_type, &actor_id)]).await
            }
            ReminderChange::DeleteOfShards { actor_type, grants } => {
                let shards = grants.iter().flat_map(|(_, shards)| shards.iter()).collect();
                self.remove_all(key::of_shards(namespace, &actor_type, &shards)).await
            }
        }
    }

    async fn put(
        &mut self,
        namespace: &Label,
        named: &ReminderKey,
        registration: Registration,
        if_absent: bool,
    ) -> Result<ReminderResult, KeeperError> {
        if let Err(refused) = decide::check_size(named, &registration) {
            return Ok(refused);
        }
        let (key, standing) = self.standing(namespace, named).await?;
        let now = now();
        if let Err(refused) =
            decide::may_put(standing.as_ref().map(|(head, _)| head), if_absent, now)
        {
            return Ok(refused);
        }
        // Higher than any before, even if the clock was put back.
        let version = (self.version + 1).max(u64::try_from(now.unix_micros()).unwrap_or(0));
        let (head, record) = record::write(version, registration);
        let mut delta = Delta::default();
        let old = standing.as_ref().map(|(_, record)| key.len() + record.len());
        delta.replace(old, Some(key.len() + record.len()));
        if let Err(Full { what, found, limit }) = self.book.reserve(key::namespace(&key), delta) {
            return Ok(ReminderResult::Excess { what: what.to_owned(), found, limit });
        }
        self.version = version;
        self.forget_end(&key, standing.as_ref().and_then(|(head, _)| head.ends));
        if let Some(ends) = head.ends {
            self.ends.insert((ends, key.clone()));
        }
        self.batch.set(key, Some(record));
        Ok(ReminderResult::Done { version, deleted: 0 })
    }

    /// The key of a reminder, and its record if there is one.
    async fn standing(
        &self,
        namespace: &Label,
        named: &ReminderKey,
    ) -> Result<(Bytes, Option<(Head, Bytes)>), KeeperError> {
        let key = key::of_reminder(namespace, named);
        let Some(record) = self.batch.get(&self.store, &key).await? else { return Ok((key, None)) };
        let head = Head::read(&record).ok_or_else(|| foreign(&key))?;
        Ok((key, Some((head, record))))
    }

    fn remove(&mut self, key: Bytes, standing: Option<(Head, Bytes)>) {
        let Some((head, record)) = standing else { return };
        self.forget_end(&key, head.ends);
        let mut delta = Delta::default();
        delta.replace(Some(key.len() + record.len()), None);
        self.book.count(key::namespace(&key), delta);
        self.batch.set(key, None);
    }

    fn forget_end(&mut self, key: &Bytes, ends: Option<Moment>) {
        if let Some(ends) = ends {
            self.ends.remove(&(ends, key.clone()));
        }
    }

    async fn remove_all(&mut self, ranges: Vec<KeyRange>) -> Result<ReminderResult, KeeperError> {
        // What is listed is what is durable.
        self.commit().await?;
        let mut deleted = 0;
        for range in ranges {
            let mut after: Option<Bytes> = None;
            loop {
                let page = self.store.list(&range, after.as_deref(), PAGE).await?;
                for entry in &page.entries {
                    let head = Head::read(&entry.value).ok_or_else(|| foreign(&entry.key))?;
                    // The page's entries share a buffer, which the batch need not keep.
                    let key = Bytes::copy_from_slice(&entry.key);
                    self.remove(key, Some((head, entry.value.clone())));
                    deleted += 1;
                }
                if self.batch.is_full() {
                    self.commit().await?;
                }
                after = page.entries.last().map(|entry| entry.key.clone());
                if !page.more {
                    break;
                }
            }
        }
        Ok(ReminderResult::Done { version: 0, deleted })
    }

    /// Makes what was decided durable, and tells who waits for it.
    async fn commit(&mut self) -> Result<(), KeeperError> {
        let written = match self.batch.is_empty() {
            true => Ok(()),
            false => self.store.transact(self.batch.take()).await.map(drop).map_err(Arc::new),
        };
        for (reply, results) in self.waiting.drain(..) {
            let answer = match &written {
                Ok(()) => {
                    results.iter().for_each(|result| self.counts.result(result));
                    Ok(results)
                }
                Err(error) => Err(KeeperError::Write(error.clone())),
            };
            let _ = reply.send(answer);
        }
        if written.is_err()
            && let Err(error) = self.recount().await
        {
            let reason = tollway_model::chain(&error);
            tracing::warn!(reason, "reminders could not be counted");
        }
        self.counts.kept(self.book.all());
        written.map_err(KeeperError::Write)
    }

    /// Counts what is durable. What is more than a limit allows stays.
    async fn recount(&mut self) -> Result<(), KeeperError> {
        self.book = Book::new(self.limits);
        self.ends.clear();
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.store.list(&KeyRange::all(), after.as_deref(), PAGE).await?;
            for entry in &page.entries {
                let mut delta = Delta::default();
                delta.replace(None, Some(entry.key.len() + entry.value.len()));
                self.book.count(key::namespace(&entry.key), delta);
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
        self.counts.kept(self.book.all());
        Ok(())
    }

    /// Removes what is over.
    async fn sweep(&mut self) {
        self.swept = Instant::now();
        let now = now();
        let mut expired = 0;
        while let Some((_, key)) = self.ends.first().filter(|(ends, _)| *ends <= now).cloned() {
            let standing = match self.batch.get(&self.store, &key).await {
                Ok(record) => record.and_then(|record| Some((Head::read(&record)?, record))),
                Err(_) => return,
            };
            self.ends.pop_first();
            self.remove(key, standing.filter(|(head, _)| head.is_over(now)));
            expired += 1;
            if self.batch.is_full() {
                break;
            }
        }
        if let Err(error) = self.commit().await {
            let reason = tollway_model::chain(&error);
            tracing::warn!(reason, "reminders whose time has come were not removed");
            return;
        }
        self.counts.expired(expired);
    }
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

fn foreign(key: &Bytes) -> KeeperError {
    let (id, name) = key::id_and_name(key).unwrap_or_default();
    KeeperError::Foreign { key: format!("{name} of {id}").escape_debug().to_string() }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

pub(super) fn now() -> Moment {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment::since_unix_epoch(elapsed)
}

#[cfg(test)]
mod tests;
