//! What goes into the store and what comes out: entries, transactions, ranges, batches, limits.

use std::num::NonZeroU64;
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;

/// A lease: keys attached to it are deleted together when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LeaseId(pub NonZeroU64);

/// One group of transactions that was written, or could not be.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Time until the disk reported the write durable or failed.
    pub took: Duration,
    pub durable: bool,
}

/// How much a store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    pub entries: usize,
    pub leases: usize,
    /// What the present entries need.
    pub live_bytes: u64,
    /// What they take, with what compaction will drop.
    pub file_bytes: u64,
}

/// One key with its present value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub key: Bytes,
    pub value: Bytes,
    /// The revision of the transaction that last changed it.
    pub revision: u64,
    pub lease: Option<LeaseId>,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Sets a key; its former value and lease are replaced.
    Put { key: Bytes, value: Bytes, lease: Option<LeaseId> },
    /// Removes a key; removing one that is not there is no change.
    Delete { key: Bytes },
}

impl Op {
    /// The key it touches.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// What a guard expects of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// The key is not there.
    Absent,
    /// The key was last changed at this revision.
    Revision(u64),
}

/// A condition on one key; a transaction happens only if all its guards hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guard {
    pub key: Bytes,
    pub expected: Expected,
}

/// Guards and steps that happen together or not at all.
///
/// Steps are applied in order. When two steps touch one key, the last wins and watchers see one
/// change. A transaction that changes nothing (no steps, or deletes of absent keys only) takes
/// no revision.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    pub guards: Vec<Guard>,
    pub ops: Vec<Op>,
}

impl Transaction {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a guard.
    #[must_use]
    pub fn when(mut self, key: impl Into<Bytes>, expected: Expected) -> Self {
        self.guards.push(Guard { key: key.into(), expected });
        self
    }

    /// Adds a put without a lease.
    #[must_use]
    pub fn put(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.ops.push(Op::Put { key: key.into(), value: value.into(), lease: None });
        self
    }

    /// Adds a put whose key lives no longer than `lease`.
    #[must_use]
    pub fn put_leased(
        mut self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: LeaseId,
    ) -> Self {
        self.ops.push(Op::Put { key: key.into(), value: value.into(), lease: Some(lease) });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Bytes>) -> Self {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }
}

/// Keys from `start` (included) up to `end` (excluded; `None` is the end of the store).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyRange {
    pub start: Bytes,
    pub end: Option<Bytes>,
}

impl KeyRange {
    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self { start: Bytes::new(), end: None }
    }

    /// Every key that begins with `prefix`.
    #[must_use]
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start: Bytes = prefix.into();
        let end = successor_of_prefix(&start);
        Self { start, end }
    }

    /// One key.
    #[must_use]
    pub fn key(key: impl Into<Bytes>) -> Self {
        let start: Bytes = key.into();
        let mut end = start.to_vec();
        end.push(0);
        Self { start, end: Some(end.into()) }
    }

    /// Whether `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_ref().is_none_or(|end| key < &end[..])
    }

    /// Whether no key can lie in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end <= &self.start)
    }

    /// Whether a key after `after` can lie in the range.
    pub(crate) fn reaches_beyond(&self, after: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| after < &end[..])
    }

    /// The range as bounds, from after `after` where that is later than its start.
    pub(crate) fn bounds_after<'a>(
        &'a self,
        after: Option<&'a [u8]>,
    ) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
        let lower = match after {
            Some(after) if after >= &self.start[..] => Bound::Excluded(after),
            _ => Bound::Included(&self.start[..]),
        };
        let upper = self.end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
        (lower, upper)
    }
}

/// The first key after all that begin with `prefix`; `None` when there is none (all 0xff).
fn successor_of_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// One page of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// In key order.
    pub entries: Vec<Entry>,
    /// The revision at which this page was read. A watch from the revision of the *first* page
    /// sees every change that later pages may or may not show already.
    pub revision: u64,
    /// Whether keys remain after the last entry.
    pub more: bool,
}

/// An entry, borrowed from the store's memory while it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// The revision of the transaction that last changed it.
    pub revision: u64,
}

/// The extent of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scanned {
    /// The last key that was shown: where the next page begins.
    pub last: Option<Bytes>,
    /// As [`Page::revision`].
    pub revision: u64,
    /// Whether keys remain after the last one, or may, where it was broken off.
    pub more: bool,
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Put(Entry),
    Delete { key: Bytes, revision: u64 },
}

impl Change {
    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key, .. } => key,
        }
    }

    /// The revision of the transaction that changed it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        match self {
            Self::Put(entry) => entry.revision,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

/// What a watch reports: every change of its range up to and including `revision`.
///
/// An empty batch is a progress mark: nothing in the range changed up to `revision`. A
/// transaction is never split over two batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    pub revision: u64,
    /// In order of revision; in one revision each key at most once.
    pub changes: Vec<Change>,
}

/// The bounds of a store. [`Default`] gives the documented values; an engine may use lower ones
/// than requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest key, in bytes (1,024).
    pub key_bytes: usize,
    /// Longest value, in bytes (1 MiB).
    pub value_bytes: usize,
    /// Most guards and steps of one transaction, each (10,000).
    pub transaction_ops: usize,
    /// Keys and values of one transaction together, in bytes (8 MiB).
    pub transaction_bytes: usize,
    /// Most entries of one page, whatever the request (10,000).
    pub page_entries: usize,
    /// Keys and values of one page together, in bytes (4 MiB); a page holds at least one entry.
    pub page_bytes: usize,
    /// Changes in the history for watches that resume (100,000).
    pub history_changes: usize,
    /// Keys and values in the history, in bytes (64 MiB).
    pub history_bytes: usize,
    /// Most watches at once (100,000).
    pub watches: usize,
    /// Most leases at once (1,000,000).
    pub leases: usize,
    /// Most keys of one lease (10,000): they are deleted in one transaction.
    pub lease_keys: usize,
    /// Shortest lease (1 s); a shorter one is refused.
    pub shortest_lease: Duration,
    /// Longest lease (30 days); a longer one is refused.
    pub longest_lease: Duration,
    /// The file is rewritten when it is larger than this and twice what it must hold, in bytes
    /// (16 MiB).
    pub compact_from_bytes: u64,
    /// Transactions waiting for the disk (4,096); further ones wait in line.
    pub waiting_transactions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes: 1024,
            value_bytes: 1 << 20,
            transaction_ops: 10_000,
            transaction_bytes: 8 << 20,
            page_entries: 10_000,
            page_bytes: 4 << 20,
            history_changes: 100_000,
            history_bytes: 64 << 20,
            watches: 100_000,
            leases: 1_000_000,
            lease_keys: 10_000,
            shortest_lease: Duration::from_secs(1),
            longest_lease: Duration::from_secs(30 * 24 * 3600),
            compact_from_bytes: 16 << 20,
            waiting_transactions: 4096,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_prefix(prefix: &[u8], end: Option<&[u8]>) {
        let range = KeyRange::prefix(prefix.to_vec());
        assert_eq!(range.end.as_deref(), end);
    }

    #[test]
    fn a_prefix_ends_before_its_successor() {
        check_prefix(b"a/", Some(b"a0"));
        check_prefix(b"a\xff", Some(b"b"));
        check_prefix(b"a\xff\xff", Some(b"b"));
        check_prefix(b"\xff\xff", None);
        check_prefix(b"", None);
    }

    #[test]
    fn a_range_of_one_key_holds_that_key_only() {
        let range = KeyRange::key("a");
        assert!(range.contains(b"a"));
        assert!(!range.contains(b"a\0"));
        assert!(!range.contains(b"`"));
        assert!(!range.is_empty());
    }
}
