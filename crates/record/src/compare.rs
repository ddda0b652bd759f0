//! Compares rows block by block: ratios and differences with intervals, and a verdict.
//!
//! Only means can be subtracted to get "added" time; the mean difference is the primary figure.
//! Quantiles are compared as what they are, differences of two quantiles of merged histograms.

mod highest;
mod throughput;

use thiserror::Error;

use crate::histogram::{Histogram, HistogramError, samples_beyond};
use crate::interval::{Interval, interval, verdict};
use crate::mixture::Mixture;
use crate::record::{Arrival, Comparison, Metric, Question, Row, Topology};

/// Samples beyond a quantile that each block must have for an interval of that quantile.
pub const SAMPLES_BEYOND_IN_BLOCK: u64 = 10;

/// Differences within this count as equal unless the caller gives another, in percent.
pub const DEFAULT_MARGIN_PCT: f64 = 5.0;

/// The subject that others are compared with.
pub const BASELINE_SUBJECT: &str = "direct";

/// How rows are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompareOptions {
    /// Of the bootstrap; keep it in the record's parameters.
    pub seed: u64,
    /// Differences within this count as the same, in percent.
    pub margin_pct: f64,
}

/// Why two rows cannot be compared.
#[derive(Debug, Error)]
pub enum CompareError {
    #[error("{row} and {baseline_row} have no block in common in which both answered requests")]
    NoCommonBlock { row: String, baseline_row: String },
    #[error("a block of {row} has a damaged histogram")]
    Histogram {
        row: String,
        #[source]
        source: HistogramError,
    },
}

impl CompareError {
    pub(crate) fn no_common_block(row: &Row, baseline: &Row) -> Self {
        Self::NoCommonBlock {
            row: row.conditions.id.clone(),
            baseline_row: baseline.conditions.id.clone(),
        }
    }
}

impl CompareOptions {
    /// The default margin and this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed, margin_pct: DEFAULT_MARGIN_PCT }
    }
}

/// Everything the rows of a record allow to say: each row against `direct` over the same path
/// ([`Question::AddedByTollway`] for `tollway`, otherwise [`Question::AgainstBaseline`]), and each
/// `direct` row of another network against `direct` within one network, same protocol
/// ([`Question::AddedByNetwork`]). Rows that answered no request in a common block are passed
/// over: [`crate::check`] speaks of them, and the other rows keep their comparisons.
///
/// # Errors
/// [`CompareError`] when a histogram is damaged.
pub fn compare_all(rows: &[Row], options: CompareOptions) -> Result<Vec<Comparison>, CompareError> {
    let mut comparisons = Vec::new();
    for row in rows.iter().filter(|row| !row.is_silent()) {
        let Some((baseline, question)) = baseline_of(row, rows) else { continue };
        match compare(row, baseline, question, options) {
            Ok(found) => comparisons.extend(found),
            Err(CompareError::NoCommonBlock { .. }) => {}
            Err(damaged @ CompareError::Histogram { .. }) => return Err(damaged),
        }
    }
    Ok(comparisons)
}

/// All metrics of one row against one baseline: the mean first, then the quantiles both rows may
/// print, then processor time where both have it, then in closed loop the time per answer. Of
/// flows, which have none of these, the time per megabyte, and of packets that per packet. Of searches, whose latencies are of
/// different rates, only the time per answer at the highest rate that held.
///
/// # Errors
/// [`CompareError`] when a histogram is damaged or the rows share no block.
pub fn compare(
    row: &Row,
    baseline: &Row,
    question: Question,
    options: CompareOptions,
) -> Result<Vec<Comparison>, CompareError> {
    let judged = |blocks: usize, metric, (ratio, difference): (Option<Interval>, Interval)| {
        let ratio_ci95 = ratio.and_then(|ratio| ratio.ci95);
        Comparison {
            row: row.conditions.id.clone(),
            baseline_row: baseline.conditions.id.clone(),
            question,
            metric,
            ratio: ratio.map(|ratio| ratio.estimate),
            ratio_ci95,
            difference_us: difference.estimate,
            difference_ci95_us: difference.ci95,
            margin_pct: options.margin_pct,
            verdict: verdict(ratio_ci95, options.margin_pct),
            method: difference.method,
            blocks: blocks as u32,
        }
    };
    if let Some(metric) = throughput::metric(row, baseline) {
        let pairs = throughput::pair_blocks(row, baseline)?;
        let found = paired_means(&pairs, options.seed);
        return Ok(vec![judged(pairs.len(), metric, found)]);
    }
    if let Some(found) = highest::pair(row, baseline) {
        let (ratio, difference) = found?;
        return Ok(vec![judged(1, Metric::TimePerAnswer, (Some(ratio), difference))]);
    }
    let pairs = pair_blocks(row, baseline)?;
    let judged = |metric, found| judged(pairs.len(), metric, found);
    let means = |value: fn(&Side) -> f64| {
        let values: Vec<_> =
            pairs.iter().map(|pair| (value(&pair.row), value(&pair.base))).collect();
        paired_means(&values, options.seed)
    };
    let mut comparisons = vec![judged(Metric::LatencyMean, means(|side| side.mean_us))];
    let mixture =
        |side: fn(&Pair) -> &Side| Mixture::of(pairs.iter().map(|pair| &side(pair).latencies));
    let steps = (mixture(|pair| &pair.row), mixture(|pair| &pair.base));
    for (metric, quantile) in QUANTILES {
        if printable(&pairs, *quantile) {
            let found = merged_quantiles(&steps, &pairs, *quantile, options.seed);
            comparisons.push(judged(*metric, found));
        }
    }
    if pairs.iter().all(|pair| pair.row.cpu_us.is_some() && pair.base.cpu_us.is_some()) {
        let cpu = means(|side| side.cpu_us.unwrap_or_default());
        comparisons.push(judged(Metric::MachineCpu, cpu));
    }
    if row.conditions.arrival == Arrival::Closed && baseline.conditions.arrival == Arrival::Closed {
        comparisons.push(judged(Metric::TimePerAnswer, means(|side| side.time_per_answer_us)));
    }
    Ok(comparisons)
}

/// The row's baseline among `rows`, and the question it answers.
fn baseline_of<'a>(row: &Row, rows: &'a [Row]) -> Option<(&'a Row, Question)> {
    let own = &row.conditions;
    let (topology, question) = if own.subject != BASELINE_SUBJECT {
        let tollway = own.subject == "tollway";
        let question = if tollway { Question::AddedByTollway } else { Question::AgainstBaseline };
        (own.topology, question)
    } else if own.topology != Topology::SameNetwork {
        (Topology::SameNetwork, Question::AddedByNetwork)
    } else {
        return None;
    };
    let fits = |other: &&Row| {
        let other = &other.conditions;
        other.subject == BASELINE_SUBJECT
            && other.topology == topology
            && (&other.case, other.protocol, other.layout, other.arrival, other.payload_bytes)
                == (&own.case, own.protocol, own.layout, own.arrival, own.payload_bytes)
    };
    rows.iter().filter(|row| !row.is_silent()).find(fits).map(|base| (base, question))
}

const QUANTILES: &[(Metric, f64)] =
    &[(Metric::LatencyP50, 0.50), (Metric::LatencyP90, 0.90), (Metric::LatencyP99, 0.99)];

/// One round in which both rows have answered requests.
struct Pair {
    row: Side,
    base: Side,
}

/// One row's part of a round; several runs of the row in it are merged.
struct Side {
    latencies: Histogram,
    mean_us: f64,
    cpu_us: Option<f64>,
    /// The window over the answers in it.
    time_per_answer_us: f64,
}

fn pair_blocks(row: &Row, baseline: &Row) -> Result<Vec<Pair>, CompareError> {
    let mut numbers: Vec<u32> = row.blocks.iter().map(|block| block.block).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut pairs = Vec::new();
    for number in numbers {
        if let (Some(row), Some(base)) = (side_of(row, number)?, side_of(baseline, number)?) {
            pairs.push(Pair { row, base });
        }
    }
    if pairs.is_empty() { Err(CompareError::no_common_block(row, baseline)) } else { Ok(pairs) }
}

fn side_of(row: &Row, number: u32) -> Result<Option<Side>, CompareError> {
    let damaged = |source| CompareError::Histogram { row: row.conditions.id.clone(), source };
    let mut latencies = Histogram::new();
    let (mut cpu_us, mut requests, mut duration_s) = (Some(0.0), 0, 0.0);
    for block in row.blocks.iter().filter(|block| block.block == number) {
        latencies.merge(&block.traffic.latencies().map_err(damaged)?);
        let of_block = block.cost.machine_cpu_us_per_request;
        cpu_us = cpu_us.zip(of_block).map(|(sum, us)| sum + us * block.traffic.requests as f64);
        requests += block.traffic.requests;
        duration_s += block.traffic.duration_s;
    }
    let Some(mean_ns) = latencies.mean_ns() else { return Ok(None) };
    let cpu_us = cpu_us.filter(|_| requests > 0).map(|sum| sum / requests as f64);
    let time_per_answer_us = duration_s * 1e6 / requests.max(1) as f64;
    Ok(Some(Side { latencies, mean_us: mean_ns / 1e3, cpu_us, time_per_answer_us }))
}

/// Ratio (geometric mean of the blocks' ratios) and difference (mean of the blocks' differences).
fn paired_means(values: &[(f64, f64)], seed: u64) -> (Option<Interval>, Interval) {
    let differences: Vec<f64> = values.iter().map(|(row, base)| row - base).collect();
    let difference = interval(values.len(), seed, |weights| weighted_mean(&differences, weights));
    let comparable = values.iter().all(|(row, base)| *row > 0.0 && *base > 0.0);
    let ratio = comparable.then(|| {
        let logs: Vec<f64> = values.iter().map(|(row, base)| (row / base).ln()).collect();
        unlog(interval(values.len(), seed, |weights| weighted_mean(&logs, weights)))
    });
    (ratio, difference)
}

/// Ratio and difference of one quantile of the merged histograms. Blocks too short for the
/// quantile give an estimate without an interval.
fn merged_quantiles(
    (row, base): &(Mixture, Mixture),
    pairs: &[Pair],
    quantile: f64,
    seed: u64,
) -> (Option<Interval>, Interval) {
    let of =
        |weights: &[u32]| (row.quantile_us(quantile, weights), base.quantile_us(quantile, weights));
    let difference = interval(pairs.len(), seed, |weights| {
        let (row, base) = of(weights);
        row - base
    });
    let ratio = unlog(interval(pairs.len(), seed, |weights| {
        let (row, base) = of(weights);
        (row / base).ln()
    }));
    let ratio = Some(ratio).filter(|ratio| ratio.estimate.is_finite());
    if long_enough(pairs, quantile) {
        (ratio, difference)
    } else {
        (ratio.map(bare), bare(difference))
    }
}

fn bare(found: Interval) -> Interval {
    Interval { ci95: None, method: None, ..found }
}

fn unlog(found: Interval) -> Interval {
    Interval {
        estimate: found.estimate.exp(),
        ci95: found.ci95.map(|ends| ends.map(f64::exp)),
        method: found.method,
    }
}

/// Whether both merged histograms may print the quantile.
fn printable(pairs: &[Pair], quantile: f64) -> bool {
    let sum = |side: fn(&Pair) -> &Side| pairs.iter().map(|pair| side(pair).latencies.n()).sum();
    let enough = |n| samples_beyond(n, quantile) >= crate::histogram::SAMPLES_BEYOND;
    enough(sum(|pair| &pair.row)) && enough(sum(|pair| &pair.base))
}

fn long_enough(pairs: &[Pair], quantile: f64) -> bool {
    pairs
        .iter()
        .flat_map(|pair| [&pair.row, &pair.base])
        .all(|side| samples_beyond(side.latencies.n(), quantile) >= SAMPLES_BEYOND_IN_BLOCK)
}

fn weighted_mean(values: &[f64], weights: &[u32]) -> f64 {
    let sum: f64 = values.iter().zip(weights).map(|(value, w)| value * f64::from(*w)).sum();
    sum / f64::from(weights.iter().sum::<u32>())
}

#[cfg(test)]
mod tests;
