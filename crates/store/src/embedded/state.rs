//! The state in memory: every entry in key order, the leases with their keys, the history.
//!
//! An entry is a slot of a B-tree, which contains its key if that is short, and an allocation for
//! its value (about 140 bytes for 40 bytes of key and value). Only the writer thread changes it.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use bytes::Bytes;

use super::history::History;
use super::key::Key;
use crate::model::{Entry, KeyRange, LeaseId, Limits, Page, Scanned, Seen};

/// Bytes an entry takes in the file beyond its key and value.
const ROW_OVERHEAD_BYTES: u64 = 25;

/// One entry.
#[derive(Debug)]
pub(super) struct Row {
    key: Key,
    value: Box<[u8]>,
    revision: u64,
    lease: Option<LeaseId>,
}

impl Row {
    pub(super) fn key(&self) -> &[u8] {
        self.key.as_slice()
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.value
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        self.lease
    }

    /// Bytes of key and value.
    pub(super) fn len(&self) -> usize {
        self.key().len() + self.value.len()
    }

    fn stored_bytes(&self) -> u64 {
        u64::try_from(self.len()).expect("sizes fit 64 bits") + ROW_OVERHEAD_BYTES
    }
}

impl Borrow<Key> for Row {
    fn borrow(&self) -> &Key {
        &self.key
    }
}
impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl Eq for Row {}
impl PartialOrd for Row {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Row {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

/// A lease and the keys that end with it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) ttl: Duration,
    pub(super) keys: BTreeSet<Box<[u8]>>,
}

/// The state of the store.
#[derive(Debug)]
pub(super) struct State {
    rows: BTreeSet<Row>,
    leases: HashMap<LeaseId, Lease>,
    pub(super) history: History,
    /// Of the last transaction.
    pub(super) revision: u64,
    /// The number the next lease gets.
    pub(super) next_lease: u64,
    /// What the file would hold if it held nothing superfluous.
    pub(super) live_bytes: u64,
}

impl State {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            rows: BTreeSet::new(),
            leases: HashMap::new(),
            history: History::new(limits.history_changes, limits.history_bytes),
            revision: 0,
            next_lease: 1,
            live_bytes: 0,
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn row(&self, key: &[u8]) -> Option<&Row> {
        self.rows.get(&Key::new(key))
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Entry> {
        self.row(key).map(|row| Entry {
            key: Bytes::copy_from_slice(row.key()),
            value: Bytes::copy_from_slice(row.value()),
            revision: row.revision,
            lease: row.lease,
        })
    }

    /// Rows after the key `cursor` (all, when there is none).
    pub(super) fn rows_after(&self, cursor: Option<&[u8]>) -> impl Iterator<Item = &Row> {
        let lower = cursor.map(Key::new).map_or(Bound::Unbounded, Bound::Excluded);
        self.rows.range((lower, Bound::Unbounded))
    }

    /// The entries of several keys, which share one buffer.
    pub(super) fn get_many(&self, keys: &[Bytes]) -> Vec<Option<Entry>> {
        let rows: Vec<_> = keys.iter().map(|key| self.row(key)).collect();
        let found: Vec<_> = rows.iter().copied().flatten().collect();
        let bytes = found.iter().map(|row| row.len()).sum();
        let mut entries = copy_rows(&found, bytes).into_iter();
        rows.iter().map(|row| row.and_then(|_| entries.next())).collect()
    }

    /// One page, whose entries share one buffer.
    pub(super) fn list(
        &self,
        range: &KeyRange,
        after: Option<&[u8]>,
        limit: usize,
        limits: &Limits,
    ) -> Page {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let more = self.each(range, after, limit, limits, |row| {
            bytes += row.len();
            rows.push(row);
            ControlFlow::Continue(())
        });
        Page { entries: copy_rows(&rows, bytes), revision: self.revision, more }
    }

    /// Shows the entries of one page where they are.
    pub(super) fn scan(
        &self,
        range: &KeyRange,
        after: Option<&[u8]>,
        limit: usize,
        limits: &Limits,
        mut visit: impl FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Scanned {
        let mut last = None;
        let more = self.each(range, after, limit, limits, |row| {
            last = Some(row);
            visit(Seen { key: row.key(), value: row.value(), revision: row.revision })
        });
        let last = last.map(|row| Bytes::copy_from_slice(row.key()));
        Scanned { last, revision: self.revision, more }
    }

    /// Goes through the rows of one page; whether there may be more behind it.
    fn each<'a>(
        &'a self,
        range: &KeyRange,
        after: Option<&[u8]>,
        limit: usize,
        limits: &Limits,
        mut visit: impl FnMut(&'a Row) -> ControlFlow<()>,
    ) -> bool {
        let limit = limit.min(limits.page_entries);
        let (mut count, mut bytes) = (0, 0);
        if range.is_empty() || after.is_some_and(|after| !range.reaches_beyond(after)) {
            return false;
        }
        let (lower, upper) = range.bounds_after(after);
        for row in self.rows.range((lower.map(Key::new), upper.map(Key::new))) {
            let full = count > 0 && bytes + row.len() > limits.page_bytes;
            if full || count == limit {
                return true;
            }
            bytes += row.len();
            count += 1;
            if visit(row).is_break() {
                return true;
            }
        }
        false
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8], revision: u64, lease: Option<LeaseId>) {
        let row = Row { key: Key::new(key), value: value.into(), revision, lease };
        self.live_bytes += row.stored_bytes();
        if let Some(former) = self.rows.replace(row) {
            self.forget(&former, lease);
        }
        if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.insert(key.into());
        }
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        if let Some(former) = self.rows.take(&Key::new(key)) {
            self.forget(&former, None);
        }
    }

    pub(super) fn lease(&self, lease: LeaseId) -> Option<&Lease> {
        self.leases.get(&lease)
    }

    pub(super) fn leases(&self) -> impl ExactSizeIterator<Item = (LeaseId, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    pub(super) fn grant_lease(&mut self, lease: LeaseId, ttl: Duration) {
        self.leases.insert(lease, Lease { ttl, keys: BTreeSet::new() });
        self.next_lease = self.next_lease.max(lease.0.get().saturating_add(1));
    }

    /// Forgets the lease; its keys must be gone.
    pub(super) fn end_lease(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
    }

    /// Whether a lease number is free and in order.
    pub(super) fn next_lease_id(&self) -> LeaseId {
        LeaseId(NonZeroU64::new(self.next_lease).unwrap_or(NonZeroU64::MIN))
    }

    /// Removes a row from the accounts after it was replaced by one under lease `kept`, or deleted.
    fn forget(&mut self, former: &Row, kept: Option<LeaseId>) {
        self.live_bytes = self.live_bytes.saturating_sub(former.stored_bytes());
        let Some(held) = former.lease.filter(|held| Some(*held) != kept) else { return };
        if let Some(lease) = self.leases.get_mut(&held) {
            lease.keys.remove(former.key());
        }
    }
}

fn copy_rows(rows: &[&Row], bytes: usize) -> Vec<Entry> {
    let mut buffer = Vec::with_capacity(bytes);
    for row in rows {
        buffer.extend_from_slice(row.key());
        buffer.extend_from_slice(row.value());
    }
    let buffer = Bytes::from(buffer);
    let mut at = 0;
    rows.iter()
        .map(|row| {
            let (start, middle, end) = (at, at + row.key().len(), at + row.len());
            at = end;
            Entry {
                key: buffer.slice(start..middle),
                value: buffer.slice(middle..end),
                revision: row.revision,
                lease: row.lease,
            }
        })
        .collect()
}
