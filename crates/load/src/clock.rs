//! The run's clock.

use std::time::Instant;

/// Nanoseconds since the first connection was dialled; never goes back.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        crate::arrival::nanos(self.origin.elapsed())
    }
}
