//! Which registration stream holds which lease. A workload that comes back on a new stream takes
//! its old lease over, and the stream that broke must then not end it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollway_store::LeaseId;

/// The present holder of every lease that a stream of this process holds.
#[derive(Debug, Default)]
pub(crate) struct Holders(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_lease: HashMap<LeaseId, u64>,
    last: u64,
}

/// A lease in the hands of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) lease: LeaseId,
    holder: u64,
}

impl Holders {
    /// Makes the caller the holder of the lease, in place of an earlier one.
    pub(crate) fn take(&self, lease: LeaseId) -> Held {
        let mut table = self.lock();
        table.last += 1;
        let holder = table.last;
        table.by_lease.insert(lease, holder);
        Held { lease, holder }
    }

    /// Gives the lease out of hand. Returns whether it was still in this one: then no other stream
    /// uses it.
    pub(crate) fn release(&self, held: Held) -> bool {
        let mut table = self.lock();
        let is_mine = table.by_lease.get(&held.lease) == Some(&held.holder);
        if is_mine {
            table.by_lease.remove(&held.lease);
        }
        is_mine
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn only_the_last_to_take_a_lease_may_end_it() {
        let holders = Holders::default();
        let lease = LeaseId(NonZeroU64::MIN);
        let first = holders.take(lease);
        let second = holders.take(lease);
        assert!(!holders.release(first));
        assert!(holders.release(second));
        assert!(!holders.release(second));
        assert!(holders.lock().by_lease.is_empty());
    }
}
