//! Which replicas of a service get fewer requests for a while, or none: those that fail, those that are
//! asked for too much, and those that have just come.
//!
//! A replica that fails is ejected: it gets no requests until a time is over. It is on trial then:
//! it gets few requests until one succeeds, and the first that fails ejects it again, for longer. At
//! most a part of the replicas is ejected, since a fault of all is no fault of one. A replica that
//! refuses requests because they are too many is never ejected; it gets fewer for the time that it
//! asks for. What a replica is (its key) is up to the caller; so is what is sent.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use tollway_model::traffic_policy::{Balancing, Outlier, SuccessRate};

use crate::balance::{Candidate, PeakEwma, Share, cost};

/// For how long a replica that refuses requests as too many gets fewer, if it does not ask for a time.
const OVERLOADED_FOR: Duration = Duration::from_secs(1);
/// The longest time that it can ask for.
const OVERLOADED_LIMIT: Duration = Duration::from_secs(60);
/// The part of its requests by which a replica has to be below the mean, at least: of replicas that
/// never fail one that failed once is many deviations from the mean, too.
const LEAST_DIFFERENCE: f64 = 0.05;

/// How a request to a replica ended. A request that its caller gave up has no outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaOutcome {
    Success,
    /// The replica could not be reached, broke off, or answered that something is wrong with it.
    Failure,
    /// The replica takes no more requests now, for the time that it states.
    Overloaded {
        retry_after: Option<Duration>,
    },
}

impl ReplicaOutcome {
    /// What a response shows of its replica.
    ///
    /// Failures are the statuses 500 to 599 but 501, which is about the request, and the gRPC statuses
    /// `UNKNOWN`, `DEADLINE_EXCEEDED`, `INTERNAL`, `UNAVAILABLE` and `DATA_LOSS`. 429 and
    /// `RESOURCE_EXHAUSTED` mean an overloaded replica. Everything else is a success: the replica works.
    #[must_use]
    pub fn of_response(
        status: u16,
        grpc_status: Option<u8>,
        retry_after: Option<Duration>,
    ) -> Self {
        match (status, grpc_status) {
            (429, _) | (_, Some(8)) => Self::Overloaded { retry_after },
            (501, _) => Self::Success,
            (500..=599, _) | (_, Some(2 | 4 | 13 | 14 | 15)) => Self::Failure,
            _ => Self::Success,
        }
    }
}

/// Why a replica was ejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EjectionReason {
    ConsecutiveFailures,
    SuccessRate,
}

/// What is done about the replicas of one service.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReplicaRules {
    /// By what a replica is chosen.
    pub balancing: Balancing,
    pub outlier: Option<Outlier>,
    /// If fewer than this part of the replicas are left, ejected ones are used as well.
    pub panic_percent: u32,
    /// Over this time the share of a replica rises that joins the others or comes back.
    pub slow_start: Duration,
}

/// A replica of [`Replicas`]; one that has left is not mistaken for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaId {
    index: usize,
    generation: u64,
}

/// How a replica begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With the whole share.
    Whole,
    /// With a share that rises, if slow start is on.
    Rising,
}

/// The replicas of a service as one sidecar, or a data thread of it, has seen them.
#[derive(Clone, Debug)]
pub struct Replicas<K> {
    rules: ReplicaRules,
    by_key: HashMap<K, usize>,
    slots: Vec<Option<Replica<K>>>,
    free: Vec<usize>,
    generation: u64,
    ejected: usize,
    /// When the first of the ejected ones comes back.
    next_return: Option<Instant>,
    /// When success rates are compared next.
    next_comparison: Instant,
}

#[derive(Clone, Debug)]
struct Replica<K> {
    key: K,
    generation: u64,
    /// Since the last success.
    failures: u32,
    /// It came back and has not answered well since.
    is_on_trial: bool,
    ejected_until: Option<Instant>,
    ejections: u32,
    /// When it joined or came back last.
    since: Instant,
    is_rising: bool,
    overloaded_until: Option<Instant>,
    /// Since success rates were compared last.
    requests: u32,
    successes: u32,
    /// What requests to it take.
    times: PeakEwma,
}

impl<K: Eq + Hash + Clone> Replicas<K> {
    /// None is known.
    #[must_use]
    pub fn new(rules: ReplicaRules, now: Instant) -> Self {
        Self {
            rules,
            by_key: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            generation: 0,
            ejected: 0,
            next_return: None,
            next_comparison: now + interval(&rules),
        }
    }

    /// Other rules hold from now on. Without outlier ejection the ejected ones come back.
    pub fn set_rules(&mut self, rules: ReplicaRules, now: Instant) {
        self.rules = rules;
        self.next_comparison = now + interval(&rules);
        if rules.outlier.is_none() {
            for replica in self.slots.iter_mut().flatten() {
                (replica.ejected_until, replica.is_on_trial) = (None, false);
            }
            (self.ejected, self.next_return) = (0, None);
        }
    }

    /// The service has exactly these replicas. New ones rise if others are in full use.
    pub fn update(&mut self, keys: impl IntoIterator<Item = K>, now: Instant) {
        self.generation += 1;
        let first_new = self.generation;
        let whole = |replica: &Replica<K>| self.rules.rise(replica, now) == Share::WHOLE;
        let start =
            if self.slots.iter().flatten().any(whole) { Start::Rising } else { Start::Whole };
        let mut stays = vec![false; self.slots.len()];
        for key in keys {
            let id = self.join(key, start, now);
            if let Some(stays) = stays.get_mut(id.index) {
                *stays = true;
            }
        }
        for (index, stays) in stays.into_iter().enumerate() {
            let is_old = |replica: &Replica<K>| replica.generation < first_new;
            if !stays && self.slots[index].as_ref().is_some_and(is_old) {
                self.remove(index);
            }
        }
    }

    /// The replica of this key, which joins if it is not there.
    pub fn join(&mut self, key: K, start: Start, now: Instant) -> ReplicaId {
        if let Some(id) = self.find(&key) {
            return id;
        }
        self.generation += 1;
        let replica = Replica {
            key: key.clone(),
            generation: self.generation,
            failures: 0,
            is_on_trial: false,
            ejected_until: None,
            ejections: 0,
            since: now,
            is_rising: start == Start::Rising,
            overloaded_until: None,
            requests: 0,
            successes: 0,
            times: PeakEwma::new(now),
        };
        let index = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(index) {
            Some(slot) => *slot = Some(replica),
            None => self.slots.push(Some(replica)),
        }
        self.by_key.insert(key, index);
        ReplicaId { index, generation: self.generation }
    }

    /// The replica of this key, if it is there.
    #[must_use]
    pub fn find(&self, key: &K) -> Option<ReplicaId> {
        let index = *self.by_key.get(key)?;
        let generation = self.slots.get(index)?.as_ref()?.generation;
        Some(ReplicaId { index, generation })
    }

    fn remove(&mut self, index: usize) {
        let Some(replica) = self.slots.get_mut(index).and_then(Option::take) else { return };
        self.by_key.remove(&replica.key);
        self.free.push(index);
        if replica.ejected_until.is_some() {
            self.ejected -= 1;
        }
    }

    /// Replicas that are ejected.
    #[must_use]
    pub fn ejected(&self) -> usize {
        self.ejected
    }

    /// Whether so few are left that all are used.
    #[must_use]
    pub fn is_panic(&self) -> bool {
        let count = self.by_key.len();
        let percent = usize::try_from(self.rules.panic_percent).unwrap_or(100);
        (count - self.ejected) * 100 < percent * count
    }

    /// The part of its usual requests that a replica gets; the whole if it is not known.
    #[must_use]
    pub fn share(&self, id: ReplicaId, now: Instant) -> Share {
        let Some(replica) = self.replica(id) else { return Share::WHOLE };
        if replica.ejected_until.is_some_and(|until| now < until) {
            return if self.is_panic() { Share::WHOLE } else { Share::NONE };
        }
        let is_overloaded = replica.overloaded_until.is_some_and(|until| now < until);
        // An ejected one whose time is over comes back with the next `advance`.
        if is_overloaded || replica.is_on_trial || replica.ejected_until.is_some() {
            return Share::LEAST;
        }
        self.rules.rise(replica, now)
    }

    /// Those that are ejected.
    pub fn ejected_keys(&self) -> impl Iterator<Item = &K> {
        let ejected = |replica: &&Replica<K>| replica.ejected_until.is_some();
        self.slots.iter().flatten().filter(ejected).map(|replica| &replica.key)
    }

    /// Whether none may get a request.
    #[must_use]
    pub fn are_all_ejected(&self) -> bool {
        self.ejected > 0 && self.ejected == self.by_key.len() && !self.is_panic()
    }

    /// A replica that has so many requests under way, for [`choose`](crate::choose). What is not known
    /// gets its whole share.
    #[must_use]
    pub fn candidate(&self, id: Option<ReplicaId>, under_way: u32, now: Instant) -> Candidate {
        let known = id.and_then(|id| Some((id, self.replica(id)?)));
        let Some((id, replica)) = known else {
            return Candidate { cost: under_way, share: Share::WHOLE };
        };
        let cost = cost(self.rules.balancing, under_way, &replica.times, now);
        Candidate { cost, share: self.share(id, now) }
    }

    /// A replica has answered a request after `took`, or failed to if `has_failed`.
    pub fn note_time(&mut self, id: ReplicaId, took: Duration, has_failed: bool, now: Instant) {
        let Balancing::PeakEwma { decay } = self.rules.balancing else { return };
        let slot = self.slots.get_mut(id.index).and_then(Option::as_mut);
        let Some(replica) = slot.filter(|replica| replica.generation == id.generation) else {
            return;
        };
        if has_failed {
            replica.times.note_failure(took, decay, now);
        } else {
            replica.times.note_success(took, decay, now);
        }
    }

    fn replica(&self, id: ReplicaId) -> Option<&Replica<K>> {
        let replica = self.slots.get(id.index)?.as_ref()?;
        (replica.generation == id.generation).then_some(replica)
    }

    /// Lets replicas come back whose time is over; it costs a comparison until then. `on_return` gets
    /// each of them. Gives how many came back.
    pub fn advance(&mut self, now: Instant, mut on_return: impl FnMut(&K)) -> usize {
        if self.next_return.is_none_or(|at| now < at) {
            return 0;
        }
        let (mut returned, mut next) = (0, None);
        for replica in self.slots.iter_mut().flatten() {
            let Some(until) = replica.ejected_until else { continue };
            if now < until {
                next = Some(next.map_or(until, |next: Instant| next.min(until)));
                continue;
            }
            returned += 1;
            replica.ejected_until = None;
            replica.failures = 0;
            replica.is_on_trial = true;
            replica.is_rising = true;
            replica.since = now;
            (replica.requests, replica.successes) = (0, 0);
            on_return(&replica.key);
        }
        self.next_return = next;
        self.ejected -= returned;
        returned
    }

    /// How a request to a replica ended. `on_ejection` gets each replica that is ejected by it, and for
    /// how long. Those whose time is over come back first, as by [`advance`](Self::advance).
    pub fn note(
        &mut self,
        id: ReplicaId,
        outcome: ReplicaOutcome,
        now: Instant,
        mut on_ejection: impl FnMut(&K, EjectionReason, Duration),
    ) {
        self.advance(now, |_| {});
        let outlier = self.rules.outlier;
        let slot = self.slots.get_mut(id.index).and_then(Option::as_mut);
        let Some(replica) = slot.filter(|replica| replica.generation == id.generation) else {
            return;
        };
        // What was under way when it was ejected is known by that.
        if replica.ejected_until.is_none() {
            replica.note(outcome, now);
            if let Some(outlier) = outlier
                && replica.has_failed_too_often(&outlier)
                && self.may_eject(&outlier)
            {
                self.eject(id.index, &outlier, now, |key, time| {
                    on_ejection(key, EjectionReason::ConsecutiveFailures, time);
                });
            }
        }
        if let Some(outlier) = outlier
            && let Some(rule) = &outlier.success_rate
            && now >= self.next_comparison
        {
            self.next_comparison = now + rule.interval;
            self.compare(&outlier, rule, now, on_ejection);
        }
    }

    /// Whether one more may be ejected.
    fn may_eject(&self, outlier: &Outlier) -> bool {
        let percent = usize::try_from(outlier.max_ejected_percent).unwrap_or(100);
        (self.ejected + 1) * 100 <= percent * self.by_key.len()
    }

    /// Ejects those that succeed much less often than the others.
    fn compare(
        &mut self,
        outlier: &Outlier,
        rule: &SuccessRate,
        now: Instant,
        mut on_ejection: impl FnMut(&K, EjectionReason, Duration),
    ) {
        let rates = self.slots.iter().flatten().filter_map(|replica| replica.success_rate(rule));
        let (mut count, mut sum, mut squares) = (0_u32, 0.0, 0.0);
        for rate in rates {
            (count, sum, squares) = (count + 1, sum + rate, squares + rate * rate);
        }
        let mean = sum / f64::from(count.max(1));
        let deviation = (squares / f64::from(count.max(1)) - mean * mean).max(0.0).sqrt();
        let distance = deviation * f64::from(rule.deviations) / 1000.0;
        let least = mean - distance.max(LEAST_DIFFERENCE);
        let is_compared = count >= rule.min_replicas.max(2);
        for index in 0..self.slots.len() {
            let Some(replica) = &mut self.slots[index] else { continue };
            let rate = replica.success_rate(rule);
            (replica.requests, replica.successes) = (0, 0);
            if is_compared && rate.is_some_and(|rate| rate < least) && self.may_eject(outlier) {
                self.eject(index, outlier, now, |key, time| {
                    on_ejection(key, EjectionReason::SuccessRate, time);
                });
            }
        }
    }

    fn eject(
        &mut self,
        index: usize,
        outlier: &Outlier,
        now: Instant,
        mut on_ejection: impl FnMut(&K, Duration),
    ) {
        let Some(replica) = &mut self.slots[index] else { return };
        let well_for = now.saturating_duration_since(replica.since).as_nanos();
        let forgotten = well_for / outlier.ejection.as_nanos().max(1);
        let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
        replica.ejections = replica.ejections.saturating_sub(forgotten).saturating_add(1);
        let time = outlier.ejection.saturating_mul(replica.ejections).min(outlier.longest_ejection);
        let until = now + time;
        replica.ejected_until = Some(until);
        replica.is_on_trial = false;
        self.ejected += 1;
        self.next_return = Some(self.next_return.map_or(until, |next| next.min(until)));
        on_ejection(&replica.key, time);
    }
}

impl<K> Replica<K> {
    fn note(&mut self, outcome: ReplicaOutcome, now: Instant) {
        match outcome {
            ReplicaOutcome::Success => {
                self.failures = 0;
                self.is_on_trial = false;
                self.requests = self.requests.saturating_add(1);
                self.successes = self.successes.saturating_add(1);
            }
            ReplicaOutcome::Failure => {
                self.failures = self.failures.saturating_add(1);
                self.requests = self.requests.saturating_add(1);
            }
            ReplicaOutcome::Overloaded { retry_after } => {
                let time = retry_after.unwrap_or(OVERLOADED_FOR).min(OVERLOADED_LIMIT);
                self.overloaded_until = self.overloaded_until.max(Some(now + time));
            }
        }
    }

    fn has_failed_too_often(&self, outlier: &Outlier) -> bool {
        let most = if self.is_on_trial { 1 } else { outlier.consecutive_failures };
        outlier.consecutive_failures > 0 && self.failures >= most
    }

    /// The part of its requests that succeeded; `None` if they are too few.
    fn success_rate(&self, rule: &SuccessRate) -> Option<f64> {
        let is_compared = self.ejected_until.is_none() && self.requests >= rule.min_requests.max(1);
        is_compared.then(|| f64::from(self.successes) / f64::from(self.requests))
    }
}

impl ReplicaRules {
    /// The share of a replica by the time for which it has been there.
    fn rise<K>(&self, replica: &Replica<K>, now: Instant) -> Share {
        if !replica.is_rising {
            return Share::WHOLE;
        }
        Share::rising(now.saturating_duration_since(replica.since), self.slow_start)
    }
}

/// How often success rates are compared.
fn interval(rules: &ReplicaRules) -> Duration {
    let rule = rules.outlier.and_then(|outlier| outlier.success_rate);
    rule.map_or(Duration::ZERO, |rule| rule.interval)
}

#[cfg(test)]
mod tests;
