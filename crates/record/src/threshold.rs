//! Conditions on a run's result, such as `p99>5ms`: what `--fail-if` and `--slo` take.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::histogram::{Histogram, HistogramError, SAMPLES_BEYOND, samples_beyond};
use crate::run::RunResult;
use crate::traffic::LatencyUs;

/// Phases whose latencies can be asked for.
const PHASES: [&str; 9] = [
    "blocked",
    "connecting",
    "tls_handshaking",
    "sending",
    "waiting",
    "receiving",
    "connect",
    "tls",
    "first_message",
];

/// Most decimal places of a percentile: `p99.999`.
const MAX_PERCENTILE_DECIMALS: usize = 3;

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

/// Where and why a condition cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no condition: at column {column}, {problem}")]
pub struct ThresholdError {
    pub text: String,
    /// From 1.
    pub column: usize,
    pub problem: String,
}

/// A condition and what a result says to it.
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
    /// Holds the condition against a result. Percentiles are judged however few samples lie
    /// beyond them, and the judgement says so.
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
    pub fn told(&self) -> String {
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

impl FromStr for Threshold {
    type Err = ThresholdError;

    /// `FIGURE RELATION NUMBER UNIT`, such as `p99>5ms`, `error_rate>=0.1%`, `rps<900`.
    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let refuse = |at: usize, problem: String| ThresholdError {
            text: text.to_owned(),
            column: text[..at].chars().count() + 1,
            problem,
        };
        let relation_at = text.find(['<', '>', '=', '!']).ok_or_else(|| {
            refuse(text.len(), "a relation is missing: write it as 'p99>5ms'".to_owned())
        })?;
        let (name, rest) = text.split_at(relation_at);
        let figure = figure(name.trim()).map_err(|problem| refuse(0, problem))?;
        let (relation, length) = match rest.as_bytes() {
            [b'>', b'=', ..] => (Relation::AtLeast, 2),
            [b'<', b'=', ..] => (Relation::AtMost, 2),
            [b'>', ..] => (Relation::Above, 1),
            [b'<', ..] => (Relation::Below, 1),
            _ => return Err(refuse(relation_at, "the relation is one of > >= < <=".to_owned())),
        };
        let limit_text = &rest[length..];
        let number_at = relation_at + length + (limit_text.len() - limit_text.trim_start().len());
        let limit = limit(limit_text.trim(), figure.unit())
            .map_err(|(within, problem)| refuse(number_at + within, problem))?;
        let written = text.split_whitespace().collect();
        Ok(Self { text: written, figure, relation, limit })
    }
}

fn figure(name: &str) -> Result<Figure, String> {
    match name {
        "errors" => return Ok(Figure::Errors),
        "error_rate" => return Ok(Figure::ErrorFraction),
        "dropped" => return Ok(Figure::Dropped),
        "unfinished" => return Ok(Figure::Unfinished),
        "rps" => return Ok(Figure::Rate),
        _ => {}
    }
    if let Some(statistic) = statistic(name) {
        return Ok(Figure::Response(statistic));
    }
    let of = name.rsplit_once('_').and_then(|(of, last)| Some((of, statistic(last)?)));
    match of {
        Some(("service", statistic)) => return Ok(Figure::Service(statistic)),
        Some((of, statistic)) => {
            if let Some(phase) = PHASES.iter().find(|phase| **phase == of) {
                if !statistic.is_in_summary() {
                    return Err("phases have mean, p50, p75, p90, p99, p99.9 and max".to_owned());
                }
                return Ok(Figure::Phase(phase, statistic));
            }
        }
        None => {}
    }
    Err(format!(
        "{name:?} is not a figure: there are mean, p50 … p99.9, max, with service_ or a phase \
         ({}) before it, errors, error_rate, dropped, unfinished and rps",
        PHASES[..6].join("_, ") + "_"
    ))
}

fn statistic(name: &str) -> Option<Statistic> {
    match name {
        "mean" => return Some(Statistic::Mean),
        "max" => return Some(Statistic::Max),
        _ => {}
    }
    let digits = name.strip_prefix('p')?;
    let (_, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let percent: f64 = digits.parse().ok().filter(|_| plain)?;
    let sensible = percent > 0.0 && percent < 100.0 && decimals.len() <= MAX_PERCENTILE_DECIMALS;
    // Rounded, so that 99.9 / 100 is the 0.999 of a summary.
    sensible.then(|| Statistic::Quantile((percent * 1e3).round() / 1e5))
}

/// The number in the figure's base unit; an error with where it is.
fn limit(text: &str, unit: Unit) -> Result<f64, (usize, String)> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let number: f64 = digits
        .parse()
        .map_err(|_| (0, format!("{text:?} does not begin with a number of 0 or more")))?;
    let suffix = suffix.trim_start();
    let scale = match (unit, suffix) {
        (Unit::Time, "us" | "µs") => 1.0,
        (Unit::Time, "ms") => 1e3,
        (Unit::Time, "s") => 1e6,
        (Unit::Time, "") => return Err((split, "a time needs its unit: us, ms or s".to_owned())),
        (Unit::Fraction, "%") => 1e-2,
        (Unit::Fraction, "") => {
            return Err((split, "a share needs its unit: %, as in 0.1%".to_owned()));
        }
        (Unit::PerSecond, "" | "/s") | (Unit::Count, "") => 1.0,
        (Unit::Time, other) => {
            return Err((split, format!("{other:?} is no unit of time: us, ms or s")));
        }
        (Unit::Fraction, other) => return Err((split, format!("{other:?} is not %"))),
        (Unit::PerSecond | Unit::Count, other) => {
            return Err((split, format!("{other:?} is too much: a plain number is expected")));
        }
    };
    Ok(number * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::run_of;

    #[test]
    fn figures_relations_and_units_are_read() {
        check("p99>5ms", Figure::Response(Statistic::Quantile(0.99)), Relation::Above, 5e3);
        check(
            "p99.9 >= 1.5 s",
            Figure::Response(Statistic::Quantile(0.999)),
            Relation::AtLeast,
            1.5e6,
        );
        check(
            "service_p50<200us",
            Figure::Service(Statistic::Quantile(0.5)),
            Relation::Below,
            200.0,
        );
        check("mean<=1ms", Figure::Response(Statistic::Mean), Relation::AtMost, 1e3);
        check(
            "tls_handshaking_max>9ms",
            Figure::Phase("tls_handshaking", Statistic::Max),
            Relation::Above,
            9e3,
        );
        check("errors>0", Figure::Errors, Relation::Above, 0.0);
        check("error_rate>0.1%", Figure::ErrorFraction, Relation::Above, 0.001);
        check("rps<900/s", Figure::Rate, Relation::Below, 900.0);
    }

    #[test]
    fn what_cannot_be_read_is_told_with_its_column() {
        for (text, column, says) in [
            ("p99", 4, "a relation is missing"),
            ("", 1, "a relation is missing"),
            ("p101>1ms", 1, "is not a figure"),
            ("p99.1234>1ms", 1, "is not a figure"),
            ("pig>1ms", 1, "is not a figure"),
            ("wait_p99>1ms", 1, "is not a figure"),
            ("waiting_p95>1ms", 1, "phases have"),
            ("p99>5", 6, "a time needs its unit"),
            ("p99 > 5 min", 8, "no unit of time"),
            ("p99>fast", 5, "does not begin with a number"),
            ("p99>-1ms", 5, "does not begin with a number"),
            ("p99!=1ms", 4, "the relation is one of"),
            ("p99==1ms", 4, "the relation is one of"),
            ("error_rate>1", 13, "a share needs its unit"),
            ("errors>1%", 9, "a plain number"),
        ] {
            let error = text.parse::<Threshold>().unwrap_err();
            assert_eq!(error.column, column, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn results_are_judged_by_what_was_measured() {
        let mut latencies = Histogram::new();
        latencies.record_n(1_000_000, 98_000);
        latencies.record_n(9_000_000, 2_000);
        let mut run = run_of(&latencies);
        run.traffic.errors = 100;
        for (text, fired, told) in [
            ("p99>5ms", true, "p99>5ms: 9.00 ms"),
            ("p50>5ms", false, "p50>5ms: 1.00 ms"),
            ("max>=9ms", true, "max>=9ms: 9.00 ms"),
            ("errors>=100", true, "errors>=100: 100"),
            ("error_rate>0.09%", true, "error_rate>0.09%: 0.100 %"),
            ("error_rate>0.1%", false, "error_rate>0.1%: 0.100 %"),
        ] {
            let judgement = text.parse::<Threshold>().unwrap().judge(&run).unwrap();
            assert_eq!(judgement.fired, fired, "{text}");
            assert_eq!(judgement.told(), told);
        }
        let none = "connecting_p99>1ms".parse::<Threshold>().unwrap().judge(&run).unwrap();
        assert_eq!((none.value, none.fired), (None, false));
    }

    #[test]
    fn few_samples_are_judged_and_told() {
        let mut latencies = Histogram::new();
        latencies.record_n(1_000_000, 200);
        let judgement = "p99>5ms".parse::<Threshold>().unwrap().judge(&run_of(&latencies)).unwrap();
        assert!(judgement.few_samples && judgement.told().contains("too few"));
        let nothing = "p99>5ms".parse::<Threshold>().unwrap().judge(&run_of(&Histogram::new()));
        assert_eq!(nothing.unwrap().value, None);
    }

    fn check(text: &str, figure: Figure, relation: Relation, limit: f64) {
        let read: Threshold = text.parse().unwrap();
        assert_eq!((read.figure, read.relation), (figure, relation), "{text}");
        assert!((read.limit - limit).abs() < 1e-9 * limit.max(1.0), "{text}: {}", read.limit);
    }
}
