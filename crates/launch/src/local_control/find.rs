//! Finds the local control plane of this user, or starts it.

use std::time::Duration;

use tollway_control::AdminClient;

use super::error::LocalError;
use super::running::{ANSWER_TIMEOUT, LocalControl, find_in};
use super::state::State;
use super::{directory, start};

/// The local control plane of this user, if it runs. One that crashed is started again, since its
/// workloads wait for it.
///
/// # Errors
/// [`LocalError`], first of all when its directory is not to be trusted.
pub async fn find() -> Result<Option<LocalControl>, LocalError> {
    let Some(directory) = directory::existing()? else { return Ok(None) };
    if let Some(found) = find_in(&directory).await {
        return Ok(Some(found));
    }
    match State::read(&directory) {
        Some(State { pid: 1.., linger_ms, .. }) => {
            find_or_start(Duration::from_millis(linger_ms)).await.map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

/// Whether a local control plane runs.
pub enum Found {
    Running(LocalControl),
    /// It left its state behind; the next command starts it again.
    Crashed,
    Nothing,
}

/// Finds out whether the local control plane of this user runs; starts none.
///
/// # Errors
/// [`LocalError::Directory`] when its directory is not to be trusted, [`LocalError::Silent`] when
/// it does not answer.
pub async fn inspect() -> Result<Found, LocalError> {
    let Some(directory) = directory::existing()? else { return Ok(Found::Nothing) };
    let Some(running) = find_in(&directory).await else {
        let crashed = State::read(&directory).is_some_and(|state| state.pid > 0);
        return Ok(if crashed { Found::Crashed } else { Found::Nothing });
    };
    let status = async { AdminClient::connect(&running.store()).await?.status().await };
    let pid = running.state.pid;
    let silent = |_| LocalError::Silent { pid, timeout: ANSWER_TIMEOUT };
    tokio::time::timeout(ANSWER_TIMEOUT, status).await.map_err(silent)??;
    Ok(Found::Running(running))
}

/// The local control plane of this user; starts it if need be. `linger`: how long it then stays
/// after its last workload.
///
/// # Errors
/// [`LocalError`].
pub async fn find_or_start(linger: Duration) -> Result<LocalControl, LocalError> {
    let directory = directory::prepared()?;
    if let Some(found) = find_in(&directory).await {
        return Ok(found);
    }
    let _lock = start::lock(&directory).await?;
    if let Some(found) = find_in(&directory).await {
        return Ok(found);
    }
    start::start(&directory, linger).await
}
