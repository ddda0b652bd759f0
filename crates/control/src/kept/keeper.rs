//! Reads and writes of entries in the file, with conditions, time to live and limits.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tollway_store::{KeyRange, Limits, OpenError, ReadError, Store, TransactError, Transaction};
use tollway_wire::v1::state_change::Condition;
use tollway_wire::v1::{KeptState, StateChange, StateFence, WriteStateRequest};

use super::record::{HEAD_BYTES, Record};
use crate::book::{self, Book, Delta, Full, Limit, Usage};
use crate::plane::unix_now_ms;
use crate::stores::Stores;

/// Longest key of an app, in bytes: with the app's name it is one of the store.
const STATE_KEY_BYTES: usize = 800;
/// Largest value, in bytes.
const STATE_VALUE_BYTES: usize = 1 << 20;
/// Most changes of one request.
const STATE_CHANGES: usize = 1000;
/// Most keys of one read.
const STATE_KEYS: usize = 10_000;
/// Most bytes of values in the answer to one read.
const STATE_ANSWER_BYTES: usize = 3 << 20;
/// Most bytes of keys and values of one app.
const APP_STATE_BYTES: u64 = 64 << 20;
/// Most entries of one app.
const APP_STATE_ENTRIES: u64 = 100_000;
/// Most bytes of keys and values of all apps: the control plane has them in memory.
const STATE_BYTES: u64 = 256 << 20;
const BOOK: book::Limits = book::Limits {
    owner_bytes: Limit { what: "what the app keeps in bytes", most: APP_STATE_BYTES },
    owner_entries: Limit { what: "the number of the app's entries", most: APP_STATE_ENTRIES },
    bytes: Limit { what: "what all apps keep in bytes", most: STATE_BYTES },
    // Each has bytes.
    entries: Limit { what: "the number of all entries", most: u64::MAX },
};
/// Locks that the keys share.
const LOCKS: usize = 1024;
/// How often entries whose time has come are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Entries that are looked at between two breaths.
const PAGE: usize = 1000;

/// Why a request was not carried out.
#[derive(Debug, Error)]
pub(super) enum KeptError {
    #[error("what apps keep cannot be opened")]
    Open(#[from] OpenError),
    #[error("what apps keep cannot be read")]
    Read(#[from] ReadError),
    #[error("what apps keep cannot be written")]
    Write(#[from] TransactError),
    #[error("the entry {key} is of a later version of Tollway, or damaged")]
    Foreign { key: String },
    #[error("the request is malformed: {0}")]
    Malformed(String),
    #[error("the write was refused")]
    Refused(Refused),
}

/// A write that was refused for what is there, or for its size. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// The entry is not as expected; it is of this revision, 0 for none.
    Mismatch {
        key: String,
        revision: u64,
    },
    Fenced,
    Excess {
        what: String,
        found: u64,
        limit: u64,
    },
}

/// The entries of all apps.
pub(super) struct Keeper {
    store: Store,
    book: Mutex<Book>,
    locks: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
}

/// An entry that stands under a key, over or not.
struct Standing {
    record: Record,
    revision: u64,
}

impl Keeper {
    /// Opens or makes the file, counts what is in it, and removes from then on what is over.
    pub(super) async fn open(stores: &Stores) -> Result<Arc<Self>, KeptError> {
        let limits = Limits {
            value_bytes: STATE_VALUE_BYTES + HEAD_BYTES,
            // Nobody follows what apps keep.
            history_changes: 1,
            history_bytes: 1,
            ..Limits::default()
        };
        let store = stores.open(super::FILE_NAME, limits).await?;
        let keeper = Arc::new(Self {
            book: Mutex::new(Book::new(BOOK)),
            locks: (0..LOCKS).map(|_| tokio::sync::Mutex::new(())).collect(),
            hasher: RandomState::new(),
            store,
        });
        keeper.count().await?;
        tokio::spawn(sweep(Arc::downgrade(&keeper)));
        Ok(keeper)
    }

    /// Entries in the order of their keys, as many as fit into an answer.
    pub(super) async fn read(
        &self,
        owner: &str,
        keys: &[String],
    ) -> Result<Vec<KeptState>, KeptError> {
        if keys.len() > STATE_KEYS {
            let text = format!("it asks for {} keys; ask for {STATE_KEYS} at most", keys.len());
            return Err(KeptError::Malformed(text));
        }
        let now = unix_now_ms();
        let (mut entries, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        for key in keys {
            let standing = self.standing(owner, key).await?;
            let standing = standing.filter(|standing| !standing.record.is_over(now));
            let entry = standing.map_or_else(KeptState::default, |standing| KeptState {
                value: standing.record.value.into(),
                revision: standing.revision,
                expires_unix_ms: standing.record.expires_unix_ms,
            });
            bytes += entry.value.len();
            if bytes > STATE_ANSWER_BYTES && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Makes all changes, or none. Must be run to its end.
    pub(super) async fn write(
        &self,
        owner: &str,
        request: WriteStateRequest,
    ) -> Result<(), KeptError> {
        check(&request)?;
        let WriteStateRequest { changes, fence } = request;
        let keys = changes.iter().map(|change| &change.key);
        let locks = self.locks_of(owner, keys.chain(fence.as_ref().map(|fence| &fence.key)));
        let mut held = Vec::with_capacity(locks.len());
        for lock in locks {
            held.push(self.locks[lock].lock().await);
        }
        let now = unix_now_ms();
        let (mut transaction, mut delta) = (Transaction::new(), Delta::default());
        if let Some(fence) = fence {
            transaction = self.raise(owner, &fence, transaction, &mut delta).await?;
        }
        for change in changes {
            let standing = self.standing(owner, &change.key).await?;
            holds(&change, standing.as_ref(), now)?;
            let key = stored_key(owner, &change.key);
            let old = standing.map(|standing| key.len() + standing.record.value.len());
            delta.replace(old, change.value.as_ref().map(|value| key.len() + value.len()));
            transaction = match change.value {
                None => transaction.delete(key),
                Some(value) => {
                    let expires_unix_ms = expiry(now, change.ttl_seconds);
                    let record = Record { expires_unix_ms, value: value.into() };
                    transaction.put(key, record.encode())
                }
            };
        }
        self.book().reserve(owner, delta).map_err(|full| KeptError::Refused(full.into()))?;
        let written = self.store.transact(transaction).await;
        if let Err(error) = &written
            && !matches!(error, TransactError::Disk { .. } | TransactError::Closed)
        {
            self.book().release(owner, delta);
        }
        written.map(drop).map_err(KeptError::Write)
    }

    /// Adds a larger number of a fence to a transaction.
    async fn raise(
        &self,
        owner: &str,
        fence: &StateFence,
        transaction: Transaction,
        delta: &mut Delta,
    ) -> Result<Transaction, KeptError> {
        let standing = self.standing(owner, &fence.key).await?;
        if let Some(standing) = &standing {
            let text = std::str::from_utf8(&standing.record.value).ok();
            let kept: u64 = text
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| KeptError::Foreign { key: fence.key.clone() })?;
            if kept > fence.number {
                return Err(KeptError::Refused(Refused::Fenced));
            }
            if kept == fence.number {
                return Ok(transaction);
            }
        }
        let key = stored_key(owner, &fence.key);
        let number = Bytes::from(fence.number.to_string());
        let old = standing.map(|standing| key.len() + standing.record.value.len());
        delta.replace(old, Some(key.len() + number.len()));
        let record = Record { expires_unix_ms: 0, value: number };
        Ok(transaction.put(key, record.encode()))
    }

    async fn standing(&self, owner: &str, key: &str) -> Result<Option<Standing>, KeptError> {
        let Some(entry) = self.store.get(stored_key(owner, key).as_bytes()).await? else {
            return Ok(None);
        };
        let record = Record::decode(&entry.value);
        let record = record.ok_or_else(|| KeptError::Foreign { key: key.to_owned() })?;
        Ok(Some(Standing { record, revision: entry.revision }))
    }

    /// The locks of keys, each once, in the order in which everybody takes them.
    fn locks_of<'a>(&self, owner: &str, keys: impl Iterator<Item = &'a String>) -> BTreeSet<usize> {
        let place = |key: &String| self.hasher.hash_one((owner, key)) as usize % LOCKS;
        keys.map(place).collect()
    }

    /// What all apps keep.
    pub(super) fn usage(&self) -> Usage {
        self.book().all()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what is there. What is more than a limit allows stays.
    async fn count(&self) -> Result<(), KeptError> {
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.store.list(&KeyRange::all(), after.as_deref(), PAGE).await?;
            for entry in &page.entries {
                let size = entry.key.len() + entry.value.len().saturating_sub(HEAD_BYTES);
                let mut delta = Delta::default();
                delta.replace(None, Some(size));
                self.book().count(owner_of(&entry.key), delta);
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Removes what is over.
    async fn sweep(&self) -> Result<(), KeptError> {
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.store.list(&KeyRange::all(), after.as_deref(), PAGE).await?;
            let now = unix_now_ms();
            for entry in &page.entries {
                if Record::decode(&entry.value).is_some_and(|record| record.is_over(now)) {
                    self.remove_if_over(&entry.key).await?;
                }
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more {
                return Ok(());
            }
        }
    }

    async fn remove_if_over(&self, stored: &Bytes) -> Result<(), KeptError> {
        let owner = owner_of(stored);
        let Some(key) = std::str::from_utf8(&stored[owner.len()..]).ok().map(str::to_owned) else {
            return Ok(());
        };
        for lock in self.locks_of(owner, std::iter::once(&key)) {
            let _held = self.locks[lock].lock().await;
            let standing = self.standing(owner, &key).await?;
            let Some(standing) = standing.filter(|it| it.record.is_over(unix_now_ms())) else {
                continue;
            };
            self.store.transact(Transaction::new().delete(stored.clone())).await?;
            let mut delta = Delta::default();
            delta.replace(Some(stored.len() + standing.record.value.len()), None);
            self.book().count(owner, delta);
        }
        Ok(())
    }
}

/// Sweeps as long as somebody holds the keeper.
async fn sweep(keeper: std::sync::Weak<Keeper>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(keeper) = keeper.upgrade() else { return };
        if let Err(error) = keeper.sweep().await {
            let reason = tollway_model::chain(&error);
            tracing::warn!(reason, "entries of apps whose time has come were not removed");
        }
    }
}

/// What can be said of a request without looking.
fn check(request: &WriteStateRequest) -> Result<(), KeptError> {
    let excess = |what: String, found: usize, limit: usize| {
        let (found, limit) = (found as u64, limit as u64);
        Err(KeptError::Refused(Refused::Excess { what, found, limit }))
    };
    if request.changes.len() > STATE_CHANGES {
        return excess("the number of changes".to_owned(), request.changes.len(), STATE_CHANGES);
    }
    let mut keys = HashSet::new();
    let fence = request.fence.as_ref().map(|fence| &fence.key);
    for key in request.changes.iter().map(|change| &change.key).chain(fence) {
        if key.len() > STATE_KEY_BYTES {
            return excess("a key in bytes".to_owned(), key.len(), STATE_KEY_BYTES);
        }
        if !keys.insert(key) {
            return Err(KeptError::Malformed(format!("it has the key {key} twice")));
        }
    }
    for StateChange { key, value, .. } in &request.changes {
        let bytes = value.as_ref().map_or(0, Vec::len);
        if bytes > STATE_VALUE_BYTES {
            return excess(format!("the value of {key} in bytes"), bytes, STATE_VALUE_BYTES);
        }
    }
    Ok(())
}

fn holds(change: &StateChange, standing: Option<&Standing>, now: u64) -> Result<(), KeptError> {
    let standing = standing.filter(|standing| !standing.record.is_over(now));
    let revision = standing.map_or(0, |standing| standing.revision);
    let holds = match change.condition {
        None | Some(Condition::Absent(false)) => true,
        Some(Condition::Absent(true)) => revision == 0,
        Some(Condition::Revision(expected)) => revision == expected && revision != 0,
    };
    if holds {
        return Ok(());
    }
    Err(KeptError::Refused(Refused::Mismatch { key: change.key.clone(), revision }))
}

fn stored_key(owner: &str, key: &str) -> String {
    format!("{owner}{key}")
}

/// The start of a stored key, up to and with its second `/`.
fn owner_of(key: &[u8]) -> &str {
    let ends = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let end = ends.take(2).last().map_or(0, |at| at + 1);
    std::str::from_utf8(&key[..end]).unwrap_or_default()
}

fn expiry(now_unix_ms: u64, ttl_seconds: u32) -> u64 {
    if ttl_seconds == 0 { 0 } else { now_unix_ms + u64::from(ttl_seconds) * 1000 }
}

impl From<Full> for Refused {
    fn from(full: Full) -> Self {
        Self::Excess { what: full.what.to_owned(), found: full.found, limit: full.limit }
    }
}
