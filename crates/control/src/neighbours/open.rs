//! The file of neighbours: opened or made, and what is found in it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use thiserror::Error;
use tokio::sync::OnceCell;
use tollway_model::{Group, chain};
use tollway_store::{
    Answer, Expected, KeyRange, Limits, OpenError, ReadError, Sequencer, SequencerTask, Store,
    TransactError, Transaction,
};
use tollway_wire::v1::WriteNeighboursResponse;
use tonic::Status;

use super::agents::Agents;
use super::committer::{Committer, Undurable, Write, WriteError};
use super::counts::Counts;
use super::decide::Change;
use super::groups::Groups;
use super::key::{GROUP_PREFIX, Head, TABLE_KEY};
use super::tombstones::Clock;
use crate::background::Background;
use crate::options::NeighbourOptions;
use crate::status::{stopping, store_status};
use crate::stores::Stores;

/// Name of the file in the directory of the store.
pub(crate) const FILE_NAME: &str = "tollway.neighbours";
/// Requests that wait for the committer; further ones wait to be queued.
const WRITES: usize = 64;
/// Groups that are read at once.
const PAGE: usize = 1_000;

/// Opened when it is first needed.
pub(crate) struct Neighbours {
    stores: Stores,
    options: NeighbourOptions,
    background: Background,
    open: OnceCell<Arc<Open>>,
    pub(crate) counts: Arc<Counts>,
}

/// The file, and the task that writes it.
pub(super) struct Open {
    pub(super) store: Store,
    /// Which table this is; never 0.
    pub(super) table: u64,
    pub(super) groups: Arc<Groups>,
    pub(super) agents: Arc<Agents>,
    pub(super) counts: Arc<Counts>,
    writes: Sequencer<Committer>,
}

/// Why neighbours cannot be used.
#[derive(Debug, Error)]
pub(super) enum NeighboursError {
    #[error("neighbours cannot be opened")]
    Open(#[from] OpenError),
    #[error("neighbours cannot be read")]
    Read(#[from] ReadError),
    #[error("the file of neighbours cannot be made")]
    Make(#[from] TransactError),
    #[error("the file of neighbours is of a later version of Tollway, or damaged, at {what}")]
    Foreign { what: String },
}

/// An answer that comes when a request is durable.
pub(super) type PendingAnswer = Answer<Committer>;

impl Neighbours {
    pub(crate) fn new(stores: Stores, options: NeighbourOptions, background: Background) -> Self {
        Self { stores, options, background, open: OnceCell::new(), counts: Arc::default() }
    }

    pub(super) async fn open(&self) -> Result<Arc<Open>, Status> {
        let opening = || async {
            let (counts, options) = (self.counts.clone(), self.options);
            let (open, task) = Open::begin(&self.stores, options, counts).await?;
            self.background.spawn(task.run(self.background.stop.clone().cancelled_owned()));
            Ok(Arc::new(open))
        };
        self.open.get_or_try_init(opening).await.cloned().map_err(|error: NeighboursError| {
            let reason = chain(&error);
            tracing::warn!(reason, "neighbours cannot be used");
            Status::failed_precondition(reason)
        })
    }
}

impl Open {
    /// Opens or makes the file; returns the task that writes it, which the caller runs.
    pub(super) async fn begin(
        stores: &Stores,
        options: NeighbourOptions,
        counts: Arc<Counts>,
    ) -> Result<(Self, SequencerTask<Committer>), NeighboursError> {
        // Followers of neighbours follow their lanes.
        let limits = Limits { history_changes: 1, history_bytes: 1, ..Limits::default() };
        let store = stores.open(FILE_NAME, limits).await?;
        let recorder = counts.clone();
        store.observe_commits(move |commit| recorder.commits.record(commit));
        let (table, first) = table(&store).await?;
        let groups = Groups::new(options.groups, options.lane_bytes, first);
        read_groups(&store, &groups).await?;
        let (totals, groups) = (groups.totals(), Arc::new(groups));
        counts.set_totals(totals);
        let committer = Committer {
            tombstones: Clock::new(&options, store.revision()),
            groups: groups.clone(),
            counts: counts.clone(),
            options,
            rows: totals.neighbours + totals.tombstones,
            undurable: Undurable::default(),
        };
        let (writes, task) = Sequencer::new(store.clone(), committer, WRITES);
        let agents = Arc::new(Agents::new(counts.clone()));
        Ok((Self { store, table, groups, agents, counts, writes }, task))
    }

    /// Queues the changes of one request.
    pub(super) async fn write(
        &self,
        group: Group,
        changes: Vec<Change>,
    ) -> Result<PendingAnswer, Status> {
        self.writes.send(Write { group, changes }).await.map_err(|_| stopping())
    }
}

/// Waits for the answer to a request.
pub(super) async fn answer(pending: PendingAnswer) -> Result<WriteNeighboursResponse, Status> {
    let decided = pending.await.map_err(|_| stopping())?;
    decided.map(|decided| decided.response).map_err(|error| match &error {
        WriteError::Write(source) => store_status(source.as_ref()),
        WriteError::Read(source) => store_status(source.as_ref()),
        WriteError::TooManyGroups(_) => Status::resource_exhausted(chain(&error)),
    })
}

/// Which table this is, and the revision at which it began.
async fn table(store: &Store) -> Result<(u64, u64), NeighboursError> {
    if store.get(TABLE_KEY).await?.is_none() {
        // A random number distinguishes tables; it protects nothing.
        let number = RandomState::new().hash_one(TABLE_KEY).max(1);
        let value = Bytes::copy_from_slice(&number.to_be_bytes());
        let make = Transaction::new().when(TABLE_KEY, Expected::Absent).put(TABLE_KEY, value);
        store.transact(make).await?;
    }
    let foreign = || NeighboursError::Foreign { what: "the number of the table".to_owned() };
    let entry = store.get(TABLE_KEY).await?.ok_or_else(foreign)?;
    let number = <[u8; 8]>::try_from(&entry.value[..]).map_err(|_| foreign())?;
    Ok((u64::from_be_bytes(number), entry.revision))
}

async fn read_groups(store: &Store, groups: &Groups) -> Result<(), NeighboursError> {
    let mut after: Option<Bytes> = None;
    loop {
        let page = store.list(&KeyRange::prefix(GROUP_PREFIX), after.as_deref(), PAGE).await?;
        for entry in &page.entries {
            let what = || format!("the group {}", entry.key.escape_ascii());
            let foreign = || NeighboursError::Foreign { what: what() };
            let head = Head::decode(entry.value.clone()).map_err(|_| foreign())?;
            let group = Group::new(&head.name).map_err(|_| foreign())?;
            groups.found(group, head, entry.revision);
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return Ok(());
        }
    }
}
