//! Self-test of the verdict on recorded noise: the same app called the same way twice, in 60
//! interleaved blocks on a machine that compiled and fuzzed meanwhile (the blocks say how much
//! others used). However wild the noise, nothing may be called a difference too often.
//!
//! The data are `data/twice-direct.json`, made as [`rewrite_the_data`] says.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use tollway_record::compare::compare;
use tollway_record::record::{Block, Comparison, Cost, Metric, Question, Row, Verdict};
use tollway_record::{CompareOptions, Histogram, Record, Traffic};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/twice-direct.json");

/// Blocks of an experiment: those of the built-in scenarios at full length.
const FULL_BLOCKS: usize = 20;

#[test]
fn noise_is_seldom_called_a_difference() {
    let verdicts = experiments(50, 1.0);
    let wrong = count(&verdicts, Verdict::Slower) + count(&verdicts, Verdict::Faster);
    // 95 % intervals are wrong once in twenty; more than five of fifty are the method's fault.
    assert!(wrong <= 5, "{wrong} of 50: {verdicts:?}");
}

#[test]
fn what_takes_five_times_as_long_is_found_in_all_that_noise() {
    let verdicts = experiments(10, 5.0);
    let slower = count(&verdicts, Verdict::Slower);
    assert!(slower >= 9, "{slower} of 10: {verdicts:?}");
}

/// The verdicts on the mean of so many experiments, the second of two runs taking `factor` as long as it did.
fn experiments(seeds: u64, factor: f64) -> Vec<Verdict> {
    let record = Record::from_json(&std::fs::read_to_string(DATA).unwrap()).unwrap();
    let [first, second] = &record.rows[..] else { panic!("two rows") };
    (0..seeds).map(|seed| experiment(first, second, factor, seed)).collect()
}

/// Twenty blocks by the seed. It also says which of a block's two runs is called the first: what
/// little the whole recording holds of a difference must not stand in every experiment.
fn experiment(first: &Row, second: &Row, factor: f64, seed: u64) -> Verdict {
    let mut random = Random::new(seed);
    let (mut base, mut judged) = (Vec::new(), Vec::new());
    for index in random.draw(first.blocks.len()) {
        let mut pair = [first.blocks[index].clone(), second.blocks[index].clone()];
        assert_eq!(pair[0].block, pair[1].block);
        if random.below(2) == 1 {
            pair.reverse();
        }
        let [of_base, mut of_judged] = pair;
        slow_down(&mut of_judged, factor);
        base.push(of_base);
        judged.push(of_judged);
    }
    // Rows are compared by their blocks alone: what they make together is not needed.
    let base = Row { blocks: base, ..first.clone() };
    let judged = Row { blocks: judged, ..second.clone() };
    let options = CompareOptions::seeded(seed);
    mean_of(&compare(&judged, &base, Question::AgainstBaseline, options).unwrap())
}

fn slow_down(block: &mut Block, factor: f64) {
    let mut slower = Histogram::new();
    for (ns, count) in block.traffic.latencies().unwrap().steps() {
        slower.record_n((ns as f64 * factor) as u64, count);
    }
    let mean = block.traffic.latency_us.mean.map(|mean| mean * factor);
    block.traffic.set_latencies(&slower);
    block.traffic.latency_us.mean = mean;
}

fn mean_of(found: &[Comparison]) -> Verdict {
    found.iter().find(|found| found.metric == Metric::LatencyMean).unwrap().verdict
}

fn count(verdicts: &[Verdict], wanted: Verdict) -> usize {
    verdicts.iter().filter(|verdict| **verdict == wanted).count()
}

/// Another generator than that of the bootstrap, with the same seeds.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn below(&mut self, bound: usize) -> usize {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        (self.0 >> 33) as usize % bound
    }

    /// [`FULL_BLOCKS`] of all, each once at most.
    fn draw(&mut self, all: usize) -> Vec<usize> {
        let mut left: Vec<usize> = (0..all).collect();
        (0..FULL_BLOCKS).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }
}

/// Keeps of a record its conditions and the mean of each run, as one sample:
/// `tollway lab run data/twice-direct.yaml --window-s 1 --no-repeats --json FILE`, then
/// `RECORD=FILE cargo test -p tollway-record --test verdicts -- --ignored rewrite`.
#[test]
#[ignore = "writes the data"]
fn rewrite_the_data() {
    let text = std::fs::read_to_string(std::env::var_os("RECORD").unwrap()).unwrap();
    let mut record = Record::from_json(&text).unwrap();
    record.comparisons.clear();
    for subject in &mut record.subjects {
        subject.config.clear();
    }
    for row in &mut record.rows {
        row.set_aside.clear();
        row.traffic = Traffic::default();
        row.cost = Cost::default();
        for block in &mut row.blocks {
            let mean_us = block.traffic.latency_us.mean.unwrap();
            let mut mean = Histogram::new();
            mean.record((mean_us * 1e3) as u64);
            block.traffic = Traffic { requests: 1, duration_s: 1.0, ..Traffic::default() };
            block.traffic.set_latencies(&mean);
            block.cost = Cost::default();
        }
    }
    std::fs::write(DATA, serde_json::to_string(&record).unwrap() + "\n").unwrap();
}
