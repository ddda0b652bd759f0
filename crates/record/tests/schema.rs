//! The types and `schema/tollway-lab-1.schema.json` describe the same documents.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tollway_record::client_limit::ClientLimit;
use tollway_record::neighbours::Stage;
use tollway_record::record::*;
use tollway_record::run::Streaming;
use tollway_record::search::{SearchResult, TrialResult};
use tollway_record::throughput::{Direction, Flow, RttRange, ThroughputTotals};
use tollway_record::tls::TlsFacts;
use tollway_record::traffic::*;
use tollway_record::{CompareOptions, Histogram, check, compare_all};

const SCHEMA_TEXT: &str = include_str!("../../../schema/tollway-lab-1.schema.json");

#[test]
fn a_record_with_every_field_fits_the_schema() {
    let errors = errors_of(&to_value(&full_record()));
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn a_record_with_only_required_parts_fits_the_schema() {
    let mut record = full_record();
    record.rows.clear();
    record.comparisons.clear();
    record.machine = Machine::default();
    let errors = errors_of(&to_value(&record));
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn the_schema_refuses_what_writers_must_not_write() {
    let check = |pointer: &str, wrong: Value| {
        let mut document = to_value(&full_record());
        *document.pointer_mut(pointer).expect(pointer) = wrong;
        assert!(!errors_of(&document).is_empty(), "{pointer} may hold nonsense");
    };
    check("/schema", "tollway.lab/2".into());
    check("/rows/0/requests", (-1).into());
    check("/rows/0/tls", "ssl".into());
    check("/rows/0/latency_us/p99", "fast".into());
    check("/rows/0/blocks/0/histogram", Value::Null);
    check("/comparisons/0/verdict", "better".into());
    check("/comparisons/0/ratio_ci95", vec![1.0].into());
    for parent in [
        "",
        "/rows/0",
        "/rows/0/blocks/0",
        "/rows/1/link",
        "/machine",
        "/comparisons/0",
        "/rows/0/limits",
        "/rows/0/blocks/0/noise",
        "/seed_table/figures/0",
        "/idle/0",
    ] {
        let mut document = to_value(&full_record());
        let object = document.pointer_mut(parent).and_then(Value::as_object_mut).expect(parent);
        object.insert("surprise".to_owned(), 1.into());
        assert!(!errors_of(&document).is_empty(), "{parent:?} may hold unknown properties");
    }
}

#[test]
fn every_property_of_the_schema_is_written() {
    let schema: Value = serde_json::from_str(SCHEMA_TEXT).unwrap();
    let mut described = BTreeSet::new();
    property_names(&schema, &mut described);
    let mut written = BTreeSet::new();
    key_names(&to_value(&full_record()), &mut written);
    let never: Vec<_> = described.difference(&written).collect();
    assert!(never.is_empty(), "in the schema, but never written: {never:?}");
}

#[test]
fn every_word_of_an_enumeration_is_in_the_schema() {
    let schema: Value = serde_json::from_str(SCHEMA_TEXT).unwrap();
    let check = |def: &str, property: &str, words: Vec<&str>| {
        let listed = &schema["$defs"][def]["properties"][property]["enum"];
        let listed: Vec<&str> =
            listed.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(listed, words, "{def}.{property}");
    };
    check("row", "protocol", Protocol::ALL.iter().map(|word| word.as_str()).collect());
    check("row", "tls", Tls::ALL.iter().map(|word| word.as_str()).collect());
    check("row", "topology", Topology::ALL.iter().map(|word| word.as_str()).collect());
    check("row", "layout", Layout::ALL.iter().map(|word| word.as_str()).collect());
    check("row", "arrival", Arrival::ALL.iter().map(|word| word.as_str()).collect());
    check("link", "kind", LinkKind::ALL.iter().map(|word| word.as_str()).collect());
    check("comparison", "question", Question::ALL.iter().map(|word| word.as_str()).collect());
    check("comparison", "metric", Metric::ALL.iter().map(|word| word.as_str()).collect());
    check("comparison", "verdict", Verdict::ALL.iter().map(|word| word.as_str()).collect());
    check("seed_figure", "unit", FigureUnit::ALL.iter().map(|word| word.as_str()).collect());
    check("stage_figure", "stage", Stage::ALL.iter().map(|word| word.as_str()).collect());
    check("comparison", "method", IntervalMethod::ALL.iter().map(|word| word.as_str()).collect());
}

#[test]
fn a_record_survives_the_way_through_json() {
    let record = full_record();
    assert_eq!(Record::from_json(&record.to_json()).unwrap(), record);
}

#[test]
fn a_record_of_a_later_minor_version_is_read() {
    let mut document = to_value(&full_record());
    document["rows"][0]["energy_j"] = 3.into();
    assert_eq!(Record::from_json(&document.to_string()).unwrap(), full_record());
}

#[test]
fn what_is_no_record_of_this_version_is_refused_with_the_reason() {
    let check = |text: &str, expected: &str| {
        let error = Record::from_json(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not mention {expected:?}");
    };
    check("{", "not JSON of tollway.lab/1");
    check("{}", "not JSON of tollway.lab/1");
    check(r#"{"schema":"tollway.lab/2"}"#, r#""tollway.lab/2"; this version reads tollway.lab/1"#);
    let mut twice = full_record();
    twice.rows.push(twice.rows[0].clone());
    check(&twice.to_json(), "two rows with the id \"same-network/http1/direct\"");
}

#[test]
fn the_golden_record_is_written_as_ever() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/record.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    // The deflated histograms depend on the compressor's version; their content is compared.
    let written = to_value(&full_record());
    assert_eq!(without_histograms(&written), without_histograms(&golden));
    let read = Record::from_json(&golden.to_string()).unwrap();
    for (read, made) in read.rows.iter().zip(&full_record().rows) {
        assert_eq!(read.traffic.latencies().unwrap(), made.traffic.latencies().unwrap());
    }
}

fn errors_of(document: &Value) -> Vec<String> {
    let schema: Value = serde_json::from_str(SCHEMA_TEXT).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    validator.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

fn to_value(record: &Record) -> Value {
    serde_json::from_str(&record.to_json()).unwrap()
}

fn without_histograms(document: &Value) -> Value {
    let mut document = document.clone();
    blank_histograms(&mut document);
    document
}

fn blank_histograms(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name.ends_with("histogram") {
                    *field = Value::Null;
                }
                blank_histograms(field);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank_histograms),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn property_names(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(properties) = fields.get("properties").and_then(Value::as_object) {
                names.extend(properties.keys().cloned());
            }
            fields.values().for_each(|field| property_names(field, names));
        }
        Value::Array(items) => items.iter().for_each(|item| property_names(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn key_names(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            names.extend(fields.keys().cloned());
            fields.values().for_each(|field| key_names(field, names));
        }
        Value::Array(items) => items.iter().for_each(|item| key_names(item, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A small record in which every field is set, made from fixed samples.
fn full_record() -> Record {
    let direct = full_row("same-network/http1/direct", "direct", Topology::SameNetwork, 90_000);
    let far = full_row("other-region/http1/direct", "direct", Topology::OtherRegion, 138_100_000);
    let tollway =
        full_row("other-region/http1/tollway", "tollway", Topology::OtherRegion, 138_220_000);
    let rows = vec![direct, far, tollway];
    let comparisons = compare_all(&rows, CompareOptions::seeded(7)).unwrap();
    let mut record = Record {
        schema: SCHEMA.to_owned(),
        scenario: "cross-network".to_owned(),
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        duration_s: 93.5,
        command_line: ["tollway", "demo"].map(str::to_owned).to_vec(),
        machine: full_machine(),
        parameters: BTreeMap::from([("seed".to_owned(), 7.into())]),
        subjects: vec![Subject {
            name: "tollway".to_owned(),
            variant: "sidecar–gateway–sidecar".to_owned(),
            version: "0.1.0".to_owned(),
            config: BTreeMap::from([("gateway".to_owned(), "tollway gateway".to_owned())]),
        }],
        rows,
        fabric: vec![full_fabric_row()],
        comparisons,
        notes: vec!["fixed samples, nothing was measured".to_owned()],
        warnings: Vec::new(),
        not_measured: vec!["IPv6".to_owned()],
        idle: vec![IdleUsage {
            subject: "tollway".to_owned(),
            variant: "two-sidecars".to_owned(),
            process: "client-sidecar".to_owned(),
            cpu_cores: 0.001,
            rss_bytes: 9 << 20,
            duration_s: 10.0,
        }],
        seed_table: Some(full_seed_table()),
    };
    record.warnings = check::check(&record);
    record
}

fn full_fabric_row() -> FabricRow {
    let mut times = Histogram::new();
    (0..2_000).for_each(|sample| times.record(90_000 + sample * 10));
    let block = |block| FabricBlock {
        block,
        rounds: 2_000,
        stages_us: Stage::ALL.into_iter().zip([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]).collect(),
        round_histogram: times.encode(),
        entry_histogram: times.encode(),
        cpu_us_per_entry: BTreeMap::from([("agent".to_owned(), 1.5)]),
        rss_bytes: BTreeMap::from([("agent".to_owned(), 9 << 20)]),
        calibration_us: Some(1_000.0),
        steal_fraction: Some(0.0),
        foreign_cpu_cores: Some(0.1),
    };
    let conditions = FabricConditions {
        id: "fanout/30".to_owned(),
        case: "fanout".to_owned(),
        entries: 10,
        table: Some(1_000),
        agents: Some(30),
        rate_per_s: Some(100.0),
    };
    FabricRow::from_blocks(conditions, vec![block(0), block(1)], 7).unwrap()
}

fn full_seed_table() -> SeedTable {
    SeedTable {
        title: "seed 003".to_owned(),
        notes: vec!["one hop, without TLS".to_owned()],
        figures: vec![SeedFigure {
            what: "p50 at 1,000 requests/s".to_owned(),
            unit: FigureUnit::Milliseconds,
            seed: BTreeMap::from([
                ("istio".to_owned(), SeedValue::Range([1.4, 1.5])),
                ("linkerd".to_owned(), SeedValue::One(0.71)),
            ]),
            today: BTreeMap::from([("tollway".to_owned(), 0.2)]),
        }],
    }
}

fn full_machine() -> Machine {
    Machine {
        os: "Debian 12".to_owned(),
        kernel: "6.1.0".to_owned(),
        arch: "x86_64".to_owned(),
        cpu_model: Some("a processor".to_owned()),
        cpus: 2,
        memory_bytes: Some(8 << 30),
        virtualization: Some("kvm".to_owned()),
        cpu_governor: Some("performance".to_owned()),
        congestion_control: Some("bbr".to_owned()),
        steal_fraction: Some(0.001),
        details: BTreeMap::from([("load_average_1m".to_owned(), "0.40".to_owned())]),
    }
}

fn full_row(id: &str, subject: &str, topology: Topology, base_ns: u64) -> Row {
    let conditions = Conditions {
        id: id.to_owned(),
        case: "http1".to_owned(),
        subject: subject.to_owned(),
        variant: "plain".to_owned(),
        protocol: Protocol::Http1,
        tls: Tls::Plain,
        hops: 0,
        topology,
        layout: Layout::Shared,
        arrival: Arrival::OpenUniform,
        connections: 160,
        in_flight_per_connection: Some(10),
        payload_bytes: 1_024,
        link: (topology != Topology::SameNetwork).then(|| Link {
            kind: LinkKind::Tun,
            rtt_asked_us: Some(138_000.0),
            rtt_measured_us: RttUs::from_probes(&[138_050.0, 138_020.0, 138_090.0]).unwrap(),
            jitter_us: 0.0,
            loss_pct: 0.0,
            rate_bps: Some(1_000_000_000),
        }),
        limits: Some(Limits {
            cpu_millicores: Some(500),
            cpu_period_us: 100_000,
            memory_bytes: Some(64 << 20),
        }),
    };
    let blocks =
        (0..2).map(|number| full_block(number, base_ns + u64::from(number) * 500)).collect();
    let mut row = Row::from_blocks(conditions, blocks).unwrap();
    row.set_aside = vec![full_block(0, base_ns)];
    // Searches are compared by what they found alone; the other rows keep the other metrics.
    if topology != Topology::SameNetwork {
        row.particulars.search = None;
    }
    row
}

fn full_block(number: u32, base_ns: u64) -> Block {
    let mut latencies = Histogram::new();
    (0..2_000).for_each(|sample| latencies.record(base_ns + sample * 10));
    let summary = latencies.summary();
    let reasons = vec![
        ClientLimit::LateSends { late_fraction: 0.02 },
        ClientLimit::RateMissed { achieved_fraction: 0.98 },
        ClientLimit::GeneratorBusy { busiest_thread_fraction: 0.97 },
        ClientLimit::NearDirect { of_direct_fraction: 0.9 },
    ];
    let mut traffic = Traffic {
        requested_rps: Some(1_000.0),
        achieved_rps: 1_000.0,
        duration_s: 2.0,
        requests: 2_000,
        errors: 3,
        errors_by_kind: BTreeMap::from([("timeout".to_owned(), 3)]),
        unfinished: 1,
        dropped: 1,
        lateness: Some(Lateness {
            p50_us: 12.0,
            p99_us: 60.0,
            max_us: 900.0,
            late_sends: 40,
            late_fraction: 0.02,
        }),
        client_limited: true,
        client_limits: reasons,
        bytes: Bytes { sent: 2_400_000, received: 2_300_000 },
        phases_us: BTreeMap::from([("connecting".to_owned(), summary)]),
        series: vec![SeriesPoint {
            t_s: 1.0,
            rps: 1_000.0,
            p50: Some(90.0),
            p99: None,
            lateness_us: Some(40.0),
            bits_per_s: Some(8e9),
        }],
        ..Traffic::default()
    };
    traffic.set_latencies(&latencies);
    traffic.set_services(&latencies);
    let mut failures = Histogram::new();
    failures.record_n(5_000, 3);
    traffic.set_failures(&failures);
    Block {
        block: number,
        position: 0,
        traffic,
        cost: Cost {
            cpu_us_per_megabyte: BTreeMap::from([("app".to_owned(), 120.0)]),
            machine_cpu_us_per_megabyte: Some(400.0),
            cpu_us_per_request: BTreeMap::from([("echo".to_owned(), 11.5)]),
            machine_cpu_us_per_request: Some(40.0 + base_ns as f64 / 1e8),
            rss_bytes: BTreeMap::from([("echo".to_owned(), 5 << 20)]),
            throttled_us: Some(0),
            throttling: BTreeMap::from([(
                "echo".to_owned(),
                Throttling { periods: 20, throttled_periods: 0, throttled_us: 0 },
            )]),
            tcp: Tcp { retransmitted_segments: Some(0), rtt_us: Some(50.0) },
            cost_series: vec![CostPoint {
                t_s: 1.0,
                cpu_cores: BTreeMap::from([("echo".to_owned(), 0.2)]),
                throttled_fraction: BTreeMap::from([("echo".to_owned(), 0.0)]),
            }],
        },
        particulars: full_particulars(summary),
        calibration_us: Some(1_000.0),
        steal_fraction: Some(0.0),
        noise: Some(Noise {
            foreign_cpu_cores: Some(0.3),
            cpu_pressure_fraction: Some(0.1),
            memory_pressure_fraction: Some(0.0),
            run_queue_fraction: BTreeMap::from([("echo".to_owned(), 0.02)]),
        }),
        outside_gate: vec!["something else used 0.30 processors".to_owned()],
    }
}

/// Of every kind at once, which no run has.
fn full_particulars(summary: LatencyUs) -> Particulars {
    let flow = Flow::new(1 << 30, 2.0);
    Particulars {
        tls_facts: Some(TlsFacts {
            version: "TLSv1_3".to_owned(),
            cipher_suite: "TLS13_AES_128_GCM_SHA256".to_owned(),
            group: Some("X25519".to_owned()),
            server_key: Some("EC-256".to_owned()),
            alpn: Some("h2".to_owned()),
            client_certificate: true,
            handshakes_full: 16,
            handshakes_resumed: 4,
            handshake_cpu_us: Some(summary),
        }),
        streaming: Some(Streaming {
            kind: "push".to_owned(),
            streams: 10,
            messages_per_stream: 1_000,
            message_bytes: 4_096,
            in_flight: 1,
            window_bytes: Some(1 << 20),
            deadline_s: Some(30.0),
            completed: 20,
            failed: 1,
            messages_per_s: 10_000.0,
            message_bytes_per_s: 40_960_000.0,
            first_message_us: summary,
            stream_us: summary,
        }),
        throughput: Some(ThroughputTotals {
            direction: Direction::Both,
            streams: 2,
            sent: Some(flow),
            received: Some(flow),
            retransmits: 3,
            rtt_us: RttRange { min: 20, mean: 31.5, max: 90 },
            congestion_control: "bbr".to_owned(),
        }),
        search: Some(SearchResult {
            slo: vec!["achieved>=99% of the rate".to_owned(), "p99<10ms".to_owned()],
            held_rps: Some(12_000.0),
            missed_rps: Some(12_500.0),
            client_limited: false,
            complete: true,
            trials: vec![TrialResult {
                requested_rps: 12_500.0,
                achieved_rps: 12_100.0,
                duration_s: 3.0,
                p99_us: Some(12_000.0),
                held: false,
                why: Some("p99 was 12 ms".to_owned()),
                client_limited: false,
                confirms: true,
            }],
        }),
    }
}

/// Writes the golden record, after an intended change of the format: `cargo test -p tollway-record
/// --test schema -- --ignored rewrite`.
#[test]
#[ignore = "writes the golden file"]
fn rewrite_the_golden_record() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/record.json");
    std::fs::write(path, full_record().to_json() + "\n").unwrap();
}
