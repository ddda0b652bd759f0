//! The addresses of an app, and which of them is dialled.
//!
//! A name may have several, of which the app takes connections at one: `localhost` is `::1` and
//! `127.0.0.1`. Data threads dial the best one; where that fails, the next one is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollway_dial::in_turn;

/// The addresses of an app. Clones share which is the best.
#[derive(Clone, Debug)]
pub(crate) struct AppAddresses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    first: SocketAddr,
    others: Vec<SocketAddr>,
    /// The number of the one that is dialled, the first being 0.
    best: AtomicUsize,
}

impl AppAddresses {
    /// `first` is the best until a dial shows another.
    pub(crate) fn new(first: SocketAddr, others: impl IntoIterator<Item = SocketAddr>) -> Self {
        let others = in_turn([first].into_iter().chain(others)).split_off(1);
        Self(Arc::new(Shared { first, others, best: AtomicUsize::new(0) }))
    }

    pub(crate) fn best(&self) -> SocketAddr {
        match self.0.best.load(Ordering::Relaxed) {
            0 => self.0.first,
            at => self.0.others.get(at - 1).copied().unwrap_or(self.0.first),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = SocketAddr> {
        [self.0.first].into_iter().chain(self.0.others.iter().copied())
    }

    pub(crate) fn are_several(&self) -> bool {
        !self.0.others.is_empty()
    }

    /// The app takes connections at `address`.
    pub(crate) fn note_good(&self, address: SocketAddr) {
        if let Some(at) = self.all().position(|one| one == address) {
            self.0.best.store(at, Ordering::Relaxed);
        }
    }

    /// A dial of `address` failed: the next one is the best, unless another is by now.
    pub(crate) fn note_failed(&self, address: SocketAddr) {
        let Some(at) = self.all().position(|one| one == address) else { return };
        let next = (at + 1) % (self.0.others.len() + 1);
        // Several dials of one address may fail.
        let _ = self.0.best.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl PartialEq for AppAddresses {
    /// Whether both have the same addresses, in whatever order a resolver gave them.
    fn eq(&self, other: &Self) -> bool {
        let holds = |of: &Self, address| of.all().any(|one| one == address);
        self.all().all(|address| holds(other, address))
            && other.all().all(|address| holds(self, address))
    }
}
impl Eq for AppAddresses {}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_failed_dial_moves_on_and_a_good_one_stays() {
        let app = AppAddresses::new(address(1), [address(2), address(3), address(2)]);
        assert_eq!(app.all().collect::<Vec<_>>(), [address(1), address(2), address(3)]);
        let seen_by_another_thread = app.clone();
        app.note_failed(address(1));
        app.note_failed(address(1));
        assert_eq!(seen_by_another_thread.best(), address(2));
        app.note_failed(address(2));
        app.note_failed(address(3));
        assert_eq!(app.best(), address(1));
        app.note_good(address(3));
        app.note_good(address(9));
        assert_eq!(app.best(), address(3));
        let alone = AppAddresses::new(address(1), []);
        alone.note_failed(address(1));
        assert_eq!((alone.best(), alone.are_several()), (address(1), false));
    }

    #[test]
    fn a_resolver_that_turns_its_addresses_round_changes_nothing() {
        let app = AppAddresses::new(address(1), [address(2)]);
        assert_eq!(app, AppAddresses::new(address(2), [address(1)]));
        assert_ne!(app, AppAddresses::new(address(1), [address(3)]));
        assert_ne!(app, AppAddresses::new(address(1), []));
    }
}
