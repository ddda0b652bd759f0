//! When leases end. Deadlines are in memory only: renewing a lease costs no write, and after a
//! restart every lease has its full time again. Time during which the whole process was suspended
//! (stopped, starved, or its machine asleep) does not count, since no client could renew a lease
//! then.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{WeakSender, error::TrySendError};
use tokio::time::{Instant, sleep, sleep_until};

use super::writer::Request;
use crate::model::LeaseId;

/// Wait before a lease's end is handed to a busy writer again.
const BUSY_RETRY: Duration = Duration::from_millis(10);
/// Longest sleep while there are leases: a longer one shows a standstill.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A check that is late by this much means that the process was suspended, not busy.
const STANDSTILL_FROM: Duration = Duration::from_secs(1);

/// The deadlines of all leases.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    table: Mutex<Table>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Table {
    by_lease: HashMap<LeaseId, Deadline>,
    in_order: BTreeSet<(Instant, LeaseId)>,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    ttl: Duration,
}

impl Deadlines {
    /// Starts the time of a lease.
    pub(super) fn start(&self, lease: LeaseId, ttl: Duration) {
        let mut table = self.table();
        let at = Instant::now() + ttl;
        let earliest = table.in_order.first().is_none_or(|(first, _)| at < *first);
        table.remove(lease);
        table.by_lease.insert(lease, Deadline { at, ttl });
        table.in_order.insert((at, lease));
        drop(table);
        if earliest {
            self.earlier.notify_one();
        }
    }

    /// Renews a running lease; `None` if it has ended.
    pub(super) fn restart(&self, lease: LeaseId) -> Option<Duration> {
        let mut table = self.table();
        let ttl = table.by_lease.get(&lease)?.ttl;
        table.remove(lease);
        let at = Instant::now() + ttl;
        table.by_lease.insert(lease, Deadline { at, ttl });
        table.in_order.insert((at, lease));
        Some(ttl)
    }

    /// Stops the time of a lease that is ended.
    pub(super) fn stop(&self, lease: LeaseId) {
        self.table().remove(lease);
    }

    /// Moves every deadline by `gap`.
    fn postpone(&self, gap: Duration) {
        let mut table = self.table();
        table.by_lease.values_mut().for_each(|deadline| deadline.at += gap);
        let in_order = table.by_lease.iter().map(|(lease, deadline)| (deadline.at, *lease));
        table.in_order = in_order.collect();
    }

    /// Removes one lease whose time is up, or returns when the next one's is.
    fn take_due(&self) -> Result<LeaseId, Option<Instant>> {
        let mut table = self.table();
        let Some((at, lease)) = table.in_order.first().copied() else { return Err(None) };
        if at > Instant::now() {
            return Err(Some(at));
        }
        table.remove(lease);
        Ok(lease)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remove(&mut self, lease: LeaseId) {
        if let Some(deadline) = self.by_lease.remove(&lease) {
            self.in_order.remove(&(deadline.at, lease));
        }
    }
}

/// Ends leases when their time is up, until the store closes.
pub(super) async fn end_leases(deadlines: Arc<Deadlines>, writer: WeakSender<Request>) {
    let mut looked = Instant::now();
    loop {
        if let Some(gap) = standstill(looked.elapsed()) {
            tracing::warn!(?gap, "the process stood still; all leases have that much more time");
            deadlines.postpone(gap);
        }
        looked = Instant::now();
        match deadlines.take_due() {
            Ok(lease) => {
                if !end(lease, &writer).await {
                    return;
                }
            }
            Err(Some(at)) => tokio::select! {
                () = sleep_until(at.min(looked + LOOK_EVERY)) => {}
                () = deadlines.earlier.notified() => {}
            },
            Err(None) => {
                deadlines.earlier.notified().await;
                looked = Instant::now();
            }
        }
    }
}

/// How long the process was suspended, if the time since the last check has no other cause.
fn standstill(since_look: Duration) -> Option<Duration> {
    let gap = since_look.saturating_sub(LOOK_EVERY);
    (gap >= STANDSTILL_FROM).then_some(gap)
}

/// Hands the end of a lease to the writer; `false` when the store has closed. The sender is
/// never held while waiting: the store could not close then.
async fn end(lease: LeaseId, writer: &WeakSender<Request>) -> bool {
    loop {
        let Some(sender) = writer.upgrade() else { return false };
        match sender.try_send(Request::EndLease { lease, reply: None }) {
            Ok(()) => return true,
            Err(TrySendError::Closed(_)) => return false,
            Err(TrySendError::Full(_)) => drop(sender),
        }
        sleep(BUSY_RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn lease(number: u64) -> LeaseId {
        LeaseId(NonZeroU64::new(number).unwrap())
    }

    #[test]
    fn only_a_look_that_is_far_too_late_is_a_standstill() {
        let check = |ms, gap: Option<u64>| {
            let found = standstill(Duration::from_millis(ms));
            assert_eq!(found, gap.map(Duration::from_millis), "{ms}");
        };
        check(0, None);
        check(250, None);
        check(1_249, None);
        check(1_250, Some(1_000));
        check(10_250, Some(10_000));
    }

    #[tokio::test(start_paused = true)]
    async fn postponed_leases_keep_their_order_and_the_rest_of_their_time() {
        let deadlines = Deadlines::default();
        let now = Instant::now();
        deadlines.start(lease(1), Duration::from_secs(10));
        deadlines.start(lease(2), Duration::from_secs(5));
        deadlines.postpone(Duration::from_secs(60));
        assert_eq!(deadlines.take_due(), Err(Some(now + Duration::from_secs(65))));
        tokio::time::advance(Duration::from_secs(71)).await;
        assert_eq!(deadlines.take_due(), Ok(lease(2)));
        assert_eq!(deadlines.take_due(), Ok(lease(1)));
        assert_eq!(deadlines.take_due(), Err(None));
        assert_eq!(deadlines.restart(lease(1)), None);
    }
}
