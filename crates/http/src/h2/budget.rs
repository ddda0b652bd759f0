//! Allowances that a peer spends and time refills.

use std::time::Duration;

use super::Rate;

/// A token bucket; full at first.
#[derive(Debug)]
pub(super) struct Budget {
    rate: Rate,
    tokens: u32,
    /// Up to when the refill has been counted.
    counted_to: Duration,
}

impl Budget {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, tokens: rate.burst, counted_to: Duration::ZERO }
    }

    /// Takes one token; false if there is none.
    pub(super) fn spend(&mut self, now: Duration) -> bool {
        self.refill(now);
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }

    pub(super) fn earn(&mut self, tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens).min(self.rate.burst);
    }

    /// Counts whole tokens only and leaves the rest of the time to the next call.
    fn refill(&mut self, now: Duration) {
        let micros = now.saturating_sub(self.counted_to).as_micros();
        let due = micros * u128::from(self.rate.per_second) / 1_000_000;
        if due > 0 {
            self.earn(u32::try_from(due).unwrap_or(u32::MAX));
            self.counted_to = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_refilled_and_never_over_its_burst() {
        let mut budget = Budget::new(Rate { burst: 2, per_second: 10 });
        let at = Duration::from_millis;
        assert!(budget.spend(at(0)) && budget.spend(at(0)) && !budget.spend(at(0)));
        assert!(!budget.spend(at(99)));
        assert!(budget.spend(at(100)) && !budget.spend(at(100)));
        assert!(budget.spend(at(5000)) && budget.spend(at(5000)) && !budget.spend(at(5000)));
        budget.earn(100);
        assert!(budget.spend(at(5000)) && budget.spend(at(5000)) && !budget.spend(at(5000)));
    }

    #[test]
    fn a_clock_that_goes_back_refills_nothing() {
        let mut budget = Budget::new(Rate { burst: 1, per_second: 1000 });
        assert!(budget.spend(Duration::from_secs(9)));
        assert!(!budget.spend(Duration::from_secs(1)));
    }
}
