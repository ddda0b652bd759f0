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
use clap::FromArgMatches;
use clap::error::ErrorKind;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tollway_model::RunningConfig;

use super::differences::{Changes, keys};
use super::merge;
use super::setting::{Given, Program, Settings, SettingsError};

/// How often the file is inspected.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// Follows the settings file of a running part.
pub(crate) struct Reloads {
    argv: Vec<OsString>,
    program: Program,
    running: Settings,
    live: Vec<&'static str>,
    status: watch::Sender<RunningConfig>,
}

/// The settings given run from now on, as revision 1. Also gives the place where others see what
/// runs.
pub(crate) fn watch(given: Given) -> (Reloads, watch::Receiver<RunningConfig>) {
    let Given { settings, argv, program } = given;
    let live = (program.live)(&settings.part);
    let running = RunningConfig { revision: 1, text: settings.to_yaml(), ..Default::default() };
    let (status, seen) = watch::channel(running);
    (Reloads { argv, program, running: settings, live, status }, seen)
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
    pub(crate) async fn run<A: FromArgMatches>(
        self,
        apply: impl AsyncFnMut(A) -> Result<()>,
    ) -> Result<()> {
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        match self.follow(Some(hangup), apply).await {}
    }

    /// Follows the file as [`Reloads::run`] does, in a process that uses SIGHUP for something else.
    pub(crate) async fn run_unsignalled<A: FromArgMatches>(
        self,
        apply: impl AsyncFnMut(A) -> Result<()>,
    ) -> Infallible {
        self.follow(None, apply).await
    }

    async fn follow<A: FromArgMatches>(
        mut self,
        mut hangup: Option<Signal>,
        mut apply: impl AsyncFnMut(A) -> Result<()>,
    ) -> Infallible {
        let Some(path) = self.file() else {
            return std::future::pending().await;
        };
        let mut file = FollowedFile { path, before: None, taken: None };
        loop {
            let asked = file.next_change(&mut hangup).await;
            self.reload(asked, &mut apply).await;
        }
    }

    /// Reads the file; `asked` after a signal, which gets an answer in the log.
    async fn reload<A: FromArgMatches>(
        &mut self,
        asked: bool,
        apply: &mut impl AsyncFnMut(A) -> Result<()>,
    ) {
        let refused = match self.read_again() {
            Ok((arguments, wanted)) => {
                let changes = self.running.changes(&wanted, &self.live);
                if changes.live.is_empty() {
                    self.running = self.running.with(&wanted, &changes);
                    if asked && changes.restart.is_empty() {
                        tracing::info!("settings read again, nothing changed");
                    }
                    return self.publish(&changes, false);
                }
                match apply(arguments).await {
                    Ok(()) => {
                        self.running = self.running.with(&wanted, &changes);
                        return self.publish(&changes, true);
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

    /// The options and the settings of the part, with the file as it is now.
    fn read_again<A: FromArgMatches>(&self) -> Result<(A, Settings), SettingsError> {
        let merged = merge::work_in(&self.argv, self.program)?;
        let argv = merged.as_ref().map_or(&self.argv, |merged| &merged.argv);
        let matches = (self.program.command)().try_get_matches_from(argv)?;
        let part = matches.subcommand_matches(&self.running.part);
        let part = part.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))?;
        let settings = match &merged {
            Some(merged) => merged.settings(self.program)?.0,
            None => Settings::default(),
        };
        Ok((A::from_arg_matches(part)?, settings))
    }

    fn publish(&self, changes: &Changes, applied: bool) {
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

/// Distinguishes the contents of a file without reading it.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

struct FollowedFile {
    path: PathBuf,
    before: Option<Stamp>,
    taken: Option<Stamp>,
}

impl FollowedFile {
    /// Waits for a change; says whether a signal asked to look.
    async fn next_change(&mut self, hangup: &mut Option<Signal>) -> bool {
        let mut look = interval(POLL_EVERY);
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
