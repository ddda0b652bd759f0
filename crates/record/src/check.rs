//! Doubts about a record: figures that contradict each other or the physics of the set-up.
//!
//! Each doubt is a sentence for the report. Nothing is corrected or left out because of one.

use crate::client_limit::{ACHIEVED_FRACTION_LIMIT, ClientLimit};
use crate::record::{Arrival, Block, Protocol, Record, Row};

/// Failed requests above this fraction are a doubt.
const ERROR_FRACTION_LIMIT: f64 = 0.001;

/// A link's measured round trip may differ by this fraction, or [`RTT_SLACK_US`] if more.
const RTT_FRACTION_LIMIT: f64 = 0.05;
const RTT_SLACK_US: f64 = 300.0;

/// In closed loop: the rate is within this fraction of connections / RTT, so it measures only the
/// RTT.
const CLOSED_BOUND_FRACTION: f64 = 0.95;

/// In closed loop over HTTP/1.1, requests under way may differ from connections by this fraction.
const IN_FLIGHT_SLACK: f64 = 0.15;

/// The calibration loop may vary by this factor between blocks.
const CALIBRATION_SPREAD_LIMIT: f64 = 1.15;

/// Processor time taken away by the hypervisor above this fraction is a doubt.
const STEAL_FRACTION_LIMIT: f64 = 0.02;

/// All doubts about a record, in order of its rows.
#[must_use]
pub fn check(record: &Record) -> Vec<String> {
    record.rows.iter().flat_map(check_row).collect()
}

/// The doubts about one row; each starts with its id.
#[must_use]
pub fn check_row(row: &Row) -> Vec<String> {
    let found = [
        check_answers(row),
        check_sums(row),
        check_errors(row),
        check_rate(row),
        check_client(row),
        check_bound(row),
        check_link(row),
        check_light(row),
        check_in_flight(row),
        check_throttling(row),
        check_gate(row),
        check_machine_speed(row),
    ];
    let id = &row.conditions.id;
    found.into_iter().flatten().map(|doubt| format!("{id}: {doubt}")).collect()
}

/// Requests per second that `in_flight` at once can be at most in closed loop (and over HTTP/1.1
/// at any arrival, one on each connection) when an answer takes `rtt_us`.
#[must_use]
pub fn rate_bound_rps(in_flight: impl Into<f64>, rtt_us: f64) -> f64 {
    in_flight.into() * 1e6 / rtt_us
}

fn check_answers(row: &Row) -> Option<String> {
    if row.is_flow() {
        return row.is_silent().then(|| "no byte passed; there is nothing to compare".to_owned());
    }
    if row.is_packets() {
        let none = || "no packet came out; there is nothing to compare".to_owned();
        return row.is_silent().then(none);
    }
    let answers = |requests: u64| requests > 0;
    if !answers(row.traffic.requests) {
        return Some("no request was answered; there is nothing to compare".to_owned());
    }
    let silent = row.blocks.iter().filter(|block| !answers(block.traffic.requests)).count();
    (silent > 0)
        .then(|| format!("no request was answered in {silent} of {} blocks", row.blocks.len()))
}

fn check_sums(row: &Row) -> Option<String> {
    let sum = row.blocks.iter().fold(0, |sum: u64, b| sum.saturating_add(b.traffic.requests));
    let traffic = &row.traffic;
    let timed = if row.is_packets() { sum } else { traffic.latency_us.n };
    if sum != traffic.requests || timed != traffic.requests {
        return Some(format!(
            "{} requests in the row, {sum} in its blocks, {} in its latencies; they should agree",
            traffic.requests, traffic.latency_us.n
        ));
    }
    None
}

fn check_errors(row: &Row) -> Option<String> {
    let traffic = &row.traffic;
    let failed = traffic.scheduled().saturating_sub(traffic.requests);
    let fraction = failed as f64 / traffic.scheduled().max(1) as f64;
    (fraction > ERROR_FRACTION_LIMIT).then(|| {
        format!(
            "{failed} of {} requests did not succeed ({} errors, {} unfinished, {} never sent); \
             the latencies are those of the others",
            traffic.scheduled(),
            traffic.errors,
            traffic.unfinished,
            traffic.dropped
        )
    })
}

fn check_rate(row: &Row) -> Option<String> {
    let requested = row.traffic.requested_rps?;
    let achieved = row.traffic.achieved_rps;
    (achieved < requested * ACHIEVED_FRACTION_LIMIT)
        .then(|| format!("achieved {achieved:.0} of {requested:.0} requests/s offered"))
}

fn check_client(row: &Row) -> Option<String> {
    let of_row = row.traffic.client_limits.iter().find(|limit| !is_rate(limit));
    if let Some(limit) = of_row {
        return Some(format!("client-limited: {limit}"));
    }
    let limited = row
        .blocks
        .iter()
        .filter(|block| block.traffic.client_limits.iter().any(|limit| !is_rate(limit)));
    match limited.count() {
        0 => None,
        count => Some(format!(
            "the load generator was the limit in {count} of {} blocks",
            row.blocks.len()
        )),
    }
}

/// The missed rate is reported on its own.
fn is_rate(limit: &ClientLimit) -> bool {
    matches!(limit, ClientLimit::RateMissed { .. })
}

fn check_bound(row: &Row) -> Option<String> {
    let conditions = &row.conditions;
    let rtt_us = conditions.link.as_ref()?.rtt_measured_us.p50;
    let connections = conditions.connections;
    let each = conditions.in_flight_per_connection.unwrap_or(1);
    let bound = rate_bound_rps(f64::from(connections) * f64::from(each), rtt_us);
    let what = conditions.protocol.counted();
    // Without the number, the load generator chose how many are under way.
    let known = conditions.protocol != Protocol::GrpcUnary || each > 1;
    if conditions.arrival == Arrival::Closed {
        let doubt = || {
            let of = if each > 1 { format!(" of {each} {what}") } else { String::new() };
            format!(
                "{connections} connection{}{of} over {rtt_us:.0} µs carr{} {bound:.0} {what}/s at \
                 most, which is what was seen: the rate shows the link, not the subject",
                plural(connections, "", "s"),
                plural(connections, "ies", "y")
            )
        };
        return (known && row.traffic.achieved_rps >= bound * CLOSED_BOUND_FRACTION).then(doubt);
    }
    let requested = row.traffic.requested_rps?;
    (conditions.protocol == Protocol::Http1 && bound < requested).then(|| {
        format!(
            "{connections} HTTP/1.1 connection{} over {rtt_us:.0} µs carr{} {bound:.0} \
             requests/s at most, {requested:.0} were offered: requests waited for a connection",
            plural(connections, "", "s"),
            plural(connections, "ies", "y")
        )
    })
}

fn plural(count: u32, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

fn check_link(row: &Row) -> Option<String> {
    let link = row.conditions.link.as_ref()?;
    let asked = link.rtt_asked_us?;
    let measured = link.rtt_measured_us.p50;
    let slack = (asked * RTT_FRACTION_LIMIT).max(RTT_SLACK_US);
    ((measured - asked).abs() > slack)
        .then(|| format!("the link was to take {asked:.0} µs and took {measured:.0} µs"))
}

/// No answer can be faster than the link's fastest probe.
fn check_light(row: &Row) -> Option<String> {
    let link = row.conditions.link.as_ref()?;
    let floor = link.rtt_asked_us.unwrap_or(link.rtt_measured_us.min);
    let p50 = row.traffic.latency_us.p50?;
    (p50 < floor * 0.99).then(|| {
        format!("half of the answers came within {p50:.0} µs over a link of {floor:.0} µs, which cannot be")
    })
}

/// Closed loop over HTTP/1.1: each connection has one request under way, so rate times latency is
/// the number of connections. If it is not, rate and latency are of different requests.
fn check_in_flight(row: &Row) -> Option<String> {
    let conditions = &row.conditions;
    if (conditions.arrival, conditions.protocol) != (Arrival::Closed, Protocol::Http1) {
        return None;
    }
    let latency_us = row.traffic.latency_us;
    let (mean_us, max_us) = (latency_us.mean?, latency_us.max?);
    let window_us = row.traffic.duration_s * 1e6 / row.blocks.len().max(1) as f64;
    // The window cuts the requests at both of its ends, the longest most.
    let slack = IN_FLIGHT_SLACK + max_us / window_us;
    let in_flight = row.traffic.achieved_rps * mean_us / 1e6;
    let connections = f64::from(conditions.connections);
    ((in_flight / connections - 1.0).abs() > slack).then(|| {
        format!(
            "rate times mean latency is {in_flight:.1} requests under way on {connections} \
             connection{} of one each; the figures do not belong together",
            plural(conditions.connections, "", "s")
        )
    })
}

fn check_gate(row: &Row) -> Option<String> {
    let outside: Vec<&Block> = row.blocks.iter().filter(|b| !b.outside_gate.is_empty()).collect();
    let first = outside.first()?.outside_gate.join(", ");
    Some(format!(
        "{} of {} runs were disturbed and could not be repeated any more ({first})",
        outside.len(),
        row.blocks.len()
    ))
}

fn check_throttling(row: &Row) -> Option<String> {
    let throttled_us = row.cost.throttled_us.filter(|us| *us > 0)?;
    let worst = row.cost.throttling.iter().max_by_key(|(_, throttling)| throttling.throttled_us);
    let doubt = worst.map(|(process, of)| {
        format!(", {process} in {} of {} periods", of.throttled_periods, of.periods)
    });
    Some(format!(
        "held back by a CPU quota for {:.1} ms{}; the tail shows the quota",
        throttled_us as f64 / 1e3,
        doubt.unwrap_or_default()
    ))
}

fn check_machine_speed(row: &Row) -> Option<String> {
    let stolen = row.blocks.iter().filter_map(|block| block.steal_fraction).fold(0.0, f64::max);
    if stolen > STEAL_FRACTION_LIMIT {
        return Some(format!(
            "the hypervisor took away up to {:.0} % of the processors during a block",
            stolen * 100.0
        ));
    }
    let speeds = || row.blocks.iter().filter_map(|block| block.calibration_us);
    let slowest = speeds().fold(0.0, f64::max);
    let fastest = speeds().fold(f64::INFINITY, f64::min);
    (slowest > fastest * CALIBRATION_SPREAD_LIMIT).then(|| {
        format!(
            "the machine's speed changed by {:.0} % between blocks",
            (slowest / fastest - 1.0) * 100.0
        )
    })
}

#[cfg(test)]
mod tests;
