//! The search for the highest rate that a target sustains: the next rate to try, and the result so
//! far. Pure: the caller runs the trials.
//!
//! The rate doubles until it is missed, then the gap is halved (on a logarithmic scale) until it is
//! narrow, then both ends are confirmed by longer trials. A rate counts as missed, and while
//! narrowing and confirming also as held, only if two of up to three trials agree: one noisy trial
//! costs time, not range. An end that its confirmation contradicts is moved and confirmed again.

use serde::{Deserialize, Serialize};

use crate::client_limit::{ACHIEVED_FRACTION_LIMIT, BUSY_FRACTION_LIMIT, LATE_FRACTION_LIMIT};
use crate::histogram::HistogramError;
use crate::run::RunResult;
use crate::threshold::Threshold;

/// Most trials of one search.
pub const MAX_TRIALS: usize = 100;

/// Trials that must agree.
const AGREE: u32 = 2;

/// The factor between two rates while none has been missed.
const GROWTH: f64 = 2.0;

/// The lowest rate that is tried, in requests per second.
const LEAST_RPS: f64 = 1.0;

/// What a search is to find.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchOptions {
    /// The first rate.
    pub start_rps: f64,
    /// No higher rate is tried.
    pub most_rps: f64,
    /// The ends are confirmed when they are this near, as a fraction of the lower one.
    pub precision: f64,
}

/// One run at one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    pub rate_rps: f64,
    /// A confirmation, to be run longer.
    pub confirms: bool,
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Held,
    /// `why` is a clause; `by_client`: the generator, not the target, was at its limit.
    Missed {
        why: String,
        by_client: bool,
    },
}

/// The state of a search.
#[derive(Debug, Clone)]
pub struct Search {
    options: SearchOptions,
    phase: Phase,
    /// The rate under trial, and its results so far in this phase.
    rate_rps: f64,
    held: u32,
    missed: u32,
    missed_by_client: u32,
    /// The highest rate that held below `missed_rps`.
    held_rps: Option<f64>,
    /// The lowest rate that was missed.
    missed_rps: Option<f64>,
    /// Whether the generator was the limit there.
    client_limited: bool,
    /// How far the next contradicted end moves, as a fraction.
    stride: f64,
    trials: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Up while it holds, down while nothing has held.
    Grow,
    Narrow,
    ConfirmHeld,
    ConfirmMissed,
    Done,
}

impl Search {
    /// A search that has tried nothing yet. Rates are at least 1/s.
    #[must_use]
    pub fn new(options: SearchOptions) -> Self {
        let most_rps = options.most_rps.max(LEAST_RPS);
        Self {
            options: SearchOptions { most_rps, ..options },
            phase: Phase::Grow,
            rate_rps: options.start_rps.clamp(LEAST_RPS, most_rps),
            held: 0,
            missed: 0,
            missed_by_client: 0,
            held_rps: None,
            missed_rps: None,
            client_limited: false,
            stride: options.precision,
            trials: 0,
        }
    }

    /// The next trial; `None` when the search is over.
    #[must_use]
    pub fn next(&self) -> Option<Trial> {
        let confirms = match self.phase {
            Phase::Grow | Phase::Narrow => false,
            Phase::ConfirmHeld | Phase::ConfirmMissed => true,
            Phase::Done => return None,
        };
        (self.trials < MAX_TRIALS).then_some(Trial { rate_rps: self.rate_rps, confirms })
    }

    /// Takes the outcome of [`Self::next`].
    pub fn take(&mut self, outcome: &Outcome) {
        self.trials += 1;
        match outcome {
            Outcome::Held => self.held += 1,
            Outcome::Missed { by_client, .. } => {
                self.missed += 1;
                self.missed_by_client += u32::from(*by_client);
            }
        }
        // While the rate grows, a false "held" is found out by the next rate.
        let enough = if self.phase == Phase::Grow { 1 } else { AGREE };
        if self.held >= enough {
            self.rate_held();
        } else if self.missed >= AGREE {
            self.rate_missed();
        }
    }

    /// The highest rate that held.
    #[must_use]
    pub fn held_rps(&self) -> Option<f64> {
        self.held_rps
    }

    /// The lowest rate that was missed; `None` when the highest allowed rate held.
    #[must_use]
    pub fn missed_rps(&self) -> Option<f64> {
        self.missed_rps
    }

    /// Whether [`Self::missed_rps`] was missed because of the generator.
    #[must_use]
    pub fn client_limited(&self) -> bool {
        self.client_limited
    }

    /// Whether both ends are confirmed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.phase == Phase::Done
    }

    fn try_rate(&mut self, phase: Phase, rate_rps: f64) {
        self.phase = phase;
        self.rate_rps = rate_rps;
        (self.held, self.missed, self.missed_by_client) = (0, 0, 0);
    }

    fn rate_held(&mut self) {
        let rate = self.rate_rps;
        self.held_rps = Some(rate);
        match self.phase {
            Phase::Grow if self.missed_rps.is_none() && rate < self.options.most_rps => {
                self.try_rate(Phase::Grow, (rate * GROWTH).min(self.options.most_rps));
            }
            Phase::Grow | Phase::Narrow => self.narrow(),
            Phase::ConfirmHeld => match self.missed_rps {
                Some(missed) => self.try_rate(Phase::ConfirmMissed, missed),
                None => self.phase = Phase::Done,
            },
            // The missed end holds: search above it.
            Phase::ConfirmMissed => {
                self.missed_rps = None;
                self.client_limited = false;
                let next = rate * (1.0 + self.stride);
                self.stride *= GROWTH;
                if rate >= self.options.most_rps {
                    self.phase = Phase::Done;
                } else {
                    self.try_rate(Phase::ConfirmMissed, next.min(self.options.most_rps));
                }
            }
            Phase::Done => {}
        }
    }

    fn rate_missed(&mut self) {
        let rate = self.rate_rps;
        self.missed_rps = Some(rate);
        self.client_limited = self.missed_by_client * 2 > self.missed;
        match self.phase {
            Phase::Grow if self.held_rps.is_none() => self.lower(rate / GROWTH),
            Phase::Grow | Phase::Narrow => self.narrow(),
            // The held end is missed: search below it.
            Phase::ConfirmHeld => {
                self.held_rps = None;
                let next = rate * (1.0 - self.stride.min(0.5));
                self.stride *= GROWTH;
                self.phase = Phase::ConfirmHeld;
                self.lower(next);
            }
            Phase::ConfirmMissed | Phase::Done => self.phase = Phase::Done,
        }
    }

    fn lower(&mut self, rate_rps: f64) {
        if self.rate_rps <= LEAST_RPS {
            self.phase = Phase::Done;
        } else {
            self.try_rate(self.phase, rate_rps.max(LEAST_RPS));
        }
    }

    fn narrow(&mut self) {
        let Some(held) = self.held_rps else { return };
        match self.missed_rps {
            Some(missed) if missed > held * (1.0 + self.options.precision) => {
                self.try_rate(Phase::Narrow, (held * missed).sqrt());
            }
            _ => self.try_rate(Phase::ConfirmHeld, held),
        }
    }
}

/// What a rate must meet to count as held, besides at least 99 % of it being achieved; errors that
/// are allowed are not missed there.
#[derive(Debug, Clone, PartialEq)]
pub struct Slo {
    /// Conditions that must hold.
    pub conditions: Vec<Threshold>,
    /// Requests that may fail, be dropped or stay without an answer, as a fraction.
    pub error_fraction: f64,
}

impl Slo {
    /// A trial's result. Late sends count for the target only in that they make its response times
    /// longer: a rate that holds in spite of them holds.
    ///
    /// # Errors
    /// [`HistogramError`] when a histogram of the result is damaged.
    pub fn judge(&self, run: &RunResult) -> Result<Outcome, HistogramError> {
        Ok(match self.broken(run)? {
            None => Outcome::Held,
            Some(why) => Outcome::Missed { why, by_client: generator_limits(run) },
        })
    }

    /// What did not hold, as a clause.
    fn broken(&self, run: &RunResult) -> Result<Option<String>, HistogramError> {
        let traffic = &run.traffic;
        let scheduled = traffic.scheduled();
        let in_time = traffic.achieved_rps * traffic.duration_s;
        let lost = scheduled - traffic.requests.min(scheduled);
        if lost as f64 > self.error_fraction * scheduled as f64 {
            let percent = lost as f64 / scheduled.max(1) as f64 * 100.0;
            return Ok(Some(format!("{percent:.2} % of the requests failed")));
        }
        // Errors are answers too, and how many there may be is judged above. One request on the
        // border of the window decides nothing.
        let due = scheduled - traffic.errors.min(scheduled);
        if in_time + 1.0 < ACHIEVED_FRACTION_LIMIT * due as f64 {
            let percent = in_time / due.max(1) as f64 * 100.0;
            return Ok(Some(format!("{percent:.1} % of the rate was achieved")));
        }
        for condition in &self.conditions {
            let judgement = condition.judge(run)?;
            if !judgement.fired {
                return Ok(Some(judgement.describe()));
            }
        }
        Ok(None)
    }
}

/// Whether the generator was late or busy all the time.
fn generator_limits(run: &RunResult) -> bool {
    let late_fraction = run.traffic.lateness.map_or(0.0, |lateness| lateness.late_fraction);
    late_fraction > LATE_FRACTION_LIMIT
        || run.generator.busiest_thread_fraction >= BUSY_FRACTION_LIMIT
}

/// A search as a result shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// What had to hold at each rate.
    pub slo: Vec<String>,
    /// The highest rate that held; absent when none did.
    pub held_rps: Option<f64>,
    /// The lowest rate that was missed; absent when the highest rate allowed held.
    pub missed_rps: Option<f64>,
    /// The generator, not the target, missed it.
    pub client_limited: bool,
    /// Both ends were confirmed by longer trials.
    pub complete: bool,
    /// In the order in which they ran.
    pub trials: Vec<TrialResult>,
}

/// One trial as a result shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    pub requested_rps: f64,
    pub achieved_rps: f64,
    pub duration_s: f64,
    /// Response time, however few samples lie beyond it; absent without answers.
    pub p99_us: Option<f64>,
    pub held: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub client_limited: bool,
    /// A longer trial, of an end of the interval.
    pub confirms: bool,
}

#[cfg(test)]
mod tests;
