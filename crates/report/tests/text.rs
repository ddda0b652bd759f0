//! The report on a terminal: golden text, widths, colours, hostile text, honest sentences.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod fixtures;

use tollway_record::client_limit::ClientLimit;
use tollway_record::record::{Metric, Question, Verdict};
use tollway_record::{CompareOptions, Record, compare, compare_all};
use tollway_report::terminal;

const GOLDEN: &str = include_str!("golden/terminal.txt");

#[test]
fn the_golden_report_is_written_as_ever() {
    let written = terminal(&fixtures::fabricated(), 112, false);
    for (number, (written, golden)) in written.lines().zip(GOLDEN.lines()).enumerate() {
        assert_eq!(written, golden, "line {}", number + 1);
    }
    assert_eq!(written.lines().count(), GOLDEN.lines().count());
}

#[test]
fn lines_keep_within_the_width() {
    for width in [100, 112, 120, 160] {
        let text = terminal(&fixtures::fabricated(), width, false);
        let too_long = text.lines().find(|line| line.chars().count() > width);
        assert_eq!(too_long, None, "{width} columns");
    }
}

#[test]
fn percentiles_and_errors_are_never_left_out() {
    let text = terminal(&fixtures::fabricated(), 80, false);
    let heads =
        text.lines().find(|line| line.contains("p99.9") && line.contains("link RTT")).unwrap();
    for head in ["offered", "achieved", "p50", "p75", "p90", "p99", "errors"] {
        assert!(heads.contains(head), "{head} is missing in {heads:?}");
    }
}

#[test]
fn colours_change_nothing_but_colour() {
    let record = fixtures::fabricated();
    let plain = terminal(&record, 112, false);
    let coloured = terminal(&record, 112, true);
    assert!(!plain.contains('\x1b') && coloured.contains("\x1b[1m"));
    assert_eq!(without_colours(&coloured), plain);
}

#[test]
fn control_characters_of_the_record_do_not_reach_the_terminal() {
    let mut record = fixtures::fabricated();
    let hostile = "\x1b[2J\x07\u{9b}31m\rspoofed";
    record.scenario = hostile.to_owned();
    record.notes.push(hostile.to_owned());
    record.rows[0].conditions.subject = hostile.to_owned();
    record.rows[0].cost.rss_bytes.insert(hostile.to_owned(), 1);
    record.machine.os = hostile.to_owned();
    let text = terminal(&record, 112, false);
    assert_eq!(text.chars().find(|c| c.is_control() && *c != '\n'), None);
    assert!(text.contains("spoofed"));
}

#[test]
fn a_toll_within_the_noise_is_not_claimed() {
    let mut record = fixtures::fabricated();
    let (row, base) = (record.rows[1].clone(), record.rows[1].clone());
    let mut same =
        compare(&row, &base, Question::AddedByTollway, CompareOptions::seeded(1)).unwrap();
    for comparison in &mut same {
        comparison.difference_ci95_us = Some([-2.0, 3.0]);
    }
    record.comparisons = same;
    assert_headline(
        &record,
        "HTTP/1.1: Tollway adds nothing that can be distinguished from noise in the same network (−2.00 µs \
         to +3.00 µs).",
    );
}

/// If blocks differ much, the ratio distinguishes two paths before the difference does.
#[test]
fn a_difference_with_a_verdict_is_not_called_noise() {
    let mut record = fixtures::fabricated();
    record.comparisons.retain(|c| c.row == "same-network/http1/tollway");
    for comparison in &mut record.comparisons {
        comparison.difference_ci95_us = Some([-2.0, 300.0]);
        comparison.verdict = Verdict::Slower;
    }
    let text = terminal(&record, 200, false);
    assert!(text.contains("HTTP/1.1: Tollway adds "), "{text}");
    assert!(!text.contains("distinguished from noise"), "{text}");
}

/// A late generator shows nothing about a difference: neither that there is one, nor none.
#[test]
fn what_a_limited_client_could_not_measure_is_said_with_its_reason() {
    let mut record = fixtures::fabricated();
    record.comparisons.retain(|c| c.row.contains("/http1/") && c.metric == Metric::LatencyMean);
    let of = |record: &Record, id: &str| record.rows.iter().position(|r| r.conditions.id == id);
    let limits = vec![ClientLimit::LateSends { late_fraction: 0.032 }];
    let base = of(&record, "same-network/http1/direct").unwrap();
    record.rows[base].traffic.client_limited = true;
    record.rows[base].traffic.client_limits = limits;
    let before = terminal(&record, 200, false);
    assert!(!before.contains("could not be measured"), "a clear difference stays: {before}");
    for comparison in record.comparisons.iter_mut().filter(|c| c.row.starts_with("same-network")) {
        comparison.difference_ci95_us = Some([-2.0, 3.0]);
        comparison.verdict = Verdict::Undecided;
    }
    let text = terminal(&record, 200, false);
    assert!(text.contains("HTTP/1.1: Tollway adds "), "{text}");
    assert!(!text.contains("distinguished from noise"), "{text}");
    assert_headline(
        &record,
        " What it adds in the same network could not be measured: the load generator was the \
         limit, without it 3.2 % of the sends were late.",
    );
    record.comparisons.retain(|c| c.row.starts_with("same-network"));
    assert_headline(&record, "HTTP/1.1: what Tollway adds in the same network could not be");
    record.rows[base].traffic.client_limited = false;
    assert_headline(&record, "nothing that can be distinguished from noise");
}

#[test]
fn a_faster_path_is_said_to_be_faster() {
    let mut record = fixtures::fabricated();
    record.comparisons.retain(|c| c.row == "same-network/http1/tollway");
    let mean = record.comparisons.iter_mut().find(|c| c.metric == Metric::LatencyMean).unwrap();
    (mean.difference_us, mean.difference_ci95_us) = (-12.0, Some([-15.0, -9.0]));
    assert_headline(&record, "HTTP/1.1: Tollway takes away 12 µs in the same network.");
}

#[test]
fn many_cases_are_summarised_by_their_range_and_listed_in_the_tables() {
    let mut record = fixtures::fabricated();
    let pair: Vec<_> = record.rows[..2].to_vec();
    record.rows.clear();
    for rps in [100.0, 200.0, 500.0, 1_000.0] {
        for mut row in pair.clone() {
            row.conditions.case = format!("http-{rps}");
            row.conditions.id = format!("same-network/http-{rps}/{}", row.conditions.subject);
            row.traffic.requested_rps = Some(rps);
            record.rows.push(row);
        }
    }
    record.comparisons = compare_all(&record.rows, CompareOptions::seeded(1)).unwrap();
    assert_headline(&record, "HTTP/1.1: Tollway adds 56.1 µs to 56.1 µs in 4 cases.");
    let text = terminal(&record, 160, false);
    assert_eq!(text.matches("http-500").count(), 7, "latencies, difference, CPU, memory: {text}");
    let page = tollway_report::html(&record);
    assert!(page.contains("<h2>With more load</h2>") && page.contains("tollway p99"));
}

#[test]
fn the_headline_reports_that_a_record_has_no_pairs() {
    let mut record = fixtures::fabricated();
    record.comparisons.clear();
    assert_headline(&record, "no pair of rows with and without Tollway");
}

#[test]
fn a_limited_client_is_marked_and_explained() {
    let mut record = fixtures::fabricated();
    let traffic = &mut record.rows[1].traffic;
    traffic.client_limited = true;
    traffic.client_limits = vec![ClientLimit::LateSends { late_fraction: 0.031 }];
    let text = terminal(&record, 120, false);
    let row = text.lines().find(|line| line.contains("tollway") && line.contains("client-limited"));
    assert!(row.is_some(), "the row has no mark");
    let warning = "same-network/http1/tollway: client-limited: 3.1 % of the sends were late";
    assert!(text.contains(warning), "{text}");
    assert!(text.lines().take(8).any(|line| line.contains("warning below qualifies")), "{text}");
}

#[test]
fn a_missed_rate_is_not_rounded_to_the_offered_one() {
    let mut record = fixtures::fabricated();
    record.rows[0].traffic.achieved_rps = 999.9;
    let text = terminal(&record, 120, false);
    let row = text.lines().find(|line| line.contains("direct") && line.contains("HTTP/1.1"));
    assert!(row.unwrap().contains(" 999 "), "{row:?}");
}

#[test]
fn a_subject_alone_has_its_rows_in_the_headline() {
    let mut record = fixtures::fabricated();
    record.rows.retain(|row| row.conditions.subject == "tollway");
    record.comparisons.clear();
    record.fabric.clear();
    let (id, rate) = (record.rows[0].conditions.id.clone(), record.rows[0].traffic.achieved_rps);
    assert!((rate - 1000.0).abs() < 1e-9, "{rate}");
    assert_headline(&record, &format!("{id}: 1,000 requests/s, median "));
}

fn assert_headline(record: &Record, expected: &str) {
    let text = terminal(record, 400, false);
    let headline: Vec<_> = text.lines().take(4).collect();
    assert!(headline.join(" ").contains(expected), "{headline:?}");
}

fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut parts = text.split('\x1b');
    plain.push_str(parts.next().unwrap());
    for part in parts {
        plain.push_str(part.split_once('m').unwrap().1);
    }
    plain
}

/// Writes the golden text, after an intended change of the report: `cargo test -p tollway-report
/// --test text -- --ignored rewrite`.
#[test]
#[ignore = "writes the golden file"]
fn rewrite_the_golden_report() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/terminal.txt");
    std::fs::write(path, terminal(&fixtures::fabricated(), 112, false)).unwrap();
}
