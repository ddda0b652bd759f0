use super::*;
use crate::histogram::Histogram;
use crate::record::{Arrival, Protocol, Tls};
use crate::run::{Generator, RUN_SCHEMA, RunResult};
use crate::traffic::{Bytes, Traffic};
use proptest::prelude::*;
use serde_json::Value;

const HTTP: &str = include_str!("../../tests/golden/fortio-http.json");
const GRPC: &str = include_str!("../../tests/golden/fortio-grpc.json");
const TCP: &str = include_str!("../../tests/golden/fortio-tcp.json");

#[test]
fn a_file_of_fortios_own_is_read() {
    let Imported { labels, run_type, run, from_send, .. } = read(HTTP).unwrap();
    assert_eq!((labels.as_str(), run_type.as_str(), from_send), ("golden http", "HTTP", true));
    let traffic = &run.traffic;
    assert_eq!(
        (run.protocol, run.tls, run.arrival),
        (Protocol::Http1, Tls::Plain, Arrival::OpenUniform)
    );
    assert_eq!((traffic.requests, traffic.errors, run.connections), (364, 36, 2));
    assert_eq!(traffic.errors_by_kind["status-503"], 36);
    assert_eq!(traffic.requested_rps, Some(200.0));
    let rps = traffic.achieved_rps;
    assert!((rps - 199.925 * 364.0 / 400.0).abs() < 0.01, "{rps}");
    let p50_us = traffic.latency_us.p50.unwrap();
    assert!((100.0..200.0).contains(&p50_us), "Fortio says 146 with the errors: {p50_us}");
    assert_eq!(traffic.error_latency_us.unwrap().max, Some(439.425));
    for (text, protocol) in [(GRPC, Protocol::GrpcUnary), (TCP, Protocol::Tcp)] {
        let run = read(text).unwrap().run;
        assert_eq!((run.protocol, run.traffic.requests, run.traffic.errors), (protocol, 100, 0));
        assert!(!run.target.is_empty());
    }
}

#[test]
fn what_is_written_has_the_keys_and_types_of_fortios_own() {
    for (golden, protocol) in
        [(HTTP, Protocol::Http1), (GRPC, Protocol::GrpcUnary), (TCP, Protocol::Tcp)]
    {
        let golden: Value = serde_json::from_str(golden).unwrap();
        let written: Value = serde_json::from_str(&write(&run(protocol), "a b").unwrap()).unwrap();
        for key in [
            "RunType",
            "Labels",
            "StartTime",
            "RequestedQPS",
            "RequestedDuration",
            "ActualQPS",
            "ActualDuration",
            "NumThreads",
            "Version",
            "DurationHistogram",
            "ErrorsDurationHistogram",
            "Exactly",
            "Jitter",
            "Uniform",
            "NoCatchUp",
            "RunID",
            "ID",
            "RetCodes",
            "AccessLoggerInfo",
        ] {
            assert_eq!(kind(&written[key]), kind(&golden[key]), "{protocol}: {key}");
        }
        for key in ["URL", "Destination", "SocketCount", "NumConnections", "BytesSent", "Sizes"] {
            assert_eq!(written.get(key).is_some(), golden.get(key).is_some(), "{protocol}: {key}");
        }
        let histogram = &written["DurationHistogram"];
        for key in ["Count", "Min", "Max", "Sum", "Avg", "StdDev", "Data", "Percentiles"] {
            assert_eq!(kind(&histogram[key]), kind(&golden["DurationHistogram"][key]), "{key}");
        }
        let whole = |value: &Value| value.is_i64() || value.is_u64();
        assert!(whole(&written["ActualDuration"]) && whole(&histogram["Data"][0]["Count"]));
    }
}

#[test]
fn a_closed_loop_is_asked_for_the_maximum() {
    let mut closed = run(Protocol::Http1);
    closed.arrival = Arrival::Closed;
    closed.traffic.requested_rps = None;
    let written: Value = serde_json::from_str(&write(&closed, "").unwrap()).unwrap();
    assert_eq!(written["RequestedQPS"], "max");
    assert_eq!(written["ID"], "2026-01-31-120000");
    let open: Value =
        serde_json::from_str(&write(&run(Protocol::Http1), "x, y!").unwrap()).unwrap();
    assert_eq!(
        (&open["RequestedQPS"], &open["ID"]),
        (&"1000".into(), &"2026-01-31-120000_x_y".into())
    );
}

#[test]
fn what_was_written_here_comes_back_whole() {
    let given = run(Protocol::Http2);
    let Imported { labels, run, from_send, .. } = read(&write(&given, "l").unwrap()).unwrap();
    assert_eq!((labels.as_str(), from_send), ("l", false));
    assert_eq!(run, given);
}

/// A run's file with these codes and histograms, and nothing else that matters.
fn file(run_type: &str, codes: &str, rest: &str) -> Imported {
    let all = r#""DurationHistogram":{"Count":50,"Min":0.1,"Max":0.6,"Sum":15,"Avg":0.3,"Data":[
        {"Start":0.1,"End":0.3,"Percent":60,"Count":30},{"Start":0.3,"End":0.6,"Percent":100,"Count":20}]}"#;
    let kind =
        if run_type.is_empty() { String::new() } else { format!(r#""RunType":"{run_type}","#) };
    let text = format!(
        r#"{{{kind}"RequestedQPS":"100","ActualQPS":100,"RetCodes":{{{codes}}},{all}{rest}}}"#
    );
    read(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The harm: a run of which every request failed is shown with the rate of a good one. Files of
/// Fortio before 2022, and Nighthawk's, have the failures in their codes alone.
#[test]
fn failures_that_stand_in_the_codes_alone_are_failures() {
    for (run_type, codes, good, failed, mixed) in [
        ("HTTP", r#""503":50"#, 0, 50, false),
        ("HTTP", r#""200":40,"503":10"#, 40, 10, true),
        ("HTTP", r#""200":40,"-1":10"#, 40, 10, true),
        ("HTTP", r#""302":50"#, 0, 50, false),
        ("HTTP", r#""200":25,"204":24,"418":1"#, 50, 0, false),
        ("HTTP", r#""200":50"#, 50, 0, false),
        ("", r#""200":40,"400":10"#, 40, 10, true),
        // Requests of which there is no time.
        ("HTTP", r#""200":50,"-1":7"#, 50, 7, false),
        ("HTTP", r#""200":45,"503":5,"-1":7"#, 45, 12, true),
        ("GRPC Health", r#""SERVING":40,"NOT_SERVING":6,"ERROR":4"#, 40, 10, true),
        ("GRPC Ping", r#""1":40,"0":4,"2":3,"-1":3"#, 40, 10, true),
        ("GRPC Ping Delay=10ms", r#""SERVING":50"#, 50, 0, false),
        ("GRPC Health", r#""OK":50"#, 0, 50, false),
        ("TCP", r#""OK":40,"read tcp: connection reset":10"#, 40, 10, true),
        ("HTTP", "", 50, 0, false),
    ] {
        let Imported { run, failures_mixed, .. } = file(run_type, codes, "");
        let traffic = &run.traffic;
        assert_eq!((traffic.requests, traffic.errors), (good, failed), "{run_type} {codes}");
        assert_eq!(failures_mixed, mixed, "{run_type} {codes}");
        assert_eq!(traffic.latency_us.n, good, "{run_type} {codes}");
        let kinds: u64 = traffic.errors_by_kind.values().sum();
        assert_eq!(kinds, failed, "{run_type} {codes}: {:?}", traffic.errors_by_kind);
        let rate = 100.0 * good as f64 / (good + failed) as f64;
        assert!((traffic.achieved_rps - rate).abs() < 1e-6, "{codes}: {}", traffic.achieved_rps);
        if mixed && run_type == "HTTP" {
            // Both have their share of each bucket.
            let mean_us = traffic.latency_us.mean.unwrap();
            assert!((250_000.0..350_000.0).contains(&mean_us), "{mean_us}");
        }
    }
    // Those that are apart are not taken out twice.
    let apart = r#","ErrorsDurationHistogram":{"Count":10,"Min":0.3,"Max":0.6,"Sum":4.5,"Avg":0.45,
        "Data":[{"Start":0.3,"End":0.6,"Percent":100,"Count":10}]}"#;
    let Imported { run, failures_mixed, .. } = file("HTTP", r#""200":40,"503":10"#, apart);
    assert_eq!((run.traffic.requests, run.traffic.errors, failures_mixed), (40, 10, false));
    // A histogram of failures that has none, beside codes of them.
    let none = r#","ErrorsDurationHistogram":{"Count":0,"Data":null}"#;
    let Imported { run, .. } = file("HTTP", r#""503":50"#, none);
    assert_eq!((run.traffic.requests, run.traffic.errors), (0, 50));
}

#[test]
fn nighthawks_output_in_fortios_format_is_read() {
    let text = r#"{"Labels":"Nighthawk","RequestedQPS":12,"ActualQPS":12.0002,"ActualDuration":4999900000.0,
        "NumThreads":12,"DurationHistogram":{"Count":"48","Data":[
        {"Start":0.055,"End":0.055,"Percent":0,"Count":"1"},
        {"Start":0.055,"End":0.0843,"Percent":100,"Count":"47"},
        {"Start":0.0843,"End":0.0843,"Percent":100,"Count":"0"}],
        "Min":0.055,"Max":0.0843,"Sum":3.0,"Avg":0.0625,"StdDev":0.005,
        "Percentiles":[{"Percentile":0.5,"Value":0.06}]},"RetCodes":{"200":"48"},
        "URL":"http://127.0.0.1:10000/","Version":"0.0","Jitter":false,
        "StartTime":"2019-10-16T00:30:12.911078318Z","RequestedDuration":"5s"}"#;
    let Imported { labels, run_type, run, .. } = read(text).unwrap();
    assert_eq!((labels.as_str(), run_type.as_str()), ("Nighthawk", "HTTP"));
    let traffic = &run.traffic;
    assert_eq!((traffic.requests, traffic.errors, run.connections), (48, 0, 12));
    assert_eq!(traffic.requested_rps, Some(12.0));
    assert!((traffic.duration_s - 4.9999).abs() < 1e-9, "{}", traffic.duration_s);
    let failed = text.replace(r#""200":"48""#, r#""200":"30","400":"18""#);
    let traffic = read(&failed).unwrap().run.traffic;
    assert_eq!((traffic.requests, traffic.errors), (30, 18));
}

#[test]
fn files_that_cannot_be_shown_are_refused_with_the_reason() {
    for (text, reason) in [
        ("1", "not a result of Fortio"),
        ("{}", "no RunType"),
        (r#"{"RunType": "HTTP"}"#, "no DurationHistogram"),
        (r#"{"RunType": "UDP", "DurationHistogram": {}}"#, "\"UDP\""),
        (
            r#"{"RunType": "HTTP", "DurationHistogram": {"Data": [{"Start": 2, "End": 1, "Count": 1}]}}"#,
            "bucket 0",
        ),
        (
            r#"{"RunType": "HTTP", "DurationHistogram": {"Data": [{"Start": 0, "End": 1, "Count": -1}]}}"#,
            "bucket 0",
        ),
        (r#"{"RunType": "HTTP", "TollwayRun": 1}"#, "TollwayRun"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    assert!(read(r#"{"RunType": "HTTP", "DurationHistogram": {"Data": null}}"#).is_ok());
}

proptest! {
    #[test]
    fn buckets_are_few_in_order_and_hold_every_sample(
        samples in proptest::collection::vec((0_u64..4_000_000_000_000, 1_u64..1_000), 1..600),
    ) {
        let mut histogram = Histogram::new();
        for (ns, count) in samples {
            histogram.record_n(ns >> (ns % 40), count);
        }
        let data = buckets::from_histogram(&histogram);
        prop_assert!(data.data.len() <= MAX_BUCKETS);
        prop_assert_eq!(data.data.iter().map(|b| b.count).sum::<i64>(), data.count);
        prop_assert_eq!(data.data[0].start, data.min);
        let last = data.data[data.data.len() - 1];
        prop_assert_eq!((last.end, last.percent), (data.max, 100.0));
        prop_assert!(data.data.iter().all(|b| b.start <= b.end && b.count > 0));
        prop_assert!(data.data.windows(2).all(|pair| pair[0].end <= pair[1].start));
        prop_assert!(data.data.windows(2).all(|pair| pair[0].percent <= pair[1].percent));
        let read = buckets::to_histogram(&data).unwrap();
        prop_assert_eq!(read.n(), histogram.n());
        prop_assert_eq!(read.max_ns(), histogram.max_ns());
        for quantile in [0.5, 0.9, 0.99] {
            let (given, found) =
                (histogram.raw_quantile_ns(quantile), read.raw_quantile_ns(quantile));
            let width = data
                .data
                .iter()
                .find(|b| (b.end * 1e9).round() as u64 >= given)
                .map_or(0.0, |b| (b.end - b.start) * 1e9);
            // Within the bucket, and the step of the histogram itself.
            let most = width + given as f64 * 1e-3 + 200.0;
            prop_assert!((given as f64 - found as f64).abs() <= most, "{given} {found} {width}");
        }
    }

    #[test]
    fn no_text_panics(text: String) {
        let _ = read(&text);
        let _ = read(&format!(r#"{{"RunType": "HTTP", "DurationHistogram": {{"Avg": {}}}}}"#, text.len()));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn run(protocol: Protocol) -> RunResult {
    let mut latencies = Histogram::new();
    for ns in 1..2_000 {
        latencies.record(ns * ns * 100);
    }
    let mut failures = Histogram::new();
    failures.record_n(5_000_000, 3);
    let mut traffic = Traffic {
        requested_rps: Some(1_000.0),
        achieved_rps: 999.5,
        duration_s: 2.0,
        requests: latencies.n(),
        errors: 3,
        errors_by_kind: [("status-503".to_owned(), 2), ("timeout".to_owned(), 1)].into(),
        bytes: Bytes { sent: 10, received: 20_000 },
        ..Traffic::default()
    };
    traffic.set_latencies(&latencies);
    traffic.set_services(&latencies);
    traffic.set_failures(&failures);
    RunResult {
        schema: RUN_SCHEMA.into(),
        started_at: "2026-01-31T12:00:00.123456789Z".into(),
        target: "http://127.0.0.1:8080/echo".into(),
        protocol,
        tls: Tls::Plain,
        arrival: Arrival::OpenUniform,
        tls_facts: None,
        requests_per_connection: None,
        streams: 1,
        connections: 16,
        in_flight_limit: None,
        payload_bytes: 1024,
        warm_up_s: 1.0,
        seed: 1,
        command_line: vec!["tollway".into()],
        traffic,
        generator: Generator::default(),
        ..RunResult::default()
    }
}
