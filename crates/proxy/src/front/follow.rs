//! What may change while a front runs: the files with its certificates, and the address behind the
//! app's name. A change that cannot be used changes nothing.
//!
//! The files are examined twice a second; SIGHUP has them read at once. A change counts once two
//! examinations in a row find the same: certificate and key are two files, and never change at
//! once.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::files::{FrontFiles, Served, Stamps};
use super::target::{FrontTarget, find_best};
use crate::dataplane::DataPlaneError;
use crate::event_loop::{AppTarget, Command};
use crate::fanout::Fanout;

/// How often the files are examined.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the app's name is resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);
/// How often the log repeats that a certificate has expired.
const WARN_EVERY: Duration = Duration::from_secs(3600);

/// What a front shows of its certificates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status {
    /// 1 at the start, one more with every change.
    pub(super) revision: u64,
    /// Changes that were refused.
    pub(super) refused: u64,
    /// When the first of them expires, in seconds since 1970.
    pub(super) expires: u64,
}

/// Follows the files and the app's name.
pub(super) struct Follower {
    files: FrontFiles,
    to: FrontTarget,
    reread: Arc<Notify>,
    served: Served,
    app: AppTarget,
    /// As they were read last, and as they looked last.
    taken: Stamps,
    looked: Stamps,
    status: Status,
}

impl Follower {
    /// Reads the files and resolves the name for the first time.
    ///
    /// # Errors
    /// [`DataPlaneError::Front`], or [`DataPlaneError::App`].
    pub(super) async fn start(
        files: FrontFiles,
        to: FrontTarget,
        reread: Arc<Notify>,
    ) -> Result<Self, DataPlaneError> {
        let taken = files.stamps();
        let (served, pairs) = files.load(SystemTime::now())?;
        // The first is for clients that ask for none.
        for pair in pairs.iter().skip(1).filter(|pair| pair.names.is_empty()) {
            let certificate = pair.certificate.display();
            tracing::warn!(%certificate, "no client can ask for this certificate: it has no DNS name");
        }
        let app = to.resolve().await;
        let app = app.map_err(|source| DataPlaneError::App { app: to.to_string(), source })?;
        let status = Status { revision: 1, refused: 0, expires: unix_seconds(served.expires) };
        Ok(Self { files, to, reread, served, app, looked: taken.clone(), taken, status })
    }

    pub(super) fn served(&self) -> &Served {
        &self.served
    }

    pub(super) fn app(&self) -> AppTarget {
        self.app.clone()
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    /// Sends changes to the data threads, and what is served to `status`, until it is dropped.
    pub(super) async fn run(mut self, fanout: Arc<Fanout>, status: watch::Sender<Status>) {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut resolved = Instant::now();
        let mut warned: Option<Instant> = None;
        loop {
            tokio::select! {
                () = self.reread.notified() => {
                    tracing::info!("reading the certificates again");
                    self.taken = self.files.stamps();
                    self.reload(&fanout);
                }
                // A data thread could not connect: another address may take connections.
                () = fanout.app_unreachable() => find_best(&self.app.addresses).await,
                _ = look.tick() => {
                    if self.has_changed() {
                        self.reload(&fanout);
                    }
                }
            }
            status.send_if_modified(|was| std::mem::replace(was, self.status) != self.status);
            if self.to.is_name() && resolved.elapsed() >= RESOLVE_EVERY {
                resolved = Instant::now();
                self.resolve(&fanout).await;
            }
            let is_over = self.served.expires < SystemTime::now();
            if is_over && warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                warned = Some(Instant::now());
                tracing::warn!("a certificate has expired, and clients will refuse it");
            }
        }
    }

    /// Whether the files differ from those read last, and are as the last examination found them.
    fn has_changed(&mut self) -> bool {
        let now = self.files.stamps();
        let is_settled = self.looked == now;
        self.looked = now;
        let changed = is_settled && self.looked != self.taken;
        if changed {
            self.taken.clone_from(&self.looked);
        }
        changed
    }

    fn reload(&mut self, fanout: &Fanout) {
        match self.files.load(SystemTime::now()) {
            Ok((served, _)) => {
                self.status.revision += 1;
                self.status.expires = unix_seconds(served.expires);
                self.served = served;
                fanout.send_to_all(|| Command::Certificates(self.served.clone()));
                let Status { revision, .. } = self.status;
                tracing::info!(revision, "certificates applied");
            }
            Err(error) => {
                self.status.refused += 1;
                let code = error.code();
                let error = tollway_model::chain(&error);
                tracing::error!(%code, "certificates refused, the old ones stay: {error}");
            }
        }
    }

    async fn resolve(&mut self, fanout: &Fanout) {
        match self.to.resolve().await {
            Ok(app) if app != self.app => {
                tracing::info!(app = %self.to, address = %app.addresses.best(), "the app's address is another");
                self.app = app;
                fanout.send_to_all(|| Command::App(self.app.clone()));
            }
            Ok(same) => self.app.addresses.note_good(same.addresses.best()),
            Err(error) => {
                tracing::warn!(app = %self.to, %error, "the app's name cannot be resolved; its last address stays");
            }
        }
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
