//! Power of two choices: of two candidates drawn at random, the less loaded one.

/// Random pairs that are drawn before the candidates are tried one by one.
const DRAWS: u32 = 3;

/// Picks one of `count` candidates. `load` gives a candidate's outstanding requests, `None` when
/// it cannot be used. `random` is any number; equal numbers give equal picks.
#[must_use]
pub fn pick_of_two(
    count: usize,
    random: u64,
    load: impl Fn(usize) -> Option<u32>,
) -> Option<usize> {
    if count <= 1 {
        return (count == 1 && load(0).is_some()).then_some(0);
    }
    let mut random = random;
    for _ in 0..DRAWS {
        let first = below(count, &mut random);
        let second = (first + 1 + below(count - 1, &mut random)) % count;
        match (load(first), load(second)) {
            (Some(a), Some(b)) => return Some(if b < a { second } else { first }),
            (Some(_), None) => return Some(first),
            (None, Some(_)) => return Some(second),
            (None, None) => {}
        }
    }
    let start = below(count, &mut random);
    (0..count)
        .map(|step| (start + step) % count)
        .filter_map(|index| load(index).map(|load| (load, index)))
        .min_by_key(|(load, _)| *load)
        .map(|(_, index)| index)
}

/// A number below `bound`, from the high bits of `random`, which moves on (`SplitMix64`).
fn below(bound: usize, random: &mut u64) -> usize {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *random;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let scaled = (u128::from(mixed) * bound as u128) >> 64;
    usize::try_from(scaled).expect("below a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_loads_are_shared_evenly() {
        let mut counts = [0_u32; 3];
        for random in 0..30_000 {
            counts[pick_of_two(3, random * 7919, |_| Some(0)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
    }

    #[test]
    fn the_busier_of_the_two_is_left_alone() {
        for random in 0..1000 {
            assert_eq!(pick_of_two(2, random, |i| Some([5, 4][i])), Some(1));
        }
    }

    #[test]
    fn a_usable_candidate_is_found_however_rare() {
        for random in 0..1000 {
            assert_eq!(pick_of_two(100, random, |i| (i == 63).then_some(9)), Some(63));
        }
        assert_eq!(pick_of_two(100, 1, |_| None), None);
        assert_eq!(pick_of_two(1, 1, |_| None), None);
        assert_eq!(pick_of_two(0, 1, |_| Some(0)), None);
    }

    proptest::proptest! {
        #[test]
        fn only_usable_candidates_are_picked_and_one_is_if_there_is_one(
            loads in proptest::collection::vec(proptest::option::of(0_u32..100), 0..40),
            random: u64,
        ) {
            let picked = pick_of_two(loads.len(), random, |at| loads[at]);
            match picked {
                Some(at) => proptest::prop_assert!(loads[at].is_some()),
                None => proptest::prop_assert!(loads.iter().all(Option::is_none)),
            }
        }
    }
}
