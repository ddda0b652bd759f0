//! A watch is a range and a position in the shared history; it buffers nothing.

use std::sync::Arc;

use tokio::sync::watch::Receiver;

use super::Core;
use crate::error::WatchError;
use crate::model::{Batch, KeyRange};

/// A watch whose range is quiet reports progress after this many revisions.
pub const PROGRESS_EVERY_REVISIONS: u64 = 1000;

/// Changes read under the state's lock before others get the lock.
const LOOK_CHANGES: usize = 4096;

/// A running watch of the embedded engine.
#[derive(Debug)]
pub(crate) struct EmbeddedWatch {
    core: Arc<Core>,
    revisions: Receiver<u64>,
    range: KeyRange,
    /// Everything up to here was reported.
    reported: u64,
    /// The last revision read.
    read_to: u64,
    /// Counts the running watches.
    _counted: Arc<()>,
}

impl EmbeddedWatch {
    pub(super) fn new(
        core: Arc<Core>,
        revisions: Receiver<u64>,
        range: KeyRange,
        from: u64,
        counted: Arc<()>,
    ) -> Self {
        Self { core, revisions, range, reported: from, read_to: from, _counted: counted }
    }

    pub(crate) async fn next(&mut self) -> Result<Batch, WatchError> {
        loop {
            // Seen before looking, so that what comes while looking wakes us again.
            let open = self.revisions.has_changed().is_ok();
            self.revisions.mark_unchanged();
            let (batch, caught_up) = self.read()?;
            if let Some(batch) = batch {
                return Ok(batch);
            }
            if !caught_up {
                tokio::task::yield_now().await;
            } else if !open || self.revisions.changed().await.is_err() {
                return self.last_read();
            }
        }
    }

    /// What there is to report, and whether all of it has been read.
    fn read(&mut self) -> Result<(Option<Batch>, bool), WatchError> {
        let state = self.core.state();
        let oldest = state.history.floor();
        if self.read_to < oldest {
            return Err(WatchError::TooSlow { oldest });
        }
        let seen = state.history.after(self.read_to, &self.range, LOOK_CHANGES);
        let caught_up = seen.upto >= state.revision;
        drop(state);
        self.read_to = seen.upto;
        let due = self.read_to - self.reported >= PROGRESS_EVERY_REVISIONS;
        if seen.changes.is_empty() && !due {
            return Ok((None, caught_up));
        }
        self.reported = self.read_to;
        Ok((Some(Batch { revision: self.read_to, changes: seen.changes }), caught_up))
    }

    /// The store has closed: reports what came before that, then `Closed`.
    fn last_read(&mut self) -> Result<Batch, WatchError> {
        loop {
            match self.read()? {
                (Some(batch), _) => return Ok(batch),
                (None, true) => return Err(WatchError::Closed),
                (None, false) => {}
            }
        }
    }
}
