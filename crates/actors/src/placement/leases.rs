//! The leases of hosts.

use std::collections::BTreeMap;
use std::time::Duration;

/// Until when hosts count as being there without a further sign of life.
///
/// A host counts its lease from before it sends its request; the control plane counts from the
/// request's arrival. So the host stops first, by the time the request took.
#[derive(Clone, Debug)]
pub struct Leases<H> {
    lasts: Duration,
    ends: BTreeMap<H, Duration>,
}

impl<H: Ord + Clone> Leases<H> {
    #[must_use]
    pub fn new(lasts: Duration) -> Self {
        Self { lasts, ends: BTreeMap::new() }
    }

    /// A sign of life.
    pub fn renew(&mut self, host: H, now: Duration) {
        self.ends.insert(host, now + self.lasts);
    }

    pub fn end(&mut self, host: &H) {
        self.ends.remove(host);
    }

    #[must_use]
    pub fn stands(&self, host: &H) -> bool {
        self.ends.contains_key(host)
    }

    /// Takes out those that have ended.
    pub fn take_ended(&mut self, now: Duration) -> Vec<H> {
        let ended = |(_, end): &(&H, &Duration)| **end <= now;
        let ended: Vec<H> = self.ends.iter().filter(ended).map(|(host, _)| host.clone()).collect();
        for host in &ended {
            self.ends.remove(host);
        }
        ended
    }

    /// When the next one ends.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        self.ends.values().min().copied()
    }
}
