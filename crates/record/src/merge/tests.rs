use super::*;
use crate::record::{Arrival, Layout, Protocol, Tls, Topology};
use crate::run::{Generator, RUN_SCHEMA};

#[test]
fn a_row_sums_counts_and_keeps_rates_per_second() {
    let row = row(vec![block(0, 1_000, 1.0), block(1, 3_000, 2.0)]);
    let traffic = &row.traffic;
    assert_eq!((traffic.requests, traffic.duration_s), (4_000, 3.0));
    assert!((traffic.achieved_rps - 4_000.0 / 3.0).abs() < 1e-9);
    assert_eq!((traffic.bytes.sent, traffic.bytes.received), (8_000, 16_000));
    assert_eq!(traffic.errors_by_kind["timeout"], 4);
}

#[test]
fn requests_sent_after_the_window_do_not_count_as_achieved() {
    let mut behind = block(0, 1_000, 1.0);
    behind.traffic.achieved_rps = 900.0;
    let row = row(vec![behind, block(1, 1_000, 1.0)]);
    assert_eq!((row.traffic.requests, row.traffic.achieved_rps), (2_000, 950.0));
}

#[test]
fn percentiles_come_from_the_merged_histogram() {
    let mut fast = block(0, 1_000, 1.0);
    let mut slow = block(1, 1_000, 1.0);
    fast.traffic.set_latencies(&of(1_000, 1_000));
    slow.traffic.set_latencies(&of(9_000, 1_000));
    let row = row(vec![fast, slow]);
    // The average of the two p90 would be 5 µs.
    assert!((row.traffic.latency_us.p90.unwrap() - 9.0).abs() < 0.1);
    assert_eq!(row.traffic.latency_us.mean, Some(5.0));
}

#[test]
fn processor_time_is_weighted_by_requests() {
    let row = row(vec![block(0, 1_000, 1.0), block(1, 3_000, 1.0)]);
    // 10 µs for 1,000 requests and 20 µs for 3,000 (see `block`).
    assert!((row.cost.cpu_us_per_request["echo"] - 17.5).abs() < 1e-9);
    assert!((row.cost.machine_cpu_us_per_request.unwrap() - 35.0).abs() < 1e-9);
    assert_eq!(row.cost.rss_bytes["echo"], 2_000_000);
}

#[test]
fn series_of_the_blocks_follow_each_other() {
    let row = row(vec![block(0, 1_000, 1.0), block(1, 1_000, 2.0)]);
    let times: Vec<f64> = row.traffic.series.iter().map(|point| point.t_s).collect();
    assert_eq!(times, [1.0, 2.0]);
}

#[test]
fn a_row_is_client_limited_when_its_sum_is() {
    let mut late = block(0, 1_000, 1.0);
    let lateness =
        Lateness { late_sends: 30, late_fraction: 0.03, p99_us: 1_500.0, ..Lateness::default() };
    late.traffic.lateness = Some(lateness);
    let mut punctual = block(1, 1_000, 1.0);
    punctual.traffic.lateness = Some(Lateness::default());
    let few = row(vec![late.clone(), punctual.clone(), punctual.clone(), punctual]);
    assert!(!few.traffic.client_limited, "30 of 4,000 is less than 1 %");
    assert_eq!(few.traffic.lateness.unwrap().p99_us, 1_500.0);
    assert!(row(vec![late.clone(), late]).traffic.client_limited);
}

#[test]
fn a_row_of_random_arrivals_is_held_against_its_own_plan() {
    let few = || vec![block(0, 950, 1.0), block(1, 960, 1.0)];
    let limited = |arrival| {
        let conditions = Conditions { arrival, ..conditions() };
        Row::from_blocks(conditions, few()).unwrap().traffic.client_limited
    };
    assert!(!limited(Arrival::OpenPoisson));
    assert!(limited(Arrival::OpenUniform));
}

#[test]
fn a_closed_loop_row_has_no_offered_rate_and_keeps_its_blocks_limits() {
    let mut block = block(0, 1_000, 1.0);
    block.traffic.requested_rps = None;
    block.traffic.client_limits = vec![ClientLimit::GeneratorBusy { busiest_thread_fraction: 1.0 }];
    let row = row(vec![block.clone(), block]);
    assert_eq!((row.traffic.requested_rps, row.traffic.client_limits.len()), (None, 1));
}

#[test]
fn a_run_becomes_a_block_and_survives_json() {
    let mut run = RunResult {
        schema: RUN_SCHEMA.to_owned(),
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        target: "http://127.0.0.1:8080/".to_owned(),
        protocol: Protocol::Http1,
        tls: Tls::Plain,
        arrival: Arrival::OpenUniform,
        tls_facts: None,
        requests_per_connection: None,
        streams: 1,
        connections: 16,
        in_flight_limit: Some(10_000),
        payload_bytes: 1_024,
        warm_up_s: 1.0,
        seed: 1,
        command_line: vec!["tollway".to_owned(), "load".to_owned()],
        traffic: block(0, 900, 1.0).traffic,
        generator: Generator { threads: 1, ..Generator::default() },
        ..RunResult::default()
    };
    run.judge_client();
    assert!(run.traffic.client_limited, "900 of 1,000 offered were achieved");
    let read = RunResult::from_json(&run.to_json()).unwrap();
    assert_eq!(read, run);
    let block = Block::from_run(3, 1, read, Cost::default());
    assert_eq!((block.block, block.position, block.traffic), (3, 1, run.traffic));
}

#[test]
fn a_run_of_another_schema_is_refused() {
    let error = RunResult::from_json(r#"{"schema":"fortio/1"}"#).unwrap_err().to_string();
    assert!(error.contains("this version reads tollway.load/1"), "{error}");
}

#[test]
fn a_label_names_the_variant_that_is_not_the_usual_one() {
    let check = |variant: &str, expected: &str| {
        let conditions = Conditions { variant: variant.to_owned(), ..conditions() };
        assert_eq!(conditions.label(), expected, "{variant:?}");
    };
    check("", "direct");
    check("sidecar–sidecar", "direct");
    check("sidecar–sidecar, traced-0.1", "direct:traced-0.1");
    check("sidecar, gateway, sidecar; mTLS", "direct");
    check("odd, ", "direct");
}

fn of(latency_ns: u64, count: u64) -> Histogram {
    let mut histogram = Histogram::new();
    histogram.record_n(latency_ns, count);
    histogram
}

fn block(number: u32, requests: u64, duration_s: f64) -> Block {
    let mut traffic = Traffic {
        requested_rps: Some(1_000.0),
        achieved_rps: requests as f64 / duration_s,
        duration_s,
        requests,
        errors: 2,
        errors_by_kind: BTreeMap::from([("timeout".to_owned(), 2)]),
        bytes: Bytes { sent: requests * 2, received: requests * 4 },
        series: vec![SeriesPoint { t_s: 1.0, ..SeriesPoint::default() }],
        ..Traffic::default()
    };
    traffic.set_latencies(&of(100_000, requests));
    let of_block = f64::from(number + 1) * 10.0;
    let cost = Cost {
        cpu_us_per_request: BTreeMap::from([("echo".to_owned(), of_block)]),
        machine_cpu_us_per_request: Some(of_block * 2.0),
        rss_bytes: BTreeMap::from([("echo".to_owned(), 2_000_000 / u64::from(number + 1))]),
        ..Cost::default()
    };
    Block { block: number, traffic, cost, ..Block::default() }
}

fn row(blocks: Vec<Block>) -> Row {
    Row::from_blocks(conditions(), blocks).unwrap()
}

fn conditions() -> Conditions {
    Conditions {
        id: "row".to_owned(),
        case: String::new(),
        subject: "direct".to_owned(),
        variant: String::new(),
        protocol: Protocol::Http1,
        tls: Tls::Plain,
        hops: 0,
        topology: Topology::SameNetwork,
        layout: Layout::Shared,
        arrival: Arrival::OpenUniform,
        connections: 16,
        in_flight_per_connection: None,
        payload_bytes: 1_024,
        link: None,
        limits: None,
    }
}
