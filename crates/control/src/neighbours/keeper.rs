//! The one task that changes neighbours: it takes what waits, decides it, writes that as one
//! transaction, answers, and tells those who watch.
//!
//! What comes while the disk works is the next transaction, so that those who come together share
//! a commit. Nobody else writes the file, so what was looked up stands until it is written.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tollway_model::Group;
use tollway_model::neighbour::packed::{BATCH_RECORDS, is_tombstone};
use tollway_store::{Op, ReadError, Store, TransactError, Transaction};
use tollway_wire::v1::{NeighbourFailure, WriteNeighboursResponse};

use super::counts::Counts;
use super::decide::{Change, Decision, Refusal, decide};
use super::groups::{Groups, TooManyGroups};
use super::key::{Head, group_key, pack_row, row_parts};
use super::tombstones;
use crate::options::NeighbourOptions;

/// A transaction is written when it has this many changes; a request may take it beyond that.
const BATCH_KEYS: usize = 4096;

/// Why a request failed as a whole. It may have been made or not after [`WriteError::Write`] for
/// what the disk does, and was not else.
#[derive(Debug, Clone, Error)]
pub(super) enum WriteError {
    #[error("neighbours cannot be read")]
    Read(#[source] Arc<ReadError>),
    #[error("neighbours cannot be written")]
    Write(#[source] Arc<TransactError>),
    #[error(transparent)]
    TooManyGroups(#[from] TooManyGroups),
}

/// A request.
pub(super) struct Write {
    pub(super) group: Group,
    pub(super) changes: Vec<Change>,
    /// Told once it is durable.
    pub(super) reply: oneshot::Sender<Result<WriteNeighboursResponse, WriteError>>,
}

pub(super) struct Keeper {
    pub(super) store: Store,
    pub(super) groups: Arc<Groups>,
    pub(super) counts: Arc<Counts>,
    pub(super) options: NeighbourOptions,
    /// Neighbours and tombstones of all groups.
    pub(super) rows: u64,
    pub(super) tombstones: tombstones::Clock,
}

/// What is decided and not written yet.
#[derive(Default)]
struct Batch {
    changes: BTreeMap<Bytes, Bytes>,
    /// What becomes of the groups that it changes.
    groups: HashMap<Group, Head>,
    /// Rows that it adds.
    added: u64,
    waiting: Vec<(Write, WriteNeighboursResponse)>,
}

impl Keeper {
    /// Serves until `stop`, or until nobody can ask any more.
    pub(super) async fn run(mut self, mut writes: mpsc::Receiver<Write>, stop: CancellationToken) {
        loop {
            let compaction = self.tombstones.next();
            tokio::select! {
                write = writes.recv() => match write {
                    Some(write) => self.serve(write, &mut writes).await,
                    None => return,
                },
                () = tokio::time::sleep_until(compaction) => self.compact().await,
                () = stop.cancelled() => return,
            }
        }
    }

    /// Decides a request and what waits behind it, and writes that.
    async fn serve(&mut self, first: Write, writes: &mut mpsc::Receiver<Write>) {
        let mut batch = Batch::default();
        let mut next = Some(first);
        while let Some(write) = next.take() {
            match self.decide(&mut batch, &write).await {
                Ok(response) => batch.waiting.push((write, response)),
                Err(error) => drop(write.reply.send(Err(error))),
            }
            if batch.changes.len() < BATCH_KEYS {
                next = writes.try_recv().ok();
            }
        }
        self.commit(batch).await;
    }

    /// Decides the changes of one request on top of those before it.
    async fn decide(
        &self,
        batch: &mut Batch,
        write: &Write,
    ) -> Result<WriteNeighboursResponse, WriteError> {
        let mut head = match batch.groups.get(&write.group) {
            Some(head) => head.clone(),
            None => self.groups.head_to_write(&write.group, batch.groups.keys())?,
        };
        let records: Vec<_> = write.changes.iter().map(|change| change.record).collect();
        let parts = row_parts(head.number, &records);
        // In the order of their keys they are found faster; of one key the first comes first.
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|left, right| parts[*left].0.cmp(&parts[*right].0));
        let keys: Vec<_> = order.iter().map(|index| parts[*index].0.clone()).collect();
        let found = self.store.get_many(&keys).await;
        let found = found.map_err(|error| WriteError::Read(Arc::new(error)))?;
        let mut response = WriteNeighboursResponse::default();
        for (index, found) in order.into_iter().zip(found) {
            let (change, (key, place)) = (&write.changes[index], &parts[index]);
            let standing =
                batch.changes.get(key).cloned().or_else(|| found.map(|entry| entry.value));
            let mut decision = decide(change.operation, standing.as_deref(), place);
            if decision == Decision::Write && standing.is_none() {
                if self.rows + batch.added >= self.options.rows {
                    decision = Decision::Refuse(Refusal::Excess { limit: self.options.rows });
                } else {
                    batch.added += 1;
                }
            }
            match decision {
                Decision::Write => {
                    count(&mut head, standing.as_deref(), place);
                    batch.changes.insert(key.clone(), place.clone());
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
            batch.groups.insert(write.group.clone(), head);
        }
        Ok(response)
    }

    /// Writes a batch, tells those who watch, and answers.
    async fn commit(&mut self, batch: Batch) {
        let Batch { changes, groups, added, waiting } = batch;
        if changes.is_empty() {
            self.answer(waiting, Ok(None));
            return;
        }
        let mut ops: Vec<_> = changes.iter().map(|(key, place)| put(key, place)).collect();
        ops.extend(
            groups
                .iter()
                .map(|(group, head)| put(&group_key(group), &Bytes::from(head.encode_to_vec()))),
        );
        let began = Instant::now();
        match self.store.transact(Transaction { guards: Vec::new(), ops }).await {
            Ok(revision) => {
                self.rows += added;
                for (group, head) in groups {
                    let batches = pack(&changes, head.number, revision);
                    self.groups.push(&group, head, revision, batches);
                }
                self.counts.kept(self.groups.totals());
                self.answer(waiting, Ok(Some(revision)));
            }
            Err(error) => {
                tracing::warn!(
                    reason = tollway_model::chain(&error),
                    after = ?began.elapsed(),
                    "neighbours were not written"
                );
                self.answer(waiting, Err(WriteError::Write(Arc::new(error))));
            }
        }
    }

    /// Answers requests; with the revision of the transaction that they were written in.
    fn answer(
        &self,
        waiting: Vec<(Write, WriteNeighboursResponse)>,
        written: Result<Option<u64>, WriteError>,
    ) {
        for (write, mut response) in waiting {
            let answer = match (&written, response.changed) {
                // What stood as it should may have been of a request before it.
                (Err(error), changed) if changed + response.unchanged > 0 => Err(error.clone()),
                (Ok(Some(revision)), 1..) => {
                    response.revision = *revision;
                    Ok(response)
                }
                (_, _) => {
                    response.revision = self.groups.revision(&write.group);
                    Ok(response)
                }
            };
            if let Ok(response) = &answer {
                self.counts.wrote(response);
            }
            let _ = write.reply.send(answer);
        }
    }
}

pub(super) fn put(key: &Bytes, value: &Bytes) -> Op {
    Op::Put { key: key.clone(), value: value.clone(), lease: None }
}

/// Books a row that takes the place of what stood there.
fn count(head: &mut Head, standing: Option<&[u8]>, place: &[u8]) {
    match standing.map(is_tombstone) {
        Some(true) => head.tombstones = head.tombstones.saturating_sub(1),
        Some(false) => head.neighbours = head.neighbours.saturating_sub(1),
        None => {}
    }
    match is_tombstone(place) {
        true => head.tombstones += 1,
        false => head.neighbours += 1,
    }
}

/// The changes of one group, packed in batches, each with the number of its records.
fn pack(changes: &BTreeMap<Bytes, Bytes>, number: u32, revision: u64) -> Vec<(Bytes, usize)> {
    let range = super::key::rows(number);
    let (mut batches, mut packed, mut records) = (Vec::new(), Vec::new(), 0);
    let from = changes.range(range.start.clone()..);
    for (key, place) in from.take_while(|(key, _)| range.contains(key)) {
        if records == BATCH_RECORDS {
            batches.push((Bytes::from(std::mem::take(&mut packed)), records));
            records = 0;
        }
        if pack_row(key, revision, place, &mut packed) {
            records += 1;
        }
    }
    if records > 0 {
        batches.push((packed.into(), records));
    }
    batches
}
