//! Parts that only some records have: variants, several baselines, full load, streams, raw
//! throughput, TLS, published figures, idle use. Each is on the terminal and on the page.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod fixtures;

use std::collections::BTreeMap;

use tollway_record::client_limit::ClientLimit;
use tollway_record::record::*;
use tollway_record::run::Streaming;
use tollway_record::search::SearchResult;
use tollway_record::throughput::{Direction, Flow, RttRange, ThroughputTotals};
use tollway_record::tls::TlsFacts;
use tollway_record::traffic::{Bytes, Traffic};
use tollway_record::{CompareOptions, LatencyUs, Record, compare, compare_all};
use tollway_report::{html, terminal};

#[test]
fn variants_are_named_in_rows_headline_and_tables_and_held_against_tollway() {
    let mut record = with_variant();
    let [tollway, traced] = [1, 2].map(|at| record.rows[at].clone());
    record.comparisons.extend(against(&traced, &tollway));
    let text = terminal(&record, 400, false);
    let headline: Vec<&str> = text.lines().take(3).collect();
    let expected = "HTTP/1.1 against tollway, in the same network: tollway:traced-1 adds nothing";
    assert!(headline[2].contains(expected), "{headline:?}");
    assert!(headline[1].contains("HTTP/1.1: Tollway adds 56 µs in the same"), "{headline:?}");
    assert!(
        text.contains("\nAgainst tollway\n  subject minus tollway over the same path"),
        "{text}"
    );
    assert!(!text.contains("Against direct"), "{text}");
    let page = html(&record);
    let drawn = "<summary>Against tollway, compared</summary>";
    let shown = "<h2>Against tollway, compared</h2>";
    assert!(page.contains(shown) || page.contains(drawn), "no drawing");
    assert!(page.contains("<bdi>tollway:traced-1</bdi>"), "the row has no name of its own");
}

#[test]
fn a_variant_without_a_baseline_of_its_own_is_held_against_direct() {
    let record = with_variant();
    let text = terminal(&record, 400, false);
    let expected = "  HTTP/1.1, in the same network: tollway:traced-1 adds 56 µs.";
    assert!(text.lines().any(|line| line == expected), "{text}");
}

#[test]
fn at_full_load_the_rate_is_what_counts() {
    let mut record = fixtures::fabricated();
    record.rows.truncate(2);
    for (row, rps) in record.rows.iter_mut().zip([20_000.0, 8_000.0]) {
        row.conditions.arrival = Arrival::Closed;
        row.traffic.achieved_rps = rps;
        row.traffic.requested_rps = None;
        for block in &mut row.blocks {
            block.traffic.duration_s = block.traffic.requests as f64 / rps;
        }
    }
    record.comparisons = compare_all(&record.rows, CompareOptions::seeded(1)).unwrap();
    let text = terminal(&record, 400, false);
    let expected = "HTTP/1.1: at full load Tollway reaches 8,000 requests/s, 40 % of direct, in the \
                    same network.";
    assert!(text.lines().nth(1).unwrap().contains(expected), "{text}");
    assert!(text.contains("rate, ratio") && text.contains(" 0.400 "), "{text}");
    let page = html(&record);
    assert!(page.contains("Time per answer at full load"));
    let forest = &page[page.find("<table class=\"forest\"").unwrap()..];
    let forest = &forest[..forest.find("</table>").unwrap()];
    assert!(!forest.contains("Mean response time"), "a by-product of the rate is judged");
}

#[test]
fn a_search_is_reported_by_the_interval_it_found() {
    let mut record = fixtures::fabricated();
    record.rows.truncate(2);
    for (row, held_rps) in record.rows.iter_mut().zip([20_000.0, 8_000.0]) {
        row.traffic.achieved_rps = held_rps;
        row.particulars.search = Some(SearchResult {
            slo: vec!["achieved>=99% of the rate".to_owned(), "p99<10ms".to_owned()],
            held_rps: Some(held_rps),
            missed_rps: Some(held_rps * 1.05),
            client_limited: held_rps > 10_000.0,
            complete: true,
            trials: Vec::new(),
        });
    }
    record.comparisons = compare_all(&record.rows, CompareOptions::seeded(1)).unwrap();
    let direct = line_of(&record, "Highest rate that holds", "direct");
    for figure in ["20,000", "21,000", "the generator's", "achieved>=99% of the rate, p99<10ms"] {
        assert!(direct.contains(figure), "{figure} is missing in {direct:?}");
    }
    let tollway = line_of(&record, "Highest rate that holds", "tollway");
    assert!(tollway.contains("8,000") && tollway.contains("confirmed"), "{tollway:?}");
    let text = terminal(&record, 400, false);
    let expected = "at full load Tollway reaches 8,000 requests/s, 40 % of direct, in the same";
    assert!(text.lines().nth(1).unwrap().contains(expected), "{text}");
    let page = html(&record);
    assert!(page.contains("<h2>Highest rate that holds</h2>") && page.contains("Time per answer"));
}

#[test]
fn streams_are_reported_with_their_messages_and_their_ends() {
    let mut record = fixtures::fabricated();
    record.rows[0].particulars.streaming = Some(Streaming {
        kind: "push".to_owned(),
        streams: 10,
        messages_per_stream: 1_000,
        message_bytes: 4_096,
        completed: 123,
        failed: 2,
        messages_per_s: 24_680.0,
        message_bytes_per_s: 101_089_280.0,
        first_message_us: LatencyUs { mean: Some(812.0), n: 125, ..LatencyUs::default() },
        stream_us: LatencyUs { mean: Some(402_000.0), n: 123, ..LatencyUs::default() },
        ..Streaming::default()
    });
    let line = line_of(&record, "Streams of messages", "direct");
    for figure in ["10", "1,000", "4,096", "24,600", "808", "123", " 2 ", "812 µs", "402 ms"] {
        assert!(line.contains(figure), "{figure} is missing in {line:?}");
    }
    let text = terminal(&record, 400, false);
    assert_eq!(text.matches("whole stream").count(), 1, "a column without a figure: {text}");
}

#[test]
fn raw_throughput_is_reported_by_direction_and_beside_direct() {
    let mut record = fixtures::fabricated();
    record.rows.truncate(2);
    for (row, bytes) in record.rows.iter_mut().zip([2_500_000_000_u64, 625_000_000]) {
        row.conditions.arrival = Arrival::Flow;
        row.conditions.protocol = Protocol::Tcp;
        let flow = Flow::new(bytes, 1.0);
        row.particulars.throughput = Some(ThroughputTotals {
            direction: Direction::Both,
            streams: 8,
            sent: Some(flow),
            received: Some(flow),
            retransmits: 17,
            rtt_us: RttRange { min: 21, mean: 35.0, max: 1_250 },
            congestion_control: "cubic".to_owned(),
        });
        for traffic in row.blocks.iter_mut().map(|block| &mut block.traffic) {
            traffic.bytes = Bytes { sent: bytes, received: bytes };
            traffic.duration_s = 1.0;
        }
        row.traffic = Traffic { duration_s: 1.0, ..Traffic::default() };
        row.traffic.bytes = Bytes { sent: bytes, received: bytes };
    }
    record.comparisons = compare_all(&record.rows, CompareOptions::seeded(1)).unwrap();
    let text = terminal(&record, 400, false);
    let expected =
        "  TCP: at full load Tollway reaches 10.0 Gbit/s, 25 % of direct, in the same network.";
    assert_eq!(text.lines().nth(1), Some(expected));
    let line = line_of(&record, "Raw TCP throughput", "tollway");
    for figure in [" 8 ", "5,000", "17", "21.0", "35.0", "1,250", "cubic"] {
        assert!(line.contains(figure), "{figure} is missing in {line:?}");
    }
    let added = line_of(&record, "Added by Tollway", "TCP");
    assert!(added.contains("0.25") && added.contains("slower"), "{added:?}");
    assert!(!text.contains("p99.9 "), "a flow has no response times: {text}");
    assert!(html(&record).contains("Time per megabyte at full load"));
}

#[test]
fn tls_is_reported_with_its_handshakes() {
    let mut record = fixtures::fabricated();
    let cpu = LatencyUs { mean: Some(412.0), n: 20, ..LatencyUs::default() };
    record.rows[1].particulars.tls_facts = Some(TlsFacts {
        version: "TLSv1_3".to_owned(),
        cipher_suite: "TLS13_AES_128_GCM_SHA256".to_owned(),
        client_certificate: true,
        handshakes_full: 16,
        handshakes_resumed: 4,
        handshake_cpu_us: Some(cpu),
        ..TlsFacts::default()
    });
    let line = line_of(&record, "TLS of the caller's connections", "tollway");
    for figure in ["TLS 1.3", "TLS13_AES_128_GCM_SHA256", "shown", "16", " 4 ", "412"] {
        assert!(line.contains(figure), "{figure} is missing in {line:?}");
    }
}

#[test]
fn published_figures_and_idle_use_stand_on_terminal_and_page() {
    let mut record = fixtures::fabricated();
    record.seed_table = Some(SeedTable {
        title: "Seed 009: two sidecars in a cupboard".to_owned(),
        notes: vec!["one hop".to_owned()],
        figures: vec![SeedFigure {
            what: "HTTP, added to p90".to_owned(),
            unit: FigureUnit::Milliseconds,
            seed: BTreeMap::from([
                ("Istio".to_owned(), SeedValue::Range([1.4, 1.5])),
                ("Linkerd".to_owned(), SeedValue::One(0.71)),
            ]),
            today: BTreeMap::from([("tollway".to_owned(), 0.22)]),
        }],
    });
    record.idle = vec![IdleUsage {
        subject: "tollway".to_owned(),
        variant: "traced-1".to_owned(),
        process: "client-sidecar".to_owned(),
        cpu_cores: 0.0123,
        rss_bytes: 12_300_000,
        duration_s: 10.0,
    }];
    let text = terminal(&record, 100, false);
    assert!(text.contains("published  Istio 1.40–1.50 · Linkerd 0.710"), "{text}");
    assert!(text.contains("today      tollway 0.220"), "{text}");
    let idle = line_of(&record, "Without load", "tollway:traced-1");
    assert!(idle.contains("client-sidecar") && idle.contains("12.3"), "{idle:?}");
    let page = html(&record);
    assert!(page.contains("<h2>Seed 009: two sidecars in a cupboard</h2>"));
    assert!(page.contains("<bdi>Istio</bdi><span class=\"value\">1.40–1.50</span>"));
    assert!(page.contains("<h2>Without load</h2>"));
}

#[test]
fn warnings_of_one_kind_are_printed_once() {
    let mut record = fixtures::fabricated();
    for (at, row) in record.rows.iter_mut().enumerate() {
        let late_fraction = 0.02 + at as f64 * 0.01;
        row.traffic.client_limited = true;
        row.traffic.client_limits = vec![ClientLimit::LateSends { late_fraction }];
    }
    record.warnings = vec!["the machine was warm".to_owned()];
    let text = terminal(&record, 400, false);
    assert_eq!(text.matches("client-limited: ").count(), 1, "{text}");
    assert!(text.contains("client-limited: 2.0 % of the sends were late; alike in 11 more rows"));
    assert!(text.contains("• the machine was warm"), "{text}");
    assert!(text.contains("13 warnings below qualify these figures."), "{text}");
}

/// Rows direct, tollway and tollway:traced-1 of one path, the latter two as slow as each other.
fn with_variant() -> Record {
    let mut record = fixtures::fabricated();
    record.rows.truncate(2);
    let mut traced = record.rows[1].clone();
    traced.conditions.id.push_str(":traced-1");
    traced.conditions.variant.push_str(", traced-1");
    record.rows.push(traced);
    record.comparisons = compare_all(&record.rows, CompareOptions::seeded(42)).unwrap();
    record
}

fn against(row: &Row, baseline: &Row) -> Vec<Comparison> {
    let options = CompareOptions::seeded(42);
    compare(row, baseline, Question::AgainstBaseline, options).unwrap()
}

/// The line of the table under that title that has the word.
fn line_of(record: &Record, title: &str, word: &str) -> String {
    let text = terminal(record, 400, false);
    let table = text.split_once(&format!("\n{title}\n")).expect(title).1;
    let table = table.split("\n\n").next().unwrap();
    let has = |line: &&str| line.split_whitespace().any(|part| part == word);
    table.lines().find(has).unwrap_or_else(|| panic!("no {word} in\n{table}")).to_owned()
}
