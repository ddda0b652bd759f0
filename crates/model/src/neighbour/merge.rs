//! Merging of two states of a neighbour: the newest revision wins, in any order of arrival.

use std::collections::BTreeMap;

use super::{HostLocation, NeighbourKey, NeighbourRecord};

/// Whether an arriving record replaces the current one, by their revisions.
///
/// A transaction writes a key once, so the same revision is the same record again.
#[must_use]
pub fn supersedes(arriving: u64, standing: Option<u64>) -> bool {
    standing.is_none_or(|standing| arriving > standing)
}

/// What records in any order, and any number of times each, come to.
///
/// It holds a tombstone for each key that was deleted, since an older record of it may still
/// arrive; [`Self::forget_tombstones`] drops them when that is over. It grows with the number of
/// keys: the caller bounds that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Merged {
    records: BTreeMap<NeighbourKey, (u64, Option<HostLocation>)>,
}

impl Merged {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a record; `false` if the current one is as new or newer, which remains.
    pub fn take(&mut self, record: NeighbourRecord) -> bool {
        let standing = self.records.get(&record.key).map(|(revision, _)| *revision);
        let taken = supersedes(record.revision, standing);
        if taken {
            self.records.insert(record.key, (record.revision, record.location));
        }
        taken
    }

    /// The current record of a key, including tombstones.
    #[must_use]
    pub fn find(&self, key: &NeighbourKey) -> Option<NeighbourRecord> {
        self.records.get(key).map(|(revision, location)| NeighbourRecord {
            key: *key,
            revision: *revision,
            location: *location,
        })
    }

    /// The neighbours there are, in order of their keys.
    pub fn present(&self) -> impl Iterator<Item = NeighbourRecord> {
        self.records.iter().filter(|(_, (_, location))| location.is_some()).map(
            |(key, (revision, location))| NeighbourRecord {
                key: *key,
                revision: *revision,
                location: *location,
            },
        )
    }

    /// Drops what was deleted up to and including `revision`: nothing older may arrive any more.
    pub fn forget_tombstones(&mut self, revision: u64) {
        self.records.retain(|_, (deleted, location)| location.is_some() || *deleted > revision);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests_support::{key, location};
    use super::*;

    fn record(number: u32, revision: u64, host: Option<u8>) -> NeighbourRecord {
        NeighbourRecord { key: key(number), revision, location: host.map(location) }
    }

    #[test]
    fn delete_move_and_re_create_end_alike_in_every_order() {
        let steps = [
            record(1, 1, Some(1)),
            record(1, 2, Some(2)),
            record(1, 3, None),
            record(1, 4, Some(3)),
        ];
        let mut orders = vec![vec![]];
        for step in steps {
            orders = orders
                .into_iter()
                .flat_map(|order: Vec<NeighbourRecord>| {
                    (0..=order.len()).map(move |at| {
                        let mut longer = order.clone();
                        longer.insert(at, step);
                        longer
                    })
                })
                .collect();
        }
        assert_eq!(orders.len(), 24);
        for order in orders {
            let mut merged = Merged::new();
            for record in &order {
                merged.take(*record);
            }
            assert_eq!(merged.present().collect::<Vec<_>>(), [steps[3]], "{order:?}");
        }
    }

    #[test]
    fn a_tombstone_keeps_older_records_out_until_it_is_forgotten() {
        let mut merged = Merged::new();
        assert!(merged.take(record(1, 5, None)));
        assert!(!merged.take(record(1, 4, Some(1))));
        assert!(!merged.take(record(1, 5, None)));
        assert_eq!(merged.present().count(), 0);
        merged.forget_tombstones(4);
        assert_eq!(merged.find(&key(1)), Some(record(1, 5, None)));
        merged.forget_tombstones(5);
        assert_eq!(merged.find(&key(1)), None);
    }

    proptest! {
        /// Beside a model that sorts everything first.
        #[test]
        fn shuffled_and_repeated_records_converge(
            // One record for each revision, of one of four keys.
            writes in proptest::collection::vec((0_u32..4, proptest::option::of(1_u8..4)), 1..40),
            picks in proptest::collection::vec(any::<proptest::sample::Index>(), 0..80),
        ) {
            let made: Vec<_> = (1..).zip(writes).map(|(revision, (number, host))| {
                record(number, revision, host)
            }).collect();
            let mut expected = BTreeMap::new();
            for record in &made {
                expected.insert(record.key, *record);
            }
            let mut merged = Merged::new();
            for pick in picks {
                merged.take(*pick.get(&made));
            }
            for record in made.iter().rev() {
                merged.take(*record);
            }
            let expected: Vec<_> =
                expected.into_values().filter(|record| record.location.is_some()).collect();
            prop_assert_eq!(merged.present().collect::<Vec<_>>(), expected);
        }
    }
}
