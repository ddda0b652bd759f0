//! The least speed of a body.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// For a body without the bytes that have come.
pub const BODY_TIME: Duration = Duration::from_secs(10);

/// A body has a second more for each so many bytes that have come.
pub const BODY_BYTES_PER_SECOND: usize = 64 * 1024;

/// As much as one look at the clock takes of the time: where the process stood still, the sender was not
/// slow.
const STEP: Duration = Duration::from_secs(1);

/// How long the rest of a body may take.
pub(crate) struct Pace(Duration);

impl Pace {
    pub(crate) fn new() -> Self {
        Self(BODY_TIME)
    }

    /// So much has come.
    pub(crate) fn received(&mut self, bytes: usize) {
        let parts = u32::try_from(bytes).unwrap_or(u32::MAX);
        let each = u32::try_from(BODY_BYTES_PER_SECOND).unwrap_or(u32::MAX);
        self.0 += Duration::from_secs(1) * (parts / each)
            + Duration::from_secs(1) * (parts % each) / each;
    }

    /// Waits for the next part; `None` when the time is over.
    pub(crate) async fn wait<T>(&mut self, part: impl Future<Output = T>) -> Option<T> {
        let mut part = pin!(part);
        while !self.0.is_zero() {
            let (step, began) = (self.0.min(STEP), Instant::now());
            let came = timeout(step, &mut part).await;
            self.0 -= began.elapsed().min(step);
            if let Ok(came) = came {
                return Some(came);
            }
        }
        None
    }
}
