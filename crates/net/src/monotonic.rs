//! Clocks that all processes of a machine share and that are never set, so that times of two
//! processes can be compared.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CLOCK_MONOTONIC in nanoseconds. Not comparable with other machines or other boots.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    let (seconds, ns) = (u64::try_from(tv_sec), u64::try_from(tv_nsec));
    seconds.unwrap_or_default().saturating_mul(1_000_000_000) + ns.unwrap_or_default()
}

/// CLOCK_BOOTTIME, which goes on while the machine sleeps: the clock of leases.
#[must_use]
pub fn boot_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    let (seconds, ns) = (u64::try_from(tv_sec), u32::try_from(tv_nsec));
    Duration::new(seconds.unwrap_or_default(), ns.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_as_others_do() {
        let (began, instant) = (monotonic_ns(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(5));
        let passed = instant.elapsed();
        let elapsed = Duration::from_nanos(monotonic_ns() - began);
        assert!(elapsed >= passed, "{elapsed:?} {passed:?}");
        assert!(boot_time() >= Duration::from_nanos(began));
    }
}
