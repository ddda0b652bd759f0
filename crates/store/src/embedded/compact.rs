//! Rewrites the log without what is superseded, while the store keeps working.
//!
//! The new log is written beside the old one, a slice of the entries at a time; transactions that
//! commit meanwhile go into both. Read in order it gives the same state: a slice has the entries at
//! the time of the copy, and later frames change them. When it is whole and durable it takes the
//! store's name, in one step; a crash before that leaves the old one.

use std::io;

use super::Core;
use super::format::FrameBuilder;
use super::log::Log;
use super::medium::LogLocation;
use crate::etcd::WriteFault;

/// Keys and values copied in one step.
const SLICE_BYTES: usize = 1 << 20;
/// Entries copied in one step.
const SLICE_ROWS: usize = 10_000;
/// The new log is made durable at least this often, so that the end is no long stall.
const SYNC_EVERY_BYTES: u64 = 8 << 20;

/// A running compaction.
#[derive(Debug)]
pub(super) struct Compaction {
    location: LogLocation,
    log: Log,
    /// The last key copied.
    cursor: Option<Box<[u8]>>,
    synced: u64,
}

/// How far a compaction is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Copied,
}

/// A compacted log that has taken the store's name.
pub(super) struct Taken {
    pub(super) log: Log,
    pub(super) name_durable: io::Result<()>,
}

impl Compaction {
    pub(super) fn start(location: &LogLocation, core: &Core) -> io::Result<Self> {
        let (log, location) = (Log::create(location)?, location.clone());
        let mut compaction = Self { location, log, cursor: None, synced: 0 };
        let mut frame = FrameBuilder::new(Vec::new());
        {
            let state = core.state();
            frame.base(state.revision, state.next_lease);
            for (id, lease) in state.leases() {
                let ttl_ms = u64::try_from(lease.ttl.as_millis()).unwrap_or(u64::MAX);
                frame.lease_granted(id, ttl_ms);
            }
        }
        match compaction.add(frame) {
            Ok(()) => Ok(compaction),
            Err(error) => {
                compaction.abandon();
                Err(error)
            }
        }
    }

    /// Adds a frame that was committed to the store meanwhile.
    pub(super) fn add(&mut self, frame: FrameBuilder) -> io::Result<()> {
        self.log.reserve(frame.len())?;
        self.log.append(frame)?;
        if self.log.len() - self.synced >= SYNC_EVERY_BYTES {
            self.log.sync().map_err(WriteFault::into_error)?;
            self.synced = self.log.len();
        }
        Ok(())
    }

    /// Copies the next slice.
    pub(super) fn step(&mut self, core: &Core) -> io::Result<Progress> {
        let mut frame = FrameBuilder::new(Vec::with_capacity(2 * SLICE_BYTES));
        let last = {
            let state = core.state();
            let mut bytes = 0;
            let rows: Vec<_> = state
                .rows_after(self.cursor.as_deref())
                .take(SLICE_ROWS)
                .take_while(|row| {
                    let fits = bytes < SLICE_BYTES;
                    bytes += row.len();
                    fits
                })
                .collect();
            frame.rows(u32::try_from(rows.len()).expect("a slice has few rows"));
            for row in &rows {
                frame.row(row.key(), row.value(), row.revision(), row.lease());
            }
            rows.last().map(|row| Box::from(row.key()))
        };
        let Some(last) = last else { return Ok(Progress::Copied) };
        self.cursor = Some(last);
        self.add(frame)?;
        Ok(Progress::More)
    }

    /// Makes the new log durable and gives it the store's name.
    ///
    /// If the *name* cannot be made durable, the new log has the name and yet a crash may bring the
    /// old one back. `name_durable` reports it, and nothing more may be written.
    pub(super) fn take_the_name(mut self) -> io::Result<Taken> {
        match self.log.take_the_name(&self.location) {
            Ok(name_durable) => Ok(Taken { log: self.log, name_durable }),
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    /// Removes the unfinished log.
    pub(super) fn abandon(self) {
        self.log.abandon(&self.location);
    }
}
