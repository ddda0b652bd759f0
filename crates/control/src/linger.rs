//! The end of a control plane that nothing uses any more: for one that was started on demand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use crate::hub::Hub;

/// Longest time between two checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Whether a token or a certificate was given out since the last check.
#[derive(Default, Debug)]
pub(crate) struct Use(AtomicBool);

impl Use {
    /// Notes that a workload is about to connect.
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Completes when for `linger` no data plane or joined network was connected, and no token or
/// certificate to connect with was given out; never without `linger`.
pub(crate) async fn unused(linger: Option<Duration>, hub: &Hub, noted: &Use) {
    let Some(linger) = linger else { return std::future::pending().await };
    let mut last_use = Instant::now();
    loop {
        tokio::time::sleep((linger / 10).clamp(Duration::from_millis(10), CHECK_EVERY)).await;
        let in_use = hub.applied_everywhere().is_some();
        if noted.take() || in_use {
            last_use = Instant::now();
        } else if last_use.elapsed() >= linger {
            info!(linger_s = linger.as_secs(), "no peer is connected any more");
            return;
        }
    }
}
