//! Runs made of several: steps of rates, and the search for the highest rate that is sustained.
//!
//! Each part is a run of its own, with its own connections, warm-up and window, so that what one
//! rate leaves behind does not count for the next.

use std::time::Duration;

use tollway_record::client_limit::ClientLimit;
use tollway_record::run::Step;
use tollway_record::search::{
    Outcome, Search, SearchOptions, SearchResult, Slo, Trial, TrialResult,
};
use tollway_record::{RunResult, Traffic};

use crate::arrival::{Arrival, Extent, MAX_RATE_RPS, Spacing};
use crate::error::LoadError;
use crate::options::LoadOptions;
use crate::progress::{Part, Progress, Watch};

/// Most steps of one run: each keeps two histograms.
pub const MAX_STEPS: usize = 200;

/// The first rate of a search, as a part of what a closed loop reaches.
const START_OF_CLOSED: f64 = 0.25;
/// How long that closed loop runs.
const PROBE: Duration = Duration::from_secs(1);
/// Confirmations are this much longer than other trials.
const CONFIRM_FACTOR: u32 = 2;
/// The warm-up is at most this part of a trial.
const WARM_UP_PART: u32 = 4;
/// A rate beyond the target's leaves a backlog whose answers measure nothing.
const TRIAL_DRAIN: Duration = Duration::from_millis(500);

/// What a run consists of.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// One window, by the options.
    Once,
    /// A window at each of these rates.
    Steps {
        rates_rps: Vec<f64>,
        lasting: Duration,
    },
    MaxRate(MaxRate),
}

/// How to search for the highest rate.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxRate {
    pub slo: Slo,
    /// Of one trial; confirmations take twice as long.
    pub lasting: Duration,
    /// The first rate; found by a closed loop when it is not given.
    pub start_rps: Option<f64>,
    /// How near the ends of the interval must come, as a fraction.
    pub precision: f64,
}

/// Makes one run.
pub type RunOnce<'a> = dyn FnMut(&LoadOptions, &mut Watch<'_>) -> Result<RunResult, LoadError> + 'a;

impl Plan {
    /// Makes all its runs with `once` and merges their results.
    ///
    /// # Errors
    /// The first failure of `once`; there is no result then.
    pub fn run(
        &self,
        options: &LoadOptions,
        watch: &mut Watch<'_>,
        once: &mut RunOnce<'_>,
    ) -> Result<RunResult, LoadError> {
        match self {
            Self::Once => once(options, watch),
            Self::Steps { rates_rps, lasting } => {
                run_steps(rates_rps, *lasting, options, watch, once)
            }
            Self::MaxRate(search) => search.run(options, watch, once),
        }
    }
}

fn run_steps(
    rates_rps: &[f64],
    lasting: Duration,
    options: &LoadOptions,
    watch: &mut Watch<'_>,
    once: &mut RunOnce<'_>,
) -> Result<RunResult, LoadError> {
    if !(1..=MAX_STEPS).contains(&rates_rps.len()) {
        return Err(LoadError::Bounds {
            name: "the number of steps",
            given: rates_rps.len() as u64,
            least: 1,
            most: MAX_STEPS as u64,
        });
    }
    let mut whole: Option<RunResult> = None;
    let mut steps = Vec::with_capacity(rates_rps.len());
    for (index, rate_rps) in rates_rps.iter().enumerate() {
        let of_step =
            LoadOptions { extent: Extent::Lasting(lasting), ..at_rate(options, *rate_rps) };
        let part = Part { number: index + 1, of: Some(rates_rps.len()), rate_rps: *rate_rps };
        let run = run_part(part, &of_step, watch, once)?;
        steps.push(Step { traffic: run.traffic.clone(), generator: run.generator });
        whole.get_or_insert(run);
        if watch.stop.is_requested() {
            break;
        }
    }
    let Some(mut whole) = whole else { return once(options, watch) };
    let limits = limits_of(&steps);
    let windows = steps.iter().map(|step| step.traffic.clone()).collect();
    whole.traffic = Traffic::merged(windows, whole.arrival).map_err(LoadError::Histogram)?;
    whole.traffic.client_limited = !limits.is_empty();
    whole.traffic.client_limits = limits;
    for step in &steps[1..] {
        whole.generator.cpu_us += step.generator.cpu_us;
        whole.generator.rss_bytes = whole.generator.rss_bytes.max(step.generator.rss_bytes);
        whole.generator.busiest_thread_fraction =
            whole.generator.busiest_thread_fraction.max(step.generator.busiest_thread_fraction);
    }
    whole.steps = steps;
    Ok(whole)
}

/// The reasons of all steps, each with its first figure: a limit in one step is one of the run.
fn limits_of(steps: &[Step]) -> Vec<ClientLimit> {
    let mut limits: Vec<ClientLimit> = Vec::new();
    for limit in steps.iter().flat_map(|step| &step.traffic.client_limits) {
        if !limits.iter().any(|known| known.same_reason(limit)) {
            limits.push(*limit);
        }
    }
    limits
}

fn at_rate(options: &LoadOptions, rate_rps: f64) -> LoadOptions {
    let spacing = match options.arrival {
        Arrival::Open { spacing, .. } => spacing,
        Arrival::Closed => Spacing::Uniform,
    };
    LoadOptions { arrival: Arrival::Open { rate_rps, spacing }, stages: None, ..options.clone() }
}

/// One run of several: its progress has its number.
fn run_part(
    part: Part,
    options: &LoadOptions,
    watch: &mut Watch<'_>,
    once: &mut RunOnce<'_>,
) -> Result<RunResult, LoadError> {
    let stop = watch.stop.clone();
    let mut report =
        |progress: &Progress| (watch.report)(&Progress { part: Some(part), ..*progress });
    once(options, &mut Watch { report: &mut report, stop })
}

impl MaxRate {
    fn run(
        &self,
        options: &LoadOptions,
        watch: &mut Watch<'_>,
        once: &mut RunOnce<'_>,
    ) -> Result<RunResult, LoadError> {
        let start_rps = match self.start_rps {
            Some(start_rps) => start_rps,
            None => self.probe(options, watch, once)?,
        };
        let most_rps = MAX_RATE_RPS;
        let mut search =
            Search::new(SearchOptions { start_rps, most_rps, precision: self.precision });
        let mut trials = Vec::new();
        let mut best: Option<RunResult> = None;
        while let Some(trial) = search.next().filter(|_| !watch.stop.is_requested()) {
            let part = Part { number: trials.len() + 1, of: None, rate_rps: trial.rate_rps };
            let run = run_part(part, &self.options_of(trial, options), watch, once)?;
            if watch.stop.is_requested() && !trials.is_empty() {
                break;
            }
            let outcome = self.slo.judge(&run).map_err(LoadError::Histogram)?;
            trials.push(trial_result(trial, &run, &outcome)?);
            search.take(&outcome);
            let is_best = outcome == Outcome::Held && search.held_rps() == Some(trial.rate_rps);
            if is_best || best.is_none() {
                best = Some(run);
            }
        }
        let Some(mut result) = best else { return once(options, watch) };
        result.search = Some(SearchResult {
            slo: self.slo_text(),
            held_rps: search.held_rps(),
            missed_rps: search.missed_rps(),
            client_limited: search.client_limited(),
            complete: search.is_complete(),
            trials,
        });
        Ok(result)
    }

    /// A rate to begin with, from what answers come in closed loop.
    fn probe(
        &self,
        options: &LoadOptions,
        watch: &mut Watch<'_>,
        once: &mut RunOnce<'_>,
    ) -> Result<f64, LoadError> {
        let probe = LoadOptions {
            arrival: Arrival::Closed,
            stages: None,
            extent: Extent::Lasting(PROBE),
            warmup: options.warmup.min(PROBE / WARM_UP_PART),
            drain: TRIAL_DRAIN,
            ..options.clone()
        };
        let part = Part { number: 0, of: None, rate_rps: 0.0 };
        let run = run_part(part, &probe, watch, once)?;
        Ok((run.traffic.achieved_rps * START_OF_CLOSED).max(1.0))
    }

    fn options_of(&self, trial: Trial, options: &LoadOptions) -> LoadOptions {
        let factor = if trial.confirms { CONFIRM_FACTOR } else { 1 };
        LoadOptions {
            extent: Extent::Lasting(self.lasting * factor),
            warmup: options.warmup.min(self.lasting / WARM_UP_PART),
            drain: TRIAL_DRAIN,
            ..at_rate(options, trial.rate_rps)
        }
    }

    fn slo_text(&self) -> Vec<String> {
        let percent = self.slo.error_fraction * 100.0;
        let mut slo =
            vec!["achieved>=99% of the rate".to_owned(), format!("error_rate<={percent}%")];
        slo.extend(self.slo.conditions.iter().map(ToString::to_string));
        slo
    }
}

fn trial_result(
    trial: Trial,
    run: &RunResult,
    outcome: &Outcome,
) -> Result<TrialResult, LoadError> {
    let latencies = run.traffic.latencies().map_err(LoadError::Histogram)?;
    let (why, client_limited) = match outcome {
        Outcome::Held => (None, false),
        Outcome::Missed { why, by_client } => (Some(why.clone()), *by_client),
    };
    Ok(TrialResult {
        requested_rps: trial.rate_rps,
        achieved_rps: run.traffic.achieved_rps,
        duration_s: run.traffic.duration_s,
        p99_us: (latencies.n() > 0).then(|| latencies.raw_quantile_ns(0.99) as f64 / 1e3),
        held: *outcome == Outcome::Held,
        why,
        client_limited,
        confirms: trial.confirms,
    })
}
