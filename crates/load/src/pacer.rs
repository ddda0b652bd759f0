//! How to wait for the next intended start: sleep until shortly before it, then spin.
//!
//! A sleeper is woken some 20 µs late, a spinner holds a processor that the target may need. So
//! the spin is short, and never more than a tenth of the interval.

use std::time::Duration;

/// Longest spin before an intended start, in ns: covers a wake-up on a busy machine.
const MAX_SPIN_NS: u64 = 80_000;
/// The spin's share of the interval is at most one in this many.
const SPIN_SHARE: u64 = 10;

/// Decides how long the loop may sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    spin_ns: u64,
}

impl Pacer {
    /// For arrivals that are `interval` apart on average.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { spin_ns: (crate::arrival::nanos(interval) / SPIN_SHARE).min(MAX_SPIN_NS) }
    }

    /// How long to sleep at `now_ns` when the next request starts at `start_ns` and other duties
    /// are due at `duty_ns`. Zero: poll for events and return at once.
    pub(crate) fn sleep(self, now_ns: u64, start_ns: Option<u64>, duty_ns: u64) -> Duration {
        let wake_ns = start_ns.map_or(u64::MAX, |start| start.saturating_sub(self.spin_ns));
        Duration::from_nanos(wake_ns.min(duty_ns).saturating_sub(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sleep_ends_a_spin_before_the_start() {
        let pacer = Pacer::new(Duration::from_millis(1));
        assert_eq!(pacer.sleep(0, Some(1_000_000), 9_000_000), Duration::from_nanos(920_000));
        assert_eq!(pacer.sleep(930_000, Some(1_000_000), 9_000_000), Duration::ZERO);
    }

    #[test]
    fn duties_end_the_sleep_as_well() {
        let pacer = Pacer::new(Duration::from_millis(1));
        assert_eq!(pacer.sleep(0, Some(1_000_000), 300_000), Duration::from_nanos(300_000));
        assert_eq!(pacer.sleep(0, None, 300_000), Duration::from_nanos(300_000));
        assert_eq!(pacer.sleep(400_000, None, 300_000), Duration::ZERO);
    }

    #[test]
    fn fast_arrivals_are_not_spun_for_longer_than_a_tenth() {
        let pacer = Pacer::new(Duration::from_micros(100));
        assert_eq!(pacer.sleep(0, Some(100_000), u64::MAX), Duration::from_micros(90));
    }
}
