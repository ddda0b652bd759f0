//! Which of several words about an address is the newest: decided here, without the kernel.
//!
//! Changes come from three sides: the whole group at first, the watch that continues from there,
//! and answers to single questions, which overtake both. All that the watch has sent is *through*:
//! a change of an older revision is outdated. A change beyond that is noted by address, removals
//! too, until the watch has come that far; so memory holds the changes ahead of the watch, not the
//! table.

use std::collections::HashMap;

use crate::layout::Address;

/// How many addresses may be ahead of the watch. Beyond that, the agent lists the group again.
pub const MAX_AHEAD: usize = 65_536;

/// What is known of revisions.
#[derive(Debug, Default)]
pub struct Ledger {
    through: u64,
    /// During a listing of the whole group: the store's revision before it began.
    listing: Option<u64>,
    ahead: HashMap<Address, u64>,
}

impl Ledger {
    /// Everything up to `through` is in the table; of what is newer, `ahead`.
    #[must_use]
    pub fn new(through: u64, ahead: HashMap<Address, u64>) -> Self {
        Self { through, listing: None, ahead }
    }

    /// The revision up to which the watch has sent everything.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.through
    }

    #[must_use]
    pub fn is_listing(&self) -> bool {
        self.listing.is_some()
    }

    /// A listing of the whole group follows, from a store that was at revision `base` before. The
    /// list has one record for each address that is not newer.
    pub fn begin_listing(&mut self, base: u64) {
        self.listing = Some(base);
        self.through = self.through.min(base);
        self.forget();
    }

    /// The list was broken off; the watch goes on where it was before.
    pub fn break_off(&mut self) {
        self.listing = None;
    }

    /// Whether a change has to be carried out, and if so notes it.
    pub fn takes(&mut self, address: Address, revision: u64) -> bool {
        if self.listing.is_some_and(|base| revision <= base) {
            return self.ahead.get(&address).is_none_or(|known| *known < revision);
        }
        if self.listing.is_none() && revision <= self.through {
            return false;
        }
        let known = self.ahead.entry(address).or_default();
        let newer = revision > *known;
        *known = revision.max(*known);
        newer
    }

    /// Like [`Self::takes`], for a change with the mark that covers it: it need not be noted, since
    /// the watch reaches it at once.
    #[must_use]
    pub fn takes_with_mark(&self, address: &Address, revision: u64) -> bool {
        let is_news = self.listing.is_some() || revision > self.through;
        is_news && self.ahead.get(address).is_none_or(|known| *known < revision)
    }

    /// Whether the answer to a question has to be carried out; `read_at` is the store's revision at
    /// that answer. A record that the watch has already sent is written once more, since the table
    /// was found to lack it; but not from an older answer: that could bring back what was removed
    /// since, or what a list leaves out.
    pub fn takes_answer(&mut self, address: Address, revision: u64, read_at: u64) -> bool {
        match self.listing {
            Some(base) if read_at < base => false,
            Some(base) if revision <= base => {
                // Noted, so that it stays though the list may not have come to it.
                let known = self.ahead.entry(address).or_default();
                let newer = revision > *known;
                *known = revision.max(*known);
                newer
            }
            None if revision <= self.through => {
                read_at >= self.through
                    && self.ahead.get(&address).is_none_or(|known| *known < revision)
            }
            Some(_) | None => self.takes(address, revision),
        }
    }

    /// Everything up to `revision` has been sent, including the whole group if a listing was under
    /// way.
    pub fn advance(&mut self, revision: u64) {
        self.listing = None;
        self.through = self.through.max(revision);
        self.forget();
    }

    /// Whether more is ahead than is to be remembered.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ahead.len() >= MAX_AHEAD
    }

    fn forget(&mut self) {
        let through = self.through;
        self.ahead.retain(|_, revision| *revision > through);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Address {
        Address::new(7, std::net::Ipv4Addr::from(number).into())
    }

    #[test]
    fn older_and_repeated_changes_are_not_taken() {
        let mut ledger = Ledger::default();
        for (revision, taken) in [(5, true), (5, false), (4, false), (6, true)] {
            assert_eq!(ledger.takes(address(1), revision), taken, "{revision}");
        }
        ledger.advance(10);
        assert!(!ledger.takes(address(2), 10));
        assert!(ledger.takes(address(2), 11));
    }

    #[test]
    fn what_comes_with_its_mark_is_not_noted() {
        let mut ledger = Ledger::new(5, HashMap::from([(address(1), 9), (address(2), 7)]));
        for (number, revision, taken) in
            [(1, 8, false), (1, 9, false), (1, 10, true), (2, 8, true), (3, 5, false), (3, 6, true)]
        {
            let (number, told) = (address(number), revision);
            assert_eq!(ledger.takes_with_mark(&number, told), taken, "{number:?} {told}");
        }
        assert_eq!(ledger.ahead.len(), 2);
        ledger.begin_listing(5);
        assert!(ledger.takes_with_mark(&address(3), 5), "the whole group is told again");
    }

    #[test]
    fn revisions_that_the_watch_has_passed_are_forgotten() {
        let mut ledger = Ledger::default();
        for number in 0..100 {
            assert!(ledger.takes(address(number), u64::from(number) + 1));
        }
        ledger.advance(90);
        assert_eq!(ledger.ahead.len(), 10);
        ledger.advance(100);
        assert!(ledger.ahead.is_empty());
    }

    #[test]
    fn whole_group_is_not_remembered() {
        let mut ledger = Ledger::default();
        ledger.begin_listing(1_000_000);
        assert!((0..100_000).all(|number| ledger.takes(address(number), u64::from(number) + 1)));
        assert!(ledger.ahead.is_empty());
        assert!(ledger.takes(address(7), 1_000_009), "it changed meanwhile");
        assert!(!ledger.takes(address(7), 1_000_005), "in whatever order that is told");
        assert!(!ledger.takes(address(7), 8), "the list may come to it later");
        ledger.advance(1_000_009);
        assert!(!ledger.is_listing() && ledger.ahead.is_empty());
    }

    #[test]
    fn a_new_listing_takes_older_revisions_again() {
        let mut ledger = Ledger::new(50, HashMap::new());
        ledger.begin_listing(60);
        assert!(ledger.takes(address(1), 12), "old news may have been lost from the table");
        ledger.advance(61);
        assert_eq!(ledger.through(), 61);
    }

    #[test]
    fn answer_from_before_the_listing_is_not_taken() {
        let mut ledger = Ledger::default();
        ledger.begin_listing(20);
        assert!(!ledger.takes_answer(address(1), 5, 19), "the list may leave it out");
        assert!(ledger.takes_answer(address(1), 5, 20));
        assert!(!ledger.takes(address(1), 5), "the list brings the same");
        assert!(ledger.takes_answer(address(1), 22, 25));
        assert!(!ledger.takes(address(1), 21));
        ledger.advance(22);
        assert!(ledger.takes_answer(address(2), 23, 23));
        assert!(!ledger.takes_answer(address(3), 20, 21), "it may have been removed since");
        assert!(ledger.takes_answer(address(3), 20, 22), "the table was found to lack it");
    }

    #[test]
    fn too_many_ahead_are_noticed() {
        let mut ledger = Ledger::default();
        for number in 0..u32::try_from(MAX_AHEAD).unwrap() {
            assert!(!ledger.is_full());
            ledger.takes(address(number), 1);
        }
        assert!(ledger.is_full());
    }
}
