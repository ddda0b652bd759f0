//! A settings file that changes while its part runs: noticed, checked, put to work, or refused.
//!
//! The file is inspected twice a second and at SIGHUP. To inspect what the path leads to covers
//! all ways in which files change: written in place, replaced by renaming, a link that gets
//! another target (as in a Kubernetes volume). A change counts once the file is the same at two
//! inspections, so that half a file is not taken for a whole one.

use std::convert::Infallible;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tollway_model::RunningConfig;

use crate::given::{Changes, Given};
use crate::layers::Flags;
use crate::merge::merge;
use crate::part::Part;

/// How often the file is inspected.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// Follows the settings file of a running part.
pub struct Reloads<P> {
    flags: Flags,
    running: Given<P>,
    status: watch::Sender<RunningConfig>,
}

/// The settings given run from now on, as revision 1. `flags` are those that they are made of.
/// Also returns the channel on which others see what runs.
pub fn watch<P: Part>(
    running: Given<P>,
    flags: Flags,
) -> (Reloads<P>, watch::Receiver<RunningConfig>) {
    let text = running.listing.to_yaml();
    let (status, seen) = watch::channel(RunningConfig { revision: 1, text, ..Default::default() });
    (Reloads { flags, running, status }, seen)
}

impl<P: Part> Reloads<P> {
    /// Whether there is a file to follow.
    #[must_use]
    pub fn follow_a_file(&self) -> bool {
        self.file().is_some()
    }

    fn file(&self) -> Option<PathBuf> {
        self.running.listing.file.clone().filter(|path| path != Path::new("-"))
    }

    /// Follows the file for as long as it is polled. `hangup` has it read at once. `apply` puts new
    /// settings to work, all of them or none, and returns why it cannot.
    pub async fn run(
        mut self,
        mut hangup: Option<Signal>,
        mut apply: impl AsyncFnMut(P) -> Result<(), String>,
    ) -> Infallible {
        let Some(path) = self.file() else {
            return std::future::pending().await;
        };
        let mut file = FollowedFile { path: path.clone(), before: None, taken: None };
        loop {
            let by_signal = file.next_change(&mut hangup).await;
            self.reload(&path, by_signal, &mut apply).await;
        }
    }

    /// Reads the file; after a signal the log has a line in any case.
    async fn reload(
        &mut self,
        path: &Path,
        by_signal: bool,
        apply: &mut impl AsyncFnMut(P) -> Result<(), String>,
    ) {
        let wanted = match merge::<P>(&self.flags, Some(path)) {
            Ok(wanted) => wanted,
            Err(error) => return self.refuse(error.to_string()),
        };
        let changes = self.running.changes(&wanted);
        let is_applied = !changes.live.is_empty();
        if is_applied && let Err(error) = apply(wanted.settings.clone()).await {
            return self.refuse(error);
        }
        self.running.adopt(&wanted, &changes);
        if by_signal && changes == Changes::default() {
            tracing::info!("settings read again, nothing changed");
        }
        self.publish(&changes, is_applied);
    }

    fn refuse(&self, why: String) {
        for line in why.lines() {
            tracing::error!("settings refused, the old ones stay: {line}");
        }
        self.status.send_modify(|status| {
            status.refused += 1;
            status.last_refusal = Some(why);
        });
    }

    fn publish(&self, changes: &Changes, is_applied: bool) {
        self.status.send_modify(|status| {
            status.last_refusal = None;
            status.revision += u64::from(is_applied);
            status.text = self.running.listing.to_yaml();
            status.needs_restart = changes.restart.iter().map(ToString::to_string).collect();
        });
        let revision = self.status.borrow().revision;
        if is_applied {
            tracing::info!(revision, changed = changes.live.join(", "), "settings applied");
        }
        if !changes.restart.is_empty() {
            let settings = changes.restart.join(", ");
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
    /// Waits for a change, or for a signal; returns whether it was the signal.
    async fn next_change(&mut self, hangup: &mut Option<Signal>) -> bool {
        let mut inspections = interval(POLL_EVERY);
        inspections.set_missed_tick_behavior(MissedTickBehavior::Delay);
        inspections.tick().await;
        loop {
            tokio::select! {
                () = hung_up(hangup) => {
                    tracing::info!("SIGHUP");
                    self.taken = Some(stamp(&self.path));
                    return true;
                }
                _ = inspections.tick() => {
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
        let is_stable = self.before == now;
        self.before = now;
        let changed = is_stable && self.taken != now;
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
