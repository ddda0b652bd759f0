//! Waiting for a time of day.

use std::time::{Duration, SystemTime};

/// How often the clock is read, in case that it was set or the machine slept.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Returns once `clock` reads `at` or later. Timers of the runtime do not count the time in which a
/// machine sleeps, and do not follow a clock that is set. Certificates are judged by this clock.
pub async fn wall_clock_reads(at: SystemTime, clock: impl Fn() -> SystemTime) {
    while let Ok(left) = at.duration_since(clock()) {
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    /// Waits until the clock reads a day later, beside what `set` does with it. Returns how long that takes.
    async fn wait_beside(set: impl Fn(&AtomicU64)) -> Duration {
        let began = tokio::time::Instant::now();
        let ahead = Arc::new(AtomicU64::new(0));
        let clock = {
            let ahead = Arc::clone(&ahead);
            move || {
                let ahead = Duration::from_secs(ahead.load(Ordering::SeqCst));
                SystemTime::UNIX_EPOCH + began.elapsed() + ahead
            }
        };
        let waiting = tokio::spawn(wall_clock_reads(SystemTime::UNIX_EPOCH + DAY, clock));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!waiting.is_finished());
        set(&ahead);
        waiting.await.unwrap();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_takes_as_long_as_it_is() {
        assert_eq!(wait_beside(|_| {}).await.as_secs(), DAY.as_secs());
    }

    /// The harm: a machine that slept, or whose clock was put right, renews nothing for hours.
    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_put_forward_ends_the_wait_within_seconds() {
        let waited = wait_beside(|ahead| ahead.store(2 * DAY.as_secs(), Ordering::SeqCst)).await;
        assert!(waited <= Duration::from_secs(3600) + LOOK_EVERY, "{waited:?}");
    }
}
