//! Decides writes of app state: conditions, fences, time to live and limits.
//! `tollway_store::Sequencer` runs it: it is the only writer of the file.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;
use tollway_store::{
    CommitOutcome, Decide, KeyRange, Limits, OpenError, Pending, ReadError, Store, TransactError,
};
use tollway_telemetry::metrics::Gauge;
use tollway_wire::v1::state_change::Condition;
use tollway_wire::v1::{StateChange, StateFence, WriteStateRequest};
use tollway_wire::{STATE_VALUE_BYTES, StateWriteError, check_state_write};

use super::quotas::AppQuotas;
use super::record::{HEAD_BYTES, Record};
use crate::clock::unix_now_ms;
use crate::quota::{Delta, Full};
use crate::stores::Stores;

/// Name of the file in the directory of the store.
pub(crate) const FILE_NAME: &str = "tollway.state";
/// How often entries that are over are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Entries that are read in one step of counting, listing or sweeping.
pub(super) const PAGE: usize = 1000;

/// Why a request was not carried out.
#[derive(Debug, Error)]
pub(super) enum StateError {
    #[error("app state cannot be opened")]
    Open(#[from] OpenError),
    #[error("app state cannot be read")]
    Read(#[from] ReadError),
    #[error("app state cannot be written")]
    Write(#[from] Arc<TransactError>),
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

/// One request to change the entries of an app.
pub(super) struct Write {
    pub(super) owner: String,
    pub(super) request: WriteStateRequest,
}

/// Entries and bytes of all apps.
#[derive(Default)]
pub(super) struct Usage {
    pub(super) entries: Gauge,
    pub(super) bytes: Gauge,
}

pub(super) struct Committer {
    store: Store,
    usage: Arc<Usage>,
    quotas: AppQuotas,
    /// What the changes that are not durable yet did to the quotas.
    undurable: Vec<(String, Delta)>,
    next_sweep: Instant,
    /// The last key that the running sweep has read.
    swept_to: Option<Bytes>,
}

/// One change of a stored key, decided and not made yet.
struct Step {
    key: String,
    record: Option<Record>,
}

impl Decide for Committer {
    type Request = Write;
    type Response = ();
    type Error = StateError;

    /// Makes all changes of a request, or none.
    async fn decide(
        &mut self,
        pending: &mut Pending<Self>,
        write: Write,
    ) -> Result<(), StateError> {
        let Write { owner, request } = write;
        check_state_write(&request)?;
        // An entry has its revision once it is durable, and a condition refers to that revision.
        let is_pending = |change: &StateChange| {
            change.condition.is_some()
                && pending.change(stored_key(&owner, &change.key).as_bytes()).is_some()
        };
        if request.changes.iter().any(is_pending) {
            pending.commit(self).await?;
        }
        pending.make_room_for(bytes_of(&owner, &request.changes), self).await?;
        let (mut steps, mut delta) = (Vec::with_capacity(request.changes.len()), Delta::default());
        if let Some(fence) = &request.fence {
            steps.extend(raise(pending, &owner, fence, &mut delta).await?);
        }
        let now = unix_now_ms();
        for change in request.changes {
            steps.push(step(pending, &owner, change, now, &mut delta).await?);
        }
        self.quotas.reserve(&owner, delta).map_err(|full| StateError::Refused(full.into()))?;
        self.undurable.push((owner, delta));
        for Step { key, record } in steps {
            match record {
                Some(record) => pending.put(key.into(), record.encode()),
                None => pending.delete(key.into()),
            }
        }
        Ok(())
    }

    async fn committed(&mut self, outcome: &CommitOutcome) {
        let undurable = std::mem::take(&mut self.undurable);
        if let Err(error) = &outcome.written
            && !is_unknown(error)
        {
            for (owner, delta) in undurable {
                self.quotas.release(&owner, delta);
            }
        }
        self.show_usage();
    }

    fn answer(&mut self, (): (), outcome: &CommitOutcome) -> Result<(), StateError> {
        outcome.written.clone()?;
        Ok(())
    }

    fn upkeep_at(&self) -> Option<Instant> {
        Some(self.next_sweep)
    }

    async fn upkeep(&mut self, pending: &mut Pending<Self>) {
        if let Err(error) = self.sweep(pending).await {
            let reason = tollway_model::chain(&error);
            tracing::warn!(reason, "entries of apps whose time has come were not removed");
        }
    }
}

impl Committer {
    /// Opens or makes the file, and counts what is in it.
    pub(super) async fn open(
        stores: &Stores,
        usage: Arc<Usage>,
    ) -> Result<(Self, Store), StateError> {
        let limits = Limits {
            value_bytes: STATE_VALUE_BYTES + HEAD_BYTES,
            // No watch reads app state.
            history_changes: 1,
            history_bytes: 1,
            ..Limits::default()
        };
        let store = stores.open(FILE_NAME, limits).await?;
        let mut committer = Self {
            store: store.clone(),
            usage,
            quotas: AppQuotas::default(),
            undurable: Vec::new(),
            next_sweep: Instant::now() + SWEEP_EVERY,
            swept_to: None,
        };
        committer.count().await?;
        Ok((committer, store))
    }

    /// Counts what is there. What is more than a limit allows stays.
    async fn count(&mut self) -> Result<(), StateError> {
        let (all, mut after) = (KeyRange::all(), None::<Bytes>);
        loop {
            let quotas = &mut self.quotas;
            let scan = self.store.scan(&all, after.as_deref(), PAGE, |entry| {
                let size = size_of(entry.key, entry.value);
                let mut delta = Delta::default();
                delta.replace(None, Some(size));
                quotas.count(owner_of(entry.key), delta);
                ControlFlow::Continue(())
            });
            let scanned = scan.await?;
            after = scanned.last;
            if !scanned.more {
                break;
            }
        }
        self.show_usage();
        Ok(())
    }

    fn show_usage(&self) {
        let all = self.quotas.all();
        self.usage.entries.set(all.entries);
        self.usage.bytes.set(all.bytes);
    }

    /// Removes the entries of one page that are over; the next page follows at once.
    async fn sweep(&mut self, pending: &mut Pending<Self>) -> Result<(), StateError> {
        self.next_sweep = Instant::now() + SWEEP_EVERY;
        let (now, mut over) = (unix_now_ms(), Vec::new());
        let (all, after) = (KeyRange::all(), self.swept_to.take());
        let scan = self.store.scan(&all, after.as_deref(), PAGE, |entry| {
            if Record::is_over_in(entry.value, now) {
                let size = size_of(entry.key, entry.value);
                over.push((Bytes::copy_from_slice(entry.key), size));
            }
            ControlFlow::Continue(())
        });
        let scanned = scan.await?;
        for (key, size) in over {
            let mut delta = Delta::default();
            delta.replace(Some(size), None);
            self.quotas.count(owner_of(&key), delta);
            self.undurable.push((owner_of(&key).to_owned(), delta));
            pending.delete(key);
        }
        if scanned.more {
            (self.next_sweep, self.swept_to) = (Instant::now(), scanned.last);
        }
        Ok(())
    }
}

/// Whether the file may hold a group that could not be written.
fn is_unknown(error: &TransactError) -> bool {
    matches!(error, TransactError::Disk { .. } | TransactError::Closed)
}

/// The bytes that changes add to a transaction.
fn bytes_of(owner: &str, changes: &[StateChange]) -> usize {
    let bytes = |change: &StateChange| {
        owner.len() + change.key.len() + HEAD_BYTES + change.value.as_ref().map_or(0, Vec::len)
    };
    changes.iter().map(bytes).sum()
}

/// Decides one change by the entry that is there.
async fn step(
    pending: &Pending<Committer>,
    owner: &str,
    change: StateChange,
    now_unix_ms: u64,
    delta: &mut Delta,
) -> Result<Step, StateError> {
    let key = stored_key(owner, &change.key);
    let present = read(pending, &key, &change.key).await?;
    if change.condition.is_some() {
        let entry = pending.store().get(key.as_bytes()).await?;
        let is_present = present.as_ref().is_some_and(|record| !record.is_over(now_unix_ms));
        let revision = entry.filter(|_| is_present).map_or(0, |entry| entry.revision);
        check_condition(&change, revision)?;
    }
    let old = present.map(|record| key.len() + record.value.len());
    delta.replace(old, change.value.as_ref().map(|value| key.len() + value.len()));
    let expires_unix_ms = expiry(now_unix_ms, change.ttl_seconds);
    let record = |value: Vec<u8>| Record { expires_unix_ms, value: value.into() };
    Ok(Step { key, record: change.value.map(record) })
}

/// The step that sets a fence to a higher number; none when it has this number.
async fn raise(
    pending: &Pending<Committer>,
    owner: &str,
    fence: &StateFence,
    delta: &mut Delta,
) -> Result<Option<Step>, StateError> {
    let key = stored_key(owner, &fence.key);
    let present = read(pending, &key, &fence.key).await?;
    if let Some(record) = &present {
        let text = std::str::from_utf8(&record.value).ok();
        let number: u64 = text
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| StateError::Foreign { key: fence.key.clone() })?;
        if number > fence.number {
            return Err(StateError::Refused(Refused::Fenced));
        }
        if number == fence.number {
            return Ok(None);
        }
    }
    let number = Bytes::from(fence.number.to_string());
    let old = present.map(|record| key.len() + record.value.len());
    delta.replace(old, Some(key.len() + number.len()));
    Ok(Some(Step { key, record: Some(Record { expires_unix_ms: 0, value: number }) }))
}

/// The record under a stored key, over or not; `key` is its name in errors.
async fn read(
    pending: &Pending<Committer>,
    stored: &str,
    key: &str,
) -> Result<Option<Record>, StateError> {
    let Some(value) = pending.get(stored.as_bytes()).await? else { return Ok(None) };
    let record = Record::decode(&value);
    record.map(Some).ok_or_else(|| StateError::Foreign { key: key.to_owned() })
}

/// Checks the condition of a change; `revision` is that of the present entry, 0 for none.
fn check_condition(change: &StateChange, revision: u64) -> Result<(), StateError> {
    let holds = match change.condition {
        None | Some(Condition::Absent(false)) => true,
        Some(Condition::Absent(true)) => revision == 0,
        Some(Condition::Revision(expected)) => revision == expected && revision != 0,
    };
    if holds {
        return Ok(());
    }
    Err(StateError::Refused(Refused::Mismatch { key: change.key.clone(), revision }))
}

pub(super) fn stored_key(owner: &str, key: &str) -> String {
    format!("{owner}{key}")
}

/// The start of a stored key, up to and with its second `/`.
pub(super) fn owner_of(key: &[u8]) -> &str {
    let ends = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let end = ends.take(2).last().map_or(0, |at| at + 1);
    std::str::from_utf8(&key[..end]).unwrap_or_default()
}

/// What a stored entry counts.
pub(super) fn size_of(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len().saturating_sub(HEAD_BYTES)
}

fn expiry(now_unix_ms: u64, ttl_seconds: u32) -> u64 {
    if ttl_seconds == 0 { 0 } else { now_unix_ms + u64::from(ttl_seconds) * 1000 }
}

impl From<StateWriteError> for StateError {
    fn from(error: StateWriteError) -> Self {
        match error {
            StateWriteError::Excess { what, found, limit } => {
                Self::Refused(Refused::Excess { what, found, limit })
            }
            StateWriteError::KeyTwice(_) => Self::Malformed(error.to_string()),
        }
    }
}

impl From<Full> for Refused {
    fn from(full: Full) -> Self {
        Self::Excess { what: full.what.to_owned(), found: full.found, limit: full.limit }
    }
}
