//! When tombstones go: after a time in which watchers that were away can come back and get the
//! deletions, or earlier in a group that has very many.
//!
//! They go in slices between writes. Before a slice, the lowest revision at which a watch may start
//! is raised, so that a walk through the table learns that it may have missed deletions.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tollway_model::Group;

use crate::options::NeighbourOptions;

/// Fractions of the tombstones' time: its precision.
const MARKS: u32 = 8;
/// Longest time between two searches.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Rows read, and tombstones removed, in one slice.
pub(super) const SLICE_ROWS: usize = 8192;
pub(super) const SLICE_TOMBSTONES: usize = 1024;

/// The search for tombstones, and up to which revision.
#[derive(Debug)]
pub(super) struct Clock {
    keep: Duration,
    /// Tombstones of a group that stay until `keep` is over; more of them go earlier.
    pub(super) most: u64,
    every: Duration,
    /// Revisions and when they were the last; the oldest first.
    marks: VecDeque<(Instant, u64)>,
    next: Instant,
    pub(super) running: VecDeque<Running>,
}

/// A group of which tombstones go.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) group: Group,
    /// Those up to this revision.
    pub(super) upto: u64,
    pub(super) after: Option<Bytes>,
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

    /// Notes that `revision` is the last one now. Returns the revisions up to which tombstones may
    /// go: by time, and in groups that have too many.
    pub(super) fn tick(&mut self, now: Instant, revision: u64) -> (u64, u64) {
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
