//! When each subject last changed: answers "what changed after revision r" for resuming.
//!
//! Holds one entry per living subject and a bounded number of removed ones. When a removed one is
//! forgotten the floor rises to its revision: a follower below the floor needs the full state.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

/// Removed subjects that are remembered.
pub(super) const REMOVED_LIMIT: usize = 10_000;

#[derive(Debug)]
pub(super) struct Changes<K> {
    last: HashMap<K, u64>,
    order: BTreeSet<(u64, K)>,
    removed: VecDeque<(u64, K)>,
    floor: u64,
}

impl<K: Clone + Eq + Hash + Ord> Changes<K> {
    /// Knows of nothing before `floor`.
    pub(super) fn new(floor: u64) -> Self {
        Self { last: HashMap::new(), order: BTreeSet::new(), removed: VecDeque::new(), floor }
    }

    /// `subject` changed at `revision`, or came into being.
    pub(super) fn touch(&mut self, subject: &K, revision: u64) {
        if let Some(before) = self.last.insert(subject.clone(), revision) {
            self.order.remove(&(before, subject.clone()));
        }
        self.order.insert((revision, subject.clone()));
    }

    /// `subject` went away at `revision`.
    pub(super) fn remove(&mut self, subject: &K, revision: u64) {
        self.touch(subject, revision);
        self.removed.push_back((revision, subject.clone()));
        while self.removed.len() > REMOVED_LIMIT {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((revision, subject)) = self.removed.pop_front() else { return };
        // One that came back or was removed again later has a newer revision and stays.
        if self.last.get(&subject) == Some(&revision) {
            self.last.remove(&subject);
            self.order.remove(&(revision, subject));
            self.floor = self.floor.max(revision);
        }
    }

    /// Revision of the last change, 0 for a subject that never changed since the floor.
    pub(super) fn last(&self, subject: &K) -> u64 {
        self.last.get(subject).copied().unwrap_or(0)
    }

    /// Whether [`Changes::after`] is complete for `revision`.
    pub(super) fn reaches_back_to(&self, revision: u64) -> bool {
        revision >= self.floor
    }

    /// Subjects that changed after `revision`, the latest change first.
    pub(super) fn after(&self, revision: u64) -> impl Iterator<Item = &K> {
        let later = self.order.iter().rev().take_while(move |(at, _)| *at > revision);
        later.map(|(_, subject)| subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_listed_once_at_its_last_change() {
        let mut changes = Changes::new(0);
        changes.touch(&"a", 1);
        changes.touch(&"b", 2);
        changes.touch(&"a", 3);
        assert_eq!(changes.after(0).collect::<Vec<_>>(), [&"a", &"b"]);
        assert_eq!(changes.after(2).collect::<Vec<_>>(), [&"a"]);
        assert_eq!(changes.after(3).count(), 0);
        assert_eq!((changes.last(&"a"), changes.last(&"b"), changes.last(&"c")), (3, 2, 0));
    }

    #[test]
    fn forgetting_a_removed_subject_raises_the_floor() {
        let mut changes = Changes::new(0);
        let limit = u64::try_from(REMOVED_LIMIT).unwrap();
        for n in 1..=limit {
            changes.remove(&n, n);
        }
        assert!(changes.reaches_back_to(0));
        changes.remove(&0, limit + 1);
        assert!(!changes.reaches_back_to(0));
        assert!(changes.reaches_back_to(1));
        assert_eq!(changes.after(0).count(), REMOVED_LIMIT);
    }

    #[test]
    fn a_subject_that_came_back_is_not_forgotten() {
        let mut changes = Changes::new(0);
        changes.remove(&u64::MAX, 1);
        changes.touch(&u64::MAX, 2);
        for n in 0..u64::try_from(REMOVED_LIMIT).unwrap() {
            changes.remove(&n, 3 + n);
        }
        assert_eq!(changes.last(&u64::MAX), 2);
        assert!(changes.reaches_back_to(0));
    }
}
