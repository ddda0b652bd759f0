//! The send backlog of a connection: parts of answers that its peer has not read yet. A connection
//! ends when its oldest part is too old, and sooner while the backlog of all connections is large.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// Longest time until a part of an answer is read; the largest has some 1 MiB.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// The same while the backlog of all connections is above [`SEND_BACKLOG_BYTES`].
const CROWDED_SEND_TIMEOUT: Duration = Duration::from_secs(15);
const SEND_BACKLOG_BYTES: usize = 256 << 20;

/// The send backlog of one connection.
#[derive(Debug)]
pub(crate) struct SendBacklog {
    parts: Mutex<Parts>,
    /// Bytes of the backlogs of all connections.
    total: Arc<AtomicUsize>,
}

/// When each part of an answer was made. Later ones have higher numbers.
#[derive(Default, Debug)]
struct Parts {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// A part of an answer, until all of it has been written.
struct Part {
    bytes: Bytes,
    number: u64,
    backlog: Arc<SendBacklog>,
}

impl SendBacklog {
    pub(crate) fn new(total: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self { parts: Mutex::default(), total })
    }

    /// Counts `bytes` as backlog for as long as the returned buffer lives.
    pub(super) fn hold(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.total.fetch_add(bytes.len(), Ordering::Relaxed);
        let mut parts = self.parts();
        let number = parts.next;
        parts.next += 1;
        parts.since.insert(number, Instant::now());
        drop(parts);
        Bytes::from_owner(Part { bytes, number, backlog: self.clone() })
    }

    /// Whether the oldest part has waited too long.
    pub(crate) fn is_overdue(&self) -> bool {
        let Some(since) = self.parts().since.first_key_value().map(|(_, since)| *since) else {
            return false;
        };
        let is_crowded = self.total.load(Ordering::Relaxed) > SEND_BACKLOG_BYTES;
        let timeout = if is_crowded { CROWDED_SEND_TIMEOUT } else { SEND_TIMEOUT };
        since.elapsed() >= timeout
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.backlog.total.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.backlog.parts().since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    fn backlog() -> (Arc<SendBacklog>, Arc<AtomicUsize>) {
        let total = Arc::<AtomicUsize>::default();
        (SendBacklog::new(total.clone()), total)
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_no_answer_for_long_is_overdue() {
        let (backlog, total) = backlog();
        assert!(!backlog.is_overdue());
        let first = backlog.hold(Bytes::from_static(b"first"));
        assert_eq!((&first[..], total.load(Ordering::Relaxed)), (&b"first"[..], 5));
        tokio::time::advance(SEND_TIMEOUT - MOMENT).await;
        let second = backlog.hold(Bytes::from_static(b"second"));
        assert!(!backlog.is_overdue());
        tokio::time::advance(MOMENT).await;
        assert!(backlog.is_overdue());
        // A slice of a part keeps the part in the backlog.
        let rest = first.slice(4..);
        drop(first);
        assert!(backlog.is_overdue());
        drop(rest);
        assert!(!backlog.is_overdue(), "the next one is new");
        drop(second);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_backlog_of_all_connections_shortens_the_time() {
        let (idle, total) = backlog();
        let little = idle.hold(Bytes::from_static(b"little"));
        tokio::time::advance(CROWDED_SEND_TIMEOUT).await;
        assert!(!idle.is_overdue());
        let greedy = SendBacklog::new(total);
        let much = greedy.hold(vec![0; SEND_BACKLOG_BYTES + 1].into());
        assert!(idle.is_overdue() && !greedy.is_overdue());
        drop(little);
        assert!(!idle.is_overdue(), "a peer without backlog is not overdue");
        tokio::time::advance(CROWDED_SEND_TIMEOUT).await;
        assert!(greedy.is_overdue());
        drop(much);
        assert!(!greedy.is_overdue());
    }
}
