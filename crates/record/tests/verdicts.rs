//! Self-tests of the verdict on recorded noise: one app called in one way twice, in 60 interleaved
//! blocks on an idle machine. Equal subjects must be found equal, and what is 3 % slower must be
//! found.
//!
//! The data are `data/twice-direct.json`, made as [`rewrite_the_data`] says.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use tollway_record::compare::DEFAULT_MARGIN_PCT;
use tollway_record::interval::verdict;
use tollway_record::record::{Block, Comparison, Cost, Verdict};
use tollway_record::redraw::{Draw, redraw};
use tollway_record::{Histogram, Record, Traffic};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/twice-direct.json");

/// Blocks of an experiment at the usual full length.
const BLOCKS: usize = 20;
/// Blocks of `max-rate` at full length: what small differences cost.
const MANY_BLOCKS: usize = 40;
/// Experiments drawn from the data.
const EXPERIMENTS: u64 = 100;

#[test]
fn the_same_is_called_the_same_and_seldom_a_difference() {
    let found = experiments(BLOCKS, 1.0);
    let same = verdicts(&found, DEFAULT_MARGIN_PCT);
    assert!(count(&same, Verdict::Same) >= 95, "{same:?}");
    let strict = verdicts(&found, 0.0);
    let wrong = count(&strict, Verdict::Slower) + count(&strict, Verdict::Faster);
    // 95 % intervals are wrong five times in a hundred; more than ten are the method's fault.
    assert!(wrong <= 10, "{wrong} of {EXPERIMENTS}: {strict:?}");
}

#[test]
fn three_percent_are_found() {
    let found = verdicts(&experiments(MANY_BLOCKS, 1.03), 1.0);
    let slower = count(&found, Verdict::Slower);
    assert!(slower >= 95, "{slower} of {EXPERIMENTS}: {found:?}");
}

/// What was found of the mean, the second of two runs taking `factor` as long as it did.
fn experiments(blocks: usize, factor: f64) -> Vec<Comparison> {
    let record = Record::from_json(&std::fs::read_to_string(DATA).unwrap()).unwrap();
    let [first, second] = &record.rows[..] else { panic!("two rows") };
    let draw = Draw { experiments: EXPERIMENTS, blocks, either_way: true };
    redraw(second, first, draw, |block| slow_down(block, factor)).unwrap()
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

/// The same findings with another margin.
fn verdicts(found: &[Comparison], margin_pct: f64) -> Vec<Verdict> {
    found.iter().map(|found| verdict(found.ratio_ci95, margin_pct)).collect()
}

fn count(verdicts: &[Verdict], wanted: Verdict) -> usize {
    verdicts.iter().filter(|verdict| **verdict == wanted).count()
}

/// Keeps of a record its conditions and the mean of each run, as one sample:
/// `tollway lab run data/twice-direct.yaml --no-repeats --json FILE`, then
/// `RECORD=FILE cargo test -p tollway-record --test verdicts -- --ignored rewrite`.
#[test]
#[ignore = "writes the data"]
fn rewrite_the_data() {
    let text = std::fs::read_to_string(std::env::var_os("RECORD").unwrap()).unwrap();
    let mut record = Record::from_json(&text).unwrap();
    record.comparisons.clear();
    record.command_line.clear();
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
