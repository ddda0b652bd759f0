//! Pauses between attempts to connect.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The delay grows with each attempt up to a bound and has a random part, so that after a restart
/// not all clients return at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// The pause after `attempt` failures in a row: doubles from the first to the longest, and up
    /// to half of that is left out by chance.
    #[must_use]
    pub fn pause(self, attempt: u32) -> Duration {
        // Not for secrets: the low bits of the clock spread well enough.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.spread(attempt, now.map_or(0, |since| since.subsec_nanos()))
    }

    /// `chance`: any number.
    fn spread(self, attempt: u32, chance: u32) -> Duration {
        let whole = self.first.saturating_mul(1 << attempt.min(10)).min(self.longest);
        whole - whole * (chance % 500) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(5));
        let ms = |attempt, chance| Backoff { first, longest }.spread(attempt, chance).as_millis();
        assert_eq!((ms(0, 0), ms(1, 0), ms(4, 0)), (100, 200, 1_600));
        assert_eq!((ms(u32::MAX, 0), ms(u32::MAX, 499)), (5_000, 2_505));
        assert!((0..3).all(|attempt| ms(attempt, 1_007) <= 400));
    }

    #[test]
    fn chance_takes_at_most_half() {
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(1) };
        let pause = backoff.pause(3);
        assert!(pause > Duration::from_millis(500) && pause <= Duration::from_secs(1), "{pause:?}");
    }
}
