//! The options of a run's schedule: one window, steps of rates, a rate that moves, or a search.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_load::{LoadOptions, MAX_STEPS, MaxRate, Plan, Profile, Spacing, Stage};
use tollway_record::search::Slo;
use tollway_record::threshold::Threshold;

use super::duration::duration;

/// Width of the interval at which a search ends.
const PRECISION_PERCENT: f64 = 5.0;

#[derive(Args)]
pub(super) struct PlanArgs {
    /// The rate moves evenly from one to the next, beginning at --rate or 0: TIME:RATE,…
    #[arg(long, value_name = "10s:100,30s:1000", value_parser = stages,
          conflicts_with_all = ["steps", "max_rate", "duration", "requests"])]
    stages: Option<Stages>,
    /// A window of --step-time at each rate, after a warm-up of its own: 120,500..2000/500
    #[arg(long, value_name = "RATES", value_parser = steps,
          conflicts_with_all = ["max_rate", "rate", "duration", "requests"])]
    steps: Option<Steps>,
    /// Length of a step or of a trial of --max-rate [default: 10s, of a trial 3s].
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    step_time: Option<Duration>,
    /// Find the highest rate that holds: 99 % of it answered, and the conditions of --slo.
    #[arg(long, conflicts_with_all = ["duration", "requests"])]
    max_rate: bool,
    /// What must hold at a rate of --max-rate, such as 'p99<10ms'; repeatable.
    #[arg(long, value_name = "CONDITION", requires = "max_rate")]
    slo: Vec<Threshold>,
    /// Share of requests that may fail at a rate of --max-rate.
    #[arg(hide_short_help = true, long, value_name = "PERCENT", default_value = "0.1%", value_parser = percent)]
    slo_errors: f64,
    /// Width of the interval of --max-rate.
    #[arg(hide_short_help = true, long, value_name = "PERCENT", default_value_t = PRECISION_PERCENT, value_parser = precision)]
    precision: f64,
}

/// Lists in one argument: clap takes a `Vec` for a repeated one.
#[derive(Clone)]
struct Stages(Vec<Stage>);

#[derive(Clone)]
struct Steps(Vec<f64>);

impl PlanArgs {
    pub(super) fn is_given(&self) -> bool {
        self.stages.is_some() || self.steps.is_some() || self.max_rate
    }

    /// The plan, and `options` adapted to it; `rate` is the value of `--rate`.
    pub(super) fn apply(
        &self,
        options: LoadOptions,
        rate: Option<f64>,
        spacing: Spacing,
    ) -> Result<(Plan, LoadOptions)> {
        if let Some(Stages(stages)) = &self.stages {
            let profile = Profile::new(rate.unwrap_or(0.0), stages.clone())?;
            return Ok((Plan::Once, options.with_stages(profile, spacing)));
        }
        if let Some(Steps(rates_rps)) = &self.steps {
            let lasting = self.step_time.unwrap_or(Duration::from_secs(10));
            return Ok((Plan::Steps { rates_rps: rates_rps.clone(), lasting }, options));
        }
        if self.max_rate {
            let slo = Slo { conditions: self.slo.clone(), error_fraction: self.slo_errors };
            let search = MaxRate {
                slo,
                lasting: self.step_time.unwrap_or(Duration::from_secs(3)),
                start_rps: rate,
                precision: self.precision / 100.0,
            };
            return Ok((Plan::MaxRate(search), options));
        }
        if self.step_time.is_some() {
            bail!("--step-time says how long a step is: give --steps or --max-rate as well");
        }
        Ok((Plan::Once, options))
    }
}

fn stages(text: &str) -> Result<Stages> {
    let stage = |part: &str| {
        let (lasting, rate) =
            part.split_once(':').with_context(|| format!("`{part}` is not TIME:RATE"))?;
        Ok(Stage { lasting: duration(lasting)?, to_rps: number(rate)? })
    };
    text.split(',').map(stage).collect::<Result<_>>().map(Stages)
}

/// `120`, or `500..2000/500` for 500, 1000, 1500, 2000.
fn steps(text: &str) -> Result<Steps> {
    let mut rates = Vec::new();
    for part in text.split(',') {
        let Some((from, rest)) = part.split_once("..") else {
            rates.push(positive(part)?);
            continue;
        };
        let (to, by) = rest
            .split_once('/')
            .with_context(|| format!("`{part}` does not say in which steps: 500..2000/500"))?;
        let (from, to, by) = (positive(from)?, positive(to)?, positive(by)?);
        if from > to {
            bail!("`{part}` goes down; write each rate of a descent: 2000,1500,1000");
        }
        let count = ((to - from) / by + 1e-9).floor();
        if count >= MAX_STEPS as f64 {
            bail!("`{part}` is more than {MAX_STEPS} steps");
        }
        rates.extend((0..=count as usize).map(|step| from + by * step as f64));
    }
    Ok(Steps(rates))
}

fn positive(text: &str) -> Result<f64> {
    let number = number(text)?;
    if number <= 0.0 {
        bail!("`{text}` is no rate: give more than 0");
    }
    Ok(number)
}

fn number(text: &str) -> Result<f64> {
    let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number.with_context(|| format!("`{text}` is not a number"))
}

/// A share: `0.1%`; the sign may be left out.
fn percent(text: &str) -> Result<f64> {
    let percent = number(text.trim().trim_end_matches('%'))?;
    if !(0.0..=100.0).contains(&percent) {
        bail!("`{text}` is not a share: give 0% to 100%");
    }
    Ok(percent / 100.0)
}

fn precision(text: &str) -> Result<f64> {
    let percent = percent(text)? * 100.0;
    if !(0.5..=50.0).contains(&percent) {
        bail!("`{text}` is out of bounds: give 0.5% to 50%");
    }
    Ok(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_rates_and_ranges_of_rates() {
        let read = |text| steps(text).unwrap().0;
        assert_eq!(read("120,500..2000/500"), [120.0, 500.0, 1000.0, 1500.0, 2000.0]);
        assert_eq!(read("0.1..0.3/0.1").len(), 3, "rounding loses none");
        assert_eq!(read("5..5/1"), [5.0]);
        for bad in ["", "0", "-5", "5..1/1", "1..5", "1..5/0", "1..1e9/1", "x", "1,,2", "nan"] {
            assert!(steps(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stages_are_times_and_rates() {
        let Stages(read) = stages("10s:100,500ms:1000").unwrap();
        let times: Vec<_> = read.iter().map(|stage| stage.lasting.as_millis()).collect();
        assert_eq!(times, [10_000, 500]);
        assert_eq!(read[1].to_rps, 1000.0);
        for bad in ["", "10s", "10s:x", "x:100", "10s:100,", "10s:inf"] {
            assert!(stages(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_percent() {
        assert_eq!(percent("0.1%").unwrap(), 0.001);
        assert_eq!(percent("50").unwrap(), 0.5);
        assert!(percent("101%").is_err() && percent("x").is_err());
    }
}
