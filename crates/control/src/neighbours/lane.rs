//! A lane: the latest changes of one group, packed for its watchers.
//!
//! The committer is its only writer. Watchers share its batches; each has only a cursor. A
//! watcher that falls out of it gets the changes since then from the table (`watch.rs`).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tollway_model::neighbour::packed::{BATCH_LIMIT_BYTES, BATCH_RECORDS};

use super::key::{Head, concat};

/// Moments recorded of a group, from which the lag of its agents is computed.
const MOMENTS: usize = 1024;

/// Packed records of one or of several transactions, at most a batch.
#[derive(Clone, Debug)]
struct Batch {
    packed: Bytes,
    records: usize,
    /// The highest in it.
    revision: u64,
    /// Whether it ends with a transaction; else more of the last one comes behind it.
    is_end: bool,
}

#[derive(Debug)]
pub(super) struct Lane {
    inner: Mutex<Inner>,
    revision: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    head: Head,
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Batches that are no longer held.
    dropped: u64,
    /// Changes after this revision are held.
    floor: u64,
    /// Of the last transaction.
    revision: u64,
    /// When transactions became durable, not all of them.
    moments: VecDeque<(u64, Instant)>,
}

/// The position of a watcher in a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cursor {
    /// Everything up to this revision has been sent.
    pub(super) revision: u64,
    /// The number of the next batch, counted from the first of the lane, if it is known.
    next: Option<u64>,
}

impl Cursor {
    pub(super) fn after(revision: u64) -> Self {
        Self { revision, next: None }
    }

    /// The revision, where it is another one than at `before`; else 0, for none.
    pub(super) fn advance_from(self, before: Self) -> u64 {
        if self.revision == before.revision { 0 } else { self.revision }
    }
}

/// What comes next for a watcher.
#[derive(Debug)]
pub(super) enum Next {
    /// At most a batch, and the cursor behind it.
    Batch { packed: Bytes, cursor: Cursor },
    /// Nothing new.
    Nothing,
    /// Some of what it needs is no longer held.
    Behind,
}

/// Revisions and counts of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupStatus {
    pub(super) revision: u64,
    pub(super) oldest: u64,
    pub(super) neighbours: u64,
    pub(super) tombstones: u64,
}

impl Lane {
    /// The lane of a group as it was found. `head.number` is 0 as long as nothing was written.
    pub(super) fn new(head: Head, revision: u64) -> Self {
        let inner = Inner {
            head,
            batches: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            floor: revision,
            revision,
            moments: VecDeque::from([(revision, Instant::now())]),
        };
        Self { inner: Mutex::new(inner), revision: watch::channel(revision).0 }
    }

    pub(super) fn head(&self) -> Head {
        self.inner().head.clone()
    }

    pub(super) fn status(&self) -> GroupStatus {
        let inner = self.inner();
        GroupStatus {
            revision: inner.revision,
            oldest: inner.head.oldest,
            neighbours: inner.head.neighbours,
            tombstones: inner.head.tombstones,
        }
    }

    /// Wakes at new revisions.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// From now on no watch may start below `oldest`. To be called before tombstones go.
    pub(super) fn raise_oldest(&self, oldest: u64) {
        let mut inner = self.inner();
        inner.head.oldest = inner.head.oldest.max(oldest);
    }

    /// Adds what a transaction wrote, once it is durable, in batches; holds at most `most` bytes.
    pub(super) fn push(
        &self,
        head: Head,
        revision: u64,
        batches: Vec<(Bytes, usize)>,
        most: usize,
    ) {
        let mut inner = self.inner();
        let oldest = inner.head.oldest.max(head.oldest);
        inner.head = Head { oldest, ..head };
        inner.revision = revision;
        let last = batches.len().saturating_sub(1);
        for (index, (packed, records)) in batches.into_iter().enumerate() {
            inner.bytes += packed.len() + size_of::<Batch>();
            inner.batches.push_back(Batch { packed, records, revision, is_end: index == last });
        }
        inner.forget(most);
        inner.note(revision, Instant::now());
        drop(inner);
        self.revision.send_replace(revision);
    }

    /// What comes next for a watcher that is at `cursor`.
    pub(super) fn next(&self, cursor: Cursor) -> Next {
        let inner = self.inner();
        let index = match cursor.next {
            Some(next) => match next.checked_sub(inner.dropped) {
                Some(index) => usize::try_from(index).unwrap_or(usize::MAX),
                None => return Next::Behind,
            },
            None if cursor.revision < inner.floor => return Next::Behind,
            None => inner.batches.partition_point(|batch| batch.revision <= cursor.revision),
        };
        if inner.batches.get(index).is_none() {
            // A transaction that only compacted has no batch.
            return match inner.revision > cursor.revision {
                true => {
                    let cursor = Cursor { revision: inner.revision, next: cursor.next };
                    Next::Batch { packed: Bytes::new(), cursor }
                }
                false => Next::Nothing,
            };
        }
        let (mut records, mut bytes, mut upto) = (0, 0, index);
        for batch in inner.batches.range(index..) {
            records += batch.records;
            bytes += batch.packed.len();
            if upto > index && (records > BATCH_RECORDS || bytes > BATCH_LIMIT_BYTES) {
                break;
            }
            upto += 1;
        }
        let taken: Vec<_> = inner.batches.range(index..upto).cloned().collect();
        let next = Some(inner.dropped + upto as u64);
        drop(inner);
        let pieces: Vec<_> = taken.iter().map(|batch| batch.packed.clone()).collect();
        // The last transaction that ends in what was taken.
        let ended = taken.iter().rev().find(|batch| batch.is_end).map(|batch| batch.revision);
        let revision = ended.unwrap_or(cursor.revision).max(cursor.revision);
        Next::Batch { packed: concat(&pieces), cursor: Cursor { revision, next } }
    }

    /// How long the oldest transaction after `held` has been durable; zero where there is none.
    pub(super) fn lag(&self, held: u64, now: Instant) -> Duration {
        let inner = self.inner();
        let at = inner.moments.partition_point(|(revision, _)| *revision <= held);
        inner.moments.get(at).map_or(Duration::ZERO, |(_, since)| now.duration_since(*since))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget(&mut self, most: usize) {
        while self.bytes > most {
            let Some(oldest) = self.batches.pop_front() else { return };
            self.bytes -= oldest.packed.len() + size_of::<Batch>();
            self.dropped += 1;
            self.floor = oldest.revision;
        }
    }

    /// Keeps the oldest and the newest moments, and every second one of those between when there
    /// are too many.
    fn note(&mut self, revision: u64, now: Instant) {
        self.moments.push_back((revision, now));
        if self.moments.len() > MOMENTS {
            let mut index = 0;
            self.moments.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }
}

#[cfg(test)]
mod tests;
