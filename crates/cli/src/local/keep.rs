//! Looking after the local control plane while an app runs: one that crashed is started again by
//! the first who misses it; it comes back with what it knew, and is looked for where it is now.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tollway_proxy::mesh::MeshClient;

use super::{LocalControl, find_or_start};
use crate::failure::Report;

/// A control plane that is away for so long is looked after.
const AWAY: Duration = Duration::from_secs(1);
/// Pause between two looks after it.
const PAUSE: Duration = Duration::from_secs(5);

/// What was done about a control plane that was away.
pub(crate) enum Kept {
    /// It runs again.
    Started(LocalControl),
    /// It does not, and why; the same is told once.
    Trouble(String),
}

/// Keeps the control plane of `mesh`, which is the local one, until dropped. `linger`: how long one
/// that is started stays after its last workload.
pub(crate) async fn keep(
    mesh: Arc<MeshClient>,
    linger: Duration,
    tell: impl Fn(Kept),
) -> Infallible {
    let mut status = mesh.status();
    let mut told = String::new();
    loop {
        if status.wait_for(|status| !status.connected).await.is_err() {
            return std::future::pending().await;
        }
        let back = status.wait_for(|status| status.connected);
        if tokio::time::timeout(AWAY, back).await.is_ok() {
            continue;
        }
        let trouble = match find_or_start(linger).await {
            Ok(found) => {
                // Somebody may have taken its port while it was away.
                mesh.move_control(found.address());
                if found.started {
                    tell(Kept::Started(found));
                }
                String::new()
            }
            Err(error) => Report::of(&error.into()).text(),
        };
        if !trouble.is_empty() && trouble != told {
            tell(Kept::Trouble(trouble.clone()));
        }
        told = trouble;
        let back = status.wait_for(|status| status.connected);
        // Without a control plane there is nothing to wait for but the next look.
        let _ = tokio::time::timeout(PAUSE, back).await;
    }
}
