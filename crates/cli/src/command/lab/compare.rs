//! `tollway lab compare A.json B.json`: what differs between two records of the same scenario.
//!
//! Rows are matched by id and compared block by block. The blocks of two experiments were not
//! interleaved, so a change of the machine in between counts as a difference: run both again,
//! alternately, before a small one is believed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tollway_model::ErrorCode;
use tollway_record::compare::{CompareOptions, DEFAULT_MARGIN_PCT, compare};
use tollway_record::record::{Comparison, Metric, Question, Verdict};
use tollway_record::{CompareError, Record};

use super::write_report;
use crate::failure::Failure;

/// Exit status when a threshold was missed.
const THRESHOLD_MISSED: u8 = 99;
/// Seed of the bootstrap: the same two files give the same answer.
const SEED: u64 = 1;

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// The record that the other is held against.
    #[arg(value_name = "A.json")]
    baseline: PathBuf,
    /// The record that is judged.
    #[arg(value_name = "B.json")]
    judged: PathBuf,
    /// Exit with 99 when a row of B is worse: `slower` by its verdict, or `METRIC>PERCENT%`
    /// where the whole interval lies above, as in `p99>10%`; METRIC is mean, p50, p90, p99, cpu,
    /// time-per-answer or time-per-megabyte. Can be given several times.
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Condition>,
    /// Differences within this many percent count as the same.
    #[arg(long, value_name = "PERCENT", default_value_t = DEFAULT_MARGIN_PCT)]
    margin_pct: f64,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// When the comparison fails.
#[derive(Clone, Debug, PartialEq)]
enum Condition {
    Slower,
    Above { metric: Metric, percent: f64 },
}

#[derive(Serialize)]
struct Compared {
    comparisons: Vec<Comparison>,
    /// Rows that only one of the records has.
    unmatched: Vec<String>,
    /// Conditions that held, in words.
    failed: Vec<String>,
}

pub(super) fn run(args: &CompareArgs) -> Result<ExitCode> {
    let (a, b) = (read(&args.baseline)?, read(&args.judged)?);
    let compared = compare_records(&a, &b, args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&compared)?);
    } else {
        print!("{}", text(&compared, &a, &b));
    }
    Ok(if compared.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(THRESHOLD_MISSED)
    })
}

fn read(path: &Path) -> Result<Record> {
    Record::from_json(&write_report::text_in(path)?)
        .with_context(|| format!("{} is no record", path.display()))
}

fn compare_records(a: &Record, b: &Record, args: &CompareArgs) -> Result<Compared> {
    let options = CompareOptions { seed: SEED, margin_pct: args.margin_pct };
    let (mut comparisons, mut unmatched) = (Vec::new(), Vec::new());
    for row in &b.rows {
        let Some(base) = a.row(&row.conditions.id) else {
            unmatched.push(row.conditions.id.clone());
            continue;
        };
        match compare(row, base, Question::AgainstBaseline, options) {
            Ok(found) => comparisons.extend(found),
            Err(CompareError::NoCommonBlock { .. }) => unmatched.push(row.conditions.id.clone()),
            Err(damaged @ CompareError::Histogram { .. }) => return Err(damaged.into()),
        }
    }
    let gone = a.rows.iter().filter(|row| b.row(&row.conditions.id).is_none());
    unmatched.extend(gone.map(|row| row.conditions.id.clone()));
    if comparisons.is_empty() {
        let what = format!(
            "the records share no row: A is `{}`, B is `{}`; compare records of one scenario",
            a.scenario, b.scenario
        );
        return Err(Failure::new(ErrorCode::BadConfiguration, what).into());
    }
    let failed = args
        .fail_if
        .iter()
        .flat_map(|condition| comparisons.iter().filter_map(|found| condition.met(found)))
        .collect();
    Ok(Compared { comparisons, unmatched, failed })
}

impl Condition {
    /// Says so when the comparison is as bad as the condition names.
    fn met(&self, found: &Comparison) -> Option<String> {
        let worse = match self {
            Self::Slower => found.verdict == Verdict::Slower,
            Self::Above { metric, percent } => {
                found.metric == *metric
                    && found.ratio_ci95.is_some_and(|[lo, _]| lo > 1.0 + percent / 100.0)
            }
        };
        worse.then(|| format!("{} {}: {}", found.row, found.metric, change(found)))
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "slower" {
            return Ok(Self::Slower);
        }
        let wrong = || "use `slower` or METRIC>PERCENT%, as in p99>10%".to_owned();
        let (metric, percent) = text.split_once('>').ok_or_else(wrong)?;
        let percent = percent.trim().strip_suffix('%').ok_or_else(wrong)?;
        let percent = percent.trim().parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0);
        let percent = percent.ok_or_else(wrong)?;
        let metric = match metric.trim() {
            "mean" => Metric::LatencyMean,
            "p50" => Metric::LatencyP50,
            "p90" => Metric::LatencyP90,
            "p99" => Metric::LatencyP99,
            "cpu" => Metric::MachineCpu,
            "time-per-answer" => Metric::TimePerAnswer,
            "time-per-megabyte" => Metric::TimePerMegabyte,
            "time-per-packet" => Metric::TimePerPacket,
            _ => return Err(wrong()),
        };
        Ok(Self::Above { metric, percent })
    }
}

fn text(compared: &Compared, a: &Record, b: &Record) -> String {
    let mut text =
        format!("A {} {}\nB {} {}\n", a.scenario, a.started_at, b.scenario, b.started_at);
    if a.machine != b.machine
        && (&a.machine.cpu_model, a.machine.cpus) != (&b.machine.cpu_model, b.machine.cpus)
    {
        text += "The records are of different machines.\n";
    }
    let mut row = "";
    for found in &compared.comparisons {
        if found.row != row {
            row = &found.row;
            text += &format!("\n{row}\n");
        }
        let change = change(found);
        text += &format!("  {:<24} {change:<28} {}\n", found.metric, found.verdict);
        text += &highest_rates(found, a, b).unwrap_or_default();
    }
    for row in &compared.unmatched {
        text += &format!("\n{row}: not to be compared, since only one record answers it\n");
    }
    for failed in &compared.failed {
        text += &format!("\nFAILED {failed}");
    }
    if !compared.failed.is_empty() {
        text.push('\n');
    }
    text
}

/// The rates that two searches found, below their comparison.
fn highest_rates(found: &Comparison, a: &Record, b: &Record) -> Option<String> {
    let interval = |record: &Record, row: &str| {
        let search = record.row(row)?.particulars.search.as_ref()?;
        let missed = search.missed_rps.map(|missed| format!(", not {missed:.0}"));
        Some(format!("{:.0}/s held{}", search.held_rps?, missed.unwrap_or_default()))
    };
    let (before, after) = (interval(a, &found.baseline_row)?, interval(b, &found.row)?);
    Some(format!("    A {before}; B {after}\n"))
}

/// `+3.1 % [1.0, 5.2]`: what B takes more than A.
fn change(found: &Comparison) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    match (found.ratio, found.ratio_ci95) {
        (Some(ratio), Some([lo, hi])) => {
            format!("{:+.1} % [{:+.1}, {:+.1}]", percent(ratio), percent(lo), percent(hi))
        }
        (Some(ratio), None) => format!("{:+.1} %", percent(ratio)),
        (None, _) => format!("{:+.1} µs", found.difference_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read() {
        let check = |text: &str, expected: Option<Condition>| {
            assert_eq!(text.parse().ok(), expected, "{text}");
        };
        check("slower", Some(Condition::Slower));
        let above = |metric, percent| Some(Condition::Above { metric, percent });
        check("p99>10%", above(Metric::LatencyP99, 10.0));
        check("cpu > 2.5 %", above(Metric::MachineCpu, 2.5));
        check("p99>10", None);
        check("p98>1%", None);
        check("p99>-1%", None);
        check("p99", None);
    }
}
