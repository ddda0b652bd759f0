//! Removes entries whose time has come, for engines that do not by themselves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;

use crate::error::StateError;

/// An engine whose expired entries have to be removed now and then.
#[async_trait]
pub(crate) trait Sweep: Send + Sync + 'static {
    /// Removes what has had its time, unless another process has done so since `every` ago.
    async fn sweep(&self, every: Duration) -> Result<(), StateError>;
}

/// Sweeps until the engine is dropped.
pub(crate) fn sweep_every<S: Sweep>(store: &Arc<S>, every: Option<Duration>) {
    let Some(every) = every else { return };
    let store: Weak<S> = Arc::downgrade(store);
    tokio::spawn(async move {
        let mut rounds = tokio::time::interval(every);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let Some(store) = store.upgrade() else { return };
            if let Err(error) = store.sweep(every).await {
                tracing::warn!(%error, "entries whose time has come were not removed");
            }
        }
    });
}
