//! Limits of stored entries and bytes, by owner and in all: checked before each write.

use std::collections::HashMap;

/// A limit, and what it is called in the error that it causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) most: u64,
}

/// The limits of all owners. Bytes are those of keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) owner_bytes: Limit,
    pub(crate) owner_entries: Limit,
    /// Of all owners, as the following.
    pub(crate) bytes: Limit,
    pub(crate) entries: Limit,
}

/// A limit that a write would pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Full {
    pub(crate) what: &'static str,
    pub(crate) found: u64,
    pub(crate) limit: u64,
}

/// What a write adds and takes away.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Delta {
    added_bytes: u64,
    removed_bytes: u64,
    added_entries: u64,
    removed_entries: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// Usage by owner, and of all.
#[derive(Debug)]
pub(crate) struct Quotas {
    limits: Limits,
    owners: HashMap<String, Usage>,
    all: Usage,
}

impl Usage {
    pub(crate) fn with(self, delta: Delta) -> Self {
        Self {
            bytes: (self.bytes + delta.added_bytes).saturating_sub(delta.removed_bytes),
            entries: (self.entries + delta.added_entries).saturating_sub(delta.removed_entries),
        }
    }
}

impl Delta {
    /// One entry in place of another, or of none; sizes are those of key and value.
    pub(crate) fn replace(&mut self, old: Option<usize>, new: Option<usize>) {
        self.removed_bytes += old.unwrap_or(0) as u64;
        self.added_bytes += new.unwrap_or(0) as u64;
        self.removed_entries += u64::from(old.is_some());
        self.added_entries += u64::from(new.is_some());
    }

    fn reversed(self) -> Self {
        Self {
            added_bytes: self.removed_bytes,
            removed_bytes: self.added_bytes,
            added_entries: self.removed_entries,
            removed_entries: self.added_entries,
        }
    }
}

impl Quotas {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, owners: HashMap::new(), all: Usage::default() }
    }

    /// Of all owners.
    pub(crate) fn all(&self) -> Usage {
        self.all
    }

    /// Counts a write, unless it would exceed a limit. A write that makes nothing larger always
    /// passes.
    pub(crate) fn reserve(&mut self, owner: &str, delta: Delta) -> Result<(), Full> {
        let before = self.owners.get(owner).copied().unwrap_or_default();
        let (after, all) = (before.with(delta), self.all.with(delta));
        let Limits { owner_bytes, owner_entries, bytes, entries } = self.limits;
        let checks = [
            (owner_bytes, before.bytes, after.bytes),
            (owner_entries, before.entries, after.entries),
            (bytes, self.all.bytes, all.bytes),
            (entries, self.all.entries, all.entries),
        ];
        for (Limit { what, most }, before, found) in checks {
            if found > most && found > before {
                return Err(Full { what, found, limit: most });
            }
        }
        self.count(owner, delta);
        Ok(())
    }

    /// Counts what has happened, whatever the limits.
    pub(crate) fn count(&mut self, owner: &str, delta: Delta) {
        self.all = self.all.with(delta);
        match self.owners.get_mut(owner) {
            Some(usage) => {
                *usage = usage.with(delta);
                if usage.entries == 0 {
                    self.owners.remove(owner);
                }
            }
            None => {
                let usage = Usage::default().with(delta);
                if usage.entries > 0 {
                    self.owners.insert(owner.to_owned(), usage);
                }
            }
        }
    }

    /// Takes a write back that did not happen.
    pub(crate) fn release(&mut self, owner: &str, delta: Delta) {
        self.count(owner, delta.reversed());
    }
}

/// The `most` owners with most bytes, those first, and how many are left out.
pub(crate) fn most_first<K: Ord>(used: HashMap<K, Usage>, most: usize) -> (Vec<(K, Usage)>, u64) {
    let mut used: Vec<_> = used.into_iter().collect();
    used.sort_by(|(owner, one), (other_owner, other)| {
        other.bytes.cmp(&one.bytes).then_with(|| owner.cmp(other_owner))
    });
    let further = used.len().saturating_sub(most) as u64;
    used.truncate(most);
    (used, further)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1000;

    fn quotas() -> Quotas {
        let limit = |what, most| Limit { what, most };
        Quotas::new(Limits {
            owner_bytes: limit("bytes of one", BYTES as u64),
            owner_entries: limit("entries of one", 30),
            bytes: limit("bytes of all", 4 * BYTES as u64),
            entries: limit("entries of all", 40),
        })
    }

    fn delta(old: Option<usize>, new: Option<usize>) -> Delta {
        let mut delta = Delta::default();
        delta.replace(old, new);
        delta
    }

    #[test]
    fn an_app_has_its_room_and_all_have_theirs() {
        let mut quotas = quotas();
        for app in ["a/", "b/", "c/", "d/"] {
            quotas.reserve(app, delta(None, Some(BYTES))).unwrap();
            let told = quotas.reserve(app, delta(None, Some(1))).unwrap_err();
            assert_eq!(told, Full { what: "bytes of one", found: 1001, limit: 1000 });
            quotas.reserve(app, delta(Some(BYTES), Some(BYTES))).unwrap();
        }
        let told = quotas.reserve("e/", delta(None, Some(1))).unwrap_err();
        assert_eq!(told.what, "bytes of all");
        quotas.reserve("a/", delta(Some(BYTES), None)).unwrap();
        quotas.reserve("e/", delta(None, Some(1))).unwrap();
        quotas.release("e/", delta(None, Some(1)));
        assert!(!quotas.owners.contains_key("e/") && !quotas.owners.contains_key("a/"));
    }

    /// The harm: an app that has more than a limit, as after that was lowered, can change and remove
    /// nothing of it.
    #[test]
    fn what_makes_nothing_larger_passes_above_every_limit() {
        let mut quotas = quotas();
        quotas.count("a/", delta(None, Some(5 * BYTES)));
        for _ in 0..50 {
            quotas.count("a/", delta(None, Some(0)));
        }
        quotas.reserve("a/", delta(Some(5 * BYTES), Some(5 * BYTES))).unwrap();
        quotas.reserve("a/", delta(Some(BYTES), Some(BYTES - 1))).unwrap();
        let refused = quotas.reserve("a/", delta(Some(1), Some(2))).unwrap_err();
        assert_eq!(refused, Full { what: "bytes of one", found: 5000, limit: 1000 });
        let refused = quotas.reserve("a/", delta(None, Some(0))).unwrap_err();
        assert_eq!(refused, Full { what: "entries of one", found: 52, limit: 30 });
    }

    #[test]
    fn an_owner_of_nothing_takes_no_memory() {
        let mut quotas = quotas();
        quotas.count("a/", Delta::default());
        quotas.reserve("b/", Delta::default()).unwrap();
        assert!(quotas.owners.is_empty());
    }

    #[test]
    fn entries_are_counted() {
        let mut quotas = quotas();
        for owner in ["a/", "b/"] {
            for _ in 0..20 {
                quotas.reserve(owner, delta(None, Some(0))).unwrap();
            }
        }
        assert_eq!(quotas.all(), Usage { bytes: 0, entries: 40 });
        let told = quotas.reserve("a/", delta(None, Some(0))).unwrap_err();
        assert_eq!(told, Full { what: "entries of all", found: 41, limit: 40 });
        for _ in 0..10 {
            quotas.reserve("b/", delta(Some(0), None)).unwrap();
            quotas.reserve("a/", delta(None, Some(0))).unwrap();
        }
        quotas.reserve("b/", delta(Some(0), None)).unwrap();
        let told = quotas.reserve("a/", delta(None, Some(0))).unwrap_err();
        assert_eq!((told.what, told.limit), ("entries of one", 30));
        quotas.reserve("a/", delta(Some(0), Some(10))).unwrap();
    }
}
