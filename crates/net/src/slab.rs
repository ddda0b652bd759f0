//! Storage with stable keys that are never confused with a later occupant's, nor with a key of
//! another slab.
//!
//! A key is stale once its entry was removed: looking it up gives nothing, and that is no mistake. A
//! key that this slab has never given out is one: debug builds panic.

use std::cmp::Ordering;
use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::Range;

/// The key of an entry: its place and the place's generation. Its type says which slab it is of,
/// so that keys of different slabs cannot be confused.
pub struct Key<T> {
    index: u32,
    generation: u32,
    of: PhantomData<fn(T)>,
}

impl<T> Key<T> {
    fn new(index: u32, generation: u32) -> Self {
        Self { index, generation, of: PhantomData }
    }

    /// A key that finds nothing in any slab.
    #[must_use]
    pub fn dangling() -> Self {
        Self::new(u32::MAX, u32::MAX)
    }

    /// As one number, for a poller's token.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
        Self::new(number as u32, (number >> 32) as u32)
    }
}

// Derived, these would ask the same of the entries.
impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_u64() == other.to_u64()
    }
}

impl<T> Eq for Key<T> {}

impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.index, self.generation).cmp(&(other.index, other.generation))
    }
}

impl<T> Hash for Key<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_u64().hash(state);
    }
}

impl<T> Debug for Key<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
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

    pub fn insert(&mut self, value: T) -> Key<T> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: self.first_generation, value: None });
            u32::try_from(self.entries.len() - 1).expect("descriptors run out long before 2^32")
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Key::new(index, entry.generation)
    }

    /// `None` for a stale key.
    #[must_use]
    pub fn get(&self, key: Key<T>) -> Option<&T> {
        debug_assert!(self.was_given_out(key), "{key:?} was never a key of this slab");
        let entry = self.entries.get(key.index as usize)?;
        entry.value.as_ref().filter(|_| entry.generation == key.generation)
    }

    /// `None` for a stale key.
    #[must_use]
    pub fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        debug_assert!(self.was_given_out(key), "{key:?} was never a key of this slab");
        let entry = self.entries.get_mut(key.index as usize)?;
        entry.value.as_mut().filter(|_| entry.generation == key.generation)
    }

    /// `None` for a stale key.
    pub fn remove(&mut self, key: Key<T>) -> Option<T> {
        debug_assert!(self.was_given_out(key), "{key:?} was never a key of this slab");
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation || entry.value.is_none() {
            return None;
        }
        entry.generation = (entry.generation + 1) & 0x7fff_ffff;
        self.free.push(key.index);
        // Entries are large: this moves one once.
        entry.value.take()
    }

    /// Whether [`Self::insert`] may have given out this key, now or earlier, or it is the one that finds
    /// nothing.
    fn was_given_out(&self, key: Key<T>) -> bool {
        if key == Key::dangling() {
            return true;
        }
        match self.entries.get(key.index as usize) {
            Some(entry) if entry.generation == key.generation => entry.value.is_some(),
            Some(entry) => key.generation < entry.generation,
            // The place was given back, and every key of it is older than those to come.
            None => key.generation < self.first_generation,
        }
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

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.iter_places(0..self.entries.len())
    }

    /// Places for entries, used and free; entries are found at places below it.
    #[must_use]
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// The entries at some of the places, so that a large slab can be visited in parts.
    pub fn iter_places(&self, places: Range<usize>) -> impl Iterator<Item = (Key<T>, &T)> {
        let from = places.start.min(self.entries.len());
        let to = places.end.clamp(from, self.entries.len());
        self.entries[from..to].iter().zip(from..).filter_map(|(entry, index)| {
            let index = u32::try_from(index).ok()?;
            entry.value.as_ref().map(|v| (Key::new(index, entry.generation), v))
        })
    }

    /// The keys now in use; the slab may be changed while they are visited.
    #[must_use]
    pub fn keys(&self) -> Vec<Key<T>> {
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
    fn places_are_given_back_and_their_keys_find_nothing() {
        let mut slab = Slab::new();
        let keys: Vec<Key<i32>> = (0..10_000).map(|n| slab.insert(n)).collect();
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
        let again: Vec<Key<i32>> = (0..10_000).map(|n| slab.insert(n)).collect();
        assert!(keys.iter().all(|key| slab.get(*key).is_none()), "an old key finds somebody");
        assert!(again.iter().all(|key| slab.get(*key).is_some()));
    }

    #[test]
    fn a_dangling_key_finds_nothing() {
        let mut slab = Slab::new();
        slab.insert("first");
        assert_eq!(slab.get(Key::dangling()), None);
        assert_eq!(slab.remove(Key::dangling()), None);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "7.0 was never a key of this slab")]
    fn a_key_that_was_never_given_out_is_a_mistake() {
        let mut slab = Slab::new();
        slab.insert("first");
        let _ = slab.get(Key::from_u64(7));
    }

    #[test]
    fn parts_make_up_the_whole() {
        let mut slab = Slab::new();
        let keys: Vec<Key<i32>> = (0..10).map(|n| slab.insert(n)).collect();
        slab.remove(keys[4]);
        let mut seen = Vec::new();
        for start in (0..slab.places()).step_by(3) {
            seen.extend(slab.iter_places(start..start + 3).map(|(_, n)| *n));
        }
        assert_eq!(seen, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
        assert_eq!(slab.iter_places(20..30).count(), 0);
    }
}
