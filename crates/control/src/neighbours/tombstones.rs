//! Tombstones, and when they go: after a time in which watchers that were away may come back and be
//! told of deletions, or earlier where a group has very many.
//!
//! They go in slices between writes. First of all it is said from which revision on a watch may
//! start now, so that whoever looks at the table meanwhile learns that it may lack deletions.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tollway_model::Group;
use tollway_model::neighbour::packed::is_tombstone;
use tollway_store::Pending;

use super::committer::Committer;
use super::key::rows;
use crate::options::NeighbourOptions;

/// Parts of the time that tombstones are kept: so exact it is.
const MARKS: u32 = 8;
/// Longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Rows looked at, and tombstones removed, in one slice.
const SLICE_ROWS: usize = 8192;
const SLICE_TOMBSTONES: usize = 1024;

/// When tombstones are looked for, and of which revision.
#[derive(Debug)]
pub(super) struct Clock {
    keep: Duration,
    /// Most tombstones of a group that are kept as long as that.
    most: u64,
    every: Duration,
    /// Revisions and when they were the last; the oldest first.
    marks: VecDeque<(Instant, u64)>,
    next: Instant,
    running: VecDeque<Running>,
}

/// A group of which tombstones go.
#[derive(Debug)]
struct Running {
    group: Group,
    /// Those up to this revision.
    upto: u64,
    after: Option<Bytes>,
}

impl Clock {
    pub(super) fn new(options: &NeighbourOptions, revision: u64) -> Self {
        let every = (options.keep_tombstones / MARKS).min(LONGEST_PAUSE);
        let now = Instant::now();
        Self {
            keep: options.keep_tombstones,
            most: options.group_tombstones,
            every,
            marks: VecDeque::from([(now, revision)]),
            next: now + every,
            running: VecDeque::new(),
        }
    }

    /// When there is something to do.
    pub(super) fn next(&self) -> Instant {
        if self.running.is_empty() { self.next } else { Instant::now() }
    }

    /// Notes that `revision` is the last one now, and says up to which revision tombstones may go:
    /// those kept for their time, and those of a group that has too many.
    fn tick(&mut self, now: Instant, revision: u64) -> (u64, u64) {
        self.next = now + self.every;
        let latest = self.marks.back().map_or(0, |(_, revision)| *revision);
        self.marks.push_back((now, revision));
        let mut kept = 0;
        while let Some((since, revision)) = self.marks.front()
            && now.duration_since(*since) >= self.keep
        {
            kept = *revision;
            self.marks.pop_front();
        }
        (kept, latest)
    }
}

impl Committer {
    /// Removes a slice of what may go, or looks for what may.
    pub(super) async fn compact(&mut self, pending: &mut Pending<Self>) {
        let Some(mut running) = self.tombstones.running.pop_front() else {
            self.look_for_tombstones(pending.store().revision());
            return;
        };
        if self.slice(&mut running, pending).await {
            self.tombstones.running.push_front(running);
        }
    }

    fn look_for_tombstones(&mut self, revision: u64) {
        let clock = &mut self.tombstones;
        let (kept, latest) = clock.tick(Instant::now(), revision);
        for (group, lane) in self.groups.all() {
            let standing = lane.standing();
            let upto = if standing.tombstones > clock.most { latest } else { kept };
            let upto = upto.min(standing.revision);
            if standing.tombstones > 0 && upto > standing.oldest {
                clock.running.push_back(Running { group, upto, after: None });
            }
        }
    }

    /// Whether there may be more of the same.
    async fn slice(&mut self, running: &mut Running, pending: &mut Pending<Self>) -> bool {
        let Some(lane) = self.groups.find(&running.group) else { return false };
        let (range, mut gone) = (rows(lane.head().number), Vec::new());
        let store = pending.store();
        let scan = store.scan(&range, running.after.as_deref(), SLICE_ROWS, |row| {
            if is_tombstone(row.value) && row.revision <= running.upto {
                gone.push(Bytes::copy_from_slice(row.key));
            }
            if gone.len() < SLICE_TOMBSTONES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        let Ok(scanned) = scan.await else { return false };
        running.after = scanned.last;
        if gone.is_empty() {
            return scanned.more;
        }
        // Whoever walks through the table meanwhile looks at this behind its walk.
        lane.raise_oldest(running.upto);
        let (mut head, count) = (lane.head(), gone.len() as u64);
        head.tombstones = head.tombstones.saturating_sub(count);
        gone.into_iter().for_each(|key| pending.delete(key));
        self.set_head(pending, &running.group, head);
        self.undurable.removed_rows += count;
        match pending.commit(self).await {
            Ok(()) => {
                self.counts.compacted(count);
                scanned.more
            }
            Err(_) => {
                tracing::warn!(group = %running.group, "tombstones were not removed");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tombstones_go_after_their_time_and_not_before() {
        let options = NeighbourOptions {
            keep_tombstones: Duration::from_secs(80),
            ..NeighbourOptions::default()
        };
        let mut clock = Clock::new(&options, 5);
        for tick in 1..=7 {
            tokio::time::advance(Duration::from_secs(10)).await;
            assert_eq!(clock.next(), Instant::now());
            let (kept, latest) = clock.tick(Instant::now(), 5 + tick);
            assert_eq!((kept, latest), (0, 4 + tick));
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(clock.tick(Instant::now(), 13), (5, 12));
        tokio::time::advance(Duration::from_secs(25)).await;
        assert_eq!(clock.tick(Instant::now(), 14), (7, 13));
        assert!(clock.marks.len() <= 9);
    }
}
