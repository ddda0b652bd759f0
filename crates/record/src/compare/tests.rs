use std::cell::Cell;

use super::*;
use crate::record::{
    Arrival, Block, Conditions, Cost, IntervalMethod, Layout, Protocol, Tls, Verdict,
};
use crate::search::SearchResult;
use crate::split_mix::SplitMix64;
use crate::traffic::{Bytes, Traffic};

#[test]
fn a_row_against_its_own_kind_is_the_same_in_95_of_100_experiments() {
    let same = (0..100).filter(|&seed| mean_of(&experiment(seed, 5, 0.0)).verdict == Verdict::Same);
    let same = same.count();
    assert!(same >= 95, "{same} of 100");
}

#[test]
fn ten_percent_more_is_found() {
    let slower =
        (0..100).filter(|&seed| mean_of(&experiment(seed, 5, 0.10)).verdict == Verdict::Slower);
    let slower = slower.count();
    assert!(slower >= 95, "{slower} of 100");
}

#[test]
fn searches_are_compared_by_what_their_ends_leave_open() {
    let search = |held: Option<f64>, missed| SearchResult {
        slo: Vec::new(),
        held_rps: held,
        missed_rps: Some(missed),
        client_limited: false,
        complete: true,
        trials: Vec::new(),
    };
    let found = |change: fn(&mut SearchResult, &mut SearchResult)| {
        let (mut row, mut base) = rows(1, 1, 0.0);
        let mut searches = (search(Some(4_000.0), 5_000.0), search(Some(10_000.0), 12_500.0));
        change(&mut searches.0, &mut searches.1);
        row.particulars.search = Some(searches.0);
        base.particulars.search = Some(searches.1);
        compare(&row, &base, Question::AddedByTollway, CompareOptions::seeded(1))
    };
    let known = found(|_, _| {}).unwrap();
    assert_eq!(known.len(), 1, "the latencies are of different rates: {known:?}");
    assert_eq!((known[0].metric, known[0].verdict), (Metric::TimePerAnswer, Verdict::Slower));
    assert_eq!((known[0].ratio, known[0].ratio_ci95), (Some(2.5), Some([2.0, 3.125])));
    assert_eq!(
        (known[0].difference_us, known[0].difference_ci95_us),
        (150.0, Some([100.0, 170.0]))
    );
    assert_eq!(known[0].method, Some(IntervalMethod::Search));

    let limited = found(|_, base| base.client_limited = true).unwrap();
    assert_eq!((limited[0].ratio, limited[0].ratio_ci95), (Some(2.5), None), "its own end unknown");
    let unconfirmed = found(|row, _| row.complete = false).unwrap();
    assert_eq!(unconfirmed[0].verdict, Verdict::Undecided);
    assert!(found(|row, _| row.held_rps = None).is_err(), "nothing held");
}

#[test]
fn ten_percent_less_is_found_with_many_blocks() {
    let found = mean_of(&experiment(1, 8, -0.10));
    assert_eq!(found.verdict, Verdict::Faster);
    assert_eq!(found.method, Some(IntervalMethod::BlockBootstrap));
}

#[test]
fn intervals_hold_a_known_offset() {
    for blocks in [3, 8] {
        let held = (0..60).filter(|&seed| {
            let [lo, hi] = mean_of(&experiment(seed, blocks, 0.10)).difference_ci95_us.unwrap();
            (lo..=hi).contains(&(0.10 * BASE_US))
        });
        let held = held.count();
        assert!(held >= 52, "{blocks} blocks: {held} of 60");
    }
}

#[test]
fn a_quantile_difference_is_that_of_the_merged_histograms() {
    let (row, base) = rows(3, 5, 0.20);
    let found = compare(&row, &base, Question::AddedByTollway, CompareOptions::seeded(3)).unwrap();
    let p50 = found.iter().find(|c| c.metric == Metric::LatencyP50).unwrap();
    let merged = row.traffic.latency_us.p50.unwrap() - base.traffic.latency_us.p50.unwrap();
    assert!((p50.difference_us - merged).abs() < 0.2, "{} and {merged}", p50.difference_us);
    let [lo, hi] = p50.difference_ci95_us.unwrap();
    assert!(lo < merged && merged < hi, "{lo} {merged} {hi}");
}

#[test]
fn a_quantile_that_may_not_be_printed_is_not_compared() {
    let found = experiment(1, 5, 0.0);
    let metrics: Vec<_> = found.iter().map(|c| c.metric).collect();
    // 5 blocks of 1,000 samples: 50 beyond p99.
    assert_eq!(
        metrics,
        [Metric::LatencyMean, Metric::LatencyP50, Metric::LatencyP90, Metric::MachineCpu]
    );
}

#[test]
fn one_block_is_undecided() {
    let found = mean_of(&experiment(1, 1, 0.5));
    assert_eq!((found.verdict, found.difference_ci95_us), (Verdict::Undecided, None));
}

#[test]
fn only_blocks_with_both_rows_count() {
    let (mut row, base) = rows(1, 5, 0.0);
    row.blocks.retain(|block| block.block != 2);
    let found = compare(&row, &base, Question::AgainstBaseline, CompareOptions::seeded(1)).unwrap();
    assert_eq!(found[0].blocks, 4);
    row.blocks.clear();
    let error = compare(&row, &base, Question::AgainstBaseline, CompareOptions::seeded(1));
    assert!(error.unwrap_err().to_string().contains("no block in common"));
}

#[test]
fn a_damaged_histogram_names_its_row() {
    let (mut row, base) = rows(1, 2, 0.0);
    row.blocks[0].traffic.histogram =
        crate::EncodedHistogram::from_text("not a histogram".to_owned());
    let error = compare(&row, &base, Question::AgainstBaseline, CompareOptions::seeded(1));
    assert_eq!(error.unwrap_err().to_string(), "a block of row has a damaged histogram");
}

#[test]
fn every_row_finds_its_baseline() {
    let make = |id: &str, subject: &str, topology, protocol| {
        let mut row = rows(1, 2, 0.0).0;
        row.conditions = Conditions {
            id: id.to_owned(),
            subject: subject.to_owned(),
            topology,
            protocol,
            ..row.conditions
        };
        row
    };
    let rows = [
        make("a", "direct", Topology::SameNetwork, Protocol::Http1),
        make("b", "tollway", Topology::SameNetwork, Protocol::Http1),
        make("c", "direct", Topology::OtherRegion, Protocol::Http1),
        make("d", "tollway", Topology::OtherRegion, Protocol::Http1),
        make("e", "envoy", Topology::OtherRegion, Protocol::Http1),
        make("f", "tollway", Topology::OtherRegion, Protocol::GrpcUnary),
    ];
    let found = compare_all(&rows, CompareOptions::seeded(1)).unwrap();
    let means: Vec<_> = found
        .iter()
        .filter(|c| c.metric == Metric::LatencyMean)
        .map(|c| (c.row.as_str(), c.baseline_row.as_str(), c.question))
        .collect();
    assert_eq!(
        means,
        [
            ("b", "a", Question::AddedByTollway),
            ("c", "a", Question::AddedByNetwork),
            ("d", "c", Question::AddedByTollway),
            ("e", "c", Question::AgainstBaseline),
        ]
    );
}

#[test]
fn a_pair_without_a_common_block_leaves_the_others_their_comparisons() {
    let (mut first, mut base) = rows(1, 4, 0.0);
    let mut second = first.clone();
    second.conditions.id = "second".to_owned();
    first.blocks.truncate(2);
    base.blocks.drain(..2);
    let found = compare_all(&[first, base, second], CompareOptions::seeded(1)).unwrap();
    assert!(!found.is_empty() && found.iter().all(|c| c.row == "second"));
}

#[test]
fn flows_are_compared_by_the_time_of_a_megabyte() {
    let flow = |id: &str, subject: &str, megabytes: &[u64]| {
        let block = |(number, megabytes): (u32, &u64)| {
            let bytes = Bytes { sent: megabytes * 1_000_000, received: 0 };
            let traffic = Traffic { duration_s: 2.0, bytes, ..Traffic::default() };
            Block { block: number, traffic, ..Block::default() }
        };
        let blocks = (0..).zip(megabytes).map(block).collect();
        let conditions = Conditions { arrival: Arrival::Flow, ..conditions(id, subject) };
        Row::from_blocks(conditions, blocks).unwrap()
    };
    // The first round of the row was silent: it is not compared.
    let (row, base) =
        (flow("row", "tollway", &[0, 50, 55, 45]), flow("base", "direct", &[100, 100, 110, 90]));
    let found = compare_all(&[base, row], CompareOptions::seeded(1)).unwrap();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.metric, found.blocks), (Metric::TimePerMegabyte, 3));
    assert_eq!(
        (found.ratio.map(|ratio| ratio.round()), found.verdict),
        (Some(2.0), Verdict::Slower)
    );
    // 2 s over 50, 55 and 45 MB, less the same over twice as many.
    let expected = (20_000.0 + 2e6 / 110.0 + 2e6 / 90.0) / 3.0;
    assert!((found.difference_us - expected).abs() < 1e-6, "{found:?}");
}

#[test]
fn packets_are_compared_by_the_time_of_each() {
    let packets = |id: &str, subject: &str, counts: &[u64]| {
        let block = |(number, requests): (u32, &u64)| {
            let traffic = Traffic { duration_s: 2.0, requests: *requests, ..Traffic::default() };
            Block { block: number, traffic, ..Block::default() }
        };
        let blocks = (0..).zip(counts).map(block).collect();
        let conditions = Conditions { arrival: Arrival::Packets, ..conditions(id, subject) };
        Row::from_blocks(conditions, blocks).unwrap()
    };
    let base = packets("base", "direct", &[20_000_000; 4]);
    let row = packets("row", "tollway", &[10_000_000, 10_000_000, 0, 10_000_000]);
    let found = compare_all(&[base, row], CompareOptions::seeded(1)).unwrap();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.metric, found.blocks), (Metric::TimePerPacket, 3));
    // 0.2 µs each instead of 0.1.
    assert!((found.difference_us - 0.1).abs() < 1e-9, "{found:?}");
    assert!((found.ratio.unwrap() - 2.0).abs() < 1e-9, "{found:?}");
}

const BASE_US: f64 = 120.0;

fn mean_of(found: &[Comparison]) -> Comparison {
    found.iter().find(|c| c.metric == Metric::LatencyMean).unwrap().clone()
}

fn experiment(seed: u64, blocks: u32, added: f64) -> Vec<Comparison> {
    let (row, base) = rows(seed, blocks, added);
    compare(&row, &base, Question::AddedByTollway, CompareOptions::seeded(seed)).unwrap()
}

/// A row and its baseline on a machine whose speed drifts by ±14 % between blocks for both, and
/// by ±1 % between the two runs of a block; latencies have a long tail.
fn rows(seed: u64, blocks: u32, added: f64) -> (Row, Row) {
    let seeded = Cell::new(seed);
    let mut uniform = move || {
        seeded.set(seeded.get() + 1);
        SplitMix64::new(seeded.get().wrapping_mul(7_919)).next_u64() as f64 / u64::MAX as f64
    };
    let (mut row, mut base) = (Vec::new(), Vec::new());
    for number in 0..blocks {
        let speed = 1.0 + 0.28 * (uniform() - 0.5);
        let own = |noise: f64| 1.0 + 0.02 * (noise - 0.5);
        let (of_row, of_base) = (own(uniform()), own(uniform()));
        row.push(block(number, BASE_US * speed * of_row + BASE_US * added, &mut uniform));
        base.push(block(number, BASE_US * speed * of_base, &mut uniform));
    }
    (
        Row::from_blocks(conditions("row", "tollway"), row).unwrap(),
        Row::from_blocks(conditions("base", "direct"), base).unwrap(),
    )
}

fn block(number: u32, mean_us: f64, uniform: &mut impl FnMut() -> f64) -> Block {
    let mut latencies = Histogram::new();
    for _ in 0..1_000 {
        // 60 % fixed, 40 % exponential.
        let us = mean_us * (0.6 - 0.4 * (1.0 - uniform()).max(1e-9).ln());
        latencies.record((us * 1e3) as u64);
    }
    let mut traffic = Traffic { requests: 1_000, duration_s: 1.0, ..Traffic::default() };
    traffic.set_latencies(&latencies);
    let cost = Cost { machine_cpu_us_per_request: Some(mean_us / 4.0), ..Cost::default() };
    Block { block: number, traffic, cost, ..Block::default() }
}

fn conditions(id: &str, subject: &str) -> Conditions {
    Conditions {
        id: id.to_owned(),
        case: String::new(),
        subject: subject.to_owned(),
        variant: String::new(),
        protocol: Protocol::Http1,
        tls: Tls::Plain,
        hops: 0,
        topology: Topology::SameNetwork,
        layout: Layout::Shared,
        arrival: Arrival::OpenUniform,
        connections: 16,
        in_flight_per_connection: None,
        payload_bytes: 1_024,
        link: None,
        limits: None,
    }
}
