//! A settings file that changes while its part runs: noticed, checked, put to work, or refused.
//!
//! The file is looked at twice a second and at SIGHUP. Looking at what the path leads to covers
//! all ways in which files change: written in place, replaced by renaming, a link that is turned
//! (as in a Kubernetes volume). A change counts once the file has stayed the same for a look, so
//! that half a file is not taken for a whole one.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tollway_model::RunningConfig;

use super::change::{Changes, keys};
use super::{Given, Settings};
use crate::args::Command;
use crate::command::live_settings;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Follows the settings file of a running part.
pub(crate) struct Reloads {
    argv: Vec<OsString>,
    running: Settings,
    live: Vec<&'static str>,
    status: watch::Sender<RunningConfig>,
}

/// The settings given run from now on, as revision 1. Also gives the place where others see what
/// runs.
pub(crate) fn watch(given: Given) -> (Reloads, watch::Receiver<RunningConfig>) {
    let Given { settings, argv, .. } = given;
    let live = live_settings(&settings.part);
    let running = RunningConfig { revision: 1, text: settings.to_yaml(), ..Default::default() };
    let (status, seen) = watch::channel(running);
    (Reloads { argv, running: settings, live, status }, seen)
}

impl Reloads {
    /// Whether there is a file to follow.
    pub(crate) fn follow_a_file(&self) -> bool {
        self.file().is_some()
    }

    fn file(&self) -> Option<PathBuf> {
        self.running.file.clone().filter(|path| path != Path::new("-"))
    }

    /// Follows the file for as long as it is polled; `apply` puts new settings to work, all of
    /// them or none.
    ///
    /// # Errors
    /// When SIGHUP cannot be waited for.
    pub(crate) async fn run(self, apply: impl AsyncFnMut(Command) -> Result<()>) -> Result<()> {
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        match self.follow(Some(hangup), apply).await {}
    }

    /// The same for a part whose SIGHUP is somebody else's.
    pub(crate) async fn run_unsignalled(
        self,
        apply: impl AsyncFnMut(Command) -> Result<()>,
    ) -> Infallible {
        self.follow(None, apply).await
    }

    async fn follow(
        mut self,
        mut hangup: Option<Signal>,
        mut apply: impl AsyncFnMut(Command) -> Result<()>,
    ) -> Infallible {
        let Some(path) = self.file() else {
            return std::future::pending().await;
        };
        let mut file = Looks { path, before: None, taken: None };
        loop {
            let asked = file.next_change(&mut hangup).await;
            self.reload(asked, &mut apply).await;
        }
    }

    /// Reads the file; `asked` by somebody who waits for an answer.
    async fn reload(&mut self, asked: bool, apply: &mut impl AsyncFnMut(Command) -> Result<()>) {
        let refused = match super::invocation(self.argv.clone()) {
            Ok((wanted, _)) => {
                let changes = self.running.changes(&wanted.given.settings, &self.live);
                if changes.live.is_empty() {
                    self.running = self.running.with(&wanted.given.settings, &changes);
                    if asked && changes.restart.is_empty() {
                        tracing::info!("settings read again, nothing changed");
                    }
                    return self.tell(&changes, false);
                }
                match apply(wanted.arguments.command).await {
                    Ok(()) => {
                        self.running = self.running.with(&wanted.given.settings, &changes);
                        return self.tell(&changes, true);
                    }
                    Err(error) => format!("{error:#}"),
                }
            }
            Err(error) => error.to_string(),
        };
        for line in refused.lines() {
            tracing::error!("settings refused, the old ones stay: {line}");
        }
        self.status.send_modify(|status| {
            status.refused += 1;
            status.last_refusal = Some(refused);
        });
    }

    fn tell(&self, changes: &Changes, applied: bool) {
        self.status.send_modify(|status| {
            status.last_refusal = None;
            status.revision += u64::from(applied);
            status.text = self.running.to_yaml();
            status.needs_restart = changes.restart.iter().map(|s| s.key.clone()).collect();
        });
        let revision = self.status.borrow().revision;
        if applied {
            tracing::info!(revision, changed = keys(&changes.live), "settings applied");
        }
        if !changes.restart.is_empty() {
            let settings = keys(&changes.restart);
            tracing::warn!("restart to change: {settings}; until then the old values stay");
        }
    }
}

/// What tells one content of a file from another without reading it.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

struct Looks {
    path: PathBuf,
    before: Option<Stamp>,
    taken: Option<Stamp>,
}

impl Looks {
    /// Waits for a change; says whether a signal asked to look.
    async fn next_change(&mut self, hangup: &mut Option<Signal>) -> bool {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.tick().await;
        loop {
            tokio::select! {
                () = hung_up(hangup) => {
                    tracing::info!("SIGHUP");
                    self.taken = Some(stamp(&self.path));
                    return true;
                }
                _ = look.tick() => {
                    if self.has_changed() {
                        return false;
                    }
                }
            }
        }
    }

    /// The first time, it has: since it was read at the start, it may.
    fn has_changed(&mut self) -> bool {
        let now = Some(stamp(&self.path));
        let rests = self.before == now;
        self.before = now;
        let changed = rests && self.taken != now;
        if changed {
            self.taken = now;
        }
        changed
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    let changed = file.ctime().wrapping_mul(1_000_000_000).wrapping_add(file.ctime_nsec());
    let written = file.mtime().wrapping_mul(1_000_000_000).wrapping_add(file.mtime_nsec());
    Some((file.dev(), file.ino(), changed, written, file.len()))
}
