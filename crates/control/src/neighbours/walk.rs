//! A walk through the rows of a group, in their order, that packs those that are wanted.

use std::ops::ControlFlow;

use bytes::Bytes;
use tollway_model::neighbour::packed::{BATCH_RECORDS, is_tombstone};
use tollway_store::{KeyRange, ReadError, Seen, Store};

use super::key::pack_row;

/// Rows read before other tasks run.
const LOOK_ROWS: usize = 4096;
/// A batch is sent when it has this many bytes of usual records.
const BATCH_ROOM: usize = BATCH_RECORDS * 32;

pub(super) struct Walk {
    store: Store,
    range: KeyRange,
    after: Option<Bytes>,
    wanted: Wanted,
    is_over: bool,
}

/// Which rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Neighbours, without tombstones.
    Present,
    /// What was written after a revision, tombstones too.
    After(u64),
}

/// Packed records, and how many they are.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) packed: Bytes,
    pub(super) records: usize,
}

impl Walk {
    /// From behind the key `after` on.
    pub(super) fn new(store: Store, range: KeyRange, after: Option<Bytes>, wanted: Wanted) -> Self {
        Self { store, range, after, wanted, is_over: false }
    }

    /// Whether no rows are left.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next records, at most `most` and at most a batch; `None` at the end.
    pub(super) async fn next(&mut self, most: usize) -> Result<Option<Batch>, ReadError> {
        let most = most.min(BATCH_RECORDS);
        let (mut packed, mut records) = (Vec::new(), 0);
        while !self.is_over && records < most {
            if packed.is_empty() {
                packed.reserve(BATCH_ROOM);
            }
            let wanted = self.wanted;
            let scan = self.store.scan(&self.range, self.after.as_deref(), LOOK_ROWS, |row| {
                if wanted.has(&row) && pack_row(row.key, row.revision, row.value, &mut packed) {
                    records += 1;
                }
                if records < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let scanned = scan.await?;
            self.is_over = !scanned.more;
            self.after = scanned.last.or(self.after.take());
            if records < most && !self.is_over {
                tokio::task::yield_now().await;
            }
        }
        Ok((records > 0).then(|| Batch { packed: packed.into(), records }))
    }
}

impl Wanted {
    fn has(self, row: &Seen<'_>) -> bool {
        match self {
            Self::Present => !is_tombstone(row.value),
            Self::After(revision) => row.revision > revision,
        }
    }
}
