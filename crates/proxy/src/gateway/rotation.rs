//! The order in which addresses are tried: each time from the next one, those that did not answer
//! lately last.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

/// The place in a list of addresses, and which of them are passed over.
#[derive(Default, Debug)]
pub(super) struct Rotation {
    first: usize,
    /// Addresses that did not answer, and until when others are preferred.
    backoff: HashMap<SocketAddr, Instant>,
}

impl Rotation {
    /// The indices of a list of `count` addresses; each time the first is the next one.
    pub(super) fn next(&mut self, count: usize) -> impl Iterator<Item = usize> + use<> {
        self.first = self.first.wrapping_add(1);
        let first = self.first;
        (0..count).map(move |step| first.wrapping_add(step) % count)
    }

    /// Whether an address is passed over while there are others.
    pub(super) fn is_passed_over(&self, address: SocketAddr, now: Instant) -> bool {
        self.backoff.get(&address).is_some_and(|until| *until > now)
    }

    /// Passes an address over until then.
    pub(super) fn back_off(&mut self, address: SocketAddr, until: Instant) {
        self.backoff.insert(address, until);
    }

    /// Forgets addresses that are not listed any more.
    pub(super) fn retain(&mut self, is_listed: impl Fn(&SocketAddr) -> bool) {
        self.backoff.retain(|address, _| is_listed(address));
    }

    #[cfg(test)]
    pub(super) fn passed_over(&self) -> usize {
        self.backoff.len()
    }
}
