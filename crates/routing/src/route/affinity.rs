//! Which replica takes the requests of one key, such as a user: the same one, whichever sidecar
//! decides, for as long as the replica is there.
//!
//! Each replica has a score for a key, and the replica with the highest score takes it. So a replica
//! that leaves moves only the keys that it had, and one that joins takes an equal share of those of
//! each other one. There is no table that has to be made, and nothing to remember.
//!
//! Scores have no secret in them, so that all sidecars agree: a client that chooses its keys can
//! choose their replica. What a client may ask for is bounded by rate limits, not by this.

use tollway_model::Instance;

/// A replica or a key, as scores are computed from it. The same on every machine and in every version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AffinityHash(u64);

impl AffinityHash {
    /// Of the value by which requests go together.
    #[must_use]
    pub fn of_key(key: &[u8]) -> Self {
        Self(hash(key, KEY_SEED))
    }

    /// Of a replica.
    #[must_use]
    pub fn of_instance(instance: &Instance) -> Self {
        Self(hash(instance.as_str().as_bytes(), INSTANCE_SEED))
    }
}

// The fractional parts of the golden ratio and of the square root of 2.
const KEY_SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const INSTANCE_SEED: u64 = 0x6a09_e667_f3bc_c908;

/// The index of the candidate that takes a key: of those that `replicas` gives, by any order of theirs.
/// One that cannot be used now is `None`; its keys go to others and come back with it.
#[must_use]
pub fn pick_by_key(
    key: AffinityHash,
    replicas: impl IntoIterator<Item = Option<AffinityHash>>,
) -> Option<usize> {
    let scored = replicas.into_iter().enumerate().filter_map(|(index, replica)| {
        let replica = replica?;
        Some((mixed(key.0 ^ replica.0), replica, index))
    });
    // Of equal scores, which two replicas have about never, the larger hash wins: no order decides.
    let best = scored.max_by(|(a, of_a, _), (b, of_b, _)| (a, of_a).cmp(&(b, of_b)));
    best.map(|(_, _, index)| index)
}

/// Eight bytes at a time; the length is a part of it, so that zeros at the end count.
fn hash(bytes: &[u8], seed: u64) -> u64 {
    let chunks = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    chunks.fold(mixed(seed ^ length), |hash, word| mixed(hash ^ word))
}

/// Spreads a change of any bit over all bits (the finaliser of `SplitMix64`).
fn mixed(word: u64) -> u64 {
    let mut mixed = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicas(count: usize) -> Vec<AffinityHash> {
        let of = |n| AffinityHash::of_instance(&Instance::new(&format!("stock-{n}")).unwrap());
        (0..count).map(of).collect()
    }

    fn key(number: usize) -> AffinityHash {
        AffinityHash::of_key(format!("user-{number}").as_bytes())
    }

    /// The replica of each of so many keys.
    fn owners(replicas: &[AffinityHash], keys: usize) -> Vec<AffinityHash> {
        let owner = |n| replicas[pick_by_key(key(n), replicas.iter().copied().map(Some)).unwrap()];
        (0..keys).map(owner).collect()
    }

    #[test]
    fn keys_are_spread_evenly() {
        for (count, keys, tolerance) in
            [(2, 100_000, 5), (3, 100_000, 5), (10, 100_000, 5), (100, 50_000, 20)]
        {
            let replicas = replicas(count);
            let owners = owners(&replicas, keys);
            let even = owners.len() / count;
            for replica in &replicas {
                let own = owners.iter().filter(|owner| *owner == replica).count();
                let off = own.abs_diff(even) * 100 / even;
                assert!(off < tolerance, "{count} replicas: one has {own} keys of {even}");
            }
        }
    }

    #[test]
    fn a_replica_that_joins_takes_its_share_and_nothing_else_moves() {
        for (count, keys) in [(3, 100_000), (10, 100_000), (100, 50_000)] {
            let after = replicas(count + 1);
            let (before, joined) = (&after[..count], after[count]);
            let mut moved = 0_usize;
            for (old, new) in owners(before, keys).into_iter().zip(owners(&after, keys)) {
                if old != new {
                    assert_eq!(new, joined);
                    moved += 1;
                }
            }
            let share = keys / (count + 1);
            assert!(moved.abs_diff(share) * 100 < share * 15, "{moved} keys, not {share}");
        }
    }

    /// Every sidecar, of whatever version and machine, has to agree: these numbers never change.
    #[test]
    fn hashes_are_the_same_everywhere() {
        let hashes = [
            AffinityHash::of_key(b""),
            AffinityHash::of_key(b"user-7"),
            AffinityHash::of_key(b"a key of more than eight bytes"),
            AffinityHash::of_instance(&Instance::new("stock-0").unwrap()),
        ];
        let expected = [
            0x6e78_9e6a_a1b9_65f4,
            0x00ea_3f1f_af19_7d77,
            0x9822_501f_9873_bf02,
            0x1dcd_a2d3_1b1c_d9f5,
        ];
        assert_eq!(hashes.map(|AffinityHash(hash)| hash), expected);
        let replicas = replicas(5);
        let picked = [0, 1, 2, 3, 4, 5, 6, 7]
            .map(|n| pick_by_key(key(n), replicas.iter().copied().map(Some)).unwrap());
        assert_eq!(picked, [1, 3, 0, 4, 4, 4, 2, 0]);
    }

    #[test]
    fn the_end_of_a_key_counts() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"12345678", b"12345678\0", b"1234567"];
        for (n, key) in keys.iter().enumerate() {
            let others = keys.iter().skip(n + 1);
            let own = AffinityHash::of_key(key);
            assert!(others.map(|other| AffinityHash::of_key(other)).all(|other| other != own));
        }
    }

    #[test]
    fn nothing_is_picked_where_nothing_can_be_used() {
        assert_eq!(pick_by_key(key(1), []), None);
        assert_eq!(pick_by_key(key(1), [None, None]), None);
    }

    proptest::proptest! {
        #[test]
        fn a_replica_that_leaves_moves_only_its_own_keys(
            count in 2_usize..40,
            leaving in 0_usize..40,
            keys in proptest::collection::vec(proptest::collection::vec(0_u8..=255, 0..40), 1..50),
        ) {
            let replicas = replicas(count);
            let leaving = leaving % count;
            for key in &keys {
                let key = AffinityHash::of_key(key);
                let before = pick_by_key(key, replicas.iter().copied().map(Some)).unwrap();
                let usable = |(n, of): (usize, &AffinityHash)| (n != leaving).then_some(*of);
                let after = pick_by_key(key, replicas.iter().enumerate().map(usable)).unwrap();
                if before == leaving {
                    proptest::prop_assert!(after != leaving);
                } else {
                    proptest::prop_assert_eq!(after, before);
                }
            }
        }

        #[test]
        fn the_order_of_replicas_does_not_count(turn in 0_usize..20, key: u64) {
            let replicas = replicas(20);
            let key = AffinityHash::of_key(&key.to_le_bytes());
            let owner = |replicas: &[AffinityHash]| {
                replicas[pick_by_key(key, replicas.iter().copied().map(Some)).unwrap()]
            };
            let mut turned = replicas.clone();
            turned.rotate_left(turn);
            proptest::prop_assert_eq!(owner(&turned), owner(&replicas));
            turned.reverse();
            proptest::prop_assert_eq!(owner(&turned), owner(&replicas));
        }
    }
}
