//! What is due when.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::schedule::{FailurePolicy, Moment, Schedule};

/// Timers or reminders by key: what is due when, and how often it has failed.
///
/// A due entry is popped, which puts it under way: it is not due again until the caller reports the
/// outcome ([`Self::succeeded`], [`Self::failed`], [`Self::put_back`]). Every operation takes
/// logarithmic time. `K` is cloned once for each entry.
#[derive(Clone, Debug)]
pub struct Agenda<K> {
    entries: BTreeMap<K, Entry>,
    /// Entries that are not under way.
    order: BTreeMap<(Moment, Ticket), K>,
    last: Ticket,
}

/// Names one registration: a new registration of the same key gets another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(u64);

#[derive(Clone, Debug)]
struct Entry {
    ticket: Ticket,
    schedule: Schedule,
    policy: FailurePolicy,
    /// Calls for the firing that is due which have failed.
    failures: u32,
    /// Its position in the order; `None` while it is under way.
    at: Option<Moment>,
}

/// A firing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Due<K> {
    pub key: K,
    pub ticket: Ticket,
    /// What is left, this firing among it.
    pub schedule: Schedule,
    /// Calls for this firing that have failed.
    pub failures: u32,
}

/// What [`Agenda::pop`] came upon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Popped<K> {
    /// The app is to be called.
    Due(Due<K>),
    /// Its end has come before it was fired: it is off the agenda.
    Over(K),
}

/// What follows from how a firing went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing: it was removed or registered again meanwhile.
    Unknown,
    /// It was the last one, and is off the agenda.
    Over,
    /// The same firing again, then.
    Again(Moment),
    /// This is left.
    Then(Schedule),
}

impl<K> Default for Agenda<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), order: BTreeMap::new(), last: Ticket::default() }
    }
}

impl<K: Ord + Clone> Agenda<K> {
    /// Replaces the registration of this key, even one that is under way.
    pub fn insert(&mut self, key: K, schedule: Schedule, policy: FailurePolicy) -> Ticket {
        self.last.0 += 1;
        let (ticket, at) = (self.last, Some(schedule.due));
        let entry = Entry { ticket, schedule, policy, failures: 0, at };
        if let Some(before) = self.entries.insert(key.clone(), entry) {
            self.unschedule(&before);
        }
        self.order.insert((schedule.due, ticket), key);
        ticket
    }

    /// Whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        let entry = self.entries.remove(key);
        if let Some(entry) = &entry {
            self.unschedule(entry);
        }
        entry.is_some()
    }

    /// The remaining schedule; while a firing is under way, including that one.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&Schedule> {
        self.entries.get(key).map(|entry| &entry.schedule)
    }

    /// Keys from this one on, in their order: with it those of one actor can be found.
    pub fn keys_from(&self, key: &K) -> impl Iterator<Item = &K> {
        self.entries.range((Bound::Included(key), Bound::Unbounded)).map(|(key, _)| key)
    }

    /// In their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When the next entry is due; `None` if there is none but those under way.
    #[must_use]
    pub fn next_moment(&self) -> Option<Moment> {
        self.order.keys().next().map(|(moment, _)| *moment)
    }

    /// Removes the entry that has been due the longest; it is under way from now on. `None` if
    /// nothing is due at `now`.
    pub fn pop(&mut self, now: Moment) -> Option<Popped<K>> {
        let first = self.order.first_entry().filter(|first| first.key().0 <= now)?;
        let key = first.remove();
        let entry = self.entries.get_mut(&key)?;
        entry.at = None;
        if entry.schedule.is_over(now) {
            self.entries.remove(&key);
            return Some(Popped::Over(key));
        }
        let Entry { ticket, schedule, failures, .. } = *entry;
        Some(Popped::Due(Due { key, ticket, schedule, failures }))
    }

    /// The app was called at `began` and has done it.
    pub fn succeeded(&mut self, key: &K, ticket: Ticket, began: Moment) -> Next {
        match self.under_way(key, ticket) {
            Some(_) => self.go_on(key, began),
            None => Next::Unknown,
        }
    }

    /// The app was called at `began` and has not done it, or could not be called; that was clear
    /// at `now`.
    pub fn failed(&mut self, key: &K, ticket: Ticket, began: Moment, now: Moment) -> Next {
        let Some(entry) = self.under_way(key, ticket) else { return Next::Unknown };
        entry.failures = entry.failures.saturating_add(1);
        let wait = entry.policy.wait_after(entry.failures);
        match wait.and_then(|wait| now.checked_add(wait)) {
            Some(again) => {
                self.schedule(key, again);
                Next::Again(again)
            }
            None => self.go_on(key, began),
        }
    }

    /// The app was not called: the firing is due again at `moment`. Returns whether it was under
    /// way.
    pub fn put_back(&mut self, key: &K, ticket: Ticket, moment: Moment) -> bool {
        let is_under_way = self.under_way(key, ticket).is_some();
        if is_under_way {
            self.schedule(key, moment);
        }
        is_under_way
    }

    fn under_way(&mut self, key: &K, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(key).filter(|entry| entry.ticket == ticket && entry.at.is_none())
    }

    fn go_on(&mut self, key: &K, began: Moment) -> Next {
        let Some(entry) = self.entries.get_mut(key) else { return Next::Unknown };
        let Some(schedule) = entry.schedule.after(began) else {
            self.remove(key);
            return Next::Over;
        };
        entry.schedule = schedule;
        entry.failures = 0;
        self.schedule(key, schedule.due);
        Next::Then(schedule)
    }

    /// Orders an entry that is under way.
    fn schedule(&mut self, key: &K, moment: Moment) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.at = Some(moment);
            self.order.insert((moment, entry.ticket), key.clone());
        }
    }

    fn unschedule(&mut self, entry: &Entry) {
        if let Some(at) = entry.at {
            self.order.remove(&(at, entry.ticket));
        }
    }
}
