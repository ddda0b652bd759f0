//! The state in memory: every entry in key order, the leases with their keys, the history.
//!
//! An entry is one allocation and one slot of a B-tree (about 110 bytes for 40 bytes of key and
//! value). Only the writer thread changes it.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;

use super::history::History;
use crate::model::{Entry, KeyRange, LeaseId, Limits, Page};

/// Bytes an entry takes in the file beyond its key and value.
const ROW_OVERHEAD_BYTES: u64 = 25;

/// One entry: key and value in one piece.
#[derive(Debug)]
pub(super) struct Row {
    data: Box<[u8]>,
    key_length: u32,
    revision: u64,
    lease: Option<LeaseId>,
}

impl Row {
    fn new(key: &[u8], value: &[u8], revision: u64, lease: Option<LeaseId>) -> Self {
        let mut data = Vec::with_capacity(key.len() + value.len());
        data.extend_from_slice(key);
        data.extend_from_slice(value);
        let key_length = u32::try_from(key.len()).expect("keys are limited far below 4 GiB");
        Self { data: data.into(), key_length, revision, lease }
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.data[..self.key_end()]
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.data[self.key_end()..]
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        self.lease
    }

    /// Bytes of key and value.
    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    fn key_end(&self) -> usize {
        usize::try_from(self.key_length).expect("it was a length in memory")
    }

    fn stored_bytes(&self) -> u64 {
        u64::try_from(self.data.len()).expect("sizes fit 64 bits") + ROW_OVERHEAD_BYTES
    }
}

impl Borrow<[u8]> for Row {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}
impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
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
        self.key().cmp(other.key())
    }
}

/// A lease and the keys that end with it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) ttl: Duration,
    pub(super) keys: BTreeSet<Box<[u8]>>,
}

/// Everything the store knows.
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
        self.rows.get(key)
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
        let lower = cursor.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows.range::<[u8], _>((lower, Bound::Unbounded))
    }

    /// One page, whose entries share one buffer.
    pub(super) fn list(
        &self,
        range: &KeyRange,
        after: Option<&[u8]>,
        limit: usize,
        limits: &Limits,
    ) -> Page {
        let limit = limit.min(limits.page_entries);
        let (mut rows, mut bytes, mut more) = (Vec::new(), 0, false);
        if !range.is_empty() && after.is_none_or(|after| range.reaches_beyond(after)) {
            for row in self.rows.range::<[u8], _>(range.bounds_after(after)) {
                let full = !rows.is_empty() && bytes + row.len() > limits.page_bytes;
                if full || rows.len() == limit {
                    more = true;
                    break;
                }
                bytes += row.len();
                rows.push(row);
            }
        }
        Page { entries: copy_rows(&rows, bytes), revision: self.revision, more }
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8], revision: u64, lease: Option<LeaseId>) {
        let row = Row::new(key, value, revision, lease);
        self.live_bytes += row.stored_bytes();
        if let Some(former) = self.rows.replace(row) {
            self.forget(&former, lease);
        }
        if let Some(lease) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.insert(key.into());
        }
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        if let Some(former) = self.rows.take(key) {
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

    /// Books out a row that was replaced by one under `kept`, or removed.
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
        buffer.extend_from_slice(&row.data);
    }
    let buffer = Bytes::from(buffer);
    let mut at = 0;
    rows.iter()
        .map(|row| {
            let (start, middle, end) = (at, at + row.key_end(), at + row.len());
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
