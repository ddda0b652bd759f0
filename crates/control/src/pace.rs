//! How fast steps may follow each other: some at once, then so many a second.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt as _};

/// The steps of one stream, or of one identity.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Time that one step takes up.
    step: Duration,
    /// How far ahead steps may be.
    burst: Duration,
    /// When all steps so far are paid for.
    paid: Instant,
}

impl Pace {
    /// So many steps at once, and after them so many a second.
    pub(crate) fn new(burst: u32, per_second: u32) -> Self {
        let step = Duration::from_secs(1) / per_second.max(1);
        Self { step, burst: step * burst.max(1), paid: Instant::now() }
    }

    /// When the next step may be taken.
    pub(crate) fn ready_at(&self) -> Instant {
        (self.paid + self.step).checked_sub(self.burst).unwrap_or(self.paid)
    }

    /// Counts a step.
    pub(crate) fn note(&mut self, now: Instant) {
        self.paid = self.paid.max(now) + self.step;
    }

    /// Whether no step counts any more.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.paid <= now
    }

    /// The next message of a stream, once it may be taken. It may be dropped at any time.
    pub(crate) async fn next<T>(
        &mut self,
        messages: &mut (impl Stream<Item = T> + Unpin),
    ) -> Option<T> {
        let ready_at = self.ready_at();
        if ready_at > Instant::now() {
            tokio::time::sleep_until(ready_at).await;
        }
        let message = messages.next().await;
        self.note(Instant::now());
        message
    }
}

/// The paces of those that took steps lately, by their key.
#[derive(Debug)]
pub(crate) struct Paces<K>(Mutex<HashMap<K, Pace>>);

impl<K> Default for Paces<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> Paces<K> {
    /// Counts a step of `key`. Returns when it may be taken.
    pub(crate) fn next(&self, key: &K, burst: u32, per_second: u32) -> Instant {
        let now = Instant::now();
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = Self::of(&mut paces, key, now, burst, per_second);
        let ready_at = pace.ready_at();
        pace.note(ready_at.max(now));
        ready_at
    }

    /// Counts a step of `key`, unless it would have to wait. Returns whether it may be taken.
    pub(crate) fn allow(&self, key: &K, burst: u32, per_second: u32) -> bool {
        let now = Instant::now();
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = Self::of(&mut paces, key, now, burst, per_second);
        let is_ready = pace.ready_at() <= now;
        if is_ready {
            pace.note(now);
        }
        is_ready
    }

    fn of<'a>(
        paces: &'a mut HashMap<K, Pace>,
        key: &K,
        now: Instant,
        burst: u32,
        per_second: u32,
    ) -> &'a mut Pace {
        // Only those of the last seconds are remembered.
        if paces.len() == paces.capacity() {
            paces.retain(|_, pace| !pace.is_idle(now));
        }
        paces.entry(key.clone()).or_insert_with(|| Pace::new(burst, per_second))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn some_steps_come_at_once_and_the_rest_at_their_pace() {
        let mut pace = Pace::new(10, 5);
        let mut messages = tokio_stream::iter(0..100);
        let began = Instant::now();
        for _ in 0..10 {
            pace.next(&mut messages).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            pace.next(&mut messages).await;
        }
        let lasted = began.elapsed();
        assert!((1_950..=2_050).contains(&lasted.as_millis()), "{lasted:?}");
        assert!(!pace.is_idle(Instant::now()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(pace.is_idle(Instant::now()), "all are paid for");
        let again = Instant::now();
        for _ in 0..10 {
            pace.next(&mut messages).await;
        }
        assert_eq!(again.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn each_has_a_pace_of_its_own_and_is_forgotten_when_it_rests() {
        let paces = Paces::default();
        assert_eq!((0..99).filter(|_| paces.allow(&0, 10, 5)).count(), 10);
        assert!(paces.allow(&1, 10, 5), "another one is not held up");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..99).filter(|_| paces.allow(&0, 10, 5)).count(), 5);
        for nth in 0..10_000 {
            paces.next(&nth, 10, 5);
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!(paces.len() < 1_000, "{} are remembered", paces.len());
    }
}
