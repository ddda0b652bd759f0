//! `tollway front`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tollway_proxy::{
    FRONT_LISTEN_LIMIT, FrontFiles, FrontOptions, FrontTarget, Live, LiveOptions, live, run_front,
};

use super::mesh::serve_live;
use super::plane::PlaneArgs;
use super::telemetry::TelemetryArgs;
use crate::async_runtime::{block_on, shutdown};
use crate::failure::Misuse;
use crate::settings::{Given, watch};

// In two lines, for narrow terminals: clap does not break a usage.
#[derive(Args)]
#[command(override_usage = "tollway front [OPTIONS] --listen <IP:PORT>\n       \
    --cert <FILE> --key <FILE> --to <URL>")]
pub(crate) struct FrontArgs {
    /// Address for clients; may be repeated. Port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", required = true)]
    listen: Vec<SocketAddr>,
    /// PEM file of a certificate, and behind it those that lead to its root. Repeated with --key
    /// for further names; the first is for clients that ask for none of them.
    #[arg(long, value_name = "FILE", required = true)]
    cert: Vec<PathBuf>,
    /// PEM file of the certificate's key: RSA, ECDSA or Ed25519, not encrypted.
    #[arg(long, value_name = "FILE", required = true)]
    key: Vec<PathBuf>,
    /// PEM file of authorities: every client must show a certificate of one of them.
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// The app: http://HOST:PORT, or h2c://HOST:PORT where it speaks HTTP/2.
    #[arg(long, value_name = "URL")]
    to: FrontTarget,
    #[command(flatten)]
    telemetry: Box<TelemetryArgs>,
    #[command(flatten)]
    plane: PlaneArgs,
}

pub(crate) fn run(args: FrontArgs, given: Given) -> Result<()> {
    let log = args.plane.log.start();
    let (reloads, config) = watch(given);
    let (handle, live) = live(config);
    block_on(async {
        let end = shutdown()?;
        let apply = async |new: FrontArgs| {
            let (limits, timeouts) = new.plane.bounds();
            let options = LiveOptions {
                limits,
                timeouts,
                telemetry: new.telemetry.options()?,
                upstreams: Vec::new(),
            };
            handle.apply(options).await?;
            log.set_filter(&new.plane.log.log_level);
            Ok(())
        };
        let reread = Arc::new(Notify::new());
        let hangups = forward_hangups(Arc::clone(&reread))?;
        let front = run_front(args.options(live, reread)?, end);
        tokio::select! {
            ended = Box::pin(serve_live(front, reloads, apply)) => ended,
            () = hangups => Ok(()),
        }
    })?
}

impl FrontArgs {
    fn options(self, live: Live, reread: Arc<Notify>) -> Result<FrontOptions> {
        if self.listen.len() > FRONT_LISTEN_LIMIT {
            return Err(Misuse(format!("--listen may be given {FRONT_LISTEN_LIMIT} times")).into());
        }
        Ok(FrontOptions {
            listen: self.listen,
            files: files(self.cert, self.key, self.client_ca)?,
            to: self.to,
            telemetry: self.telemetry.options()?,
            plane: self.plane.options(live),
            reread,
        })
    }
}

/// Puts certificates and keys together: as many of one as of the other, in the same order.
///
/// # Errors
/// [`Misuse`] where one has no other.
pub(crate) fn files(
    certificates: Vec<PathBuf>,
    keys: Vec<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Result<FrontFiles, Misuse> {
    if certificates.len() != keys.len() {
        return Err(Misuse(format!(
            "--cert is given {} and --key {}; each certificate needs its key, in the same order",
            times(certificates.len()),
            times(keys.len())
        )));
    }
    Ok(FrontFiles { pairs: certificates.into_iter().zip(keys).collect(), client_ca })
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
