//! The end of a control plane that nobody uses any more: for one that was started on demand.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use crate::plane::Plane;

/// Longest time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Completes when no data plane or joined network was connected, and nobody was given a token or
/// a certificate to come with, for [`crate::Options::linger`]; never without it.
pub(crate) async fn unused(plane: &Plane) {
    let Some(linger) = plane.options.linger else { return std::future::pending().await };
    let mut last_use = Instant::now();
    loop {
        tokio::time::sleep((linger / 10).clamp(Duration::from_millis(10), LOOK_EVERY)).await;
        let in_use = plane.hub.applied_everywhere().is_some();
        if plane.used.swap(false, Ordering::Relaxed) || in_use {
            last_use = Instant::now();
        } else if last_use.elapsed() >= linger {
            info!(linger_s = linger.as_secs(), "nobody is connected any more");
            return;
        }
    }
}
