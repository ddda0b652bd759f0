//! The groups there are, each with its lane.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use thiserror::Error;
use tollway_model::Group;

use super::key::Head;
use super::lane::Lane;

/// Bytes that a lane may hold at least, however many groups there are.
const LANE_BYTES: usize = 64 << 10;

/// A group beyond the limit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there are {limit} groups already, which is the most; use one of them")]
pub(super) struct TooManyGroups {
    limit: usize,
}

/// Only the committer changes their rows; a watcher of a group that is not there yet
/// begins its lane.
#[derive(Debug)]
pub(super) struct Groups {
    lanes: Mutex<HashMap<Group, Arc<Lane>>>,
    /// Most groups.
    limit: usize,
    /// Most bytes of all lanes together.
    lane_bytes: usize,
    /// The revision of a group that was never written.
    first: u64,
}

/// How much all groups hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Totals {
    pub(super) groups: u64,
    pub(super) neighbours: u64,
    pub(super) tombstones: u64,
}

impl Groups {
    pub(super) fn new(limit: usize, lane_bytes: usize, first: u64) -> Self {
        Self { lanes: Mutex::default(), limit, lane_bytes, first }
    }

    /// Adds one that was found in the store.
    pub(super) fn found(&self, group: Group, head: Head, revision: u64) {
        self.lanes().insert(group, Arc::new(Lane::new(head, revision)));
    }

    /// The lane of a group, begun where there is none.
    pub(super) fn lane(&self, group: &Group) -> Result<Arc<Lane>, TooManyGroups> {
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get(group) {
            return Ok(lane.clone());
        }
        if lanes.len() >= self.limit {
            return Err(TooManyGroups { limit: self.limit });
        }
        let head = Head { name: group.to_string(), ..Head::default() };
        let lane = Arc::new(Lane::new(head, self.first));
        lanes.insert(group.clone(), lane.clone());
        Ok(lane)
    }

    /// The lane of a group that was written or watched.
    pub(super) fn find(&self, group: &Group) -> Option<Arc<Lane>> {
        self.lanes().get(group).cloned()
    }

    /// All groups, in the order of their names.
    pub(super) fn all(&self) -> Vec<(Group, Arc<Lane>)> {
        let mut all: Vec<_> =
            self.lanes().iter().map(|(group, lane)| (group.clone(), lane.clone())).collect();
        all.sort_by(|left, right| left.0.cmp(&right.0));
        all
    }

    pub(super) fn revision(&self, group: &Group) -> u64 {
        self.find(group).map_or(self.first, |lane| lane.status().revision)
    }

    /// What is to be written of a group that is about to change, with a number of its own; `begun`
    /// are those that will have got one by then.
    pub(super) fn head_to_write<'a>(
        &self,
        group: &Group,
        begun: impl Iterator<Item = &'a Group>,
    ) -> Result<Head, TooManyGroups> {
        let head = self.lane(group)?.head();
        if head.number != 0 {
            return Ok(head);
        }
        let highest = self.all().iter().map(|(_, lane)| lane.head().number).max().unwrap_or(0);
        let more = begun.filter(|other| self.is_new(other)).count();
        let number = u32::try_from(more).ok().and_then(|more| highest.checked_add(more + 1));
        let number = number.ok_or(TooManyGroups { limit: self.limit })?;
        Ok(Head { number, ..head })
    }

    fn is_new(&self, group: &Group) -> bool {
        self.find(group).is_none_or(|lane| lane.head().number == 0)
    }

    /// Hands the watchers of a group what a transaction wrote.
    pub(super) fn push(
        &self,
        group: &Group,
        head: Head,
        revision: u64,
        batches: Vec<(Bytes, usize)>,
    ) {
        let (lane, most) = {
            let lanes = self.lanes();
            let most = (self.lane_bytes / lanes.len().max(1)).max(LANE_BYTES);
            (lanes.get(group).cloned(), most)
        };
        if let Some(lane) = lane {
            lane.push(head, revision, batches, most);
        }
    }

    pub(super) fn totals(&self) -> Totals {
        let lanes = self.lanes();
        let mut totals = Totals { groups: lanes.len() as u64, ..Totals::default() };
        for lane in lanes.values() {
            let status = lane.status();
            totals.neighbours += status.neighbours;
            totals.tombstones += status.tombstones;
        }
        totals
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<Group, Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
