//! A run in the two shapes of k6's summary, for what reads them.
//!
//! [`write_export`] is that of `--summary-export`: metrics by name, times in milliseconds, and a
//! threshold that is `true` when it was missed. [`write_summary`] is the versioned one for
//! machines. `http_req_duration` is, as in k6, the time from the send; the response time from the
//! plan stands beside it as [`RESPONSE_TIME`].

use serde_json::{Map, Value, json};

use crate::histogram::{Histogram, HistogramError};
use crate::record::Protocol;
use crate::run::RunResult;
use crate::traffic::LatencyUs;

/// The metric of the response time, which k6 does not have.
pub const RESPONSE_TIME: &str = "tollway_response_time";

/// The version of the machine-readable summary's format.
const SUMMARY_VERSION: &str = "1.0.0";
/// The statistics of a trend that this version has; it refuses others.
const SUMMARY_STATISTICS: [&str; 6] = ["avg", "min", "med", "max", "p(90)", "p(95)"];

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
    /// Milliseconds by the name of the statistic; what is not known is not there.
    Trend(Vec<(&'static str, f64)>),
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
    let mut metrics = Map::new();
    for metric in metrics_of(run)? {
        let mut values = match metric.values {
            Values::Trend(statistics) => trend_values(&statistics),
            Values::Counter { count, rate } => json!({ "count": count, "rate": rate }),
            Values::Rate { matches, total } => json!({
                "passes": matches, "fails": total - matches, "value": fraction(matches, total),
            }),
            Values::Gauge(value) => json!({ "value": value, "min": value, "max": value }),
        };
        let thresholds = thresholds(run, &metric.name);
        if !thresholds.is_empty() {
            values["thresholds"] = thresholds.into();
        }
        metrics.insert(metric.name, values);
    }
    let document = json!({
        "root_group": {
            "name": "", "path": "", "id": "d41d8cd98f00b204e9800998ecf8427e",
            "groups": {}, "checks": {},
        },
        "metrics": metrics,
    });
    Ok(serde_json::to_string_pretty(&document).expect("plain fields with string keys"))
}

/// The text of the versioned summary; `generated_at` is RFC 3339.
///
/// # Errors
/// [`HistogramError`] when a histogram of the result is damaged.
pub fn write_summary(run: &RunResult, generated_at: &str) -> Result<String, HistogramError> {
    let metrics = metrics_of(run)?.into_iter().map(|metric| {
        let values = match metric.values {
            Values::Trend(mut statistics) => {
                statistics.retain(|(name, _)| SUMMARY_STATISTICS.contains(name));
                trend_values(&statistics)
            }
            Values::Counter { count, .. } => json!({ "count": count }),
            Values::Rate { matches, total } => json!({
                "matches": matches, "total": total, "rate": fraction(matches, total),
            }),
            Values::Gauge(value) => json!({ "value": value, "min": value, "max": value }),
        };
        json!({
            "name": metric.name,
            "type": metric.kind,
            "contains": metric.contains,
            "values": values,
        })
    });
    let document = json!({
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
    });
    Ok(serde_json::to_string_pretty(&document).expect("plain fields with string keys"))
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
        trend_of("iteration_duration", &responses),
        trend_of(RESPONSE_TIME, &responses),
    ];
    match run.protocol {
        Protocol::Http1 | Protocol::Http2 => {
            metrics.push(counter("http_reqs", "default", requests));
            metrics.push(trend_of("http_req_duration", &services));
            metrics.push(Metric {
                name: "http_req_failed".to_owned(),
                kind: "rate",
                contains: "default",
                values: Values::Rate { matches: traffic.errors, total: requests },
            });
            let phases = traffic.phases_us.iter();
            metrics.extend(phases.map(|(name, phase)| phase_trend(name, phase)));
        }
        Protocol::Tcp => {}
        Protocol::GrpcUnary | Protocol::GrpcStream => {
            metrics.push(trend_of("grpc_req_duration", &services));
        }
    }
    metrics.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(metrics)
}

fn trend_of(name: &str, histogram: &Histogram) -> Metric {
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |quantile| ms(histogram.raw_quantile_ns(quantile));
    Metric {
        name: name.to_owned(),
        kind: "trend",
        contains: "time",
        values: Values::Trend(vec![
            ("avg", histogram.mean_ns().unwrap_or(0.0) / 1e6),
            ("min", ms(histogram.min_ns().unwrap_or(0))),
            ("med", at(0.5)),
            ("max", ms(histogram.max_ns().unwrap_or(0))),
            ("p(90)", at(0.9)),
            ("p(95)", at(0.95)),
        ]),
    }
}

fn trend_values(statistics: &[(&str, f64)]) -> Value {
    statistics.iter().map(|(name, ms)| ((*name).to_owned(), Value::from(*ms))).collect()
}

/// A phase over the requests that had it, with the statistics that its summary has.
fn phase_trend(name: &str, phase: &LatencyUs) -> Metric {
    let name = match name {
        "connect" => "connecting",
        "tls" => "tls_handshaking",
        other => other,
    };
    let known = [
        ("avg", phase.mean),
        ("med", phase.p50),
        ("max", phase.max),
        ("p(90)", phase.p90),
        ("p(99)", phase.p99),
    ];
    let statistics = known.into_iter().filter_map(|(name, us)| Some((name, us? / 1e3)));
    Metric {
        name: format!("http_req_{name}"),
        kind: "trend",
        contains: "time",
        values: Values::Trend(statistics.collect()),
    }
}

/// The conditions on this metric: `true` means missed, k6's own meaning in this format.
fn thresholds(run: &RunResult, metric: &str) -> Map<String, Value> {
    let of = |condition: &str| match condition.split(['<', '>', '=']).next().unwrap_or("") {
        "errors" | "error_rate" => "http_req_failed",
        "dropped" => "dropped_iterations",
        "rps" => "http_reqs",
        figure if figure.starts_with("service_") => "http_req_duration",
        _ => RESPONSE_TIME,
    };
    let judged = run.thresholds.iter().filter(|judged| of(&judged.judgement.condition) == metric);
    judged.map(|judged| (judged.judgement.condition.clone(), judged.missed.into())).collect()
}

fn fraction(part: u64, of: u64) -> f64 {
    if of > 0 { part as f64 / of as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::run_of;

    #[test]
    fn the_export_has_k6s_metrics_in_milliseconds() {
        let document: Value = serde_json::from_str(&write_export(&run()).unwrap()).unwrap();
        let duration = &document["metrics"]["http_req_duration"];
        assert_eq!(duration["avg"], 2.0);
        for key in ["min", "med", "max", "p(90)", "p(95)"] {
            assert!(duration[key].is_number(), "{key}");
        }
        let requests = &document["metrics"]["http_reqs"];
        assert_eq!((&requests["count"], &requests["rate"]), (&1_100.into(), &550.0.into()));
        let failed = &document["metrics"]["http_req_failed"];
        assert_eq!((&failed["passes"], &failed["fails"]), (&100.into(), &1_000.into()));
        let missed = &failed["thresholds"]["errors>0"];
        assert_eq!(missed, true, "true is missed in this format");
        assert!(document["root_group"]["checks"].is_object());
    }

    #[test]
    fn the_versioned_summary_lists_its_metrics() {
        let text = write_summary(&run(), "2026-01-31T12:00:00Z").unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&document["version"], &document["config"]["duration"]),
            (&"1.0.0".into(), &2.0.into())
        );
        let metrics = document["results"]["metrics"].as_array().unwrap();
        let of = |name: &str| metrics.iter().find(|m| m["name"] == name).unwrap();
        assert_eq!(of("http_req_failed")["values"]["matches"], 100);
        assert_eq!(of("http_req_duration")["contains"], "time");
        assert_eq!(of("http_req_tls_handshaking")["values"]["avg"], 5.0);
        assert_eq!(of("data_received")["type"], "counter");
        assert_eq!(of("http_reqs")["values"], json!({ "count": 1_100 }));
    }

    fn run() -> RunResult {
        let mut latencies = Histogram::new();
        latencies.record_n(2_000_000, 1_000);
        let mut run = run_of(&latencies);
        run.traffic.errors = 100;
        run.traffic.duration_s = 2.0;
        let phase = LatencyUs { mean: Some(5e3), max: Some(9e3), n: 16, ..LatencyUs::default() };
        run.traffic.phases_us.insert("tls".to_owned(), phase);
        run.judge_thresholds(&["errors>0".parse().unwrap()]).unwrap();
        run
    }
}
