//! Where the control plane is, and which of its addresses are tried last because connections to them
//! failed lately.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tollway_dial::{ADDRESSES_LIMIT, Targets};

/// The addresses of a control plane. Clones share what is known of them.
#[derive(Clone, Debug)]
pub(super) struct ControlAt {
    targets: watch::Receiver<Targets>,
    failed: Arc<Mutex<Failed>>,
}

/// The addresses that failed since a connection lasted.
#[derive(Default, Debug)]
struct Failed {
    /// The last failure last.
    addresses: Vec<SocketAddr>,
    /// Where the present connection goes.
    present: Option<SocketAddr>,
}

impl ControlAt {
    /// It may move.
    pub(super) fn new(targets: watch::Receiver<Targets>) -> Self {
        Self { targets, failed: Arc::default() }
    }

    /// It does not move.
    pub(super) fn fixed(targets: Targets) -> Self {
        Self::new(watch::Sender::new(targets).subscribe())
    }

    /// Where it is now.
    pub(super) fn targets(&self) -> Targets {
        self.targets.borrow().clone()
    }

    /// Notes each time that it moves.
    pub(super) fn moves(&self) -> watch::Receiver<Targets> {
        self.targets.clone()
    }

    /// The addresses that are tried after the others, in this order.
    pub(super) fn last(&self) -> Vec<SocketAddr> {
        self.failed().addresses.clone()
    }

    /// The connection for which the present one is given up goes there.
    pub(super) fn note_connected(&self, address: SocketAddr) {
        self.failed().present = Some(address);
    }

    /// The present connection is lost, or is good for nothing; `has_lasted` if it was good until then.
    pub(super) fn note_lost(&self, has_lasted: bool) {
        self.failed().note_lost(has_lasted);
    }

    fn failed(&self) -> MutexGuard<'_, Failed> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failed {
    fn note_lost(&mut self, has_lasted: bool) {
        let Some(lost) = self.present.take() else { return };
        if has_lasted {
            self.addresses.clear();
        }
        self.addresses.retain(|address| *address != lost);
        self.addresses.truncate(ADDRESSES_LIMIT - 1);
        self.addresses.push(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_failed_is_tried_after_those_that_failed_before_it() {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut failed = Failed::default();
        let mut lose = |port, has_lasted| {
            failed.present = Some(address(port));
            failed.note_lost(has_lasted);
            failed.note_lost(has_lasted);
            failed.addresses.iter().map(SocketAddr::port).collect::<Vec<_>>()
        };
        assert_eq!(lose(1, false), [1]);
        assert_eq!(lose(2, false), [1, 2]);
        assert_eq!(lose(1, false), [2, 1]);
        assert_eq!(lose(3, true), [3], "the others may serve by now");
        let many = (0..40).map(|port| lose(port, false)).last().unwrap();
        assert_eq!((many.len(), many.last()), (ADDRESSES_LIMIT, Some(&39)));
    }
}
