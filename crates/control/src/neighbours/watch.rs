//! Sends one watcher the whole group or the changes since a revision, then every transaction as it
//! becomes durable.
//!
//! A watcher has no queue. It has a cursor in its group's lane, and a batch or two under way; while
//! it does not read those, no more are made for it. A watcher that falls out of the lane gets the
//! changes since then from the table, so its cost does not grow with its lag. A walk through the
//! table sees everything up to the revision at which it began. It may see later changes, which are
//! sent again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tollway_net::monotonic_ns;
use tollway_store::{ReadError, Store};
use tollway_wire::v1::{NeighboursCompacted, WatchNeighboursResponse};
use tonic::Status;

use super::agents::Progress;
use super::counts::Counts;
use super::key::rows;
use super::lane::{Cursor, Lane, Next};
use super::walk::{Walk, Wanted};
use crate::status::store_status;

pub(super) type Answer = Result<WatchNeighboursResponse, Status>;

pub(super) struct Watcher {
    pub(super) store: Store,
    pub(super) lane: Arc<Lane>,
    pub(super) counts: Arc<Counts>,
    /// Which table this is.
    pub(super) table: u64,
    pub(super) out: mpsc::Sender<Answer>,
    /// How often a mark is sent when there are no changes.
    pub(super) heartbeat: Duration,
    /// What is known of an agent that watches.
    pub(super) progress: Arc<Progress>,
}

/// Why a watch ends.
#[derive(Debug)]
enum End {
    /// The watcher has gone.
    Gone,
    Read(ReadError),
}

/// Where a watcher begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// With what has changed since a revision.
    Changes(u64),
    /// With the whole group, and with the news that its own neighbours are void.
    Everything(Option<NeighboursCompacted>),
}

impl Watcher {
    /// Serves until the watcher has gone.
    pub(super) async fn run(self, from: u64, table: u64) {
        match self.serve(from, table).await {
            Ok(()) | Err(End::Gone) => {}
            Err(End::Read(error)) => {
                let _ = self.out.send(Err(store_status(&error))).await;
            }
        }
    }

    async fn serve(&self, from: u64, table: u64) -> Result<(), End> {
        let mut revisions = self.lane.subscribe();
        let base_revision = self.lane.status().revision;
        let hello =
            WatchNeighboursResponse { table: self.table, base_revision, ..Default::default() };
        self.send(hello).await?;
        let mut cursor = match self.start(from, table) {
            Start::Changes(revision) => {
                // Sent also without changes, so that the watcher knows that it has all.
                self.mark(revision).await?;
                Cursor::after(revision)
            }
            Start::Everything(compacted) => self.everything(compacted).await?,
        };
        loop {
            match self.lane.next(cursor) {
                Next::Batch { packed, cursor: reached } => {
                    let revision = reached.advance_from(cursor);
                    cursor = reached;
                    self.send_up_to(packed, revision).await?;
                }
                Next::Behind => cursor = self.resync(cursor.revision).await?,
                Next::Nothing => self.wait(&mut revisions, cursor.revision).await?,
            }
        }
    }

    fn start(&self, from: u64, table: u64) -> Start {
        let status = self.lane.status();
        let compacted = |unknown_revision| {
            let oldest_revision = status.oldest;
            Start::Everything(Some(NeighboursCompacted { oldest_revision, unknown_revision }))
        };
        match from {
            0 => Start::Everything(None),
            _ if table != self.table || from > status.revision => compacted(true),
            _ if from < status.oldest => compacted(false),
            _ => Start::Changes(from),
        }
    }

    /// Sends the whole group, and at its end the mark with its revision.
    async fn everything(&self, compacted: Option<NeighboursCompacted>) -> Result<Cursor, End> {
        self.counts.full_list();
        self.progress.full_list();
        let base_revision = self.lane.status().revision;
        if compacted.is_some() {
            self.send(WatchNeighboursResponse { compacted, base_revision, ..Default::default() })
                .await?;
        }
        self.walk(Wanted::Present, base_revision).await?;
        Ok(Cursor::after(base_revision))
    }

    /// Sends the changes after `sent`, or the whole group when some of them are gone.
    async fn resync(&self, sent: u64) -> Result<Cursor, End> {
        if sent >= self.lane.status().oldest {
            self.counts.resync();
            self.progress.resync();
            let revision = self.lane.status().revision;
            self.walk(Wanted::After(sent), 0).await?;
            // Checked again after the walk, which may have missed removed tombstones.
            if sent >= self.lane.status().oldest {
                self.mark(revision).await?;
                return Ok(Cursor::after(revision));
            }
        }
        let oldest_revision = self.lane.status().oldest;
        let compacted = NeighboursCompacted { oldest_revision, unknown_revision: false };
        self.everything(Some(compacted)).await
    }

    /// Sends the wanted rows; the last of them are a mark for `revision`, unless that is 0.
    async fn walk(&self, wanted: Wanted, revision: u64) -> Result<(), End> {
        let number = self.lane.head().number;
        let mut walk = Walk::new(self.store.clone(), rows(number), None, wanted);
        loop {
            let batch = walk.next(usize::MAX).await.map_err(End::Read)?;
            let (packed, records) =
                batch.map(|batch| (batch.packed, batch.records)).unwrap_or_default();
            self.counts.sent(records);
            match walk.is_over() {
                false => self.send_up_to(packed, 0).await?,
                true if records == 0 && revision == 0 => return Ok(()),
                true => return self.send_up_to(packed, revision).await,
            }
        }
    }

    /// Waits for changes; sends a mark when there are none for a while.
    async fn wait(&self, revisions: &mut watch::Receiver<u64>, sent: u64) -> Result<(), End> {
        loop {
            tokio::select! {
                changed = revisions.changed() => return changed.map_err(|_| End::Gone),
                () = tokio::time::sleep(self.heartbeat) => self.mark(sent).await?,
                () = self.out.closed() => return Err(End::Gone),
            }
        }
    }

    async fn mark(&self, revision: u64) -> Result<(), End> {
        self.send_up_to(Bytes::new(), revision).await
    }

    /// Sends neighbours, and the mark that with them everything up to `revision` was sent; 0 for no
    /// mark.
    async fn send_up_to(&self, packed: Bytes, revision: u64) -> Result<(), End> {
        let sent_ns = monotonic_ns();
        let response = WatchNeighboursResponse { packed, revision, sent_ns, ..Default::default() };
        self.send(response).await
    }

    async fn send(&self, response: WatchNeighboursResponse) -> Result<(), End> {
        self.out.send(Ok(response)).await.map_err(|_| End::Gone)
    }
}
