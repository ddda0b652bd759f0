//! The last transactions, for watches: bounded by changes and bytes, shared by all watchers.

use std::collections::VecDeque;

use crate::model::{Change, KeyRange};

/// What a change takes beyond the frame it is a slice of.
const CHANGE_OVERHEAD_BYTES: usize = size_of::<Change>();

/// One transaction as watchers see it.
#[derive(Debug)]
struct Committed {
    revision: u64,
    changes: Vec<Change>,
    bytes: usize,
}

/// The transactions after [`History::floor`].
#[derive(Debug)]
pub(super) struct History {
    committed: VecDeque<Committed>,
    floor: u64,
    changes: usize,
    bytes: usize,
    changes_limit: usize,
    bytes_limit: usize,
}

/// A part of the history, as one watcher sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) changes: Vec<Change>,
    /// The last transaction read.
    pub(super) upto: u64,
}

impl History {
    pub(super) fn new(changes_limit: usize, bytes_limit: usize) -> Self {
        Self {
            committed: VecDeque::new(),
            floor: 0,
            changes: 0,
            bytes: 0,
            changes_limit,
            bytes_limit,
        }
    }

    /// The revision up to which transactions are forgotten; a watch may start there.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether a transaction of so many changes could stay at all.
    pub(super) fn has_room_for(&self, changes: usize) -> bool {
        changes <= self.changes_limit
    }

    /// Adds a transaction, and forgets the oldest where there are too many.
    pub(super) fn push(&mut self, revision: u64, changes: Vec<Change>, frame_bytes: usize) {
        let bytes = frame_bytes + changes.len() * CHANGE_OVERHEAD_BYTES;
        self.changes += changes.len();
        self.bytes += bytes;
        self.committed.push_back(Committed { revision, changes, bytes });
        while self.changes > self.changes_limit || self.bytes > self.bytes_limit {
            if !self.forget_oldest() {
                break;
            }
        }
    }

    /// Forgets transactions up to and including `revision`.
    pub(super) fn compact(&mut self, revision: u64) {
        while self.committed.front().is_some_and(|oldest| oldest.revision <= revision) {
            self.forget_oldest();
        }
        self.floor = self.floor.max(revision);
    }

    /// The changes of `range` in the transactions after `from`, which is not below the floor. Reads
    /// at least one transaction and about `most` changes, so that a watcher far behind does not
    /// hold up the others.
    pub(super) fn after(&self, from: u64, range: &KeyRange, most: usize) -> Seen {
        let first = self.committed.partition_point(|committed| committed.revision <= from);
        let mut seen = Seen { changes: Vec::new(), upto: from };
        let mut looked_at = 0;
        for committed in self.committed.range(first..) {
            let inside = committed.changes.iter().filter(|change| range.contains(change.key()));
            seen.changes.extend(inside.cloned());
            seen.upto = committed.revision;
            looked_at += committed.changes.len();
            if looked_at >= most {
                break;
            }
        }
        seen
    }

    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.committed.pop_front() else { return false };
        self.floor = oldest.revision;
        self.changes -= oldest.changes.len();
        self.bytes -= oldest.bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deletion(key: &'static str, revision: u64) -> Change {
        Change::Delete { key: key.into(), revision }
    }

    fn history(changes_limit: usize) -> History {
        let mut history = History::new(changes_limit, usize::MAX);
        for revision in 1..=5 {
            history.push(revision, vec![deletion("a", revision), deletion("b", revision)], 0);
        }
        history
    }

    #[test]
    fn the_oldest_are_forgotten_first_and_whole() {
        let history = history(5);
        assert_eq!(history.floor(), 3);
        let seen = history.after(3, &KeyRange::key("a"), 100);
        assert_eq!(seen.changes, [deletion("a", 4), deletion("a", 5)]);
        assert_eq!(seen.upto, 5);
    }

    #[test]
    fn bytes_bound_it_too() {
        let mut history = History::new(usize::MAX, 3 * (1000 + CHANGE_OVERHEAD_BYTES));
        for revision in 1..=10 {
            history.push(revision, vec![deletion("a", revision)], 1000);
        }
        assert_eq!(history.floor(), 7);
    }

    #[test]
    fn a_look_ends_with_a_whole_transaction() {
        let history = history(100);
        let seen = history.after(1, &KeyRange::all(), 3);
        assert_eq!((seen.changes.len(), seen.upto), (4, 3));
        let seen = history.after(1, &KeyRange::key("z"), 1);
        assert_eq!((seen.changes.len(), seen.upto), (0, 2));
        let seen = history.after(5, &KeyRange::all(), 3);
        assert_eq!((seen.changes.len(), seen.upto), (0, 5));
    }

    #[test]
    fn compaction_raises_the_floor() {
        let mut history = history(100);
        history.compact(3);
        assert_eq!(history.floor(), 3);
        history.compact(2);
        assert_eq!(history.floor(), 3);
    }
}
