//! Flows side by side: the time that a megabyte takes, round by round.

use std::collections::BTreeMap;

use super::CompareError;
use crate::record::Row;

const MEGABYTE: f64 = 1e6;

/// Microseconds per megabyte of row and baseline in each round in which both moved bytes.
pub(super) fn pair_blocks(row: &Row, baseline: &Row) -> Result<Vec<(f64, f64)>, CompareError> {
    let base = time_per_megabyte_us(baseline);
    let pairs: Vec<_> = time_per_megabyte_us(row)
        .into_iter()
        .filter_map(|(block, row_us)| Some((row_us, *base.get(&block)?)))
        .collect();
    if pairs.is_empty() { Err(CompareError::no_common_block(row, baseline)) } else { Ok(pairs) }
}

/// By round; several runs of one round count together.
fn time_per_megabyte_us(row: &Row) -> BTreeMap<u32, f64> {
    let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for block in &row.blocks {
        let (seconds, bytes) = sums.entry(block.block).or_default();
        *seconds += block.traffic.duration_s;
        *bytes += block.traffic.bytes.total() as f64;
    }
    let moved = sums.into_iter().filter(|(_, (seconds, bytes))| *seconds > 0.0 && *bytes > 0.0);
    moved.map(|(block, (seconds, bytes))| (block, seconds * 1e6 * MEGABYTE / bytes)).collect()
}
