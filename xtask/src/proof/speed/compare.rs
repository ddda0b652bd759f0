//! Answers questions from records: ratios by block, their interval, and what it reaches.

use std::collections::BTreeSet;

use serde::Serialize;
use tollway_record::compare::SAMPLES_BEYOND_IN_BLOCK;
use tollway_record::histogram::samples_beyond;
use tollway_record::interval::{Interval, interval};
use tollway_record::mixture::Mixture;
use tollway_record::record::{Layout, Row, Topology};
use tollway_record::{Block, Histogram, Record};

use super::parts::Records;
use super::questions::{Bound, Figure, Question, questions};

/// Processes that are no part of a subject.
pub(super) const OTHERS: [&str; 4] = ["app", "load", "link", "control-planes"];
/// Blocks in which something else disturbed one of those compared count only where fewer than so
/// many others are left.
const ENOUGH: usize = 5;
/// Less than this, added to p99, counts as none, microseconds.
const LEAST_ADDED_US: f64 = 1.0;

/// A question and what was found.
#[derive(Serialize)]
pub(super) struct Answer {
    #[serde(skip)]
    part: &'static str,
    pub(super) work: String,
    pub(super) figure: Figure,
    pub(super) layout: Layout,
    pub(super) must: String,
    pub(super) goal: String,
    /// Absent where it could not be measured.
    #[serde(flatten)]
    pub(super) found: Option<Found>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Found {
    /// The best of the others at it.
    pub(super) beside: &'static str,
    pub(super) ours: f64,
    pub(super) theirs: f64,
    pub(super) ratio: f64,
    pub(super) ratio_ci95: Option<[f64; 2]>,
    /// How many blocks it is from, and how many of them were disturbed.
    pub(super) blocks: usize,
    pub(super) disturbed: usize,
    pub(super) reached: &'static str,
}

/// Answers all questions; one that could not be measured has the reason.
pub(super) fn answers(records: &Records) -> Vec<Answer> {
    let answer = |question: Question| {
        let found = records.of(question.part).and_then(|record| worst(record, &question));
        let (must, goal) = question.bounds();
        let (found, lost) = match found {
            Ok(found) => (Some(found), None),
            Err(why) => (None, Some(why)),
        };
        let Question { part, work, figure, layout, .. } = question;
        Answer { part, work, figure, layout, must, goal, found, lost }
    };
    questions().into_iter().map(answer).collect()
}

impl Answer {
    /// Whether it is of a path over distance, which has a table of its own.
    pub(super) fn is_far(&self) -> bool {
        ["far", "ways"].iter().any(|name| self.part.starts_with(name))
    }
}

impl Question {
    /// What must be reached and what is hoped for, in words.
    fn bounds(&self) -> (String, String) {
        let sign = if self.figure.is_rate() { '≥' } else { '≤' };
        match self.bound {
            Bound::Ratio { must, goal } => (format!("{sign} {must}"), format!("{sign} {goal}")),
            Bound::Near => ("≤ 1.05 and 1 ms".to_owned(), "< 1".to_owned()),
            Bound::None => ("–".to_owned(), "–".to_owned()),
        }
    }
}

/// The answer with the competitor that leaves us the smallest margin.
fn worst(record: &Record, question: &Question) -> Result<Found, String> {
    let mut worst: Option<Found> = None;
    for beside in question.theirs {
        let Some(found) = compared(record, question, beside) else { continue };
        let is_worse = |than: &Found| {
            let is_less = found.ratio < than.ratio;
            if question.figure.is_rate() { is_less } else { !is_less }
        };
        if worst.as_ref().is_none_or(is_worse) {
            worst = Some(found);
        }
    }
    worst.ok_or_else(|| {
        let (ours, theirs) = (question.ours, question.theirs.join(" and "));
        format!("{ours} and {theirs} have no block in common in which both were measured")
    })
}

fn compared(record: &Record, question: &Question, beside: &'static str) -> Option<Found> {
    let sides = Sides {
        ours: question.row(record, question.ours)?,
        theirs: question.row(record, beside)?,
        base: if question.figure.is_added() { question.row(record, question.base) } else { None },
    };
    let numbers = sides.blocks();
    let compared = match question.figure.merged_quantile() {
        Some(quantile) => sides.mixed(question.figure, quantile, &numbers),
        None => sides.by_block(question.figure, &numbers),
    }?;
    let (ratio, ratio_ci95) = compared.ratio(|ours, theirs| ours / theirs);
    let reached = match question.bound {
        Bound::None => "–",
        Bound::Ratio { must, goal } => {
            let is_rate = question.figure.is_rate();
            reached(reaches(ratio_ci95, must, is_rate), reaches(ratio_ci95, goal, is_rate))
        }
        Bound::Near => {
            let (_, of_allowed) = compared.ratio(|ours, theirs| ours / (theirs * 1.05 + 1e3));
            let is_less = ratio_ci95.is_some_and(|[_, high]| high < 1.0);
            reached(reaches(of_allowed, 1.0, false), is_less)
        }
    };
    let (ours, theirs) = compared.values();
    let (blocks, disturbed) = (numbers.len(), sides.disturbed(&numbers));
    Some(Found { beside, ours, theirs, ratio, ratio_ci95, blocks, disturbed, reached })
}

/// Whether the whole interval is on the right side of a bound.
fn reaches(ratio_ci95: Option<[f64; 2]>, bound: f64, is_rate: bool) -> bool {
    ratio_ci95.is_some_and(|[low, high]| if is_rate { low >= bound } else { high <= bound })
}

fn reached(must: bool, goal: bool) -> &'static str {
    match (must, goal) {
        (_, true) => "goal",
        (true, false) => "must",
        (false, false) => "no",
    }
}

impl Question {
    fn row<'a>(&self, record: &'a Record, subject: &str) -> Option<&'a Row> {
        row_of(record, (self.case, self.network, self.layout), subject)
    }
}

/// The row of a subject, by name and variant.
pub(super) fn row_of<'a>(
    record: &'a Record,
    (case, network, layout): (&str, Topology, Layout),
    subject: &str,
) -> Option<&'a Row> {
    record.rows.iter().find(|row| {
        let known = &row.conditions;
        (known.case.as_str(), known.topology, known.layout, name_of(row))
            == (case, network, layout, subject)
    })
}

/// The subject as the scenario names it.
pub(super) fn name_of(row: &Row) -> &str {
    row.conditions.id.split('/').nth(2).unwrap_or_default()
}

/// What is held against each other.
struct Sides<'a> {
    ours: &'a Row,
    theirs: &'a Row,
    base: Option<&'a Row>,
}

/// Values of ours and theirs over the blocks that they have in common.
enum Compared {
    /// A pair for each block.
    Blocks(Vec<(f64, f64)>),
    /// A quantile of all blocks together.
    Mixed(Mixed),
}

struct Mixed {
    quantile: f64,
    blocks: usize,
    /// Whether each block has the samples that an interval needs.
    is_enough: bool,
    ours: Mixture,
    theirs: Mixture,
    base: Option<Mixture>,
}

impl Sides<'_> {
    /// Numbers of the blocks that count, of those that all have.
    fn blocks(&self) -> Vec<u32> {
        counted(self.common(), |number| self.is_disturbed(number))
    }

    fn disturbed(&self, numbers: &[u32]) -> usize {
        numbers.iter().filter(|number| self.is_disturbed(**number)).count()
    }

    /// Whether something else disturbed one of those compared in a block; what they measured does
    /// not count then.
    fn is_disturbed(&self, number: u32) -> bool {
        let rows = [Some(self.ours), Some(self.theirs), self.base];
        let mut blocks = rows.into_iter().flatten().filter_map(|row| block_of(row, number));
        blocks.any(|block| !block.outside_gate.is_empty())
    }

    fn common(&self) -> Vec<u32> {
        let has = |row: &Row, number| row.blocks.iter().any(|block| block.block == number);
        let numbers: BTreeSet<u32> = self.ours.blocks.iter().map(|block| block.block).collect();
        let common = |number: &u32| {
            has(self.theirs, *number) && self.base.is_none_or(|base| has(base, *number))
        };
        numbers.into_iter().filter(common).collect()
    }

    fn by_block(&self, figure: Figure, numbers: &[u32]) -> Option<Compared> {
        let pair = |number: &u32| {
            let number = *number;
            let base = self.base.and_then(|base| block_of(base, number));
            let value = |row| figure.of(block_of(row, number)?, base);
            Some((value(self.ours)?, value(self.theirs)?))
        };
        let pairs = numbers.iter().filter_map(pair);
        let pairs: Vec<_> = pairs.filter(|(ours, theirs)| *ours > 0.0 && *theirs > 0.0).collect();
        (!pairs.is_empty()).then_some(Compared::Blocks(pairs))
    }

    fn mixed(&self, figure: Figure, quantile: f64, numbers: &[u32]) -> Option<Compared> {
        let mut is_enough = true;
        let mut mixture = |row: &Row| {
            let of = |number: &u32| block_of(row, *number)?.traffic.latencies().ok();
            let blocks = numbers.iter().map(of).collect::<Option<Vec<_>>>()?;
            let beyond = |block: &Histogram| samples_beyond(block.n(), quantile);
            is_enough &= blocks.iter().all(|block| beyond(block) >= SAMPLES_BEYOND_IN_BLOCK);
            blocks.iter().any(|block| block.n() > 0).then(|| Mixture::of(&blocks))
        };
        let base = if figure.is_added() { Some(mixture(self.base?)?) } else { None };
        let (ours, theirs) = (mixture(self.ours)?, mixture(self.theirs)?);
        let blocks = numbers.len();
        Some(Compared::Mixed(Mixed { quantile, blocks, is_enough, ours, theirs, base }))
    }
}

/// Those that nothing disturbed, where they are enough; else all of them.
fn counted(common: Vec<u32>, is_disturbed: impl Fn(u32) -> bool) -> Vec<u32> {
    let quiet: Vec<u32> = common.iter().copied().filter(|of| !is_disturbed(*of)).collect();
    if quiet.len() >= ENOUGH { quiet } else { common }
}

impl Compared {
    fn values(&self) -> (f64, f64) {
        match self {
            Self::Blocks(pairs) => (
                median(pairs.iter().map(|(ours, _)| *ours)),
                median(pairs.iter().map(|(_, theirs)| *theirs)),
            ),
            Self::Mixed(mixed) => mixed.values(&vec![1; mixed.blocks]),
        }
    }

    /// One compared with the other: the median of the blocks and the interval of their geometric
    /// mean, or the ratio over all blocks together.
    fn ratio(&self, held: fn(f64, f64) -> f64) -> (f64, Option<[f64; 2]>) {
        let log = |(ours, theirs): (f64, f64)| held(ours, theirs).ln();
        let (log_ratio, found) = match self {
            Self::Blocks(pairs) => {
                let logs: Vec<f64> = pairs.iter().map(|pair| log(*pair)).collect();
                let found = interval(logs.len(), 1, |weights| {
                    let each = logs.iter().zip(weights).map(|(log, w)| log * f64::from(*w));
                    each.sum::<f64>() / f64::from(weights.iter().sum::<u32>())
                });
                (median(logs.into_iter()), found)
            }
            Self::Mixed(mixed) => {
                let found = interval(mixed.blocks, 1, |weights| log(mixed.values(weights)));
                let ci95 = found.ci95.filter(|_| mixed.is_enough);
                (found.estimate, Interval { ci95, ..found })
            }
        };
        (log_ratio.exp(), found.ci95.map(|ends| ends.map(f64::exp)))
    }
}

impl Mixed {
    /// Of ours and theirs when each block counts as often as its weight.
    fn values(&self, weights: &[u32]) -> (f64, f64) {
        let at = |mixture: &Mixture| mixture.quantile_us(self.quantile, weights);
        let (ours, theirs) = (at(&self.ours), at(&self.theirs));
        let Some(base) = self.base.as_ref().map(at) else { return (ours, theirs) };
        ((ours - base).max(LEAST_ADDED_US), (theirs - base).max(LEAST_ADDED_US))
    }
}

/// The block of a row with this number, if it has it.
pub(super) fn block_of(row: &Row, number: u32) -> Option<&Block> {
    row.blocks.iter().find(|block| block.block == number)
}

impl Figure {
    /// What a block has of it; `base` is the same block of what time is added to.
    pub(super) fn of(self, block: &Block, base: Option<&Block>) -> Option<f64> {
        let latency = |of: fn(&Block) -> Option<f64>| {
            let base = if self.is_added() { of(base?)? } else { 0.0 };
            Some(of(block)? - base)
        };
        match self {
            Self::Cpu => Some(cpu_us(block)),
            Self::GatewayCpu => block.cost.cpu_us_per_request.get("gateway").copied(),
            Self::Rate => Some(block.traffic.achieved_rps),
            Self::Throughput => {
                Some(block.traffic.bytes.total() as f64 * 8.0 / block.traffic.duration_s)
            }
            Self::AddedMean => latency(|block| block.traffic.latency_us.mean),
            Self::AddedP50 | Self::P50 => latency(|block| block.traffic.latency_us.p50),
            Self::AddedP99 | Self::P99 => latency(|block| block.traffic.latency_us.p99),
        }
    }
}

/// Of the subject's own processes.
fn cpu_us(block: &Block) -> f64 {
    let all = &block.cost.cpu_us_per_request;
    all.iter().filter(|(name, _)| !OTHERS.contains(&name.as_str())).map(|(_, us)| us).sum()
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ratio_ci95: [f64; 2], is_rate: bool) -> &'static str {
        let (must, goal) = if is_rate { (1.15, 1.35) } else { (0.7, 0.5) };
        let reaches = |bound| reaches(Some(ratio_ci95), bound, is_rate);
        reached(reaches(must), reaches(goal))
    }

    #[test]
    fn a_bound_is_reached_by_the_whole_interval() {
        assert_eq!(of([0.40, 0.49], false), "goal");
        assert_eq!(of([0.45, 0.55], false), "must");
        assert_eq!(of([0.45, 0.71], false), "no");
        assert_eq!(of([1.36, 1.90], true), "goal");
        assert_eq!(of([1.20, 1.90], true), "must");
        assert_eq!(of([1.10, 1.90], true), "no");
        assert!(!reaches(None, 1.0, true));
    }

    #[test]
    fn disturbed_blocks_are_left_out_where_others_are_enough() {
        let counted = |disturbed: &[u32]| counted((0..7).collect(), |of| disturbed.contains(&of));
        assert_eq!(counted(&[]).len(), 7);
        assert_eq!(counted(&[1, 6]), [0, 2, 3, 4, 5]);
        assert_eq!(counted(&[1, 2, 6]).len(), 7);
    }

    #[test]
    fn added_quantiles_are_those_of_all_blocks_together() {
        let block = |us: u64| {
            let mut block = Histogram::new();
            block.record_n(us * 1_000, 10_000);
            block
        };
        let mixture = |us: u64| Mixture::of(&[block(us), block(us + 2), block(us + 4)]);
        let (ours, theirs, base) = (mixture(300), mixture(500), Some(mixture(100)));
        let mixed = Mixed { quantile: 0.99, blocks: 3, is_enough: true, ours, theirs, base };
        let compared = Compared::Mixed(mixed);
        let (ratio, ci95) = compared.ratio(|ours, theirs| ours / theirs);
        assert!((ratio - 0.5).abs() < 0.01, "{ratio}");
        let [low, high] = ci95.unwrap();
        assert!(low > 0.45 && high < 0.55, "{low} to {high}");
    }
}
