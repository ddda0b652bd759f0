//! Which replica or connection takes a request: of two that are drawn the one that costs less, where
//! cost is the requests under way, or the time that a request is expected to take.

use std::time::{Duration, Instant};

use tollway_model::traffic_policy::Balancing;

use crate::pick_of_two;

/// The part of its usual requests that a replica gets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Share(u32);

impl Share {
    /// It gets no requests.
    pub const NONE: Self = Self(0);
    /// It gets what a replica gets.
    pub const WHOLE: Self = Self(1 << 16);
    /// The least that a replica gets which is in use.
    pub const LEAST: Self = Self(Self::WHOLE.0 / 10);

    /// `part` of `whole`, the least if it is less.
    #[must_use]
    pub fn rising(part: Duration, whole: Duration) -> Self {
        if part >= whole {
            return Self::WHOLE;
        }
        let scaled = part.as_nanos() * u128::from(Self::WHOLE.0) / whole.as_nanos().max(1);
        Self(u32::try_from(scaled).unwrap_or(Self::WHOLE.0)).max(Self::LEAST)
    }

    /// Whether it is drawn; `random` gives a uniform number.
    fn holds(self, random: impl FnOnce() -> u64) -> bool {
        self >= Self::WHOLE || (random() >> 48) < u64::from(self.0)
    }
}

/// Something that can take a request.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub cost: u32,
    pub share: Share,
}

/// Picks one of `count` candidates; `candidate` gives `None` for one that cannot take a request. A
/// share below the whole is the chance to be drawn at all, so that it is kept however many requests are
/// under way. If no drawn candidate is in luck, shares do not count, but those without any get nothing.
#[must_use]
pub fn choose(
    count: usize,
    random: u64,
    candidate: impl Fn(usize) -> Option<Candidate>,
) -> Option<usize> {
    choose_in_luck(count, random, &candidate).or_else(|| choose_any(count, random, &candidate))
}

/// Picks one of those that are drawn by their share; `None` if none is.
pub(crate) fn choose_in_luck(
    count: usize,
    random: u64,
    candidate: &impl Fn(usize) -> Option<Candidate>,
) -> Option<usize> {
    pick_of_two(count, random, |index| {
        let Candidate { cost, share } = candidate(index)?;
        share.holds(|| luck(random, index)).then_some(cost)
    })
}

/// Picks one of those that have any share.
pub(crate) fn choose_any(
    count: usize,
    random: u64,
    candidate: &impl Fn(usize) -> Option<Candidate>,
) -> Option<usize> {
    pick_of_two(count, random, |index| {
        let Candidate { cost, share } = candidate(index)?;
        (share > Share::NONE).then_some(cost)
    })
}

/// A number for each candidate that does not depend on those by which candidates are drawn.
pub(crate) fn luck(random: u64, index: usize) -> u64 {
    let index = u64::try_from(index).unwrap_or(u64::MAX);
    let mut mixed = random.rotate_left(32) ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

/// What a replica is taken to need for a request before it has answered any.
const UNKNOWN: Duration = Duration::from_millis(30);
/// The most that failures make of it.
const LARGEST_PENALTY: Duration = Duration::from_secs(10);
/// A failure counts as so many times what a request takes.
const FAILED_TIMES: f64 = 4.0;

/// The time that requests to a replica take: a mean over time that follows a rise at once.
#[derive(Clone, Copy, Debug)]
pub struct PeakEwma {
    /// In seconds.
    mean: f64,
    at: Instant,
}

impl PeakEwma {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { mean: UNKNOWN.as_secs_f64(), at: now }
    }

    /// A response that took `time`.
    pub fn note_success(&mut self, time: Duration, decay: Duration, now: Instant) {
        self.note(time.as_secs_f64(), decay, now);
    }

    /// A request that failed after `time`. Failures are often quick, so it counts as much longer than
    /// what requests take.
    pub fn note_failure(&mut self, time: Duration, decay: Duration, now: Instant) {
        let penalty = (self.mean * FAILED_TIMES).min(LARGEST_PENALTY.as_secs_f64());
        self.note(time.as_secs_f64().max(penalty), decay, now);
    }

    fn note(&mut self, time: f64, decay: Duration, now: Instant) {
        let kept = self.kept(decay, now);
        // Half of the answer to a burst of responses at one moment counts by its time.
        self.mean = if time > self.mean { time } else { self.mean * kept + time * (1.0 - kept) };
        self.at = self.at.max(now);
    }

    /// How much of the mean is left of what it was.
    fn kept(&self, decay: Duration, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (-passed / decay.as_secs_f64().max(1e-3)).exp()
    }

    /// What one more request costs, in microseconds, beside `under_way` others. A replica that gets no
    /// requests becomes cheaper with time, so that it is tried again.
    #[must_use]
    pub fn cost(&self, under_way: u32, decay: Duration, now: Instant) -> u32 {
        let micros = self.mean * self.kept(decay, now) * 1e6 * (f64::from(under_way) + 1.0);
        // A cast of a float saturates.
        (micros as u32).max(1)
    }
}

/// What one more request costs a replica or a connection with `under_way` requests. Costs of one kind
/// of balancing compare with each other alone.
#[must_use]
pub fn cost(balancing: Balancing, under_way: u32, times: &PeakEwma, now: Instant) -> u32 {
    match balancing {
        Balancing::LeastRequests => under_way,
        Balancing::PeakEwma { decay } => times.cost(under_way, decay, now),
    }
}

#[cfg(test)]
mod tests;
