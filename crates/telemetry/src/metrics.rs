//! Counters and the names under which they are scraped.
//!
//! A data-plane thread is the only writer of its counters, so an addition is a load and a store;
//! the admin thread reads.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows; one writer.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down; one writer.
#[derive(Default, Debug)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the duration buckets, in microseconds; most are below a millisecond or two,
/// where a sidecar lives.
const BUCKETS_US: [u64; 16] = [
    50, 100, 200, 300, 500, 750, 1_000, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000, 10_000_000,
];

/// Durations in buckets.
#[derive(Default, Debug)]
struct Durations {
    buckets: [Counter; BUCKETS_US.len() + 1],
    sum_ns: Counter,
}

impl Durations {
    fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = BUCKETS_US.partition_point(|bound| *bound < us);
        self.buckets[at].add(1);
        self.sum_ns.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Requests by class of status.
#[derive(Default, Debug)]
struct ByStatus([Counter; 6]);

const STATUS_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// What one data-plane thread counts.
#[derive(Default, Debug)]
pub struct DataPlaneMetrics {
    pub connections: Gauge,
    pub connections_refused: Counter,
    pub handshakes: Counter,
    pub handshakes_failed: Counter,
    pub dials: Counter,
    pub dials_failed: Counter,
    pub inbound_requests: Counter,
    pub outbound_requests: Counter,
    pub requests_refused: Counter,
    pub retries: Counter,
    pub faults: Counter,
    pub cancelled: Counter,
    pub relayed_bytes: Counter,
    pub gateway_connections: Counter,
    pub gateway_refused: Counter,
    inbound_status: ByStatus,
    outbound_status: ByStatus,
    inbound_duration: Durations,
    outbound_duration: Durations,
}

impl DataPlaneMetrics {
    /// A request was answered with `status` after `took`.
    pub fn record(&self, inbound: bool, status: u16, took: Duration) {
        let (by_status, durations) = if inbound {
            (&self.inbound_status, &self.inbound_duration)
        } else {
            (&self.outbound_status, &self.outbound_duration)
        };
        by_status.0[usize::from(status / 100).min(5)].add(1);
        durations.record(took);
    }

    /// The Prometheus text of several threads, added up.
    #[must_use]
    pub fn render(threads: &[&Self]) -> String {
        let mut text = String::with_capacity(8192);
        let sum = |value: fn(&Self) -> u64| threads.iter().map(|t| value(t)).sum::<u64>();
        gauge(
            &mut text,
            "tollway_connections",
            "Open connections.",
            sum(|m| m.connections.value()),
        );
        let counters: [(&str, &str, u64); 14] = [
            (
                "tollway_connections_refused_total",
                "Connections not accepted: over a limit or out of descriptors.",
                sum(|m| m.connections_refused.value()),
            ),
            (
                "tollway_mesh_handshakes_total",
                "Mesh connections accepted and authenticated.",
                sum(|m| m.handshakes.value()),
            ),
            (
                "tollway_mesh_handshakes_failed_total",
                "Mesh connections refused in their handshake.",
                sum(|m| m.handshakes_failed.value()),
            ),
            ("tollway_dials_total", "Mesh connections dialled.", sum(|m| m.dials.value())),
            ("tollway_dials_failed_total", "Dials that failed.", sum(|m| m.dials_failed.value())),
            (
                "tollway_inbound_requests_total",
                "Requests taken from the mesh.",
                sum(|m| m.inbound_requests.value()),
            ),
            (
                "tollway_outbound_requests_total",
                "Requests taken from the app.",
                sum(|m| m.outbound_requests.value()),
            ),
            (
                "tollway_requests_refused_total",
                "Requests and connections refused for malformed or abusive HTTP.",
                sum(|m| m.requests_refused.value()),
            ),
            (
                "tollway_retries_total",
                "Attempts made again after one that was not processed.",
                sum(|m| m.retries.value()),
            ),
            (
                "tollway_faults_total",
                "Requests that failed in the data plane.",
                sum(|m| m.faults.value()),
            ),
            (
                "tollway_cancelled_total",
                "Requests whose caller went away.",
                sum(|m| m.cancelled.value()),
            ),
            (
                "tollway_relayed_bytes_total",
                "Bytes relayed unread: gateways, TCP, upgraded connections.",
                sum(|m| m.relayed_bytes.value()),
            ),
            (
                "tollway_gateway_connections_total",
                "Connections a gateway sent on.",
                sum(|m| m.gateway_connections.value()),
            ),
            (
                "tollway_gateway_refused_total",
                "Connections a gateway refused: no TLS or a server name it does not serve.",
                sum(|m| m.gateway_refused.value()),
            ),
        ];
        for (name, help, value) in counters {
            counter(&mut text, name, help, value);
        }
        render_status(&mut text, threads);
        render_durations(&mut text, threads);
        text
    }
}

fn header(text: &mut String, name: &str, help: &str, kind: &str) {
    // Writing into a string does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn gauge(text: &mut String, name: &str, help: &str, value: u64) {
    header(text, name, help, "gauge");
    let _ = writeln!(text, "{name} {value}");
}

fn counter(text: &mut String, name: &str, help: &str, value: u64) {
    header(text, name, help, "counter");
    let _ = writeln!(text, "{name} {value}");
}

fn render_status(text: &mut String, threads: &[&DataPlaneMetrics]) {
    let name = "tollway_responses_total";
    header(text, name, "Responses by direction and class of status.", "counter");
    for (direction, of) in directions() {
        for (at, class) in STATUS_CLASSES.iter().enumerate() {
            let value: u64 = threads.iter().map(|t| of(t).0.0[at].value()).sum();
            if value > 0 {
                let _ = writeln!(
                    text,
                    "{name}{{direction=\"{direction}\",status=\"{class}\"}} {value}"
                );
            }
        }
    }
}

fn render_durations(text: &mut String, threads: &[&DataPlaneMetrics]) {
    let name = "tollway_request_duration_seconds";
    header(text, name, "From a request's head to the end of its response.", "histogram");
    for (direction, of) in directions() {
        let mut cumulative = 0;
        for (at, bound) in BUCKETS_US.iter().enumerate() {
            cumulative += threads.iter().map(|t| of(t).1.buckets[at].value()).sum::<u64>();
            let bound = Duration::from_micros(*bound).as_secs_f64();
            let _ = writeln!(
                text,
                "{name}_bucket{{direction=\"{direction}\",le=\"{bound}\"}} {cumulative}"
            );
        }
        cumulative +=
            threads.iter().map(|t| of(t).1.buckets[BUCKETS_US.len()].value()).sum::<u64>();
        let sum_ns: u64 = threads.iter().map(|t| of(t).1.sum_ns.value()).sum();
        let sum = Duration::from_nanos(sum_ns).as_secs_f64();
        let _ = writeln!(
            text,
            "{name}_bucket{{direction=\"{direction}\",le=\"+Inf\"}} {cumulative}\n\
             {name}_sum{{direction=\"{direction}\"}} {sum}\n\
             {name}_count{{direction=\"{direction}\"}} {cumulative}"
        );
    }
}

type Of = fn(&DataPlaneMetrics) -> (&ByStatus, &Durations);

fn directions() -> [(&'static str, Of); 2] {
    [
        ("inbound", |m| (&m.inbound_status, &m.inbound_duration)),
        ("outbound", |m| (&m.outbound_status, &m.outbound_duration)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_buckets_are_cumulative() {
        let (a, b) = (DataPlaneMetrics::default(), DataPlaneMetrics::default());
        a.record(true, 200, Duration::from_micros(80));
        b.record(true, 204, Duration::from_micros(180));
        b.record(true, 503, Duration::from_secs(60));
        a.retries.add(2);
        let text = DataPlaneMetrics::render(&[&a, &b]);
        for line in [
            "tollway_retries_total 2",
            "tollway_responses_total{direction=\"inbound\",status=\"2xx\"} 2",
            "tollway_responses_total{direction=\"inbound\",status=\"5xx\"} 1",
            "tollway_request_duration_seconds_bucket{direction=\"inbound\",le=\"0.0001\"} 1",
            "tollway_request_duration_seconds_bucket{direction=\"inbound\",le=\"0.0002\"} 2",
            "tollway_request_duration_seconds_bucket{direction=\"inbound\",le=\"+Inf\"} 3",
            "tollway_request_duration_seconds_count{direction=\"inbound\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
