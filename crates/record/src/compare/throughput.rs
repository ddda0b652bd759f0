//! Comparison of flows and packets: the time that a megabyte of a flow takes, or a packet, round by
//! round.

use std::collections::BTreeMap;

use super::CompareError;
use crate::record::{Block, Metric, Row};

const MEGABYTE: f64 = 1e6;

/// The metric that compares two flows or two packet rows; `None` for rows of requests.
pub(super) fn metric(row: &Row, baseline: &Row) -> Option<Metric> {
    if row.is_flow() && baseline.is_flow() {
        Some(Metric::TimePerMegabyte)
    } else if row.is_packets() && baseline.is_packets() {
        Some(Metric::TimePerPacket)
    } else {
        None
    }
}

/// Microseconds per megabyte or packet, of row and baseline, for each round in which both moved
/// data.
pub(super) fn pair_blocks(row: &Row, baseline: &Row) -> Result<Vec<(f64, f64)>, CompareError> {
    let base = times_us(baseline);
    let pairs: Vec<_> = times_us(row)
        .into_iter()
        .filter_map(|(block, row_us)| Some((row_us, *base.get(&block)?)))
        .collect();
    if pairs.is_empty() { Err(CompareError::no_common_block(row, baseline)) } else { Ok(pairs) }
}

/// Microseconds by round. Runs of the same round are added up.
fn times_us(row: &Row) -> BTreeMap<u32, f64> {
    let moved = |block: &Block| match row.is_packets() {
        true => block.traffic.requests as f64,
        false => block.traffic.bytes.total() as f64 / MEGABYTE,
    };
    let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for block in &row.blocks {
        let (seconds, units) = sums.entry(block.block).or_default();
        *seconds += block.traffic.duration_s;
        *units += moved(block);
    }
    let some = sums.into_iter().filter(|(_, (seconds, units))| *seconds > 0.0 && *units > 0.0);
    some.map(|(block, (seconds, units))| (block, seconds * 1e6 / units)).collect()
}
