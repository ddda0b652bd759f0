//! What the log has had lately, so that a peer that comes back all the time does not fill it: events of a
//! kind by their subject ([`LogLimiter`]), and below that all lines by where they come from
//! ([`LineBudgets`]). What is left out is counted.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an event of a kind and a subject is not logged again.
const QUIET: Duration = Duration::from_secs(60);
/// Subjects of a kind that are remembered. Beyond them no other one is logged until some have aged.
pub const LOG_SUBJECTS: usize = 256;

/// Lines of a kind that are written at once.
pub const LOG_LINES: u64 = 100;
/// How long it takes until one more line of a kind may be written.
pub const LOG_LINE_EVERY: Duration = Duration::from_secs(1);

/// Lines of this process that were left out.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Lines that the log of this process has left out.
pub(crate) fn left_out_lines() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Events that were logged, by kind and subject.
#[derive(Debug, Default)]
pub struct LogLimiter(HashMap<&'static str, Kind>);

#[derive(Debug, Default)]
struct Kind {
    logged: HashMap<String, Instant>,
    left_out: u64,
}

impl LogLimiter {
    /// Whether an event is to be logged now: then how many of its kind were left out since the last one
    /// that was logged. `subject` is what it is about, such as the peer.
    pub fn admit(
        &mut self,
        kind: &'static str,
        subject: impl Into<String>,
        now: Instant,
    ) -> Option<u64> {
        let kind = self.0.entry(kind).or_default();
        let left_out = kind.admit(subject.into(), now);
        if left_out.is_none() {
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        }
        left_out
    }
}

impl Kind {
    fn admit(&mut self, subject: String, now: Instant) -> Option<u64> {
        let is_recent = |logged: &Instant| now.saturating_duration_since(*logged) < QUIET;
        if self.logged.len() >= LOG_SUBJECTS {
            self.logged.retain(|_, logged| is_recent(logged));
        }
        if self.logged.get(&subject).is_some_and(is_recent) || self.logged.len() >= LOG_SUBJECTS {
            self.left_out += 1;
            return None;
        }
        self.logged.insert(subject, now);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// How many lines of each kind may be written now. A kind is a place in the code, so there are few.
pub(crate) struct LineBudgets<K>(HashMap<K, LineBudget>);

struct LineBudget {
    /// When the lines of this kind that were written so far are all made up for.
    settled: Instant,
    left_out: u64,
}

impl<K> Default for LineBudgets<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq> LineBudgets<K> {
    /// Whether a line may be written: then how many of its kind were left out before it.
    pub(crate) fn admit(&mut self, kind: K, now: Instant) -> Option<u64> {
        let budget = self.0.entry(kind).or_insert(LineBudget { settled: now, left_out: 0 });
        let settled = budget.settled.max(now) + LOG_LINE_EVERY;
        let owed = settled.saturating_duration_since(now);
        if owed.as_millis() > u128::from(LOG_LINES) * LOG_LINE_EVERY.as_millis() {
            budget.left_out += 1;
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        budget.settled = settled;
        Some(std::mem::take(&mut budget.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_logged_once_in_a_while_and_counts_what_was_left_out() {
        let (mut limiter, now) = (LogLimiter::default(), Instant::now());
        assert_eq!(limiter.admit("refused", "a", now), Some(0));
        assert_eq!(limiter.admit("refused", "a", now + QUIET / 2), None);
        assert_eq!(limiter.admit("silent", "a", now + QUIET / 2), Some(0));
        assert_eq!(limiter.admit("refused", "b", now + QUIET / 2), Some(1));
        assert_eq!(limiter.admit("refused", "a", now + QUIET), Some(0));
        assert!(left_out_lines() >= 1);
    }

    #[test]
    fn many_subjects_are_bounded_and_leave_other_kinds_their_lines() {
        let (mut limiter, now) = (LogLimiter::default(), Instant::now());
        let peers = (0..2 * LOG_SUBJECTS).map(|peer| peer.to_string());
        let logged = peers.filter(|peer| limiter.admit("refused", peer, now).is_some()).count();
        assert_eq!(logged, LOG_SUBJECTS);
        assert_eq!(limiter.admit("silent", "1", now), Some(0));
        assert_eq!(limiter.admit("refused", "later", now + QUIET), Some(LOG_SUBJECTS as u64));
        assert_eq!(limiter.0["refused"].logged.len(), 1);
    }

    #[test]
    fn lines_of_a_kind_are_bounded_and_those_of_another_are_not() {
        let (mut budgets, now) = (LineBudgets::default(), Instant::now());
        let written = |budgets: &mut LineBudgets<u8>, kind, now, count: u64| {
            (0..count).filter(|_| budgets.admit(kind, now).is_some()).count() as u64
        };
        assert_eq!(written(&mut budgets, 1, now, 10_000), LOG_LINES);
        assert_eq!(written(&mut budgets, 2, now, 10), 10);
        let later = now + 10 * LOG_LINE_EVERY;
        assert_eq!(budgets.admit(1, later), Some(10_000 - LOG_LINES));
        assert_eq!(written(&mut budgets, 1, later, 100), 9);
        // A long rest makes up for no more than that.
        assert_eq!(written(&mut budgets, 1, now + 1000 * LOG_LINE_EVERY, 10_000), LOG_LINES);
    }
}
