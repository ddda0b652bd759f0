//! Delayed answers, in the order in which they are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tollway_net::Key;

use crate::peer::Peer;

/// The heap of all connections' delays, and the moment and connection that is being served.
pub(crate) struct Delays {
    heap: BinaryHeap<Reverse<(Duration, Key<Peer>, u32)>>,
    now: Duration,
    key: Key<Peer>,
}

impl Delays {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), now: Duration::ZERO, key: Key::from_u64(0) }
    }

    /// From here on `set` is meant for `key`.
    pub(crate) fn serve(&mut self, key: Key<Peer>) {
        self.key = key;
    }

    /// The connection that is being served.
    pub(crate) fn key(&self) -> Key<Peer> {
        self.key
    }

    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    /// Since the server began.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Wakes `stream` of the connection that is being served, after `delay`.
    pub(crate) fn set(&mut self, delay: Duration, stream: u32) {
        self.heap.push(Reverse((self.now + delay, self.key, stream)));
    }

    /// The next timer that is due.
    pub(crate) fn take_due(&mut self) -> Option<(Key<Peer>, u32)> {
        let Reverse((at, ..)) = self.heap.peek()?;
        if *at > self.now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, key, stream))| (key, stream))
    }

    /// How long until the next is due.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((at, ..))| at.saturating_sub(self.now))
    }
}
