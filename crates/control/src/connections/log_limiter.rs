//! Lets a message that may come up very often into the log only now and then.

use std::time::Duration;

use tokio::time::Instant;

/// A message is logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// When a message was last logged.
#[derive(Default)]
pub(super) struct LogLimiter(Option<Instant>);

impl LogLimiter {
    /// Whether the message may be logged now; then the next one has to wait.
    pub(super) fn allows(&mut self) -> bool {
        let allows = self.0.is_none_or(|at| at.elapsed() >= LOG_EVERY);
        if allows {
            self.0 = Some(Instant::now());
        }
        allows
    }
}
