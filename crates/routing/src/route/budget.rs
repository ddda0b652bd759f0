//! How many retries there may be beside the requests for a service, so that a service that fails does
//! not get a multiple of its load.
//!
//! Requests and retries are counted in slots of time. Of requests those of the last ten seconds count,
//! at most; of retries those of the last ten seconds, at least. So whenever a retry is made, the ten
//! seconds before it have at most the allowed share of retries, however requests are spread over them.

use std::time::{Duration, Instant};

use tollway_model::route::RetryBudget;

const SLOT: Duration = Duration::from_millis(250);
/// Slots in ten seconds; one of them is under way.
const SLOTS: usize = 40;
const SECONDS: u64 = 10;

/// Requests and retries of a slot of time.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    requests: u32,
    retries: u32,
}

/// Requests for one service in the last ten seconds, and what was retried of them.
#[derive(Clone, Debug)]
pub struct RetryCounts {
    /// The retries of the oldest slot count yet; its requests do not, and are removed.
    slots: [Slot; SLOTS + 1],
    current: usize,
    /// When the current slot ends.
    until: Instant,
    requests: u64,
    retries: u64,
}

impl RetryCounts {
    /// Nothing has been counted.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            slots: [Slot::default(); SLOTS + 1],
            current: 0,
            until: now + SLOT,
            requests: 0,
            retries: 0,
        }
    }

    /// Counts a request; its retries are counted by [`Self::take_retry`] alone.
    pub fn note_request(&mut self, now: Instant) {
        self.advance(now);
        let slot = &mut self.slots[self.current];
        if let Some(requests) = slot.requests.checked_add(1) {
            slot.requests = requests;
            self.requests += 1;
        }
    }

    /// Whether there may be one more retry now; it is counted if so.
    #[must_use]
    pub fn take_retry(&mut self, budget: RetryBudget, now: Instant) -> bool {
        self.advance(now);
        let least = u64::from(budget.min_per_second) * SECONDS;
        // The count of requests is below 2^38, that of retries below it.
        let allowed = least * 100 + self.requests * u64::from(budget.percent.min(100));
        let slot = &mut self.slots[self.current];
        if (self.retries + 1) * 100 > allowed || slot.retries == u32::MAX {
            return false;
        }
        slot.retries += 1;
        self.retries += 1;
        true
    }

    /// Goes on to the slot of `now`.
    fn advance(&mut self, now: Instant) {
        if now < self.until {
            return;
        }
        let passed = (now - self.until).as_nanos() / SLOT.as_nanos() + 1;
        let steps = usize::try_from(passed).unwrap_or(usize::MAX);
        if steps > SLOTS {
            *self = Self::new(now);
            return;
        }
        for _ in 0..steps {
            self.current = following(self.current);
            let last = std::mem::take(&mut self.slots[self.current]);
            self.retries -= u64::from(last.retries);
            let oldest = &mut self.slots[following(self.current)];
            self.requests -= u64::from(std::mem::take(&mut oldest.requests));
            self.until += SLOT;
        }
    }
}

fn following(slot: usize) -> usize {
    if slot == SLOTS { 0 } else { slot + 1 }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const BUDGET: RetryBudget = RetryBudget::DEFAULT;

    /// Sends `per_second` requests at even distances for `seconds`, each of which fails, and so do its
    /// retries, of which there are up to `retries`. Gives the times of all requests and of all retries,
    /// in milliseconds.
    fn outage(per_second: u32, seconds: u32, retries: u32) -> (Vec<u32>, Vec<u32>) {
        let start = Instant::now();
        let mut counts = RetryCounts::new(start);
        let (mut requests, mut retried) = (Vec::new(), Vec::new());
        for number in 0..per_second * seconds {
            let at = number * 1000 / per_second;
            let now = start + Duration::from_millis(at.into());
            counts.note_request(now);
            requests.push(at);
            for _ in 0..retries {
                if !counts.take_retry(BUDGET, now) {
                    break;
                }
                retried.push(at);
            }
        }
        (requests, retried)
    }

    fn within(times: &[u32], from: u32) -> usize {
        times.iter().filter(|at| (from..from + 10_000).contains(*at)).count()
    }

    #[test]
    fn a_service_that_always_fails_gets_at_most_a_fifth_more_in_any_ten_seconds() {
        let (requests, retries) = outage(1000, 60, 3);
        for from in (0..50_000).step_by(100) {
            let (sent, again) = (within(&requests, from), within(&retries, from));
            assert!(again * 100 <= sent * 20 + 1000, "{again} retries of {sent} from {from} ms");
            assert!(again * 100 >= sent * 19, "{again} retries of {sent} from {from} ms");
        }
    }

    #[test]
    fn a_few_retries_are_made_however_few_requests_there_are() {
        let (requests, retries) = outage(1, 60, 1);
        assert_eq!(requests.len(), retries.len());
        let none = RetryBudget { percent: 0, min_per_second: 0 };
        let now = Instant::now();
        let mut counts = RetryCounts::new(now);
        counts.note_request(now);
        assert!(!counts.take_retry(none, now));
        let some = RetryBudget { percent: 0, min_per_second: 1 };
        assert_eq!((0..100).filter(|_| counts.take_retry(some, now)).count(), 10);
        let later = now + Duration::from_secs(11);
        assert_eq!((0..100).filter(|_| counts.take_retry(some, later)).count(), 10);
    }

    #[test]
    fn what_was_counted_more_than_ten_seconds_ago_counts_no_longer() {
        let start = Instant::now();
        let budget = RetryBudget { percent: 100, min_per_second: 0 };
        let mut counts = RetryCounts::new(start);
        (0..100).for_each(|_| counts.note_request(start));
        assert!(counts.take_retry(budget, start + Duration::from_millis(9_700)));
        assert!(!counts.take_retry(budget, start + Duration::from_millis(10_000)));
        counts.note_request(start + Duration::from_secs(1000));
        assert!(counts.take_retry(budget, start + Duration::from_secs(1000)));
        assert!(!counts.take_retry(budget, start + Duration::from_secs(1000)));
    }

    proptest::proptest! {
        /// An account that keeps the time of every request and retry.
        #[test]
        fn no_retry_is_made_over_the_share_of_the_ten_seconds_before_it(
            steps in proptest::collection::vec((0_u64..3000, proptest::bool::weighted(0.6)), 1..400),
            percent in 0_u32..=100,
            min_per_second in 0_u32..3,
        ) {
            let start = Instant::now();
            let budget = RetryBudget { percent, min_per_second };
            let mut counts = RetryCounts::new(start);
            let mut now = start;
            let (mut requests, mut retries) = (VecDeque::new(), VecDeque::new());
            for (pause, is_request) in steps {
                // Most come at once.
                now += Duration::from_millis(if pause < 2000 { pause / 100 } else { pause });
                for times in [&mut requests, &mut retries] {
                    while times.front().is_some_and(|at| now - *at >= Duration::from_secs(10)) {
                        times.pop_front();
                    }
                }
                if is_request {
                    counts.note_request(now);
                    requests.push_back(now);
                } else if counts.take_retry(budget, now) {
                    retries.push_back(now);
                    let allowed = requests.len() * percent as usize + min_per_second as usize * 1000;
                    proptest::prop_assert!(retries.len() * 100 <= allowed);
                }
            }
        }
    }
}
