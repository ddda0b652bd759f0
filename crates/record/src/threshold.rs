//! Conditions on a run's result, such as `p99>5ms`: what `--fail-if` and `--slo` take.

mod parse;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, HistogramError, SAMPLES_BEYOND, samples_beyond};
use crate::run::RunResult;
use crate::traffic::LatencyUs;
pub use parse::ThresholdError;

/// A condition on one figure of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    /// As it was written, without spaces.
    text: String,
    figure: Figure,
    relation: Relation,
    /// In µs, requests/s, a count or a fraction.
    limit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Figure {
    Response(Statistic),
    Service(Statistic),
    Phase(&'static str, Statistic),
    Errors,
    ErrorFraction,
    Dropped,
    Unfinished,
    Rate,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Statistic {
    Mean,
    Max,
    /// From 0 to 1.
    Quantile(f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// What a figure is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Time,
    PerSecond,
    Count,
    Fraction,
}

/// A condition and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// The condition.
    pub condition: String,
    /// The figure that was measured, in `unit`; absent when nothing was.
    pub value: Option<f64>,
    /// `us`, `per_s`, `count` or `fraction`.
    pub unit: String,
    /// The condition is true. Never where nothing was measured.
    pub fired: bool,
    /// Fewer than 100 samples lie beyond the percentile: it may be chance.
    pub few_samples: bool,
}

impl Threshold {
    /// Compares the condition with a result. Percentiles are compared with any number of samples
    /// beyond them, and the result notes if there are few.
    ///
    /// # Errors
    /// [`HistogramError`] when a histogram of the result is damaged.
    pub fn judge(&self, run: &RunResult) -> Result<Judgement, HistogramError> {
        let traffic = &run.traffic;
        let (value, few_samples) = match self.figure {
            Figure::Response(statistic) => statistic.of_histogram(&traffic.latencies()?),
            Figure::Service(statistic) => statistic.of_histogram(&traffic.services()?),
            Figure::Phase(phase, statistic) => {
                let summary = traffic.phases_us.get(phase);
                (summary.and_then(|summary| statistic.of_summary(summary)), false)
            }
            Figure::Errors => (Some(traffic.errors as f64), false),
            Figure::Dropped => (Some(traffic.dropped as f64), false),
            Figure::Unfinished => (Some(traffic.unfinished as f64), false),
            Figure::ErrorFraction => {
                let scheduled = traffic.scheduled();
                let lost = scheduled.saturating_sub(traffic.requests);
                ((scheduled > 0).then(|| lost as f64 / scheduled as f64), false)
            }
            Figure::Rate => (Some(traffic.achieved_rps), false),
        };
        Ok(Judgement {
            condition: self.text.clone(),
            value,
            unit: self.figure.unit().word().to_owned(),
            fired: value.is_some_and(|value| self.relation.holds(value, self.limit)),
            few_samples,
        })
    }
}

impl Judgement {
    /// What was measured, for a person: `p99>5ms: 7.3 ms`.
    #[must_use]
    pub fn describe(&self) -> String {
        let Some(value) = self.value else {
            return format!("{}: nothing was measured", self.condition);
        };
        let value = match self.unit.as_str() {
            "us" if value < 999.5 => format!("{value:.0} µs"),
            "us" if value < 999_500.0 => format!("{:.2} ms", value / 1e3),
            "us" => format!("{:.2} s", value / 1e6),
            "per_s" => format!("{value:.0}/s"),
            "fraction" => format!("{:.3} %", value * 1e2),
            _ => format!("{value}"),
        };
        let doubt = if self.few_samples { " (of too few samples to be sure)" } else { "" };
        format!("{}: {value}{doubt}", self.condition)
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Statistic {
    fn of_histogram(self, histogram: &Histogram) -> (Option<f64>, bool) {
        let n = histogram.n();
        let us = |ns: u64| ns as f64 / 1e3;
        match self {
            Self::Mean => (histogram.mean_ns().map(|ns| ns / 1e3), false),
            Self::Max => (histogram.max_ns().map(us), false),
            Self::Quantile(quantile) => (
                (n > 0).then(|| us(histogram.raw_quantile_ns(quantile))),
                samples_beyond(n, quantile) < SAMPLES_BEYOND,
            ),
        }
    }

    /// Only the percentiles that a summary has.
    fn of_summary(self, summary: &LatencyUs) -> Option<f64> {
        match self {
            Self::Mean => summary.mean,
            Self::Max => summary.max,
            Self::Quantile(0.50) => summary.p50,
            Self::Quantile(0.75) => summary.p75,
            Self::Quantile(0.90) => summary.p90,
            Self::Quantile(0.99) => summary.p99,
            Self::Quantile(0.999) => summary.p999,
            Self::Quantile(_) => None,
        }
    }

    fn is_in_summary(self) -> bool {
        match self {
            Self::Mean | Self::Max => true,
            Self::Quantile(quantile) => [0.5, 0.75, 0.9, 0.99, 0.999].contains(&quantile),
        }
    }
}

impl Figure {
    fn unit(self) -> Unit {
        match self {
            Self::Response(_) | Self::Service(_) | Self::Phase(..) => Unit::Time,
            Self::Errors | Self::Dropped | Self::Unfinished => Unit::Count,
            Self::ErrorFraction => Unit::Fraction,
            Self::Rate => Unit::PerSecond,
        }
    }
}

impl Unit {
    fn word(self) -> &'static str {
        match self {
            Self::Time => "us",
            Self::PerSecond => "per_s",
            Self::Count => "count",
            Self::Fraction => "fraction",
        }
    }
}

impl Relation {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Above => value > limit,
            Self::AtLeast => value >= limit,
            Self::Below => value < limit,
            Self::AtMost => value <= limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::run_of;

    #[test]
    fn results_are_judged_by_what_was_measured() {
        let mut latencies = Histogram::new();
        latencies.record_n(1_000_000, 98_000);
        latencies.record_n(9_000_000, 2_000);
        let mut run = run_of(&latencies);
        run.traffic.errors = 100;
        for (text, fired, expected) in [
            ("p99>5ms", true, "p99>5ms: 9.00 ms"),
            ("p50>5ms", false, "p50>5ms: 1.00 ms"),
            ("max>=9ms", true, "max>=9ms: 9.00 ms"),
            ("errors>=100", true, "errors>=100: 100"),
            ("error_rate>0.09%", true, "error_rate>0.09%: 0.100 %"),
            ("error_rate>0.1%", false, "error_rate>0.1%: 0.100 %"),
        ] {
            let judgement = text.parse::<Threshold>().unwrap().judge(&run).unwrap();
            assert_eq!(judgement.fired, fired, "{text}");
            assert_eq!(judgement.describe(), expected);
        }
        let none = "connecting_p99>1ms".parse::<Threshold>().unwrap().judge(&run).unwrap();
        assert_eq!((none.value, none.fired), (None, false));
    }

    #[test]
    fn few_samples_are_judged_and_marked() {
        let mut latencies = Histogram::new();
        latencies.record_n(1_000_000, 200);
        let judgement = "p99>5ms".parse::<Threshold>().unwrap().judge(&run_of(&latencies)).unwrap();
        assert!(judgement.few_samples && judgement.describe().contains("too few"));
        let nothing = "p99>5ms".parse::<Threshold>().unwrap().judge(&run_of(&Histogram::new()));
        assert_eq!(nothing.unwrap().value, None);
    }
}
