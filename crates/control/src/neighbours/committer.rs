//! Decides what requests change in the table of neighbours, and keeps the lanes and counts equal to
//! what is durable. `tollway_store::Sequencer` runs it: it is the only writer of the file.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;
use tokio::time::Instant;
use tollway_model::Group;
use tollway_model::neighbour::packed::{BATCH_RECORDS, is_tombstone};
use tollway_store::{CommitOutcome, Decide, Pending, ReadError, TransactError};
use tollway_wire::v1::{NeighbourFailure, WriteNeighboursResponse};

use super::counts::Counts;
use super::decide::{Change, Decision, Refusal, decide};
use super::groups::{Groups, TooManyGroups};
use super::key::{Head, group_key, pack_row, row_parts, rows};
use super::tombstones::{Clock, Running, SLICE_ROWS, SLICE_TOMBSTONES};
use crate::options::NeighbourOptions;

/// Why a request failed as a whole. After [`WriteError::Write`] its changes may be made or not,
/// after the others they are not.
#[derive(Debug, Clone, Error)]
pub(super) enum WriteError {
    #[error("neighbours cannot be read")]
    Read(#[source] Arc<ReadError>),
    #[error("neighbours cannot be written")]
    Write(#[source] Arc<TransactError>),
    #[error(transparent)]
    TooManyGroups(#[from] TooManyGroups),
}

/// The changes of one request.
pub(super) struct Write {
    pub(super) group: Group,
    pub(super) changes: Vec<Change>,
}

/// A response before its revision is known.
pub(super) struct Decided {
    group: Group,
    pub(super) response: WriteNeighboursResponse,
}

pub(super) struct Committer {
    pub(super) groups: Arc<Groups>,
    pub(super) counts: Arc<Counts>,
    pub(super) options: NeighbourOptions,
    /// Durable neighbours and tombstones of all groups.
    pub(super) rows: u64,
    pub(super) tombstones: Clock,
    pub(super) undurable: Undurable,
}

/// What the changes that are not durable yet do to groups and counts.
#[derive(Default)]
pub(super) struct Undurable {
    pub(super) heads: HashMap<Group, Head>,
    added_rows: u64,
    pub(super) removed_rows: u64,
}

impl Decide for Committer {
    type Request = Write;
    type Response = Decided;
    type Error = WriteError;

    async fn decide(
        &mut self,
        pending: &mut Pending<Self>,
        write: Write,
    ) -> Result<Decided, WriteError> {
        let mut head = self.head_of(&write.group)?;
        let records: Vec<_> = write.changes.iter().map(|change| change.record).collect();
        let parts = row_parts(head.number, &records);
        // Keys in order are found faster; of two changes of one key the first comes first.
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|left, right| parts[*left].0.cmp(&parts[*right].0));
        let keys: Vec<_> = order.iter().map(|index| parts[*index].0.clone()).collect();
        let found = pending.store().get_many(&keys).await;
        let found = found.map_err(|error| WriteError::Read(Arc::new(error)))?;
        let mut response = WriteNeighboursResponse::default();
        for (index, found) in order.into_iter().zip(found) {
            let (change, (key, wanted)) = (&write.changes[index], &parts[index]);
            let present = match pending.change(key) {
                Some(value) => value.cloned(),
                None => found.map(|entry| entry.value),
            };
            match self.decide_change(change, present.as_deref(), wanted) {
                Decision::Write => {
                    count(&mut head, present.as_deref(), wanted);
                    self.undurable.added_rows += u64::from(present.is_none());
                    pending.put(key.clone(), wanted.clone());
                    response.changed += 1;
                }
                Decision::Unchanged => response.unchanged += 1,
                Decision::Refuse(refusal) => response.failures.push(NeighbourFailure {
                    index: change.index,
                    reason: refusal.reason().into(),
                    text: refusal.text(change),
                }),
            }
        }
        response.failures.sort_by_key(|failure| failure.index);
        if response.changed > 0 {
            self.set_head(pending, &write.group, head);
        }
        Ok(Decided { group: write.group, response })
    }

    /// Moves the lanes on to what is durable now.
    async fn committed(&mut self, outcome: &CommitOutcome) {
        let Undurable { heads, added_rows, removed_rows } = std::mem::take(&mut self.undurable);
        match &outcome.written {
            Ok(Some(revision)) => {
                self.rows = (self.rows + added_rows).saturating_sub(removed_rows);
                for (group, head) in heads {
                    let batches = pack(&outcome.changes, head.number, *revision);
                    self.groups.push(&group, head, *revision, batches);
                }
                self.counts.set_totals(self.groups.totals());
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(
                reason = tollway_model::chain(error.as_ref()),
                after = ?outcome.took,
                "neighbours were not written"
            ),
        }
    }

    fn answer(&mut self, decided: Decided, outcome: &CommitOutcome) -> Result<Decided, WriteError> {
        let Decided { group, mut response } = decided;
        response.revision = match (&outcome.written, response.changed) {
            // An unchanged neighbour may have its state from a request before this one.
            (Err(error), changed) if changed + response.unchanged > 0 => {
                return Err(WriteError::Write(error.clone()));
            }
            (Ok(Some(revision)), 1..) => *revision,
            (_, _) => self.groups.revision(&group),
        };
        self.counts.wrote(&response);
        Ok(Decided { group, response })
    }

    fn upkeep_at(&self) -> Option<Instant> {
        Some(self.tombstones.next())
    }

    async fn upkeep(&mut self, pending: &mut Pending<Self>) {
        self.compact(pending).await;
    }
}

impl Committer {
    /// The head of a group that is about to change, with its number.
    fn head_of(&self, group: &Group) -> Result<Head, TooManyGroups> {
        match self.undurable.heads.get(group) {
            Some(head) => Ok(head.clone()),
            None => self.groups.head_to_write(group, self.undurable.heads.keys()),
        }
    }

    pub(super) fn set_head(&mut self, pending: &mut Pending<Self>, group: &Group, head: Head) {
        pending.put(group_key(group), head.encode_to_vec().into());
        self.undurable.heads.insert(group.clone(), head);
    }

    /// Decides one change by the present value of its key, within the limit of rows.
    fn decide_change(&self, change: &Change, present: Option<&[u8]>, wanted: &[u8]) -> Decision {
        let decision = decide(change.operation, present, wanted);
        let limit = self.options.rows;
        let is_added = decision == Decision::Write && present.is_none();
        if is_added && self.rows + self.undurable.added_rows >= limit {
            return Decision::Refuse(Refusal::Excess { limit });
        }
        decision
    }
}

/// Compaction: tombstones go in slices between the requests.
impl Committer {
    /// Removes a slice of the tombstones that may go, or searches for them.
    pub(super) async fn compact(&mut self, pending: &mut Pending<Self>) {
        let Some(mut running) = self.tombstones.running.pop_front() else {
            self.find_tombstones(pending.store().revision());
            return;
        };
        if self.slice(&mut running, pending).await {
            self.tombstones.running.push_front(running);
        }
    }

    fn find_tombstones(&mut self, revision: u64) {
        let clock = &mut self.tombstones;
        let (kept, latest) = clock.tick(Instant::now(), revision);
        for (group, lane) in self.groups.all() {
            let status = lane.status();
            let upto = if status.tombstones > clock.most { latest } else { kept };
            let upto = upto.min(status.revision);
            if status.tombstones > 0 && upto > status.oldest {
                clock.running.push_back(Running { group, upto, after: None });
            }
        }
    }

    /// Whether there may be more of the same.
    async fn slice(&mut self, running: &mut Running, pending: &mut Pending<Self>) -> bool {
        let Some(lane) = self.groups.find(&running.group) else { return false };
        let (range, mut gone) = (rows(lane.head().number), Vec::new());
        let store = pending.store();
        let scan = store.scan(&range, running.after.as_deref(), SLICE_ROWS, |row| {
            if is_tombstone(row.value) && row.revision <= running.upto {
                gone.push(Bytes::copy_from_slice(row.key));
            }
            if gone.len() < SLICE_TOMBSTONES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        let Ok(scanned) = scan.await else { return false };
        running.after = scanned.last;
        if gone.is_empty() {
            return scanned.more;
        }
        // A walk through the table under way checks this at its end.
        lane.raise_oldest(running.upto);
        let (mut head, count) = (lane.head(), gone.len() as u64);
        head.tombstones = head.tombstones.saturating_sub(count);
        gone.into_iter().for_each(|key| pending.delete(key));
        self.set_head(pending, &running.group, head);
        self.undurable.removed_rows += count;
        match pending.commit(self).await {
            Ok(()) => {
                self.counts.compacted(count);
                scanned.more
            }
            Err(_) => {
                tracing::warn!(group = %running.group, "tombstones were not removed");
                false
            }
        }
    }
}

/// Counts a row that replaces the present one of its key.
fn count(head: &mut Head, present: Option<&[u8]>, written: &[u8]) {
    match present.map(is_tombstone) {
        Some(true) => head.tombstones = head.tombstones.saturating_sub(1),
        Some(false) => head.neighbours = head.neighbours.saturating_sub(1),
        None => {}
    }
    match is_tombstone(written) {
        true => head.tombstones += 1,
        false => head.neighbours += 1,
    }
}

/// The changes of one group, packed in batches, each with the number of its records.
fn pack(
    changes: &BTreeMap<Bytes, Option<Bytes>>,
    number: u32,
    revision: u64,
) -> Vec<(Bytes, usize)> {
    let range = rows(number);
    let (mut batches, mut packed, mut records) = (Vec::new(), Vec::new(), 0);
    let from = changes.range(range.start.clone()..);
    for (key, value) in from.take_while(|(key, _)| range.contains(key)) {
        // Watchers learn of a deleted neighbour by its tombstone, not when that is removed.
        let Some(value) = value else { continue };
        if records == BATCH_RECORDS {
            batches.push((Bytes::from(std::mem::take(&mut packed)), records));
            records = 0;
        }
        if pack_row(key, revision, value, &mut packed) {
            records += 1;
        }
    }
    if records > 0 {
        batches.push((packed.into(), records));
    }
    batches
}
