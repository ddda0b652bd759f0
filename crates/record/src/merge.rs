//! Makes blocks from runs and rows from blocks. Histograms are merged and summaries computed from
//! them; percentiles are never averaged.

mod particulars;

use std::collections::{BTreeMap, BTreeSet};

use crate::client_limit::{self, ClientLimit};
use crate::histogram::{Histogram, HistogramError};
use crate::record::{Arrival, Block, Conditions, Cost, CostPoint, Particulars, Row, Tcp};
use crate::run::RunResult;
use crate::traffic::{Bytes, LatencyUs, Lateness, SeriesPoint, Traffic};

impl Block {
    /// The block a run makes up; `position` is the run's place in the round.
    #[must_use]
    pub fn from_run(block: u32, position: u32, run: RunResult, cost: Cost) -> Self {
        let particulars = Particulars::from(&run);
        let mut traffic = run.traffic;
        if let Some(throughput) = &run.throughput {
            traffic.series = throughput.series();
        }
        Self { block, position, traffic, cost, particulars, ..Self::default() }
    }
}

impl Row {
    /// The row over all its blocks. What cannot be merged exactly is bounded instead: lateness
    /// percentiles are the worst block's, resident sets the largest.
    ///
    /// # Errors
    /// [`HistogramError`] when a block's histogram is damaged.
    pub fn from_blocks(
        conditions: Conditions,
        mut blocks: Vec<Block>,
    ) -> Result<Self, HistogramError> {
        blocks.sort_by_key(|block| (block.block, block.position));
        let traffic = merge_traffic(&blocks, conditions.arrival)?;
        let cost = merge_cost(&blocks);
        let particulars = particulars::merged(&blocks);
        Ok(Self { conditions, traffic, cost, particulars, blocks, set_aside: Vec::new() })
    }
}

impl Traffic {
    /// One window made of several that followed each other.
    ///
    /// # Errors
    /// [`HistogramError`] when a histogram is damaged.
    pub fn merged(windows: Vec<Self>, arrival: Arrival) -> Result<Self, HistogramError> {
        let blocks: Vec<_> =
            windows.into_iter().map(|traffic| Block { traffic, ..Block::default() }).collect();
        merge_traffic(&blocks, arrival)
    }
}

fn merge_traffic(blocks: &[Block], arrival: Arrival) -> Result<Traffic, HistogramError> {
    let mut row = Traffic::default();
    let mut latencies = Histogram::new();
    let mut services = Histogram::new();
    let mut failures = Some(Histogram::new());
    let mut offered = Some(0.0);
    let mut achieved = 0.0;
    for traffic in blocks.iter().map(|block| &block.traffic) {
        latencies.merge(&traffic.latencies()?);
        services.merge(&traffic.services()?);
        offered =
            offered.zip(traffic.requested_rps).map(|(sum, rps)| sum + rps * traffic.duration_s);
        achieved += traffic.achieved_rps * traffic.duration_s;
        row.series.extend(
            traffic
                .series
                .iter()
                .map(|point| SeriesPoint { t_s: row.duration_s + point.t_s, ..*point }),
        );
        row.duration_s += traffic.duration_s;
        row.requests += traffic.requests;
        row.errors += traffic.errors;
        row.unfinished += traffic.unfinished;
        row.dropped += traffic.dropped;
        for (kind, count) in &traffic.errors_by_kind {
            *row.errors_by_kind.entry(kind.clone()).or_default() += count;
        }
        row.bytes = Bytes {
            sent: row.bytes.sent + traffic.bytes.sent,
            received: row.bytes.received + traffic.bytes.received,
        };
        failures = merge_failures(failures, traffic)?;
        row.error_latency_us = merge_bounds(row.error_latency_us, traffic.error_latency_us);
    }
    if row.duration_s > 0.0 {
        row.achieved_rps = achieved / row.duration_s;
        row.requested_rps = offered.map(|offered| offered / row.duration_s);
    }
    row.lateness = merge_lateness(blocks);
    row.client_limits = merge_limits(&row, arrival, blocks);
    row.client_limited = !row.client_limits.is_empty();
    row.set_latencies(&latencies);
    row.set_services(&services);
    merge_phases(&mut row, blocks)?;
    if let Some(failures) = failures {
        row.set_failures(&failures);
    }
    Ok(row)
}

/// `None` once a block has failures without their histogram: then only their bounds are known.
fn merge_failures(
    merged: Option<Histogram>,
    traffic: &Traffic,
) -> Result<Option<Histogram>, HistogramError> {
    let known = traffic.error_latency_us.is_none_or(|summary| summary.n == 0)
        || !traffic.error_histogram.is_empty();
    let Some(mut merged) = merged.filter(|_| known) else { return Ok(None) };
    merged.merge(&traffic.failures()?);
    Ok(Some(merged))
}

fn merge_phases(row: &mut Traffic, blocks: &[Block]) -> Result<(), HistogramError> {
    let names: BTreeSet<_> =
        blocks.iter().flat_map(|block| block.traffic.phases_us.keys()).collect();
    for name in names {
        if let Some(phase) = merged_phase(name, blocks)? {
            row.set_phase(name, &phase, true);
        } else {
            let known = blocks.iter().map(|block| block.traffic.phases_us.get(name).copied());
            let bounds = known.fold(None, merge_bounds);
            row.phases_us.extend(bounds.map(|bounds| (name.clone(), bounds)));
        }
    }
    Ok(())
}

/// `None` if a block has only the phase's summary.
fn merged_phase(name: &str, blocks: &[Block]) -> Result<Option<Histogram>, HistogramError> {
    let mut merged = Histogram::new();
    for block in blocks {
        let Some(phase) = block.traffic.phase(name)? else { return Ok(None) };
        merged.merge(&phase);
    }
    Ok(Some(merged))
}

/// Summaries without histograms: mean, maximum and number merge, percentiles do not.
fn merge_bounds(a: Option<LatencyUs>, b: Option<LatencyUs>) -> Option<LatencyUs> {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (one, other) => return one.or(other),
    };
    let n = a.n + b.n;
    let sum = |latency: LatencyUs| latency.mean.unwrap_or(0.0) * latency.n as f64;
    let max = a.max.into_iter().chain(b.max).reduce(f64::max);
    let mean = (n > 0).then(|| (sum(a) + sum(b)) / n as f64);
    Some(LatencyUs { mean, max, n, ..LatencyUs::default() })
}

fn merge_lateness(blocks: &[Block]) -> Option<Lateness> {
    let mut merged = Lateness::default();
    let mut sends = 0.0;
    let mut late_sends = 0.0;
    for traffic in blocks.iter().map(|block| &block.traffic) {
        let lateness = traffic.lateness?;
        let sent = traffic.scheduled() - traffic.dropped;
        sends += sent as f64;
        late_sends += lateness.late_fraction * sent as f64;
        merged.p50_us = merged.p50_us.max(lateness.p50_us);
        merged.p99_us = merged.p99_us.max(lateness.p99_us);
        merged.max_us = merged.max_us.max(lateness.max_us);
        merged.late_sends += lateness.late_sends;
    }
    merged.late_fraction = if sends > 0.0 { late_sends / sends } else { 0.0 };
    (!blocks.is_empty()).then_some(merged)
}

/// The open-loop rules are judged on the merged row; closed-loop reasons of a block stay.
fn merge_limits(row: &Traffic, arrival: Arrival, blocks: &[Block]) -> Vec<ClientLimit> {
    let mut limits = client_limit::limits_in_open_loop(row, arrival);
    let of_blocks = blocks.iter().flat_map(|block| &block.traffic.client_limits);
    for limit in of_blocks {
        let closed_loop =
            matches!(limit, ClientLimit::GeneratorBusy { .. } | ClientLimit::NearDirect { .. });
        if closed_loop && !limits.iter().any(|known| known.same_reason(limit)) {
            limits.push(*limit);
        }
    }
    limits
}

fn merge_cost(blocks: &[Block]) -> Cost {
    let mut cost = Cost {
        cpu_us_per_request: merge_cpu(blocks, requests, |cost| &cost.cpu_us_per_request),
        machine_cpu_us_per_request: weighted(
            blocks.iter().map(|b| (b.cost.machine_cpu_us_per_request, requests(&b.traffic))),
        ),
        cpu_us_per_megabyte: merge_cpu(blocks, bytes, |cost| &cost.cpu_us_per_megabyte),
        machine_cpu_us_per_megabyte: weighted(
            blocks.iter().map(|b| (b.cost.machine_cpu_us_per_megabyte, bytes(&b.traffic))),
        ),
        tcp: Tcp {
            retransmitted_segments: sum_known(
                blocks.iter().map(|b| b.cost.tcp.retransmitted_segments),
            ),
            rtt_us: weighted(blocks.iter().map(|b| (b.cost.tcp.rtt_us, requests(&b.traffic)))),
        },
        throttled_us: sum_known(blocks.iter().map(|b| b.cost.throttled_us)),
        cost_series: merge_cost_series(blocks),
        ..Cost::default()
    };
    for (process, of_block) in blocks.iter().flat_map(|block| &block.cost.throttling) {
        let sum = cost.throttling.entry(process.clone()).or_default();
        sum.periods += of_block.periods;
        sum.throttled_periods += of_block.throttled_periods;
        sum.throttled_us += of_block.throttled_us;
    }
    for (process, bytes) in blocks.iter().flat_map(|block| &block.cost.rss_bytes) {
        let largest = cost.rss_bytes.entry(process.clone()).or_default();
        *largest = (*largest).max(*bytes);
    }
    cost
}

/// The blocks' series one after the other.
fn merge_cost_series(blocks: &[Block]) -> Vec<CostPoint> {
    let mut before_s = 0.0;
    let mut series = Vec::new();
    for block in blocks {
        let points = block.cost.cost_series.iter();
        series.extend(points.map(|point| CostPoint { t_s: before_s + point.t_s, ..point.clone() }));
        before_s += block.traffic.duration_s;
    }
    series
}

fn requests(traffic: &Traffic) -> u64 {
    traffic.requests
}

fn bytes(traffic: &Traffic) -> u64 {
    traffic.bytes.total()
}

/// What each process used for one unit of work, of which a block has so much.
fn merge_cpu(
    blocks: &[Block],
    work: fn(&Traffic) -> u64,
    used: fn(&Cost) -> &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    let names = blocks.iter().flat_map(|block| used(&block.cost).keys());
    let mut merged = BTreeMap::new();
    for name in names {
        if merged.contains_key(name) {
            continue;
        }
        let known = blocks.iter().map(|b| (used(&b.cost).get(name).copied(), work(&b.traffic)));
        merged.extend(weighted(known).map(|cpu_us| (name.clone(), cpu_us)));
    }
    merged
}

/// Mean of the known values, each with its weight.
fn weighted(values: impl Iterator<Item = (Option<f64>, u64)>) -> Option<f64> {
    let (mut sum, mut weight) = (0.0, 0.0);
    for (value, of_value) in values {
        if let Some(value) = value {
            sum += value * of_value as f64;
            weight += of_value as f64;
        }
    }
    (weight > 0.0).then(|| sum / weight)
}

fn sum_known(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.flatten().reduce(|a, b| a.saturating_add(b))
}

#[cfg(test)]
mod tests;
