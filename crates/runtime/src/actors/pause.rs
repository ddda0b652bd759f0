//! Time between attempts to reach the control plane.

use std::time::Duration;

/// The first wait.
const SHORTEST: Duration = Duration::from_millis(20);
/// Well below the time of a lease, so that a host is back before its lease ends.
const LONGEST: Duration = Duration::from_millis(500);
/// After a success of this length the waits start again.
const STABLE: Duration = Duration::from_secs(5);

/// Waits that grow, with a random part so that many hosts do not connect at once.
#[derive(Debug)]
pub(crate) struct Pause {
    wait: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { wait: SHORTEST }
    }
}

impl Pause {
    /// The next wait, after an attempt that was successful for `well_for`.
    pub(crate) fn next(&mut self, well_for: Duration) -> Duration {
        if well_for > STABLE {
            self.wait = SHORTEST;
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(LONGEST);
        let chance = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        wait.mul_f64(0.5 + chance / 2.0)
    }
}
