//! Lets actor types go that have had no host for long, unless something is stored for them.

use std::sync::Arc;
use std::time::Duration;

use tollway_model::Label;
use tracing::warn;

use super::placements::Placements;
use crate::app_state::AppState;
use crate::reminders::Reminders;

const EVERY: Duration = Duration::from_secs(600);

/// Never returns.
pub(crate) async fn release_lapsed(
    placements: Arc<Placements>,
    reminders: Arc<Reminders>,
    app_state: Arc<AppState>,
) {
    let mut tick = tokio::time::interval(EVERY);
    loop {
        tick.tick().await;
        release_all(&placements, &reminders, &app_state).await;
    }
}

pub(super) async fn release_all(
    placements: &Placements,
    reminders: &Reminders,
    app_state: &AppState,
) {
    for (namespace, actor_type, apps) in placements.lapsed() {
        match is_used(reminders, app_state, &namespace, &actor_type, &apps).await {
            Ok(true) => {}
            Ok(false) => placements.release_lapsed(&namespace, &actor_type),
            Err(status) => {
                let reason = status.message();
                warn!(%namespace, actor_type, reason, "an actor type remains with its app");
            }
        }
    }
}

/// Whether reminders of a type are stored, or state of its actors.
async fn is_used(
    reminders: &Reminders,
    app_state: &AppState,
    namespace: &Label,
    actor_type: &str,
    apps: &[Label],
) -> Result<bool, tonic::Status> {
    if reminders.has_some(namespace, actor_type).await? {
        return Ok(true);
    }
    for app in apps {
        if app_state.has_actors(namespace, app, actor_type).await? {
            return Ok(true);
        }
    }
    Ok(false)
}
