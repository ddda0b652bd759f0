//! The engine: one log, one writer thread, everything in memory in key order.
//!
//! The log is a file, embedded in the process that serves it, or is in etcd, where another process
//! can continue it. It is a log of transactions, compacted in the background when half of it is
//! superseded; reads never touch it. Why this is no ready-made database:
//! `docs/design/001-embedded-store.md`.

mod compact;
mod format;
mod group;
mod history;
mod key;
mod leases;
mod log;
mod medium;
mod repair;
mod state;
#[cfg(test)]
mod tests;
mod watch;
mod writer;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch as tokio_watch};
use tokio::task::AbortHandle;

use crate::error::{LeaseError, OpenError, TransactError, WatchError};
use crate::etcd::parts::EtcdLocation;
use crate::model::{
    Change, Commit, Entry, KeyRange, LeaseId, Limits, Op, Page, Scanned, Seen, Size, Transaction,
};
use format::{FRAME_HEAD_BYTES, FrameBuilder, Item, Step};
use leases::Deadlines;
use log::{Log, Opened};
use medium::{LogLocation, compaction_path};
pub use repair::{
    Damage, Inspection, Repaired, inspect, inspect_entry, repair, skip_lost_revisions,
};
use state::State;
pub(crate) use watch::EmbeddedWatch;
pub use watch::PROGRESS_EVERY_REVISIONS;
use writer::{Request, Writer};

/// Largest transaction any limits may allow: with its group it fits one frame.
const TRANSACTION_BYTES_CEILING: usize = 32 << 20;
/// Most steps any limits may allow, for the same reason.
const TRANSACTION_OPS_CEILING: usize = 1_000_000;
/// Longest key any limits may allow, and most keys of a lease: their end fits one frame too.
const KEY_BYTES_CEILING: usize = 1024;
const LEASE_KEYS_CEILING: usize = 30_000;
/// Most leases any limits may allow: compaction writes them as one frame.
const LEASES_CEILING: usize = 1_000_000;

/// What readers, watchers and the writer share.
struct Core {
    limits: Limits,
    state: RwLock<State>,
    deadlines: Arc<Deadlines>,
    file_bytes: AtomicU64,
    /// The log is to be compacted, whether it pays or not.
    rewrite_asked: AtomicBool,
    /// Called after every commit.
    observer: OnceLock<CommitObserver>,
}

/// Runs on the writer's thread.
pub(crate) type CommitObserver = Box<dyn Fn(Commit) + Send + Sync>;

impl Core {
    fn new(limits: Limits, state: State, deadlines: Arc<Deadlines>, file_bytes: u64) -> Self {
        Self {
            limits,
            state: RwLock::new(state),
            deadlines,
            file_bytes: AtomicU64::new(file_bytes),
            rewrite_asked: AtomicBool::new(false),
            observer: OnceLock::new(),
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Values can be secrets, so none is printed.
impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The engine's handle; dropping it finishes what is being written and closes the file.
#[derive(Debug)]
pub(crate) struct Embedded {
    core: Arc<Core>,
    /// Gone while dropping.
    requests: Option<mpsc::Sender<Request>>,
    revisions: tokio_watch::Receiver<u64>,
    watches: Arc<()>,
    writer: Option<JoinHandle<()>>,
    lease_task: AbortHandle,
}

impl Embedded {
    /// Over a file.
    pub(crate) async fn open(path: PathBuf, limits: Limits) -> Result<Self, OpenError> {
        Self::open_at(LogLocation::File(path), limits).await
    }

    /// Over a log in etcd.
    pub(crate) async fn open_in(location: EtcdLocation, limits: Limits) -> Result<Self, OpenError> {
        Self::open_at(LogLocation::Etcd(Arc::new(location)), limits).await
    }

    async fn open_at(location: LogLocation, limits: Limits) -> Result<Self, OpenError> {
        let runtime = Handle::current();
        let opening = runtime.spawn_blocking({
            let runtime = runtime.clone();
            move || Self::open_blocking(&location, limits, &runtime)
        });
        match opening.await {
            Ok(opened) => opened,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(OpenError::RuntimeGone),
            },
        }
    }

    fn open_blocking(
        location: &LogLocation,
        limits: Limits,
        runtime: &Handle,
    ) -> Result<Self, OpenError> {
        let limits = within_ceilings(limits);
        let mut state = State::new(&limits);
        let Opened { mut log, torn_bytes, created } =
            Log::open(location, |item, frame_bytes| replay(&mut state, item, frame_bytes))?;
        report_opened(location, &state, torn_bytes, created);
        if let LogLocation::File(path) = location {
            // It cannot be in use: its store is locked by us.
            let _ = std::fs::remove_file(compaction_path(path));
        }
        if created {
            let mut frame = FrameBuilder::new(Vec::new());
            frame.base(0, 1);
            log.commit(frame).map_err(|fault| location.failed(fault.into_error()))?;
        }
        let (requests, received) = mpsc::channel(limits.waiting_transactions.max(1));
        let (announce, revisions) = tokio_watch::channel(state.revision);
        let deadlines = Arc::new(Deadlines::default());
        {
            let _context = runtime.enter();
            for (lease, held) in state.leases() {
                deadlines.start(lease, held.ttl);
            }
        }
        let core = Arc::new(Core::new(limits, state, Arc::clone(&deadlines), log.len()));
        let writer = Writer {
            location: location.clone(),
            log,
            core: Arc::clone(&core),
            requests: received,
            announce,
            compaction: None,
            compact_from: limits.compact_from_bytes,
            failed: None,
        };
        let writer = start_thread(location, writer, runtime.clone())?;
        let lease_task = runtime.spawn(leases::end_leases(deadlines, requests.downgrade()));
        Ok(Self {
            core,
            requests: Some(requests),
            revisions,
            watches: Arc::new(()),
            writer: Some(writer),
            lease_task: lease_task.abort_handle(),
        })
    }

    pub(crate) fn revision(&self) -> u64 {
        self.core.state().revision
    }

    pub(crate) fn size(&self) -> Size {
        let state = self.core.state();
        Size {
            entries: state.len(),
            leases: state.leases().len(),
            live_bytes: state.live_bytes,
            file_bytes: self.core.file_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn observe_commits(&self, observer: CommitObserver) {
        // The first remains, as documented.
        let _ = self.core.observer.set(observer);
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Entry> {
        self.core.state().get(key)
    }

    pub(crate) fn get_many(&self, keys: &[Bytes]) -> Vec<Option<Entry>> {
        self.core.state().get_many(keys)
    }

    pub(crate) fn list(&self, range: &KeyRange, after: Option<&[u8]>, limit: usize) -> Page {
        self.core.state().list(range, after, limit, &self.core.limits)
    }

    pub(crate) fn scan(
        &self,
        range: &KeyRange,
        after: Option<&[u8]>,
        limit: usize,
        visit: impl FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Scanned {
        self.core.state().scan(range, after, limit, &self.core.limits, visit)
    }

    pub(crate) async fn transact(&self, transaction: Transaction) -> Result<u64, TransactError> {
        check_limits(&transaction, &self.core.limits)?;
        self.ask(|reply| Request::Transact { transaction, reply })
            .await
            .unwrap_or(Err(TransactError::Closed))
    }

    pub(crate) fn watch(&self, range: KeyRange, from: u64) -> Result<EmbeddedWatch, WatchError> {
        // One count is the engine's own.
        if Arc::strong_count(&self.watches) > self.core.limits.watches {
            return Err(WatchError::TooMany { limit: self.core.limits.watches });
        }
        let state = self.core.state();
        let (oldest, current) = (state.history.floor(), state.revision);
        drop(state);
        if from < oldest {
            return Err(WatchError::Compacted { from, oldest });
        }
        if from > current {
            return Err(WatchError::Future { from, current });
        }
        Ok(EmbeddedWatch::new(
            Arc::clone(&self.core),
            self.revisions.clone(),
            range,
            from,
            Arc::clone(&self.watches),
        ))
    }

    pub(crate) async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        let (shortest, longest) = (self.core.limits.shortest_lease, self.core.limits.longest_lease);
        if ttl < shortest || ttl > longest {
            return Err(LeaseError::Ttl { asked: ttl, shortest, longest });
        }
        self.ask(|reply| Request::GrantLease { ttl, reply })
            .await
            .unwrap_or(Err(LeaseError::Transact(TransactError::Closed)))
    }

    pub(crate) fn keep_alive(&self, lease: LeaseId) -> Result<Duration, LeaseError> {
        self.core.deadlines.restart(lease).ok_or(LeaseError::NoLease { lease })
    }

    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<(), LeaseError> {
        self.ask(|reply| Request::EndLease { lease, reply: Some(reply) })
            .await
            .unwrap_or(Err(LeaseError::Transact(TransactError::Closed)))
    }

    pub(crate) async fn rewrite(&self) -> Result<(), TransactError> {
        self.core.rewrite_asked.store(true, Ordering::Relaxed);
        // The writer looks after each request, and this one changes nothing.
        self.transact(Transaction::new()).await.map(drop)
    }

    pub(crate) fn compact(&self, revision: u64) {
        let mut state = self.core.state_mut();
        let revision = revision.min(state.revision);
        state.history.compact(revision);
    }

    /// The writer's answer; `None` when it has stopped.
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.requests.as_ref()?.send(request(reply)).await.ok()?;
        answer.await.ok()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.lease_task.abort();
        self.requests = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

fn start_thread(
    location: &LogLocation,
    writer: Writer,
    runtime: Handle,
) -> Result<JoinHandle<()>, OpenError> {
    let run = move || {
        // Leases are timed by the runtime's clock.
        let _context = runtime.enter();
        writer.run();
    };
    std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(run)
        .map_err(|source| OpenError::Thread { path: location.path(), source })
}

/// Takes one stored item into the state; `false` when it contradicts what came before.
fn replay(state: &mut State, item: Item, frame_bytes: usize) -> bool {
    match item {
        Item::Base { revision, next_lease } => {
            if revision < state.revision {
                return false;
            }
            state.revision = revision;
            state.next_lease = state.next_lease.max(next_lease);
            state.history.compact(revision);
        }
        Item::Transaction { revision, steps } => {
            if revision != state.revision + 1 {
                return false;
            }
            replay_transaction(state, revision, steps, frame_bytes);
        }
        Item::Rows(rows) => {
            for row in rows {
                state.put(&row.key, &row.value, row.revision, row.lease);
            }
        }
        Item::LeaseGranted { lease, ttl_ms } => {
            state.grant_lease(lease, Duration::from_millis(ttl_ms));
        }
        Item::LeaseEnded { lease } => state.end_lease(lease),
    }
    true
}

fn replay_transaction(state: &mut State, revision: u64, steps: Vec<Step>, frame_bytes: usize) {
    let mut changes = Vec::with_capacity(steps.len());
    for step in steps {
        match step {
            Step::Put { key, value, lease } => {
                state.put(&key, &value, revision, lease);
                changes.push(Change::Put(Entry { key, value, revision, lease }));
            }
            Step::Delete { key } => {
                state.delete(&key);
                changes.push(Change::Delete { key, revision });
            }
        }
    }
    state.revision = revision;
    // Its share of the frame is not known any more; the whole is an upper bound for it, and
    // its own steps the lower one.
    let own = changes.iter().map(change_bytes).sum::<usize>() + FRAME_HEAD_BYTES;
    state.history.push(revision, changes, own.min(frame_bytes));
}

fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Put(entry) => entry.key.len() + entry.value.len(),
        Change::Delete { key, .. } => key.len(),
    }
}

fn report_opened(location: &LogLocation, state: &State, torn_bytes: u64, created: bool) {
    let store = location.path();
    let store = store.display();
    if torn_bytes > 0 {
        tracing::warn!(%store, torn_bytes, "dropped a write that a crash cut off; it was never acknowledged");
    }
    tracing::info!(%store, created, revision = state.revision, "store open");
}

fn within_ceilings(limits: Limits) -> Limits {
    Limits {
        transaction_bytes: limits.transaction_bytes.min(TRANSACTION_BYTES_CEILING),
        transaction_ops: limits.transaction_ops.min(TRANSACTION_OPS_CEILING),
        key_bytes: limits.key_bytes.min(KEY_BYTES_CEILING),
        lease_keys: limits.lease_keys.min(LEASE_KEYS_CEILING),
        leases: limits.leases.min(LEASES_CEILING),
        page_entries: limits.page_entries.max(1),
        ..limits
    }
}

/// Checks what needs no state, before the transaction is queued.
fn check_limits(transaction: &Transaction, limits: &Limits) -> Result<(), TransactError> {
    let count = transaction.ops.len().max(transaction.guards.len());
    if count > limits.transaction_ops {
        return Err(TransactError::TooManyOps { count, limit: limits.transaction_ops });
    }
    let guarded = transaction.guards.iter().map(|guard| &guard.key);
    for key in guarded.chain(transaction.ops.iter().map(Op::key)) {
        if key.is_empty() || key.len() > limits.key_bytes {
            return Err(TransactError::KeyLength { length: key.len(), limit: limits.key_bytes });
        }
    }
    let mut bytes = 0_usize;
    for op in &transaction.ops {
        bytes += op.key().len();
        let Op::Put { key, value, .. } = op else { continue };
        let (length, limit) = (value.len(), limits.value_bytes);
        if length > limit {
            return Err(TransactError::ValueTooLong { key: key.clone(), length, limit });
        }
        bytes += length;
    }
    if bytes > limits.transaction_bytes {
        return Err(TransactError::TooLarge { bytes, limit: limits.transaction_bytes });
    }
    Ok(())
}
