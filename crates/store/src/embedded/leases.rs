//! When leases end. Deadlines live in memory only: keeping a lease alive costs no write, and
//! after a restart every lease has its full time again.

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

    /// Starts the time of a running lease anew; `None` when it has ended.
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

    /// Takes out one lease whose time is up, or says when the next is.
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
    loop {
        match deadlines.take_due() {
            Ok(lease) => {
                if !end(lease, &writer).await {
                    return;
                }
            }
            Err(Some(at)) => tokio::select! {
                () = sleep_until(at) => {}
                () = deadlines.earlier.notified() => {}
            },
            Err(None) => deadlines.earlier.notified().await,
        }
    }
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
