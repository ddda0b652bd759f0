//! Notices that the whole process was suspended: stopped, starved, or its machine asleep. Messages
//! that came meanwhile are unread in sockets, so the silence of others proves nothing yet.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

/// Interval at which the clock is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A check that is late by this much means that the process was suspended, not busy.
const STANDSTILL_FROM: Duration = Duration::from_secs(1);

/// When the last standstill ended.
#[derive(Debug, Default)]
pub(crate) struct Standstill(Mutex<Option<Instant>>);

impl Standstill {
    /// Watches the clock; never returns.
    pub(crate) async fn watch(&self) {
        let mut looked = Instant::now();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let gap = looked.elapsed().saturating_sub(LOOK_EVERY);
            looked = Instant::now();
            if gap >= STANDSTILL_FROM {
                warn!(?gap, "the control plane stood still");
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(looked);
            }
        }
    }

    /// Whether one ended at most `time` ago.
    pub(crate) fn ended_within(&self, time: Duration) -> bool {
        let ended = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.is_some_and(|ended| ended.elapsed() <= time)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_gap_is_noticed_and_forgotten_in_time() {
        let standstill = Arc::new(Standstill::default());
        let watched = standstill.clone();
        tokio::spawn(async move { watched.watch().await });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!standstill.ended_within(Duration::MAX));
        tokio::time::advance(Duration::from_secs(8)).await;
        tokio::time::sleep(LOOK_EVERY).await;
        assert!(standstill.ended_within(Duration::from_secs(1)));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!standstill.ended_within(Duration::from_secs(1)));
    }
}
