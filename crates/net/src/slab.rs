//! Storage with stable keys that are never confused with a later occupant's.

use std::ops::Range;

/// The key of an entry: its place and the place's generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// As one number, for a poller's token.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// A vector with holes. Generations stay below 2^31, so a key never equals a poller's own token.
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    /// Where places begin that are new, or that were given back: above every generation that a
    /// place given back has had.
    first_generation: u32,
}

/// Places that are never given back.
const LEAST_PLACES: usize = 1024;

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), first_generation: 0 }
    }
}

impl<T> Slab<T> {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: self.first_generation, value: None });
            u32::try_from(self.entries.len() - 1).expect("descriptors run out long before 2^32")
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Key { index, generation: entry.generation }
    }

    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        entry.value.as_ref().filter(|_| entry.generation == key.generation)
    }

    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        entry.value.as_mut().filter(|_| entry.generation == key.generation)
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & 0x7fff_ffff;
        self.free.push(key.index);
        Some(value)
    }

    /// Gives memory back when three of four places are free: those behind the last entry. Entries
    /// to come take the first free ones, so that more can be given back later. Whether it did.
    pub fn shrink(&mut self) -> bool {
        if self.entries.len() <= LEAST_PLACES || self.len() > self.entries.len() / 4 {
            return false;
        }
        let used = self.entries.iter().rposition(|entry| entry.value.is_some());
        let places = used.map_or(0, |last| last + 1).max(LEAST_PLACES);
        let left = self.entries.drain(places.min(self.entries.len())..);
        let newest = left.map(|entry| entry.generation).max();
        let is_shrunk = newest.is_some();
        if let Some(newest) = newest {
            self.first_generation = self.first_generation.max(newest);
            self.entries.shrink_to_fit();
        }
        self.free.retain(|index| (*index as usize) < places);
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        self.free.shrink_to_fit();
        is_shrunk
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.iter_places(0..self.entries.len())
    }

    /// Places for entries, used and free; entries are found at places below it.
    #[must_use]
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// The entries at some of the places, so that a large slab can be visited in parts.
    pub fn iter_places(&self, places: Range<usize>) -> impl Iterator<Item = (Key, &T)> {
        let from = places.start.min(self.entries.len());
        let to = places.end.clamp(from, self.entries.len());
        self.entries[from..to].iter().zip(from..).filter_map(|(entry, index)| {
            let index = u32::try_from(index).ok()?;
            entry.value.as_ref().map(|v| (Key { index, generation: entry.generation }, v))
        })
    }

    /// The keys now in use; the slab may be changed while they are visited.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_key_does_not_reach_its_successor() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
        assert_eq!(Key::from_u64(second.to_u64()), second);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn places_are_given_back_and_their_keys_reach_nobody() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert!(!slab.shrink(), "all are in use");
        for key in keys.iter().filter(|key| key.index != 5_000) {
            slab.remove(*key);
        }
        assert!(slab.shrink());
        assert_eq!((slab.places(), slab.len()), (5_001, 1));
        let newcomer = slab.insert(0);
        assert_eq!(newcomer.index, 0, "the first free place");
        slab.remove(keys[5_000]);
        assert!(slab.shrink());
        assert_eq!((slab.places(), slab.len()), (LEAST_PLACES, 1));
        let again: Vec<Key> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert!(keys.iter().all(|key| slab.get(*key).is_none()), "an old key finds somebody");
        assert!(again.iter().all(|key| slab.get(*key).is_some()));
    }

    #[test]
    fn parts_make_up_the_whole() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..10).map(|n| slab.insert(n)).collect();
        slab.remove(keys[4]);
        let mut seen = Vec::new();
        for start in (0..slab.places()).step_by(3) {
            seen.extend(slab.iter_places(start..start + 3).map(|(_, n)| *n));
        }
        assert_eq!(seen, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
        assert_eq!(slab.iter_places(20..30).count(), 0);
    }
}
