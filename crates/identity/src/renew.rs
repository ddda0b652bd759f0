//! When to renew a certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Credentials;

/// Earliest renewal, in thousandths of a certificate's life.
const EARLIEST_PER_MILLE: u128 = 350;
/// Renewals of many workloads spread over this many thousandths of a life.
const SPREAD_PER_MILLE: u128 = 130;

/// The moment to renew a certificate: between 35 % and 48 % of its life, so always before half,
/// at a place in between that `jitter_seed` (any number, best random) decides.
fn renew_at(not_before: SystemTime, not_after: SystemTime, jitter_seed: u64) -> SystemTime {
    let life = not_after.duration_since(not_before).unwrap_or(Duration::ZERO).as_nanos();
    let jitter = u128::from(mix(jitter_seed)) * SPREAD_PER_MILLE;
    let spread = (life / 1000 * jitter) >> 64;
    let wait = life / 1000 * EARLIEST_PER_MILLE + spread;
    let wait = Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
    not_before.checked_add(wait).unwrap_or(not_before)
}

/// When to renew `credentials`; each time that it is asked, another moment of the span for that.
#[must_use]
pub fn renewal_time(credentials: &Credentials) -> SystemTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = since.map_or(0, |since| u64::from(since.subsec_nanos()));
    renew_at(credentials.not_before(), credentials.not_after(), seed)
}

/// Spreads neighbouring seeds over all numbers (the finaliser of SplitMix64).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn renewal_falls_between_a_third_and_half_of_life(
            start in 0_u64..4_000_000_000,
            life in 1_u64..1_000_000_000,
            seed: u64,
        ) {
            let not_before = UNIX_EPOCH + Duration::from_secs(start);
            let not_after = not_before + Duration::from_secs(life);
            let wait = renew_at(not_before, not_after, seed).duration_since(not_before).unwrap();
            let share = wait.as_secs_f64() / life as f64;
            prop_assert!((0.349..0.481).contains(&share), "{share}");
        }
    }

    #[test]
    fn seeds_are_mixed_as_splitmix64_does() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn renewals_of_many_workloads_spread_out() {
        let life = Duration::from_secs(86_400);
        let mut waits: Vec<u64> = (0..1000)
            .map(|seed| renew_at(UNIX_EPOCH, UNIX_EPOCH + life, seed))
            .map(|at| at.duration_since(UNIX_EPOCH).unwrap().as_secs())
            .collect();
        waits.sort_unstable();
        let widest = waits.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(widest < 120, "a gap of {widest} s in 11,232 s");
        assert!(waits[999] - waits[0] > 11_000);
    }

    #[test]
    fn a_certificate_that_ends_before_it_starts_is_renewed_at_once() {
        let start = UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(renew_at(start, UNIX_EPOCH, 7), start);
    }
}
