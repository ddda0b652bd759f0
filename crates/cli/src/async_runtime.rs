//! The tokio runtime of the long-running commands, and the signals that end them.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Runs `future` on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    Ok(runtime.block_on(future))
}

/// Completes at SIGTERM or SIGINT, and when the terminal goes away.
pub(crate) fn shutdown_or_hangup() -> Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let shutdown = shutdown()?;
    Ok(async move {
        tokio::select! {
            () = shutdown => {}
            _ = hangup.recv() => tracing::info!("SIGHUP"),
        }
    })
}

/// Completes at SIGTERM or SIGINT.
pub(crate) fn shutdown() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => tracing::info!("SIGINT"),
        }
    })
}
