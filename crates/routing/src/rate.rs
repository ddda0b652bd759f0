//! How many requests a replica takes: in a time, of all callers and of each identity, and of each
//! identity at once.
//!
//! A rate is held by the generic cell rate algorithm: one number for each limit, the time at which the
//! requests so far would be done if they came evenly. So a limit is exact over any time, has no window
//! at whose edge twice as many are let through, and gives the time to wait. Data threads share the
//! numbers without a lock; each change is one atomic operation.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollway_model::traffic_policy::{Rate, RateLimit};
use tollway_model::{Caller, Label, NetworkName};

/// Identities of callers that a replica counts one by one; those that have been idle are forgotten
/// before. Further ones are counted as one.
pub const RATED_CALLERS_LIMIT: usize = 4096;

/// The least time between two searches for idle identities.
const SEARCH_EVERY: Duration = Duration::from_secs(1);

/// Which limit a request is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitedBy {
    Service,
    Caller,
}

/// A request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateRefusal {
    pub by: LimitedBy,
    /// After this time a request is taken if no other comes before.
    pub wait: Duration,
}

impl RateRefusal {
    /// Whole seconds for a `Retry-After` field.
    #[must_use]
    pub fn retry_after_seconds(&self) -> u64 {
        let whole = self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0);
        whole.max(1)
    }
}

/// When the requests that were taken would be done, in nanoseconds since it began.
#[derive(Debug)]
struct Meter {
    began: Instant,
    done: AtomicU64,
}

/// Nanoseconds for one request.
fn interval(limit: &RateLimit) -> u64 {
    nanos(limit.per) / u64::from(limit.requests.max(1))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Meter {
    fn new(now: Instant) -> Self {
        Self { began: now, done: AtomicU64::new(0) }
    }

    fn since(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.began))
    }

    /// Takes a request, or gives the time to wait.
    fn take(&self, limit: &RateLimit, now: Instant) -> Result<(), Duration> {
        let (now, interval) = (self.since(now), interval(limit));
        let early = interval.saturating_mul(u64::from(limit.burst.saturating_sub(1)));
        let latest = now.saturating_add(early);
        let take = |done: u64| (done <= latest).then(|| done.max(now).saturating_add(interval));
        let taken = self.done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(|_| ()).map_err(|done| Duration::from_nanos(done - latest))
    }

    /// A request that was taken is not made.
    fn give_back(&self, limit: &RateLimit) {
        let interval = interval(limit);
        let back = |done: u64| Some(done.saturating_sub(interval));
        // It never fails, since there is always another number.
        let _ = self.done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }

    /// Whether it is as if nothing had been taken.
    fn is_idle(&self, now: Instant) -> bool {
        self.done.load(Ordering::Relaxed) <= self.since(now)
    }
}

/// What one identity takes of a replica. Connections of the identity share it.
#[derive(Debug)]
pub struct CallerUse {
    limit: Option<RateLimit>,
    meter: Meter,
    under_way: AtomicU32,
}

impl CallerUse {
    fn new(limit: Option<RateLimit>, now: Instant) -> Self {
        Self { limit, meter: Meter::new(now), under_way: AtomicU32::new(0) }
    }

    /// Begins a request if fewer than `limit` are under way; [`Self::end`] ends it.
    #[must_use]
    pub fn begin(&self, limit: u32) -> bool {
        let more = |count: u32| (count < limit).then(|| count + 1);
        self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Ends a request that has begun.
    pub fn end(&self) {
        let fewer = |count: u32| count.checked_sub(1);
        let ended = self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
        debug_assert!(ended.is_ok(), "a request ends once");
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0 && self.meter.is_idle(now)
    }
}

/// The limits of a replica and what has been taken of that for all callers.
#[derive(Debug)]
pub struct RateControl {
    rate: Rate,
    service: Meter,
}

impl RateControl {
    #[must_use]
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, service: Meter::new(now) }
    }

    /// The limit of one caller, for a policy of `namespace` in `network`.
    #[must_use]
    pub fn of_caller(
        &self,
        caller: Caller<'_>,
        namespace: &Label,
        network: &NetworkName,
    ) -> Option<RateLimit> {
        let is_named = |from: &[tollway_model::CallerPattern]| {
            from.iter().any(|pattern| pattern.matches(caller, namespace, network))
        };
        let named = self.rate.callers.iter().find(|entry| is_named(&entry.from));
        named.map(|entry| entry.limit).or(self.rate.caller)
    }

    /// Takes a request of a caller.
    ///
    /// # Errors
    /// [`RateRefusal`] if it is over the caller's limit, of which nothing is taken then, or over the
    /// service's, of which a caller that is over its own takes nothing.
    pub fn take(&self, caller: &CallerUse, now: Instant) -> Result<(), RateRefusal> {
        if let Some(limit) = &caller.limit {
            let taken = caller.meter.take(limit, now);
            taken.map_err(|wait| RateRefusal { by: LimitedBy::Caller, wait })?;
        }
        let Some(limit) = &self.rate.service else { return Ok(()) };
        self.service.take(limit, now).map_err(|wait| {
            if let Some(limit) = &caller.limit {
                caller.meter.give_back(limit);
            }
            RateRefusal { by: LimitedBy::Service, wait }
        })
    }
}

/// What each identity takes of a replica. It has one owner; what it gives out is shared.
#[derive(Debug)]
pub struct CallerUses<K> {
    by_caller: HashMap<K, Arc<CallerUse>>,
    most: usize,
    /// What those take together for which there is no entry.
    others: Option<Arc<CallerUse>>,
    next_search: Instant,
}

impl<K: Eq + Hash + Clone> CallerUses<K> {
    /// Of at most `most` identities, which is [`RATED_CALLERS_LIMIT`] but in tests.
    #[must_use]
    pub fn new(most: usize, now: Instant) -> Self {
        Self { by_caller: HashMap::new(), most, others: None, next_search: now }
    }

    /// What `caller` takes; `limit` gives its limit if it is not known. An identity that is idle and
    /// of which no connection holds this is as good as a new one, and makes way for it.
    pub fn of(
        &mut self,
        caller: &K,
        limit: impl FnOnce() -> Option<RateLimit>,
        now: Instant,
    ) -> Arc<CallerUse> {
        if let Some(known) = self.by_caller.get(caller) {
            return Arc::clone(known);
        }
        if self.by_caller.len() >= self.most && now >= self.next_search {
            self.next_search = now + SEARCH_EVERY;
            self.by_caller.retain(|_, of| Arc::strong_count(of) > 1 || !of.is_idle(now));
        }
        if self.by_caller.len() >= self.most {
            let others = self.others.get_or_insert_with(|| Arc::new(CallerUse::new(limit(), now)));
            return Arc::clone(others);
        }
        let new = Arc::new(CallerUse::new(limit(), now));
        self.by_caller.insert(caller.clone(), Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests;
