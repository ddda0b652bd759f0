//! `tollway front`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tollway_proxy::{
    FRONT_LISTEN_LIMIT, FrontFiles, FrontOptions, Live, LiveOptions, live, run_front,
};
use tollway_settings::reload::watch;
use tollway_settings::{Flags, Front, Given};

use super::log;
use super::mesh::{plane_options, serve_live};
use super::telemetry::telemetry_options;
use crate::async_runtime::{block_on, shutdown};
use crate::failure::Misuse;

pub(crate) fn run(given: Given<Front>, flags: Flags) -> Result<()> {
    let settings = given.settings.clone();
    let log = log::start(&settings.plane.log);
    let (reloads, config) = watch(given, flags);
    let (handle, live) = live(config);
    block_on(async {
        let end = shutdown()?;
        let apply = async |new: Front| {
            let (limits, timeouts) = new.plane.bounds();
            let telemetry = telemetry_options(&new.telemetry)?;
            let upstreams = Vec::new();
            handle.apply(LiveOptions { limits, timeouts, telemetry, upstreams }).await?;
            log.set_filter(&new.plane.log.log_level);
            Ok(())
        };
        let reread = Arc::new(Notify::new());
        let hangups = forward_hangups(Arc::clone(&reread))?;
        let front = run_front(options(settings, live, reread)?, end);
        tokio::select! {
            ended = Box::pin(serve_live(front, reloads, apply)) => ended,
            () = hangups => Ok(()),
        }
    })?
}

fn options(settings: Front, live: Live, reread: Arc<Notify>) -> Result<FrontOptions> {
    if settings.listens.len() > FRONT_LISTEN_LIMIT {
        return Err(Misuse(format!("--listen may be given {FRONT_LISTEN_LIMIT} times")).into());
    }
    Ok(FrontOptions {
        telemetry: telemetry_options(&settings.telemetry)?,
        listen: settings.listens,
        files: files(
            settings.certs,
            settings.keys,
            settings.client_ca,
            settings.plane.allow_open_files,
        )?,
        to: settings.to,
        plane: plane_options(settings.plane, live),
        reread,
    })
}

/// Puts certificates and keys together: as many of one as of the other, in the same order.
///
/// # Errors
/// [`Misuse`] where one has no other.
pub(crate) fn files(
    certificates: Vec<PathBuf>,
    keys: Vec<PathBuf>,
    client_ca: Option<PathBuf>,
    allow_open_files: bool,
) -> Result<FrontFiles, Misuse> {
    if certificates.len() != keys.len() {
        return Err(Misuse(format!(
            "--cert is given {} and --key {}; each certificate needs its key, in the same order",
            times(certificates.len()),
            times(keys.len())
        )));
    }
    let pairs = certificates.into_iter().zip(keys).collect();
    Ok(FrontFiles { pairs, client_ca, allow_open_files })
}

fn times(count: usize) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

/// SIGHUP reads the certificates again (and the settings file, which has its own ear for it).
fn forward_hangups(reread: Arc<Notify>) -> Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            reread.notify_one();
        }
        std::future::pending().await
    })
}
