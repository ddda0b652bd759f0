//! The counters of a data-plane thread.
//!
//! The thread is the only writer of its counters, so an addition is a load and a store; the
//! admin thread reads and adds the threads up.

use std::time::Duration;

use super::catalogue::names;
use super::count::{Counter, Gauge};
use super::durations::Durations;
use super::page::{Metric, Page};
use super::rules::Rules;
use super::services::Services;

/// Requests by class of status.
#[derive(Default, Debug)]
struct ByStatus([Counter; 6]);

const STATUS_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The counters of one data-plane thread. A field has its metric's name, as the table below shows.
#[derive(Default, Debug)]
pub struct DataPlaneMetrics {
    pub connections: Gauge,
    pub connections_refused: Counter,
    pub buffered_body_bytes: Gauge,
    pub backpressure_pauses: Counter,
    pub bulk_bodies: Counter,
    pub retry_buffer_exceeded: Counter,
    pub tls_handshakes: Counter,
    pub tls_handshake_failures: Counter,
    pub dials: Counter,
    pub app_dials: Counter,
    pub dial_failures: Counter,
    pub keepalive_timeouts: Counter,
    pub inbound_requests: Counter,
    pub outbound_requests: Counter,
    pub requests_refused: Counter,
    pub policy_denials: Counter,
    pub policy_shadow_denials: Counter,
    pub policy_closed_connections: Counter,
    pub rate_limited: Counter,
    pub requests_shed: Counter,
    pub ejections: Ejections,
    pub ejected_replicas: Gauge,
    pub replica_panics: Counter,
    pub locality: Locality,
    pub faults: Faults,
    pub rate_shadow_limited: Counter,
    pub retries: Counter,
    pub mirrored_requests: Counter,
    pub mirrors_skipped: Counter,
    pub mirrors_failed: Counter,
    pub request_failures: Counter,
    pub requests_cancelled: Counter,
    pub relayed_bytes: Counter,
    pub intercepted: Intercepted,
    pub failover: Failover,
    pub gateway_connections: Counter,
    pub gateway_connections_refused: Counter,
    pub gateway_answers_refused: Counter,
    pub gateway_loops: Counter,
    pub gateway_reverse_connections: Gauge,
    pub gateway_reverse_carried: Counter,
    pub gateway_reverse_refused: Counter,
    pub gateway_reverse_silent: Counter,
    /// Spans for which the queue to the exporter had no room.
    pub spans_dropped: Counter,
    /// Lines for which the queue to the writer had no room.
    pub access_log_lines_dropped: Counter,
    /// By service called.
    pub services: Services,
    /// By rule of a route.
    pub rules: Rules,
    /// Requests for a service that has routes, none of whose rules is for them.
    pub route_unmatched: Counter,
    pub timeouts: TimedOut,
    inbound_status: ByStatus,
    outbound_status: ByStatus,
    inbound_duration: Durations,
    outbound_duration: Durations,
}

/// Choices of a network for services that are called in any, by why it was chosen.
#[derive(Default, Debug)]
pub struct Failover {
    /// It is of the first priority.
    pub priority: Counter,
    /// Too few replicas of those before it are healthy.
    pub health: Counter,
    /// Those before it have as many requests as they may.
    pub load: Counter,
    /// No network is known to be healthy.
    pub last_resort: Counter,
    /// Another network failed.
    pub retry: Counter,
}

/// Connections that were led here from an app, by what decided where they go.
#[derive(Default, Debug)]
pub struct Intercepted {
    /// To a service, by the protocol that it declares.
    pub declared: Counter,
    /// To a service that is away, by the protocol that it has declared before.
    pub learned: Counter,
    /// To a service that is away, by the first bytes of the app.
    pub first_bytes: Counter,
    /// To a service that is away, and the app has sent nothing in time.
    pub silent: Counter,
    /// Out of the mesh.
    pub outside: Counter,
    pub refused: Counter,
}

/// Requests where near replicas are preferred: by why the replica is of its level, and by level, the nearest
/// first.
#[derive(Default, Debug)]
pub struct Locality {
    /// No other is nearer.
    pub nearest: [Counter; LEVELS.len()],
    /// Too few of those that are nearer are healthy.
    pub health: [Counter; LEVELS.len()],
    /// Those that are nearer have too many requests under way.
    pub load: [Counter; LEVELS.len()],
}

const LEVELS: [&str; 3] = ["zone", "region", "network"];

/// Requests and attempts whose time was over, by which time.
#[derive(Default, Debug)]
pub struct TimedOut {
    /// The caller's own.
    pub deadline: Counter,
    /// What a route gives a request.
    pub request: Counter,
    /// What a route gives an attempt.
    pub attempt: Counter,
    /// What a response may take where no route has another time.
    pub response: Counter,
    /// Without a byte in either direction.
    pub idle: Counter,
}

/// Ejections of replicas, by reason.
#[derive(Default, Debug)]
pub struct Ejections {
    pub consecutive: Counter,
    pub success_rate: Counter,
}

/// Requests that went wrong on purpose.
#[derive(Default, Debug)]
pub struct Faults {
    pub delays: Counter,
    pub aborts: Counter,
}

type CounterOf = fn(&DataPlaneMetrics) -> &Counter;

/// The plain counters and their names.
static COUNTERS: [(&Metric, CounterOf); 35] = [
    (&names::INBOUND_REQUESTS, |m| &m.inbound_requests),
    (&names::OUTBOUND_REQUESTS, |m| &m.outbound_requests),
    (&names::REQUESTS_REFUSED, |m| &m.requests_refused),
    (&names::POLICY_DENIALS, |m| &m.policy_denials),
    (&names::POLICY_SHADOW_DENIALS, |m| &m.policy_shadow_denials),
    (&names::POLICY_CLOSED_CONNECTIONS, |m| &m.policy_closed_connections),
    (&names::RATE_LIMITED, |m| &m.rate_limited),
    (&names::REQUESTS_SHED, |m| &m.requests_shed),
    (&names::REPLICA_PANICS, |m| &m.replica_panics),
    (&names::RATE_SHADOW_LIMITED, |m| &m.rate_shadow_limited),
    (&names::RETRIES, |m| &m.retries),
    (&names::MIRRORED_REQUESTS, |m| &m.mirrored_requests),
    (&names::MIRRORS_SKIPPED, |m| &m.mirrors_skipped),
    (&names::MIRRORS_FAILED, |m| &m.mirrors_failed),
    (&names::ROUTE_UNMATCHED, |m| &m.route_unmatched),
    (&names::REQUEST_FAILURES, |m| &m.request_failures),
    (&names::REQUESTS_CANCELLED, |m| &m.requests_cancelled),
    (&names::CONNECTIONS_REFUSED, |m| &m.connections_refused),
    (&names::TLS_HANDSHAKES, |m| &m.tls_handshakes),
    (&names::TLS_HANDSHAKE_FAILURES, |m| &m.tls_handshake_failures),
    (&names::DIALS, |m| &m.dials),
    (&names::APP_DIALS, |m| &m.app_dials),
    (&names::DIAL_FAILURES, |m| &m.dial_failures),
    (&names::BACKPRESSURE_PAUSES, |m| &m.backpressure_pauses),
    (&names::BULK_BODIES, |m| &m.bulk_bodies),
    (&names::RETRY_BUFFER_EXCEEDED, |m| &m.retry_buffer_exceeded),
    (&names::KEEPALIVE_TIMEOUTS, |m| &m.keepalive_timeouts),
    (&names::RELAYED_BYTES, |m| &m.relayed_bytes),
    (&names::GATEWAY_CONNECTIONS, |m| &m.gateway_connections),
    (&names::GATEWAY_CONNECTIONS_REFUSED, |m| &m.gateway_connections_refused),
    (&names::GATEWAY_ANSWERS_REFUSED, |m| &m.gateway_answers_refused),
    (&names::GATEWAY_LOOPS, |m| &m.gateway_loops),
    (&names::GATEWAY_REVERSE_CARRIED, |m| &m.gateway_reverse_carried),
    (&names::GATEWAY_REVERSE_REFUSED, |m| &m.gateway_reverse_refused),
    (&names::GATEWAY_REVERSE_SILENT, |m| &m.gateway_reverse_silent),
];

type GaugeOf = fn(&DataPlaneMetrics) -> &Gauge;

static GAUGES: [(&Metric, GaugeOf); 4] = [
    (&names::CONNECTIONS, |m| &m.connections),
    (&names::EJECTED_REPLICAS, |m| &m.ejected_replicas),
    (&names::BUFFERED_BODY_BYTES, |m| &m.buffered_body_bytes),
    (&names::GATEWAY_REVERSE_CONNECTIONS, |m| &m.gateway_reverse_connections),
];

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

    /// Puts the sum of several threads on the page.
    pub fn add_to(page: &mut Page, threads: &[&Self]) {
        add_durations(page, threads);
        add_status(page, threads);
        let intercepted: [(&str, CounterOf); 6] = [
            ("declared", |m| &m.intercepted.declared),
            ("learned", |m| &m.intercepted.learned),
            ("first_bytes", |m| &m.intercepted.first_bytes),
            ("silent", |m| &m.intercepted.silent),
            ("outside", |m| &m.intercepted.outside),
            ("refused", |m| &m.intercepted.refused),
        ];
        add_labelled(page, threads, &names::INTERCEPTED_CONNECTIONS, "decision", &intercepted);
        let failovers: [(&str, CounterOf); 5] = [
            ("priority", |m| &m.failover.priority),
            ("health", |m| &m.failover.health),
            ("load", |m| &m.failover.load),
            ("last_resort", |m| &m.failover.last_resort),
            ("retry", |m| &m.failover.retry),
        ];
        add_labelled(page, threads, &names::FAILOVER, "reason", &failovers);
        add_locality(page, threads);
        let ejections: [(&str, CounterOf); 2] = [
            ("consecutive", |m| &m.ejections.consecutive),
            ("success_rate", |m| &m.ejections.success_rate),
        ];
        add_labelled(page, threads, &names::EJECTIONS, "reason", &ejections);
        let faults: [(&str, CounterOf); 2] =
            [("delay", |m| &m.faults.delays), ("abort", |m| &m.faults.aborts)];
        add_labelled(page, threads, &names::FAULTS, "kind", &faults);
        let services: Vec<_> = threads.iter().map(|thread| &thread.services).collect();
        Services::add_to(page, &services);
        let rules: Vec<_> = threads.iter().map(|thread| &thread.rules).collect();
        Rules::add_to(page, &rules);
        let timeouts: [(&str, CounterOf); 5] = [
            ("deadline", |m| &m.timeouts.deadline),
            ("request", |m| &m.timeouts.request),
            ("attempt", |m| &m.timeouts.attempt),
            ("response", |m| &m.timeouts.response),
            ("idle", |m| &m.timeouts.idle),
        ];
        add_labelled(page, threads, &names::TIMEOUTS, "kind", &timeouts);
        let sum = |of: CounterOf| threads.iter().map(|thread| of(thread).value()).sum::<u64>();
        for (metric, of) in &COUNTERS {
            page.single(metric, sum(*of));
        }
        for (metric, of) in &GAUGES {
            page.single(metric, threads.iter().map(|thread| of(thread).value()).sum::<u64>());
        }
    }
}

fn add_status(page: &mut Page, threads: &[&DataPlaneMetrics]) {
    for (direction, of) in directions() {
        for (at, class) in STATUS_CLASSES.iter().enumerate() {
            let value: u64 = threads.iter().map(|thread| of(thread).0.0[at].value()).sum();
            let labels = [("direction", direction), ("status", *class)];
            page.family(&names::RESPONSES).sample(&labels, value);
        }
    }
}

fn add_locality(page: &mut Page, threads: &[&DataPlaneMetrics]) {
    type Of = fn(&Locality) -> &[Counter; LEVELS.len()];
    let reasons: [(&str, Of); 3] =
        [("nearest", |of| &of.nearest), ("health", |of| &of.health), ("load", |of| &of.load)];
    for (at, level) in LEVELS.into_iter().enumerate() {
        for (reason, of) in reasons {
            let value: u64 = threads.iter().map(|thread| of(&thread.locality)[at].value()).sum();
            page.family(&names::LOCALITY).sample(&[("level", level), ("reason", reason)], value);
        }
    }
}

/// A family of counters that differ in the value of one label.
fn add_labelled(
    page: &mut Page,
    threads: &[&DataPlaneMetrics],
    metric: &'static Metric,
    label: &'static str,
    counters: &[(&'static str, CounterOf)],
) {
    for (value, of) in counters {
        let sum: u64 = threads.iter().map(|thread| of(thread).value()).sum();
        page.family(metric).sample(&[(label, *value)], sum);
    }
}

fn add_durations(page: &mut Page, threads: &[&DataPlaneMetrics]) {
    for (direction, of) in directions() {
        let several: Vec<_> = threads.iter().map(|thread| of(thread).1).collect();
        page.durations(&names::REQUEST_DURATION, &[("direction", direction)], &several);
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
        let mut page = Page::default();
        DataPlaneMetrics::add_to(&mut page, &[&a, &b]);
        let text = page.into_text();
        for line in [
            "tollway_retries_total 2",
            "tollway_responses_total{direction=\"inbound\",status=\"2xx\"} 2",
            "tollway_responses_total{direction=\"inbound\",status=\"5xx\"} 1",
            "tollway_responses_total{direction=\"outbound\",status=\"2xx\"} 0",
            "tollway_request_duration_seconds_bucket{direction=\"inbound\",le=\"0.0001\"} 1",
            "tollway_request_duration_seconds_bucket{direction=\"inbound\",le=\"0.0002\"} 2",
            "tollway_request_duration_seconds_bucket{direction=\"inbound\",le=\"+Inf\"} 3",
            "tollway_request_duration_seconds_count{direction=\"inbound\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
