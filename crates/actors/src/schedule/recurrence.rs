//! What comes next.

use std::num::NonZeroU32;

use crate::schedule::{Moment, Period};

/// What is left of a timer or reminder: its next firing and those after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Schedule {
    /// When the next firing is due.
    pub due: Moment,
    /// How far apart firings are; `None`: there is one.
    pub period: Option<Period>,
    /// How many firings are left, the next one among them; `None`: as many as there is time for.
    /// Means nothing without a period.
    pub firings: Option<NonZeroU32>,
    /// From when on there is none; `None`: never.
    pub ends: Option<Moment>,
}

impl Schedule {
    /// What is left when the next firing has been seen to, by an app that was last called for it
    /// at `began`; `None`: nothing.
    ///
    /// The rhythm counts from when firings were due, not from when they happened, so delays do not
    /// add up. One call covers everything due until `began`: after an hour's absence there is one
    /// call, not one for every minute. Each call is one repetition, however many it covers, so
    /// `R5/PT10S` makes five calls, however late. What becomes due during a call is due when it has
    /// ended.
    #[must_use]
    pub fn after(&self, began: Moment) -> Option<Self> {
        let period = self.period?;
        let firings = match self.firings {
            Some(left) => Some(NonZeroU32::new(left.get() - 1)?),
            None => None,
        };
        let due = period.next(self.due, began.max(self.due))?;
        let next = Self { due, firings, ..*self };
        (!next.is_over(due)).then_some(next)
    }

    /// Whether nothing is fired any more at `now`, however much is due.
    #[must_use]
    pub fn is_over(&self, now: Moment) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }
}
