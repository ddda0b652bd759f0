//! How a condition is written: `FIGURE RELATION NUMBER UNIT`.

use std::str::FromStr;

use thiserror::Error;

use super::{Figure, Relation, Statistic, Threshold, Unit};

/// Phases that have latencies.
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

/// Where and why a condition cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no condition: at column {column}, {problem}")]
pub struct ThresholdError {
    pub text: String,
    /// From 1.
    pub column: usize,
    pub problem: String,
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    /// Such as `p99>5ms`, `error_rate>=0.1%`, `rps<900`.
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
    fn a_malformed_threshold_is_reported_with_its_column() {
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

    fn check(text: &str, figure: Figure, relation: Relation, limit: f64) {
        let read: Threshold = text.parse().unwrap();
        assert_eq!((read.figure, read.relation), (figure, relation), "{text}");
        assert!((read.limit - limit).abs() < 1e-9 * limit.max(1.0), "{text}: {}", read.limit);
    }
}
