//! The HTML report: well-formed, self-contained, faithful to the record, safe with hostile text.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod fixtures;

use std::collections::BTreeSet;

use serde_json::Value;
use tollway_record::{EncodedHistogram, Record};
use tollway_report::html;

const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&<!--";

/// Elements without an end tag.
const VOID: &[&str] = &["meta", "br", "hr", "img", "link", "input"];

#[test]
fn the_page_is_well_formed() {
    let page = html(&fixtures::fabricated());
    // Kept to be looked at: target/tmp/fixture.html.
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/fixture.html"), &page).unwrap();
    let elements = parse(&page);
    assert_eq!(elements.iter().filter(|e| e.name == "svg").count(), 7, "six charts, one forest");
    assert_eq!(elements.iter().filter(|e| e.name == "table").count(), 8);
}

#[test]
fn the_page_fetches_nothing_and_runs_nothing() {
    let page = html(&fixtures::fabricated());
    for needle in ["http:", "https:", "url(", "@import", " src=", " href=", "javascript:"] {
        assert!(!without_scripts(&page).contains(needle), "{needle}");
    }
    let scripts: Vec<_> = parse(&page).into_iter().filter(|e| e.name == "script").collect();
    assert_eq!(scripts.len(), 1);
    assert!(scripts[0].attributes.contains(r#"type="application/json""#));
}

#[test]
fn every_drawing_is_named_and_described() {
    let page = html(&fixtures::fabricated());
    let elements = parse(&page);
    let ids: Vec<&str> = elements.iter().filter_map(|e| attribute(e, "id")).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "an id stands twice");
    for svg in elements.iter().filter(|e| e.name == "svg") {
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
    let start = page.find("<script").unwrap();
    let start = start + page[start..].find('>').unwrap() + 1;
    let json = &page[start..start + page[start..].find("</script>").unwrap()];
    let read: Value = serde_json::from_str(json).unwrap();
    assert_eq!(read, serde_json::from_str::<Value>(&record.to_json()).unwrap());
}

#[test]
fn hostile_text_stays_text() {
    let page = html(&hostile());
    let elements = parse(&page);
    assert_eq!(elements.iter().filter(|e| e.name == "script").count(), 1);
    assert!(!elements.iter().any(|e| e.name == "img"), "text became an element");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"));
    assert!(!page.contains("<!--"));
}

#[test]
fn every_figure_of_the_terminal_stands_on_the_page() {
    let record = fixtures::fabricated();
    let page = html(&record);
    let visible = page[..page.find("<script").unwrap()].replace('\u{a0}', " ");
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
    assert!(page.contains("No curve: the histogram's text is not base64."));
    assert_eq!(parse(&page).iter().filter(|e| e.name == "svg").count(), 6);
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
    record.rows[0].cost.rss_bytes.insert(HOSTILE.to_owned(), 1);
    record.rows[0].cost.cpu_us_per_request.insert(HOSTILE.to_owned(), 1.0);
    record
}

struct Element<'a> {
    name: &'a str,
    attributes: &'a str,
}

/// Every element of the page; panics where one is not closed or closed out of turn.
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
        elements.push(Element { name, attributes });
        if !VOID.contains(&name) {
            open.push(name);
        }
        if name == "script" || name == "style" {
            rest = &rest[rest.find(&format!("</{name}>")).unwrap()..];
        }
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

fn without_scripts(page: &str) -> &str {
    &page[..page.find("<script").unwrap()]
}
