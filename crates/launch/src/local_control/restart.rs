//! Starts the local control plane again when it crashed while an app runs. The first process that
//! finds it absent starts it; it comes back with its state, perhaps at another address.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tollway_model::chain;
use tollway_proxy::mesh::MeshClient;

use super::error::LocalError;
use super::find::find_or_start;
use super::running::LocalControl;

/// After this time without a connection the control plane is looked up.
const AWAY: Duration = Duration::from_secs(1);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(5);

/// The result of an attempt.
pub enum ControlEvent {
    /// It runs again.
    Started(LocalControl),
    /// It could not be started. A failure with an unchanged text is reported once.
    Failed(LocalError),
}

/// Starts the control plane of `mesh`, which is the local one, whenever it is absent; until
/// dropped. One that is started ends `linger` after its last workload.
pub async fn restart_when_absent(
    mesh: Arc<MeshClient>,
    linger: Duration,
    report: impl Fn(ControlEvent),
) -> Infallible {
    let mut status = mesh.status();
    let mut reported = String::new();
    loop {
        if status.wait_for(|status| !status.connected).await.is_err() {
            return std::future::pending().await;
        }
        let back = status.wait_for(|status| status.connected);
        if tokio::time::timeout(AWAY, back).await.is_ok() {
            continue;
        }
        match find_or_start(linger).await {
            Ok(found) => {
                // Another process may have taken its port in the meantime.
                mesh.move_control(found.address().into());
                if found.started {
                    report(ControlEvent::Started(found));
                }
                reported.clear();
            }
            Err(error) => {
                let text = chain(&error);
                if text != reported {
                    report(ControlEvent::Failed(error));
                }
                reported = text;
            }
        }
        let back = status.wait_for(|status| status.connected);
        // The next attempt follows after the pause at the latest.
        let _ = tokio::time::timeout(PAUSE, back).await;
    }
}
