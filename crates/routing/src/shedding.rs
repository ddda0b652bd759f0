//! Whether a request that has waited for the app is refused, so that those behind it do not wait in
//! vain.
//!
//! A queue that empties now and then is a burst, however long it is for a moment. A queue in which
//! every request of an interval waited longer than the target does not empty: the app gets more
//! than it can do. Then requests that have waited twice the target are refused, until one waits less
//! than the target. So the bound on the wait adapts to what the app can do, and has no count to be set.

use std::time::{Duration, Instant};

use tollway_model::traffic_policy::Shedding;

/// What requests for one app have waited.
#[derive(Clone, Debug)]
pub struct LoadShedding {
    /// When the interval ends.
    until: Instant,
    /// The shortest wait in this interval; `None` if no request came.
    shortest: Option<Duration>,
    is_overloaded: bool,
}

impl LoadShedding {
    /// Nothing has waited.
    #[must_use]
    pub fn new(rule: Shedding, now: Instant) -> Self {
        Self { until: now + rule.interval, shortest: None, is_overloaded: false }
    }

    /// Whether a request that is next for the app, and has waited for `wait`, is refused.
    pub fn refuses(&mut self, wait: Duration, rule: Shedding, now: Instant) -> bool {
        if now >= self.until {
            // Intervals without a request were without a queue, unless this one has waited through them.
            let is_next = now < self.until + rule.interval.max(wait);
            let shortest = self.shortest.take().filter(|_| is_next);
            self.is_overloaded = shortest.is_some_and(|shortest| shortest > rule.target);
            self.until = now + rule.interval;
        }
        self.shortest = Some(self.shortest.map_or(wait, |shortest| shortest.min(wait)));
        if wait <= rule.target {
            self.is_overloaded = false;
        }
        self.is_overloaded && wait > rule.target * 2
    }

    /// Whether requests are refused.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.is_overloaded
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const RULE: Shedding = Shedding::DEFAULT;
    const MILLI: Duration = Duration::from_millis(1);

    /// Requests of which `per_tick(n)` come in the n-th millisecond, for an app that does one in a
    /// millisecond. Gives how many were served and refused, and the longest wait of one served in the
    /// last second, in milliseconds.
    fn simulate(seconds: u32, per_tick: impl Fn(u32) -> u32, rule: Option<Shedding>) -> [u32; 3] {
        let start = Instant::now();
        let mut shedding = LoadShedding::new(RULE, start);
        let mut queue = VecDeque::new();
        let (mut served, mut refused, mut longest) = (0, 0, 0);
        for tick in 0..seconds * 1000 {
            queue.extend((0..per_tick(tick)).map(|_| tick));
            let now = start + tick * MILLI;
            while let Some(came) = queue.pop_front() {
                let wait = (tick - came) * MILLI;
                if rule.is_some_and(|rule| shedding.refuses(wait, rule, now)) {
                    refused += 1;
                    continue;
                }
                served += 1;
                if tick >= (seconds - 1) * 1000 {
                    longest = longest.max(tick - came);
                }
                break;
            }
        }
        [served, refused, longest]
    }

    #[test]
    fn twice_the_load_that_the_app_can_take_keeps_the_wait_short_and_the_app_busy() {
        let [served, refused, longest] = simulate(20, |_| 2, Some(RULE));
        assert!(served > 19_900, "{served}");
        assert!(refused > 19_000, "{refused}");
        assert!(longest <= 12, "{longest} ms");
        // Without it the wait grows for as long as the load lasts.
        let [_, _, longest] = simulate(20, |_| 2, None);
        assert!(longest > 9_000, "{longest} ms");
    }

    #[test]
    fn a_load_that_the_app_can_take_is_not_refused() {
        assert_eq!(simulate(20, |_| 1, Some(RULE))[1], 0);
        // Fifty at once, which takes 50 ms, ten times a second.
        let bursts = |tick: u32| if tick.is_multiple_of(100) { 50 } else { 0 };
        assert_eq!(simulate(20, bursts, Some(RULE))[1], 0);
    }

    #[test]
    fn it_ends_with_the_overload() {
        let ends = |tick: u32| if tick < 5_000 { 3 } else { u32::from(tick.is_multiple_of(2)) };
        let [served, refused, longest] = simulate(20, ends, Some(RULE));
        assert!(longest <= 5, "{longest} ms");
        let expected = 15_000 + 7_500 - refused;
        assert!(served.abs_diff(expected) < 20, "{served} of {expected}");
        let start = Instant::now();
        let mut shedding = LoadShedding::new(RULE, start);
        assert!(!shedding.refuses(99 * MILLI, RULE, start));
        assert!(shedding.refuses(99 * MILLI, RULE, start + RULE.interval));
        assert!(shedding.is_overloaded());
        // After a pause there is no queue, whatever there was before it.
        let later = start + Duration::from_secs(60);
        assert!(!shedding.refuses(99 * MILLI, RULE, later));
        assert!(!shedding.is_overloaded());
    }

    #[test]
    fn an_app_that_takes_longer_for_a_request_than_an_interval_has_a_queue_too() {
        let ms = |millis| Duration::from_millis(millis);
        let rule = Shedding { target: ms(5), interval: ms(50) };
        let start = Instant::now();
        let mut shedding = LoadShedding::new(rule, start);
        // One in 100 ms is next, and has waited since the first one came.
        let refused =
            (0..5).map(|turn| shedding.refuses(ms(100 * turn), rule, start + ms(100 * turn)));
        assert_eq!(refused.collect::<Vec<_>>(), [false, false, true, true, true]);
        // As slow, and without a queue.
        let mut shedding = LoadShedding::new(rule, start);
        assert!(!(0..5).any(|turn| shedding.refuses(ms(20), rule, start + ms(100 * turn))));
    }

    #[test]
    fn one_short_wait_ends_it() {
        let start = Instant::now();
        let mut shedding = LoadShedding::new(RULE, start);
        let _ = shedding.refuses(50 * MILLI, RULE, start);
        assert!(shedding.refuses(50 * MILLI, RULE, start + RULE.interval));
        assert!(!shedding.refuses(RULE.target, RULE, start + RULE.interval));
        assert!(!shedding.refuses(50 * MILLI, RULE, start + RULE.interval));
    }
}
