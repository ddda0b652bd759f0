//! Rows of the fabric: how long neighbours take from stage to stage, and what that costs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::{EncodedHistogram, Histogram, HistogramError};
use crate::interval::{Interval, interval};
use crate::neighbours::{Stage, median};
use crate::traffic::LatencyUs;

/// Some neighbours under one set of conditions, over all blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FabricRow {
    #[serde(flatten)]
    pub conditions: FabricConditions,
    /// In their order; those that there are.
    pub stages: Vec<StageFigure>,
    /// From the beginning of a round until the last neighbour of it was read in the table, and until
    /// the last agent had it.
    pub round_us: LatencyUs,
    /// From the moment at which a neighbour's write was handed over until it could be read in the
    /// table, each neighbour for itself. Absent where nothing is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_us: Option<LatencyUs>,
    /// User and system time for each neighbour, by process.
    pub cpu_us_per_entry: BTreeMap<String, f64>,
    /// Largest resident set by process; the kernel's table is in none of them.
    pub rss_bytes: BTreeMap<String, u64>,
    /// In order of `block`.
    pub blocks: Vec<FabricBlock>,
}

/// What a row is of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricConditions {
    /// Unique in the record: `watch/1000`.
    pub id: String,
    /// The scenario's case; its rows differ in `entries`, in `agents` or in `rate_per_s` alone.
    pub case: String,
    /// Neighbours of one round.
    pub entries: u64,
    /// Neighbours that were there before, where some were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u64>,
    /// How many followed, where each had to have what was written; one of them has a table in the
    /// kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<u64>,
    /// Changes per second, where rounds did not wait for each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
}

/// How long rounds took until the end of a stage: the median of the blocks' medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StageFigure {
    pub stage: Stage,
    pub total_ms: f64,
    /// Absent with fewer than two blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_ci95_ms: Option<[f64; 2]>,
    /// `total_ms` over the neighbours of a round.
    pub us_per_entry: f64,
}

/// The results of one block for a row: everything started again, and some rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricBlock {
    /// From 0.
    pub block: u32,
    pub rounds: u64,
    /// Median of the rounds, by stage.
    pub stages_us: BTreeMap<Stage, f64>,
    /// Of `round_us`.
    pub round_histogram: EncodedHistogram,
    /// Of `entry_us`.
    #[serde(default, skip_serializing_if = "EncodedHistogram::is_empty")]
    pub entry_histogram: EncodedHistogram,
    pub cpu_us_per_entry: BTreeMap<String, f64>,
    pub rss_bytes: BTreeMap<String, u64>,
    /// Time of a fixed amount of work right before: the machine's speed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_us: Option<f64>,
    /// Time the hypervisor took away meanwhile, of all CPU time, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_fraction: Option<f64>,
    /// Processors that others used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_cpu_cores: Option<f64>,
}

impl FabricRow {
    /// Puts blocks together; `seed` is of the intervals.
    ///
    /// # Errors
    /// [`HistogramError`] when a block's histogram is damaged.
    pub fn from_blocks(
        conditions: FabricConditions,
        blocks: Vec<FabricBlock>,
        seed: u64,
    ) -> Result<Self, HistogramError> {
        let entries = conditions.entries;
        let stages =
            Stage::ALL.into_iter().filter_map(|stage| figure(&blocks, stage, entries, seed));
        let stages = stages.collect();
        let rounds = merged(blocks.iter().map(|block| &block.round_histogram))?;
        let each = merged(blocks.iter().map(|block| &block.entry_histogram))?;
        let mut rss_bytes: BTreeMap<String, u64> = BTreeMap::new();
        let mut cpu: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for block in &blocks {
            for (process, bytes) in &block.rss_bytes {
                let most = rss_bytes.entry(process.clone()).or_default();
                *most = (*most).max(*bytes);
            }
            for (process, us) in &block.cpu_us_per_entry {
                cpu.entry(process.clone()).or_default().push(*us);
            }
        }
        let middle = |(process, us): (String, Vec<f64>)| Some((process, median(&us)?));
        Ok(Self {
            conditions,
            stages,
            round_us: rounds.summary(),
            entry_us: Some(each.summary()).filter(|latency| latency.n > 0),
            cpu_us_per_entry: cpu.into_iter().filter_map(middle).collect(),
            rss_bytes,
            blocks,
        })
    }

    /// The figure of a stage.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> Option<&StageFigure> {
        self.stages.iter().find(|figure| figure.stage == stage)
    }
}

fn figure(blocks: &[FabricBlock], stage: Stage, entries: u64, seed: u64) -> Option<StageFigure> {
    let medians: Vec<f64> =
        blocks.iter().filter_map(|block| block.stages_us.get(&stage).copied()).collect();
    if medians.is_empty() {
        return None;
    }
    let Interval { estimate, ci95, .. } =
        interval(medians.len(), seed, |weights| weighted_median(&medians, weights));
    Some(StageFigure {
        stage,
        total_ms: estimate / 1e3,
        // No time is below zero, as the arithmetic of few blocks may give.
        total_ci95_ms: ci95.map(|ends| ends.map(|end| end.max(0.0) / 1e3)),
        us_per_entry: estimate / entries.max(1) as f64,
    })
}

/// The median of weighted figures.
fn weighted_median(figures: &[f64], weights: &[u32]) -> f64 {
    let repeated: Vec<f64> = figures
        .iter()
        .zip(weights)
        .flat_map(|(figure, weight)| std::iter::repeat_n(*figure, *weight as usize))
        .collect();
    median(&repeated).unwrap_or_default()
}

fn merged<'a>(
    parts: impl Iterator<Item = &'a EncodedHistogram>,
) -> Result<Histogram, HistogramError> {
    let mut whole = Histogram::new();
    for part in parts.filter(|part| !part.is_empty()) {
        whole.merge(&part.decode()?);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u32, total_us: f64) -> FabricBlock {
        let mut rounds = Histogram::new();
        rounds.record((total_us * 1e3) as u64);
        FabricBlock {
            block: number,
            rounds: 1,
            stages_us: [(Stage::Received, total_us / 2.0), (Stage::Total, total_us)].into(),
            round_histogram: rounds.encode(),
            cpu_us_per_entry: [("agent".to_owned(), total_us / 100.0)].into(),
            rss_bytes: [("agent".to_owned(), u64::from(number))].into(),
            ..FabricBlock::default()
        }
    }

    #[test]
    fn blocks_are_put_together_by_their_medians() {
        let blocks = vec![block(0, 1000.0), block(1, 3000.0), block(2, 1100.0)];
        let conditions = FabricConditions { entries: 100, ..FabricConditions::default() };
        let row = FabricRow::from_blocks(conditions, blocks, 1).unwrap();
        let stages: Vec<_> = row.stages.iter().map(|figure| figure.stage).collect();
        assert_eq!(stages, [Stage::Received, Stage::Total]);
        let total = row.stage(Stage::Total).unwrap();
        assert_eq!((total.total_ms, total.us_per_entry), (1.1, 11.0));
        let [lo, hi] = total.total_ci95_ms.unwrap();
        assert!((0.0..1.1).contains(&lo) && hi > 1.1, "{lo} {hi}");
        assert_eq!((row.round_us.n, row.entry_us), (3, None));
        assert_eq!((row.cpu_us_per_entry["agent"], row.rss_bytes["agent"]), (11.0, 2));
    }

    #[test]
    fn one_block_gives_no_interval() {
        let row =
            FabricRow::from_blocks(FabricConditions::default(), vec![block(0, 7.0)], 1).unwrap();
        assert_eq!(row.stage(Stage::Total).unwrap().total_ci95_ms, None);
    }
}
