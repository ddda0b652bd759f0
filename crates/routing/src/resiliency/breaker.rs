//! A circuit breaker: after too many failures no call is made for a while, then a few, to see. Times
//! are counted from any fixed moment.

use std::time::Duration;

use super::trip::{Counts, Trip};

/// When a breaker opens and closes.
#[derive(Clone, PartialEq, Debug)]
pub struct BreakerRule {
    /// Calls that are let through to see whether all is well again.
    pub trials: u32,
    /// The time after which counts restart while the breaker is closed; zero for never.
    pub interval: Duration,
    /// How long no call is let through.
    pub rest: Duration,
    pub trip: Trip,
}

/// A breaker and what it has counted.
#[derive(Clone, Debug)]
pub struct Breaker {
    state: State,
    counts: Counts,
    /// When the counting ends.
    until: Option<Duration>,
    /// Rises with every change of the state: what belongs to an earlier one is not counted.
    generation: u64,
}

/// Whether a breaker lets through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Closed,
    Open,
    /// A few calls, to see.
    Trying,
}

/// The leave to make a call, to be handed back with its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    generation: u64,
}

impl Breaker {
    /// One that lets through.
    #[must_use]
    pub fn new(rule: &BreakerRule, now: Duration) -> Self {
        let mut breaker =
            Self { state: State::Closed, counts: Counts::default(), until: None, generation: 0 };
        breaker.enter(State::Closed, rule, now);
        breaker
    }

    /// Leave to make a call; `None` while there is none.
    pub fn admit(&mut self, rule: &BreakerRule, now: Duration) -> Option<Pass> {
        self.turn(rule, now);
        let is_let_through = match self.state {
            State::Closed => true,
            State::Open => false,
            State::Trying => self.counts.requests < u64::from(rule.trials.max(1)),
        };
        is_let_through.then(|| {
            self.counts.requests += 1;
            Pass { generation: self.generation }
        })
    }

    /// The state at the last call of [`Self::admit`] or [`Self::note`].
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// How a call ended.
    pub fn note(&mut self, pass: Pass, is_failure: bool, rule: &BreakerRule, now: Duration) {
        self.turn(rule, now);
        if pass.generation != self.generation {
            return;
        }
        self.counts.add(is_failure);
        match self.state {
            State::Closed if is_failure && rule.trip.holds(&self.counts) => {
                self.enter(State::Open, rule, now);
            }
            State::Trying if is_failure => self.enter(State::Open, rule, now),
            State::Trying if self.counts.consecutive_successes >= u64::from(rule.trials.max(1)) => {
                self.enter(State::Closed, rule, now);
            }
            State::Closed | State::Open | State::Trying => {}
        }
    }

    /// A call was let through and given up before its outcome was known.
    pub fn forget(&mut self, pass: Pass) {
        if pass.generation == self.generation {
            self.counts.requests = self.counts.requests.saturating_sub(1);
        }
    }

    /// Goes on to what time has brought.
    fn turn(&mut self, rule: &BreakerRule, now: Duration) {
        if self.until.is_none_or(|until| now < until) {
            return;
        }
        match self.state {
            State::Closed => self.enter(State::Closed, rule, now),
            State::Open => self.enter(State::Trying, rule, now),
            State::Trying => {}
        }
    }

    fn enter(&mut self, state: State, rule: &BreakerRule, now: Duration) {
        self.state = state;
        self.counts = Counts::default();
        self.generation += 1;
        self.until = match state {
            State::Closed if rule.interval.is_zero() => None,
            State::Closed => now.checked_add(rule.interval),
            State::Open => now.checked_add(rule.rest),
            State::Trying => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rule() -> BreakerRule {
        let trip = "consecutiveFailures >= 2".parse().unwrap();
        BreakerRule { trials: 2, interval: Duration::ZERO, rest: 10 * SECOND, trip }
    }

    /// One call.
    fn call(breaker: &mut Breaker, rule: &BreakerRule, is_failure: bool, now: Duration) -> bool {
        let Some(pass) = breaker.admit(rule, now) else { return false };
        breaker.note(pass, is_failure, rule, now);
        true
    }

    #[test]
    fn it_opens_after_failures_tries_and_closes() {
        let (rule, start) = (rule(), SECOND);
        let mut breaker = Breaker::new(&rule, start);
        for is_failure in [true, false, true, true] {
            assert!(call(&mut breaker, &rule, is_failure, start));
        }
        assert!(!call(&mut breaker, &rule, false, start + 9 * SECOND));
        let later = start + 10 * SECOND;
        let one = breaker.admit(&rule, later).unwrap();
        let two = breaker.admit(&rule, later).unwrap();
        assert_eq!(breaker.admit(&rule, later), None, "two are enough to see");
        breaker.forget(two);
        let two = breaker.admit(&rule, later).unwrap();
        breaker.note(one, false, &rule, later);
        breaker.note(two, false, &rule, later);
        assert!((0..5).all(|_| call(&mut breaker, &rule, false, later)));
    }

    #[test]
    fn a_failed_trial_opens_it_again() {
        let (rule, start) = (rule(), SECOND);
        let mut breaker = Breaker::new(&rule, start);
        assert!((0..2).all(|_| call(&mut breaker, &rule, true, start)));
        let later = start + 10 * SECOND;
        assert!(call(&mut breaker, &rule, true, later));
        assert!(!call(&mut breaker, &rule, false, later + 9 * SECOND));
        assert!(call(&mut breaker, &rule, false, later + 10 * SECOND));
    }

    #[test]
    fn what_began_before_it_opened_is_not_counted_after() {
        let (rule, start) = (rule(), SECOND);
        let mut breaker = Breaker::new(&rule, start);
        let slow = breaker.admit(&rule, start).unwrap();
        assert!((0..2).all(|_| call(&mut breaker, &rule, true, start)));
        let later = start + 10 * SECOND;
        let trial = breaker.admit(&rule, later).unwrap();
        breaker.note(slow, true, &rule, later);
        breaker.note(trial, false, &rule, later);
        assert!(breaker.admit(&rule, later).is_some(), "the late failure has not opened it");
    }

    #[test]
    fn counting_begins_anew_after_the_interval() {
        let rule = BreakerRule { interval: SECOND, ..rule() };
        let start = SECOND;
        let mut breaker = Breaker::new(&rule, start);
        for round in 0..5 {
            assert!(call(&mut breaker, &rule, true, start + round * SECOND));
        }
        assert!(call(&mut breaker, &rule, true, start + 4 * SECOND));
        assert!(!call(&mut breaker, &rule, true, start + 4 * SECOND));
    }
}
