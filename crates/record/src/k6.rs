//! A run in the three shapes of k6's summary, for what reads them.
//!
//! [`write_export`] is that of `--summary-export`: metrics by name, times in milliseconds, and a
//! threshold that is `true` when it was missed. [`write_data`] is what k6 hands to a script's
//! `handleSummary`, which most converters read; [`write_summary`] is the versioned one for
//! machines. `http_req_duration` is, as in k6, the time from the send; the response time from the
//! plan stands beside it as [`RESPONSE_TIME`]. A phase is computed over the requests that had it, and
//! is zero where none did.

use serde_json::{Map, Value, json};

use crate::histogram::{Histogram, HistogramError};
use crate::record::Protocol;
use crate::run::RunResult;

/// The metric of the response time, which k6 does not have.
pub const RESPONSE_TIME: &str = "tollway_response_time";

/// The version of the machine-readable summary's format.
const SUMMARY_VERSION: &str = "1.0.0";
/// The statistics of a trend that k6 exports by default.
const STATISTICS: [&str; 6] = ["avg", "min", "med", "max", "p(90)", "p(95)"];
/// The phases of an HTTP request that k6 exports.
const PHASES: [&str; 6] =
    ["blocked", "connecting", "tls_handshaking", "sending", "waiting", "receiving"];

#[derive(Clone, Copy)]
enum Shape {
    Export,
    Data,
    Versioned,
}

/// One of k6's metrics.
struct Metric {
    name: String,
    /// `trend`, `counter`, `rate` or `gauge`.
    kind: &'static str,
    /// `time`, `data` or `default`.
    contains: &'static str,
    values: Values,
}

enum Values {
    /// Milliseconds, in the order of [`STATISTICS`].
    Trend([f64; STATISTICS.len()]),
    Counter {
        count: u64,
        rate: f64,
    },
    Rate {
        matches: u64,
        total: u64,
    },
    Gauge(u64),
}

/// The text of `--summary-export`.
///
/// # Errors
/// [`HistogramError`] when a histogram of the result is damaged.
pub fn write_export(run: &RunResult) -> Result<String, HistogramError> {
    let metrics = metrics_of(run)?.into_iter().map(|metric| {
        let values = metric.values.in_shape(Shape::Export);
        (metric.name.clone(), with_thresholds(values, run, &metric.name, Value::Bool))
    });
    Ok(text_of(&json!({
        "root_group": root_group(&json!({})),
        "metrics": metrics.collect::<Map<_, _>>(),
    })))
}

/// The text of what a script's `handleSummary` is given.
///
/// # Errors
/// [`HistogramError`] when a histogram of the result is damaged.
pub fn write_data(run: &RunResult) -> Result<String, HistogramError> {
    let metrics = metrics_of(run)?.into_iter().map(|metric| {
        let values = json!({
            "type": metric.kind,
            "contains": metric.contains,
            "values": metric.values.in_shape(Shape::Data),
        });
        let ok = |missed: bool| json!({ "ok": !missed });
        (metric.name.clone(), with_thresholds(values, run, &metric.name, ok))
    });
    Ok(text_of(&json!({
        "root_group": root_group(&json!([])),
        "metrics": metrics.collect::<Map<_, _>>(),
        "options": { "summaryTrendStats": STATISTICS, "summaryTimeUnit": "", "noColor": false },
        "state": {
            "isStdOutTTY": false,
            "isStdErrTTY": false,
            "testRunDurationMs": run.traffic.duration_s * 1e3,
        },
    })))
}

/// The text of the versioned summary; `generated_at` is RFC 3339.
///
/// # Errors
/// [`HistogramError`] when a histogram of the result is damaged.
pub fn write_summary(run: &RunResult, generated_at: &str) -> Result<String, HistogramError> {
    let metrics = metrics_of(run)?.into_iter().map(|metric| {
        json!({
            "name": metric.name,
            "type": metric.kind,
            "contains": metric.contains,
            "values": metric.values.in_shape(Shape::Versioned),
        })
    });
    Ok(text_of(&json!({
        "config": {
            "duration": run.traffic.duration_s,
            "execution": "local",
            "script": run.command_line.join(" "),
        },
        "metadata": {
            "generatedAt": generated_at,
            "k6Version": format!("tollway-{}", env!("CARGO_PKG_VERSION")),
        },
        "results": {
            "checks": { "metrics": [], "results": [] },
            "metrics": metrics.collect::<Vec<_>>(),
        },
        "version": SUMMARY_VERSION,
    })))
}

impl Values {
    fn in_shape(&self, shape: Shape) -> Value {
        match (self, shape) {
            (Self::Trend(ms), _) => {
                let values = STATISTICS.iter().zip(ms);
                values.map(|(name, ms)| ((*name).to_owned(), Value::from(*ms))).collect()
            }
            (Self::Counter { count, .. }, Shape::Versioned) => json!({ "count": count }),
            (Self::Counter { count, rate }, _) => json!({ "count": count, "rate": rate }),
            (Self::Rate { matches, total }, Shape::Versioned) => json!({
                "matches": matches, "total": total, "rate": fraction(*matches, *total),
            }),
            (Self::Rate { matches, total }, Shape::Export) => json!({
                "passes": matches, "fails": total - matches, "value": fraction(*matches, *total),
            }),
            (Self::Rate { matches, total }, Shape::Data) => json!({
                "passes": matches, "fails": total - matches, "rate": fraction(*matches, *total),
            }),
            (Self::Gauge(value), _) => json!({ "value": value, "min": value, "max": value }),
        }
    }
}

fn metrics_of(run: &RunResult) -> Result<Vec<Metric>, HistogramError> {
    let traffic = &run.traffic;
    let seconds = traffic.duration_s;
    let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let counter = |name: &str, contains, count| Metric {
        name: name.to_owned(),
        kind: "counter",
        contains,
        values: Values::Counter { count, rate: per_second(count) },
    };
    let gauge = |name: &str, value| Metric {
        name: name.to_owned(),
        kind: "gauge",
        contains: "default",
        values: Values::Gauge(value),
    };
    let requests = traffic.requests + traffic.errors;
    let (responses, services) = (traffic.latencies()?, traffic.services()?);
    let mut metrics = vec![
        counter("data_received", "data", traffic.bytes.received),
        counter("data_sent", "data", traffic.bytes.sent),
        counter("iterations", "default", requests),
        counter("dropped_iterations", "default", traffic.dropped),
        gauge("vus", u64::from(run.connections)),
        gauge("vus_max", u64::from(run.connections)),
        trend("iteration_duration", &responses),
        trend(RESPONSE_TIME, &responses),
    ];
    match run.protocol {
        Protocol::Http1 | Protocol::Http2 => {
            metrics.push(counter("http_reqs", "default", requests));
            metrics.push(trend("http_req_duration", &services));
            metrics.push(trend("http_req_duration{expected_response:true}", &services));
            metrics.push(Metric {
                name: "http_req_failed".to_owned(),
                kind: "rate",
                contains: "default",
                values: Values::Rate { matches: traffic.errors, total: requests },
            });
            let others = traffic.phases_us.keys().map(String::as_str);
            for phase in PHASES.into_iter().chain(others.filter(|name| !PHASES.contains(name))) {
                let known = traffic.phase(phase)?;
                metrics.extend(known.map(|known| trend(&format!("http_req_{phase}"), &known)));
            }
        }
        Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => {}
        Protocol::GrpcUnary | Protocol::GrpcStream => {
            metrics.push(trend("grpc_req_duration", &services));
        }
    }
    metrics.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(metrics)
}

fn trend(name: &str, histogram: &Histogram) -> Metric {
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |quantile| ms(histogram.raw_quantile_ns(quantile));
    Metric {
        name: name.to_owned(),
        kind: "trend",
        contains: "time",
        values: Values::Trend([
            histogram.mean_ns().unwrap_or(0.0) / 1e6,
            ms(histogram.min_ns().unwrap_or(0)),
            at(0.5),
            ms(histogram.max_ns().unwrap_or(0)),
            at(0.9),
            at(0.95),
        ]),
    }
}

/// `values` with the results of the conditions on this metric, if there are any.
fn with_thresholds(
    mut values: Value,
    run: &RunResult,
    metric: &str,
    tell: impl Fn(bool) -> Value,
) -> Value {
    let judged = run.thresholds.iter().map(|judged| (&judged.judgement.condition, judged.missed));
    let on_it = judged.filter(|(condition, _)| metric_of(condition) == metric);
    let thresholds: Map<_, _> =
        on_it.map(|(condition, missed)| (condition.clone(), tell(missed))).collect();
    if !thresholds.is_empty() {
        values["thresholds"] = thresholds.into();
    }
    values
}

/// The metric that a condition is about.
fn metric_of(condition: &str) -> String {
    let figure = condition.split(['<', '>', '=']).next().unwrap_or("");
    match figure {
        "errors" | "error_rate" => "http_req_failed".to_owned(),
        "dropped" => "dropped_iterations".to_owned(),
        "rps" => "http_reqs".to_owned(),
        _ => match figure.rsplit_once('_') {
            Some(("service", _)) => "http_req_duration".to_owned(),
            Some((phase, _)) => format!("http_req_{phase}"),
            None => RESPONSE_TIME.to_owned(),
        },
    }
}

/// The group that all k6 scripts have, with nothing in it; `empty` is how the shape writes that.
fn root_group(empty: &Value) -> Value {
    json!({
        "name": "", "path": "", "id": "d41d8cd98f00b204e9800998ecf8427e",
        "groups": empty, "checks": empty,
    })
}

fn fraction(part: u64, of: u64) -> f64 {
    if of > 0 { part as f64 / of as f64 } else { 0.0 }
}

fn text_of(document: &Value) -> String {
    serde_json::to_string_pretty(document).expect("plain fields with string keys")
}

#[cfg(test)]
mod tests;
