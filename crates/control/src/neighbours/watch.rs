//! What one watcher is told: the whole group or what has changed since a revision, then every
//! transaction as it becomes durable.
//!
//! A watcher has no queue. It has a place in its group's lane, and a batch or two on the way to it;
//! while it does not take those, nothing is made for it. One that falls out of the lane is told
//! from the table what has changed since: what a slow watcher costs does not grow with how slow it
//! is. A walk through the table sees all that was written up to the revision at which it began, and
//! perhaps more, which is told again.

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
use super::lane::{Lane, Next, Place};
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
    /// Said this often when there is nothing else to say.
    pub(super) heartbeat: Duration,
    /// What is noted of an agent that watches.
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
    /// With the whole group, told or not that what it has is of no use.
    Everything(Option<NeighboursCompacted>),
}

impl Watcher {
    /// Tells until the watcher has gone.
    pub(super) async fn run(self, from: u64, table: u64) {
        match self.tell(from, table).await {
            Ok(()) | Err(End::Gone) => {}
            Err(End::Read(error)) => {
                let _ = self.out.send(Err(store_status(&error))).await;
            }
        }
    }

    async fn tell(&self, from: u64, table: u64) -> Result<(), End> {
        let mut revisions = self.lane.subscribe();
        let base_revision = self.lane.standing().revision;
        let hello =
            WatchNeighboursResponse { table: self.table, base_revision, ..Default::default() };
        self.send(hello).await?;
        let mut place = match self.start(from, table) {
            Start::Changes(revision) => {
                // Told too, so that the watcher knows that it has all.
                self.mark(revision).await?;
                Place::after(revision)
            }
            Start::Everything(compacted) => self.everything(compacted).await?,
        };
        loop {
            match self.lane.next(place) {
                Next::Told { packed, place: reached } => {
                    let revision = reached.advance_from(place);
                    place = reached;
                    self.tell_up_to(packed, revision).await?;
                }
                Next::Behind => place = self.resync(place.revision).await?,
                Next::Nothing => self.wait(&mut revisions, place.revision).await?,
            }
        }
    }

    fn start(&self, from: u64, table: u64) -> Start {
        let standing = self.lane.standing();
        let compacted = |unknown_revision| {
            let oldest_revision = standing.oldest;
            Start::Everything(Some(NeighboursCompacted { oldest_revision, unknown_revision }))
        };
        match from {
            0 => Start::Everything(None),
            _ if table != self.table || from > standing.revision => compacted(true),
            _ if from < standing.oldest => compacted(false),
            _ => Start::Changes(from),
        }
    }

    /// Tells the whole group, and as of which revision at the end.
    async fn everything(&self, compacted: Option<NeighboursCompacted>) -> Result<Place, End> {
        self.counts.full_list();
        self.progress.full_list();
        let base_revision = self.lane.standing().revision;
        if compacted.is_some() {
            self.send(WatchNeighboursResponse { compacted, base_revision, ..Default::default() })
                .await?;
        }
        self.walk(Wanted::Present, base_revision).await?;
        Ok(Place::after(base_revision))
    }

    /// Tells what has changed after `told`, or everything where some of that is not known any more.
    async fn resync(&self, told: u64) -> Result<Place, End> {
        if told >= self.lane.standing().oldest {
            self.counts.resync();
            self.progress.resync();
            let revision = self.lane.standing().revision;
            self.walk(Wanted::After(told), 0).await?;
            // Looked at again behind the walk, which may have missed tombstones that went.
            if told >= self.lane.standing().oldest {
                self.mark(revision).await?;
                return Ok(Place::after(revision));
            }
        }
        let oldest_revision = self.lane.standing().oldest;
        let compacted = NeighboursCompacted { oldest_revision, unknown_revision: false };
        self.everything(Some(compacted)).await
    }

    /// Tells the rows that are wanted; with the last of them that everything up to `revision` was
    /// told, unless that is 0.
    async fn walk(&self, wanted: Wanted, revision: u64) -> Result<(), End> {
        let number = self.lane.head().number;
        let mut walk = Walk::new(self.store.clone(), rows(number), None, wanted);
        loop {
            let batch = walk.next(usize::MAX).await.map_err(End::Read)?;
            let (packed, records) =
                batch.map(|batch| (batch.packed, batch.records)).unwrap_or_default();
            self.counts.told(records);
            match walk.is_over() {
                false => self.tell_up_to(packed, 0).await?,
                true if records == 0 && revision == 0 => return Ok(()),
                true => return self.tell_up_to(packed, revision).await,
            }
        }
    }

    /// Waits for news; tells where it is when there are none for a while.
    async fn wait(&self, revisions: &mut watch::Receiver<u64>, told: u64) -> Result<(), End> {
        loop {
            tokio::select! {
                changed = revisions.changed() => return changed.map_err(|_| End::Gone),
                () = tokio::time::sleep(self.heartbeat) => self.mark(told).await?,
                () = self.out.closed() => return Err(End::Gone),
            }
        }
    }

    async fn mark(&self, revision: u64) -> Result<(), End> {
        self.tell_up_to(Bytes::new(), revision).await
    }

    /// Tells neighbours with which everything up to `revision` was told; 0 where that cannot be
    /// said yet.
    async fn tell_up_to(&self, packed: Bytes, revision: u64) -> Result<(), End> {
        let told_ns = monotonic_ns();
        let response = WatchNeighboursResponse { packed, revision, told_ns, ..Default::default() };
        self.send(response).await
    }

    async fn send(&self, response: WatchNeighboursResponse) -> Result<(), End> {
        self.out.send(Ok(response)).await.map_err(|_| End::Gone)
    }
}
