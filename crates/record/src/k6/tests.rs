use super::*;
use crate::run::tests::run_of;

/// What k6 v1.8.1 wrote of 100 requests by two users, with conditions on three metrics: by
/// `--summary-export`, and in its script's `handleSummary` by `JSON.stringify`.
const EXPORT: &str = include_str!("../../tests/golden/k6-export.json");
const DATA: &str = include_str!("../../tests/golden/k6-data.json");

#[test]
fn both_shapes_have_every_key_of_k6s_own_and_no_other_in_the_same_metric() {
    let mut run = run();
    run.thresholds.truncate(3); // Those on the metrics that k6 had conditions on.
    for (ours, theirs) in [(write_export(&run), EXPORT), (write_data(&run), DATA)] {
        let (mut ours, mut theirs) = (parsed(&ours.unwrap()), parsed(theirs));
        let (ours_metrics, their_metrics) = (ours["metrics"].take(), theirs["metrics"].take());
        assert_eq!(shape(&ours), shape(&theirs));
        let their_metrics = their_metrics.as_object().unwrap();
        assert_eq!(their_metrics.len(), 16);
        for (name, metric) in their_metrics {
            assert_eq!(shape(&ours_metrics[name]), shape(metric), "{name}");
        }
    }
}

#[test]
fn kinds_and_contents_of_metrics_are_k6s() {
    let (ours, theirs) = (parsed(&write_data(&run()).unwrap()), parsed(DATA));
    for (name, metric) in theirs["metrics"].as_object().unwrap() {
        let ours = &ours["metrics"][name];
        assert_eq!((&ours["type"], &ours["contains"]), (&metric["type"], &metric["contains"]));
    }
}

#[test]
fn times_are_milliseconds_and_rates_per_second() {
    for (text, values) in [(write_export(&run()), ""), (write_data(&run()), "/values")] {
        let document = parsed(&text.unwrap());
        let of = |name: &str, key: &str| {
            let pointer = format!("/metrics/{name}{values}/{key}");
            document
                .pointer(&pointer)
                .and_then(Value::as_f64)
                .unwrap_or_else(|| panic!("{pointer}"))
        };
        for key in ["avg", "min", "med", "max", "p(90)", "p(95)"] {
            let (exported, real) = (of("http_req_duration", key), 2.0);
            assert!((exported - real).abs() < 1e-3 * real, "{key}: {exported}");
        }
        assert_eq!((of("http_reqs", "count"), of("http_reqs", "rate")), (1_100.0, 550.0));
        assert_eq!((of("data_received", "count"), of("data_received", "rate")), (4e3, 2e3));
        assert_eq!((of("http_req_failed", "passes"), of("http_req_failed", "fails")), (100.0, 1e3));
        assert_eq!((of("http_req_tls_handshaking", "avg"), of("vus", "value")), (5.0, 1.0));
        assert_eq!(of("http_req_connecting", "max"), 0.0, "no request had it");
    }
}

#[test]
fn a_missed_condition_is_true_in_the_export_and_not_ok_in_the_data() {
    let export = parsed(&write_export(&run()).unwrap());
    let data = parsed(&write_data(&run()).unwrap());
    for (metric, condition, missed) in [
        ("http_req_failed", "error_rate>90%", false),
        ("http_req_duration", "service_p99>1ms", true),
        ("http_req_tls_handshaking", "tls_handshaking_mean>1ms", true),
        (RESPONSE_TIME, "p99>1s", false),
    ] {
        assert_eq!(export["metrics"][metric]["thresholds"][condition], missed, "{condition}");
        assert_eq!(data["metrics"][metric]["thresholds"][condition]["ok"], !missed, "{condition}");
    }
}

#[test]
fn a_phase_of_which_only_a_summary_is_known_is_left_out() {
    let mut run = run();
    run.traffic.phase_histograms.clear();
    let export = parsed(&write_export(&run).unwrap());
    assert_eq!(export["metrics"]["http_req_tls_handshaking"], Value::Null);
    assert_eq!(export["metrics"]["http_req_blocked"]["avg"], 0.0);
}

#[test]
fn the_versioned_summary_lists_its_metrics() {
    let document = parsed(&write_summary(&run(), "2026-01-31T12:00:00Z").unwrap());
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

/// The document with its leaves' kinds in place of their values; of conditions, whose texts are
/// free, the kinds of their results.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let exported = fields.iter().map(|(name, field)| match (name.as_str(), field) {
                ("thresholds", Value::Object(conditions)) => {
                    (name.clone(), conditions.values().map(shape).take(1).collect())
                }
                _ => (name.clone(), shape(field)),
            });
            Value::Object(exported.collect())
        }
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn run() -> RunResult {
    let mut latencies = Histogram::new();
    latencies.record_n(2_000_000, 1_000);
    let mut run = run_of(&latencies);
    run.traffic.errors = 100;
    run.traffic.duration_s = 2.0;
    run.traffic.bytes.received = 4_000;
    let mut handshakes = Histogram::new();
    handshakes.record_n(4_000_000, 8);
    handshakes.record_n(6_000_000, 8);
    run.traffic.set_phase("tls_handshaking", &handshakes, true);
    let conditions =
        ["error_rate>90%", "service_p99>1ms", "rps<1", "tls_handshaking_mean>1ms", "p99>1s"];
    run.judge_thresholds(&conditions.map(|condition| condition.parse().unwrap())).unwrap();
    run
}
