//! The clocks of actors: one for leases, one for timers and reminders.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollway_actors::schedule::Moment;

/// Where the time comes from; tests put a clock of their own here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    lease: fn() -> Duration,
    wall: fn() -> Moment,
}

impl Clock {
    /// The clocks of the system.
    pub(crate) fn system() -> Self {
        let wall = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            Moment::since_unix_epoch(since.unwrap_or_default())
        };
        Self { lease: tollway_net::boot_time, wall }
    }

    /// The time by which leases end. It continues while the machine sleeps, and setting the system
    /// time does not change it.
    pub(crate) fn now(self) -> Duration {
        (self.lease)()
    }

    /// The system time, by which timers and reminders are due.
    pub(crate) fn wall(self) -> Moment {
        (self.wall)()
    }

    /// Both clocks follow tokio's, which a test can pause.
    #[cfg(test)]
    pub(crate) fn tokio() -> Self {
        use std::sync::LazyLock;
        static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        /// An hour before a test's begin, so that a test can use earlier times.
        const LEAD: Duration = Duration::from_secs(3600);
        fn elapsed() -> Duration {
            // A paused clock may be behind the real one by which `START` was read.
            (tokio::time::Instant::now().into_std() + LEAD).saturating_duration_since(*START)
        }
        Self { lease: elapsed, wall: || Moment::since_unix_epoch(elapsed()) }
    }
}
