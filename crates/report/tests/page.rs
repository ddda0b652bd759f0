//! The HTML report: well-formed, self-contained, faithful to the record, safe with hostile text.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod fixtures;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use tollway_record::{EncodedHistogram, Record};
use tollway_report::html;

const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&<!--";

/// What of a page is not the record's: style and scripts.
const FRAME_LIMIT_BYTES: usize = 120_000;

/// What of a page is not its record: the frame, tables, drawings and their figures.
const PAGE_LIMIT_BYTES: usize = 300_000;

/// Elements without an end tag.
const VOID: &[&str] = &["meta", "br", "hr", "img", "link", "input"];

#[test]
fn the_page_is_well_formed() {
    let page = html(&fixtures::fabricated());
    // Left to be viewed: target/tmp/fixture.html.
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/fixture.html"), &page).unwrap();
    let elements = parse(&page);
    let of_class = |name: &str, class: &str| {
        elements.iter().filter(|e| e.name == name && has_class(e, class)).count()
    };
    assert_eq!(of_class("figure", "chart"), 12, "percentiles and spread of six groups");
    assert_eq!(of_class("svg", "still"), 12, "each drawn without a script");
    assert_eq!(of_class("table", "forest"), 2);
    assert_eq!(of_class("svg", "interval"), 4 * 6 + 6 + 2, "ratios, differences, axes");
    assert_eq!(elements.iter().filter(|e| e.name == "table").count(), 12);
}

#[test]
fn the_page_fetches_nothing() {
    let page = html(&fixtures::fabricated());
    for element in parse(&page) {
        assert!(!["img", "link", "iframe", "object"].contains(&element.name), "{}", element.name);
        for needle in ["http:", "https:", "url(", " src=", " href=", "javascript:", "style="] {
            // What is in the page itself may be pointed at.
            let attributes = element.attributes.replace(" href=\"#", "");
            assert!(!attributes.contains(needle), "{needle} in {}", element.attributes);
        }
    }
}

#[test]
fn the_policy_of_the_page_allows_its_own_scripts_and_style_alone() {
    let page = html(&fixtures::fabricated());
    let elements = parse(&page);
    let policy = elements.iter().find(|e| e.attributes.contains("Content-Security-Policy"));
    let policy = attribute(policy.unwrap(), "content").unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    let mut inlined = 0;
    for element in &elements {
        let runs = element.name == "script" && attribute(element, "type").is_none();
        if runs || element.name == "style" {
            let digest =
                aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, element.text.as_bytes());
            let hash = format!("'sha256-{}'", BASE64_STANDARD.encode(digest));
            assert!(policy.contains(&hash), "{:.60}", element.text);
            inlined += 1;
        }
    }
    assert_eq!(inlined, 3, "a style, the page's script, the charts");
    assert_eq!(policy.matches("sha256-").count(), inlined);
}

#[test]
fn a_page_without_figures_is_small() {
    let mut record = fixtures::fabricated();
    record.rows.clear();
    record.comparisons.clear();
    let length = html(&record).len();
    assert!(length < FRAME_LIMIT_BYTES, "{length} bytes");
}

#[test]
fn a_page_with_its_charts_is_small_beside_its_record() {
    let record = fixtures::fabricated();
    let beside = html(&record).len() - record.to_json().len();
    assert!(beside < PAGE_LIMIT_BYTES, "{beside} bytes");
}

#[test]
fn every_drawing_is_named_and_described() {
    let page = html(&fixtures::fabricated());
    let elements = parse(&page);
    let ids: Vec<&str> = elements.iter().filter_map(|e| attribute(e, "id")).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "an id stands twice");
    for svg in elements.iter().filter(|e| e.name == "svg") {
        // Those of a forest repeat the figures next to them.
        if attribute(svg, "aria-hidden").is_some() || has_class(svg, "interval") {
            continue;
        }
        assert_eq!(attribute(svg, "role"), Some("img"));
        let labels: Vec<_> = attribute(svg, "aria-labelledby").unwrap().split(' ').collect();
        assert_eq!(labels.len(), 2);
        assert!(labels.iter().all(|label| unique.contains(label)), "{labels:?}");
    }
}

#[test]
fn the_embedded_record_is_the_record() {
    let mut record = fixtures::fabricated();
    record.notes.push(HOSTILE.to_owned());
    let page = html(&record);
    let elements = parse(&page);
    let json = elements.iter().find(|e| attribute(e, "id") == Some("record")).unwrap().text;
    let read: Value = serde_json::from_str(json).unwrap();
    assert_eq!(read, serde_json::from_str::<Value>(&record.to_json()).unwrap());
}

#[test]
fn hostile_text_stays_text() {
    let page = html(&hostile());
    let elements = parse(&page);
    let plain = parse(&html(&fixtures::fabricated())).len();
    let extra = 2 + 2 * 2; // A warning's list, and a process in two tables.
    assert!(elements.len() < plain + extra * 20, "text became elements");
    let scripts = elements.iter().filter(|e| e.name == "script");
    assert!(
        scripts.clone().all(|script| !script.text.contains("alert(1)</")),
        "a script ended early"
    );
    assert_eq!(scripts.filter(|script| attribute(script, "type").is_none()).count(), 2);
    assert!(!elements.iter().any(|e| e.name == "img"), "text became an element");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"));
    assert!(!page.contains("<!--"));
}

#[test]
fn every_figure_of_the_terminal_stands_on_the_page() {
    let record = fixtures::fabricated();
    let page = html(&record);
    let visible = without_scripts(&page).replace('\u{a0}', " ");
    let text = tollway_report::terminal(&record, 400, false);
    for word in text.split_whitespace().filter(|word| word.contains(char::is_numeric)) {
        let word = word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(visible.contains(&word), "{word:?} is on the terminal but not on the page");
    }
}

#[test]
fn a_damaged_histogram_costs_its_curve_only() {
    let mut record = fixtures::fabricated();
    record.rows[0].traffic.histogram = EncodedHistogram::from_text("damaged!".to_owned());
    let page = html(&record);
    let reason = "No curve of HTTP/1.1, same network: the histogram's text is not base64.";
    assert!(page.contains(reason));
    let drawn = parse(&page).iter().filter(|e| e.name == "svg" && has_class(e, "still")).count();
    assert_eq!(drawn, 10, "the other groups have theirs");
}

#[test]
fn records_with_nothing_in_them_make_a_page() {
    for spoil in [
        |record: &mut Record| record.rows.clear(),
        |record: &mut Record| record.comparisons.clear(),
        |record: &mut Record| record.rows.iter_mut().for_each(|row| row.blocks.clear()),
        |record: &mut Record| {
            record.rows.iter_mut().for_each(|row| row.traffic = Default::default());
        },
        |record: &mut Record| {
            for row in &mut record.rows {
                row.traffic.requests = u64::MAX;
                row.traffic.errors = u64::MAX;
                row.traffic.latency_us.p50 = Some(f64::MAX);
                row.traffic.achieved_rps = f64::MAX;
            }
        },
    ] {
        let mut record = fixtures::fabricated();
        spoil(&mut record);
        parse(&html(&record));
        assert!(!tollway_report::terminal(&record, 100, true).is_empty());
    }
}

#[test]
fn no_figure_makes_the_report_panic() {
    let document: Value = serde_json::from_str(&fixtures::fabricated().to_json()).unwrap();
    let mut rendered = 0;
    for whole in [0, 1, u64::from(u32::MAX)] {
        for float in [0.0, -1.0, 1e-308, 0.9996, 999.5, 1e15, 1e308, -1e308] {
            let mut document = document.clone();
            replace_numbers(&mut document, whole, float);
            let record = Record::from_json(&document.to_string()).unwrap();
            parse(&html(&record));
            rendered += usize::from(!tollway_report::terminal(&record, 100, false).is_empty());
        }
    }
    assert_eq!(rendered, 24);
}

fn replace_numbers(value: &mut Value, whole: u64, float: f64) {
    match value {
        Value::Number(number) => *value = if number.is_u64() { whole.into() } else { float.into() },
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| replace_numbers(field, whole, float));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| replace_numbers(item, whole, float))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn hostile() -> Record {
    let mut record = fixtures::fabricated();
    for text in [&mut record.scenario, &mut record.started_at, &mut record.machine.os] {
        *text = HOSTILE.to_owned();
    }
    record.warnings = vec![HOSTILE.to_owned()];
    record.not_measured = vec![HOSTILE.to_owned()];
    record.subjects[0].config.insert(HOSTILE.to_owned(), HOSTILE.to_owned());
    record.parameters.insert(HOSTILE.to_owned(), HOSTILE.into());
    record.rows[0].conditions.subject = HOSTILE.to_owned();
    record.rows[1].conditions.subject = "long".repeat(2_500);
    record.rows[2].conditions.subject = "\u{202e}txet\u{202c} \u{5d0}\u{5d1}".to_owned();
    record.rows[0].cost.rss_bytes.insert(HOSTILE.to_owned(), 1);
    record.rows[0].cost.cpu_us_per_request.insert(HOSTILE.to_owned(), 1.0);
    record
}

struct Element<'a> {
    name: &'a str,
    attributes: &'a str,
    /// Of a script or a style.
    text: &'a str,
}

/// Every element of the page; panics where one is not closed or closed in the wrong order.
fn parse(page: &str) -> Vec<Element<'_>> {
    let mut elements = Vec::new();
    let mut open = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(start) = rest.find('<') {
        let length = tag_length(&rest[start..]);
        let tag = &rest[start + 1..start + length - 1];
        rest = &rest[start + length..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of turn before {:.60}", rest);
            continue;
        }
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric()), "<{tag}> is no element");
        let mut text = "";
        if !VOID.contains(&name) {
            open.push(name);
        }
        if name == "script" || name == "style" {
            (text, rest) = rest.split_at(rest.find(&format!("</{name}>")).unwrap());
        }
        elements.push(Element { name, attributes, text });
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    elements
}

/// Length of the tag at the start, `>` within quotes not counted as its end.
fn tag_length(text: &str) -> usize {
    let mut quoted = false;
    for (index, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '>' if !quoted => return index + 1,
            _ => {}
        }
    }
    panic!("a tag has no end: {text:.60}");
}

fn attribute<'a>(element: &Element<'a>, name: &str) -> Option<&'a str> {
    let start = format!("{name}=\"");
    let padded = element.attributes;
    let at =
        padded.match_indices(&start).find(|(at, _)| *at == 0 || padded[..*at].ends_with(' '))?;
    padded[at.0 + start.len()..].split('"').next()
}

fn has_class(element: &Element<'_>, class: &str) -> bool {
    attribute(element, "class").is_some_and(|classes| classes.split(' ').any(|one| one == class))
}

fn without_scripts(page: &str) -> String {
    let mut text = page.to_owned();
    while let Some(start) = text.find("<script") {
        let end = start + text[start..].find("</script>").unwrap() + "</script>".len();
        text.replace_range(start..end, "");
    }
    text
}
