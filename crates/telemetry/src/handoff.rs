//! Passes values in batches from a data thread to the task that writes or sends them, so that the
//! task wakes a few times a second and not for each value. It never blocks: if the queue is full,
//! values are dropped, and the data thread counts them.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Values handed over at once.
const BATCH: usize = 256;
/// Batches that wait for the other side.
const BATCHES: usize = 8;

/// A data thread's end.
#[derive(Debug)]
pub struct Handoff<T> {
    waiting: Vec<T>,
    sender: mpsc::Sender<Vec<T>>,
}

/// The other end; it ends when every data thread has.
pub type Batches<T> = mpsc::Receiver<Vec<T>>;

impl<T> Handoff<T> {
    #[must_use]
    pub fn new() -> (Self, Batches<T>) {
        let (sender, batches) = mpsc::channel(BATCHES);
        (Self { waiting: Vec::new(), sender }, batches)
    }

    /// A sender into the same queue, for another thread.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { waiting: Vec::new(), sender: self.sender.clone() }
    }

    /// Adds a value, and hands over when there are many. Returns how many were dropped.
    #[must_use]
    pub fn push(&mut self, value: T) -> u64 {
        self.waiting.push(value);
        if self.waiting.len() < BATCH { 0 } else { self.flush() }
    }

    /// Hands over what there is. Returns how many were dropped.
    #[must_use]
    pub fn flush(&mut self) -> u64 {
        if self.waiting.is_empty() {
            return 0;
        }
        let batch = std::mem::take(&mut self.waiting);
        let count = batch.len();
        match self.sender.try_send(batch) {
            Ok(()) => {
                // The next batch is probably about as large.
                self.waiting.reserve(count);
                0
            }
            Err(TrySendError::Full(mut batch) | TrySendError::Closed(mut batch)) => {
                batch.clear();
                self.waiting = batch;
                count as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_and_in_batches() {
        let (mut handoff, mut batches) = Handoff::new();
        for value in 0..BATCH + 1 {
            assert_eq!(handoff.push(value), 0);
        }
        assert_eq!(batches.try_recv().unwrap(), (0..BATCH).collect::<Vec<_>>());
        assert!(batches.try_recv().is_err());
        assert_eq!(handoff.flush(), 0);
        assert_eq!(batches.try_recv().unwrap(), [BATCH]);
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let (mut handoff, batches) = Handoff::new();
        let dropped: u64 = (0..BATCH * (BATCHES + 2)).map(|value| handoff.push(value)).sum();
        assert_eq!(dropped, 2 * BATCH as u64);
        drop(batches);
        assert_eq!(handoff.push(0) + handoff.flush(), 1);
    }
}
