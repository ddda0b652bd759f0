//! The one thread that changes the store: it takes what waits, decides it, writes it as one
//! frame, makes the frame durable, and only then shows it to readers and answers.
//!
//! So transactions that come together share one fsync, readers never see what a crash could
//! take back, and no lock is held while the disk works. After a failed write or fsync nothing
//! is known of the file's end; the writer then refuses everything until a restart.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};

use super::compact::{Compaction, Progress, Taken};
use super::format::{FRAME_HEAD_BYTES, FrameBuilder};
use super::group::{Effect, Group, Outcome, Prepared};
use super::log::Log;
use super::medium::LogLocation;
use super::{Core, State};
use crate::error::{LeaseError, TransactError};
use crate::etcd::WriteFault;
use crate::model::{Change, Commit, Entry, LeaseId, Transaction};

/// A group is closed when its frame has this many bytes.
const GROUP_BYTES: usize = 4 << 20;
/// A group is closed when it has this many requests.
const GROUP_REQUESTS: usize = 1024;

/// What callers ask of the writer. A caller that has gone away is no reason to stop.
#[derive(Debug)]
pub(super) enum Request {
    Transact { transaction: Transaction, reply: oneshot::Sender<Result<u64, TransactError>> },
    GrantLease { ttl: Duration, reply: oneshot::Sender<Result<LeaseId, LeaseError>> },
    EndLease { lease: LeaseId, reply: Option<oneshot::Sender<Result<(), LeaseError>>> },
}

/// The writer's own side of the store.
pub(super) struct Writer {
    pub(super) location: LogLocation,
    pub(super) log: Log,
    pub(super) core: Arc<Core>,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) announce: watch::Sender<u64>,
    pub(super) compaction: Option<Compaction>,
    /// No compaction before the file has this many bytes.
    pub(super) compact_from: u64,
    /// The first failure of the disk, or of etcd.
    pub(super) failed: Option<Arc<io::Error>>,
}

impl Writer {
    /// Serves until the store closes.
    pub(super) fn run(mut self) {
        while let Some(first) = self.wait() {
            if let Some(first) = first {
                self.serve_group(first);
            }
            self.compact_a_little();
        }
        if let Some(compaction) = self.compaction.take() {
            compaction.abandon();
        }
    }

    /// The next request; `Some(None)` when there is other work, `None` when the store closes.
    fn wait(&mut self) -> Option<Option<Request>> {
        if self.compaction.is_none() {
            return self.requests.blocking_recv().map(Some);
        }
        match self.requests.try_recv() {
            Ok(request) => Some(Some(request)),
            Err(TryRecvError::Empty) => Some(None),
            Err(TryRecvError::Disconnected) => None,
        }
    }

    /// Decides `first` and what waits behind it, and commits them together.
    fn serve_group(&mut self, first: Request) {
        let mut next = Some(first);
        while let Some(request) = next.take() {
            let core = Arc::clone(&self.core);
            let state = core.state();
            let mut group = Group::new(&state, self.core.limits);
            let mut count = 0;
            let mut pending = Some(request);
            while let Some(request) = pending.take() {
                // The keys of a lease are those of the state, so its end opens a group.
                if count > 0 && matches!(request, Request::EndLease { .. }) {
                    next = Some(request);
                    break;
                }
                group.add(request);
                count += 1;
                if count < GROUP_REQUESTS && group.bytes() < GROUP_BYTES {
                    pending = self.requests.try_recv().ok();
                }
            }
            let prepared = group.finish();
            drop(state);
            self.commit(prepared);
        }
    }

    fn commit(&mut self, prepared: Prepared) {
        let Prepared { frame, effects, outcomes } = prepared;
        if frame.is_empty() && self.failed.is_none() {
            return Outcome::answer_all(outcomes, |_| None);
        }
        let began = Instant::now();
        let written = self.write(frame);
        self.report(Commit { took: began.elapsed(), durable: written.is_ok() });
        match written {
            Ok(frame) => {
                self.apply(effects, &frame);
                Outcome::answer_all(outcomes, |_| None);
            }
            Err(failure) => {
                self.give_time_again(&effects);
                Outcome::answer_all(outcomes, |_| Some(failure.error(&self.location)));
            }
        }
    }

    fn report(&self, commit: Commit) {
        self.core.file_bytes.store(self.log.len(), Ordering::Relaxed);
        if let Some(observer) = self.core.observer.get() {
            observer(commit);
        }
    }

    /// Leases whose end could not be written run on, and end later.
    fn give_time_again(&self, effects: &[Effect]) {
        for effect in effects {
            let Effect::LeaseEnded { lease } = effect else { continue };
            if let Some(held) = self.core.state().lease(*lease) {
                self.core.deadlines.start(*lease, held.ttl);
            }
        }
    }

    /// Writes the frame durably; returns its bytes.
    fn write(&mut self, frame: FrameBuilder) -> Result<Bytes, Failure> {
        if let Some(failed) = &self.failed {
            return Err(Failure::Broken(Arc::clone(failed)));
        }
        let copy = self.compaction.is_some().then(|| frame.duplicate());
        match self.log.commit(frame) {
            Ok(bytes) => {
                if let Some(copy) = copy {
                    self.copy_to_compaction(copy);
                }
                Ok(bytes.into_boxed_slice().into())
            }
            Err(WriteFault::NoRoom(error)) => Err(Failure::NoRoom(Arc::new(error))),
            Err(WriteFault::Broken(error)) => Err(Failure::Broken(self.fail(error))),
        }
    }

    /// Refuses everything from here on.
    fn fail(&mut self, error: io::Error) -> Arc<io::Error> {
        tracing::error!(store = %self.location.path().display(), %error, "the store cannot be written");
        let error = Arc::new(error);
        self.failed = Some(Arc::clone(&error));
        error
    }

    /// Shows what is durable to readers and watchers, transaction by transaction.
    fn apply(&self, effects: Vec<Effect>, frame: &Bytes) {
        let mut revision = None;
        for effect in effects {
            match effect {
                Effect::Transaction(transaction) => {
                    revision = Some(transaction.revision);
                    transaction.apply(&mut self.core.state_mut(), frame);
                }
                Effect::LeaseGranted { lease, ttl } => {
                    self.core.state_mut().grant_lease(lease, ttl);
                    self.core.deadlines.start(lease, ttl);
                }
                Effect::LeaseEnded { lease } => {
                    self.core.state_mut().end_lease(lease);
                    self.core.deadlines.stop(lease);
                }
            }
        }
        if let Some(revision) = revision {
            self.announce.send_replace(revision);
        }
    }

    fn copy_to_compaction(&mut self, frame: FrameBuilder) {
        let Some(mut compaction) = self.compaction.take() else { return };
        match compaction.add(frame) {
            Ok(()) => self.compaction = Some(compaction),
            Err(error) => self.give_compaction_up(compaction, &error),
        }
    }

    /// Starts compaction when it pays, and takes it one step on.
    fn compact_a_little(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let Some(mut compaction) = self.compaction.take() else {
            return self.start_compaction_if_it_pays();
        };
        match compaction.step(&self.core) {
            Ok(Progress::More) => self.compaction = Some(compaction),
            Ok(Progress::Copied) => match compaction.take_the_name() {
                Ok(taken) => self.go_on_in(taken),
                Err(error) => self.postpone_compaction(&error),
            },
            Err(error) => self.give_compaction_up(compaction, &error),
        }
    }

    fn go_on_in(&mut self, taken: Taken) {
        let (before, after) = (self.log.len(), taken.log.len());
        tracing::info!(store = %self.location.path().display(), before, after, "compacted");
        self.log = taken.log;
        self.core.file_bytes.store(after, Ordering::Relaxed);
        self.compact_from = self.core.limits.compact_from_bytes;
        if let Err(error) = taken.name_durable {
            self.fail(error);
        }
    }

    fn start_compaction_if_it_pays(&mut self) {
        let live = self.core.state().live_bytes;
        let pays = self.log.len() >= self.compact_from && self.log.len() >= live.saturating_mul(2);
        if !pays && !self.core.rewrite_asked.swap(false, Ordering::Relaxed) {
            return;
        }
        match Compaction::start(&self.location, &self.core) {
            Ok(compaction) => self.compaction = Some(compaction),
            Err(error) => self.postpone_compaction(&error),
        }
    }

    fn give_compaction_up(&mut self, compaction: Compaction, error: &io::Error) {
        compaction.abandon();
        self.postpone_compaction(error);
    }

    fn postpone_compaction(&mut self, error: &io::Error) {
        self.compact_from = self.log.len().saturating_mul(2);
        let store = self.location.path();
        let store = store.display();
        tracing::warn!(%store, %error, "cannot compact now; trying again when the store has doubled");
    }
}

/// Why a group was not written.
enum Failure {
    NoRoom(Arc<io::Error>),
    Broken(Arc<io::Error>),
}

impl Failure {
    fn error(&self, location: &LogLocation) -> TransactError {
        let path = location.path();
        match (self, location) {
            (Self::NoRoom(source), _) => TransactError::NoRoom { path, source: Arc::clone(source) },
            (Self::Broken(source), LogLocation::File(_)) => {
                TransactError::Disk { path, source: Arc::clone(source) }
            }
            (Self::Broken(source), LogLocation::Etcd(location)) => {
                TransactError::Etcd { url: location.url(), source: Arc::clone(source) }
            }
        }
    }
}

/// A transaction that was decided, with its steps as places in its frame.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) revision: u64,
    pub(super) steps: Vec<FrameStep>,
}

/// One step, as a range of bytes in its frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameStep {
    pub(super) start: usize,
    pub(super) key_length: usize,
    /// `None` for a delete.
    pub(super) value_length: Option<usize>,
    pub(super) lease: Option<LeaseId>,
}

impl FrameStep {
    pub(super) fn key<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.start..self.start + self.key_length]
    }

    /// `None` for a delete.
    fn value<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let middle = self.start + self.key_length;
        self.value_length.map(|length| &frame[middle..middle + length])
    }

    fn change(&self, revision: u64, frame: &Bytes) -> Change {
        let middle = self.start + self.key_length;
        let key = frame.slice(self.start..middle);
        match self.value_length {
            Some(length) => {
                let value = frame.slice(middle..middle + length);
                Change::Put(Entry { key, value, revision, lease: self.lease })
            }
            None => Change::Delete { key, revision },
        }
    }
}

impl Decided {
    fn apply(self, state: &mut State, frame: &Bytes) {
        let revision = self.revision;
        for step in &self.steps {
            let key = step.key(frame);
            match step.value(frame) {
                Some(value) => state.put(key, value, revision, step.lease),
                None => state.delete(key),
            }
        }
        state.revision = revision;
        if state.history.has_room_for(self.steps.len()) {
            let changes = self.steps.iter().map(|step| step.change(revision, frame)).collect();
            let bytes =
                self.steps.iter().map(|step| step.key_length + step.value_length.unwrap_or(0));
            state.history.push(revision, changes, bytes.sum::<usize>() + FRAME_HEAD_BYTES);
        } else {
            state.history.compact(revision);
        }
    }
}

/// Keys that earlier transactions of a group changed: their revision, `None` when deleted.
pub(super) type Overlay = HashMap<Box<[u8]>, Option<u64>>;
