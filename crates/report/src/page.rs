//! The report as one HTML file that opens from disk: no script runs, nothing is fetched.
//!
//! `maud` writes and escapes the markup (checked at compile time, no run-time templates).

use maud::{DOCTYPE, Markup, PreEscaped, html as markup};
use tollway_record::record::Question;
use tollway_record::{HistogramError, Record};

use crate::contents::{self, Section};
use crate::table::{Align, Cell, Column, Table, Tone};
use crate::{chart, forest};

const STYLE: &str = include_str!("page.css");

/// The whole report as one HTML document, the record's JSON embedded under the id `record`.
/// A row whose histogram is damaged has its figures, and the reason instead of its curve.
#[must_use]
pub fn html(record: &Record) -> String {
    let title = format!("Tollway · {} · {}", record.scenario, record.started_at);
    let page = markup! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (body(record)) }
                script type="application/json" id="record" { (embedded(record)) }
            }
        }
    };
    page.into_string()
}

fn body(record: &Record) -> Markup {
    let costs = contents::cost_tables(record);
    markup! {
        header {
            p.eyebrow { "Tollway" span { (record.scenario) } time { (record.started_at) } }
            h1 { "What does this path cost?" }
            @for sentence in contents::headline(record) { p.verdict { (unbroken(&sentence)) } }
        }
        (list("warnings", "Warnings", &contents::warnings(record)))
        @if let Some(figure) = forest::added_by_tollway(record) {
            section {
                h2 { "Added by Tollway to the mean call" }
                p.note { "Point and 95 % interval; left of zero would be faster than without." }
                (figure)
            }
        }
        @for (index, section) in contents::sections(record).iter().enumerate() {
            (latency_section(index, section))
        }
        @for question in Question::ALL { (table(&contents::added_table(record, *question))) }
        @for cost in &costs { (table(cost)) }
        (list("notes", "Notes", &contents::notes(record)))
        (list("notes", "Not measured here", &record.not_measured))
        (machine(record))
    }
}

fn latency_section(index: usize, section: &Section<'_>) -> Markup {
    let groups = contents::by_protocol(&section.rows);
    let charts = groups.iter().enumerate().map(|(place, rows)| {
        chart_or_reason(chart::percentiles(&format!("c{index}-{place}"), rows))
    });
    markup! {
        (table(&contents::latency_table(section)))
        div.charts { @for chart in charts { (chart) } }
        p.note {
            "Bold: all blocks merged; faint: single blocks; dashed: fewer than 100 samples beyond."
        }
    }
}

fn chart_or_reason(chart: Result<Option<Markup>, HistogramError>) -> Markup {
    match chart {
        Ok(chart) => chart.unwrap_or_default(),
        Err(error) => markup! { p.doubt { "No curve: " (error) "." } },
    }
}

fn table(table: &Table) -> Markup {
    if table.is_empty() {
        return Markup::default();
    }
    markup! {
        section {
            h2 { (table.title) }
            @if let Some(note) = &table.note { p.note { (note) } }
            div.wide {
                table {
                    caption.unseen { (table.title) }
                    thead { tr { @for column in &table.columns { (head(column)) } } }
                    @for group in &table.groups {
                        tbody { @for row in group { (line(&table.columns, row)) } }
                    }
                }
            }
        }
    }
}

fn head(column: &Column) -> Markup {
    markup! {
        th scope="col" class=[classes(column, None)] {
            (column.head)
            @if !column.unit.is_empty() { " " span.unit { (column.unit) } }
        }
    }
}

fn line(columns: &[Column], row: &[Cell]) -> Markup {
    markup! {
        tr {
            @for (index, (column, cell)) in columns.iter().zip(row).enumerate() {
                @if index == 0 {
                    th scope="row" { (cell.text) }
                } @else {
                    td class=[classes(column, Some(cell))] {
                        (cell.text)
                        @if !cell.range.is_empty() { " " span.range { (cell.range) } }
                    }
                }
            }
        }
    }
}

fn classes(column: &Column, cell: Option<&Cell>) -> Option<String> {
    let align = (column.align == Align::Right).then_some("figure");
    let spare = (column.spare > 0).then_some("spare");
    let tone = cell.and_then(|cell| match cell.tone {
        Tone::Plain => None,
        Tone::Faint => Some("faint"),
        Tone::Strong => Some("strong"),
        Tone::Doubt => Some("doubt"),
    });
    let classes: Vec<_> = align.into_iter().chain(spare).chain(tone).collect();
    (!classes.is_empty()).then(|| classes.join(" "))
}

fn list(class: &str, title: &str, items: &[String]) -> Markup {
    if items.is_empty() {
        return Markup::default();
    }
    markup! {
        section class=(class) {
            h2 { (title) }
            ul { @for item in items { li { (unbroken(item)) } } }
        }
    }
}

fn machine(record: &Record) -> Markup {
    markup! {
        section {
            h2 { "Machine and versions" }
            dl {
                @for (name, value) in contents::machine(record) { dt { (name) } dd { (value) } }
            }
        }
        @for subject in record.subjects.iter().filter(|subject| !subject.config.is_empty()) {
            details {
                summary { "Processes and configuration: " strong { (subject.name) } }
                dl {
                    @for (name, text) in &subject.config { dt { (name) } dd { code { (text) } } }
                }
            }
        }
    }
}

/// The text with its figures tied to their units, so that no line breaks between them.
fn unbroken(text: &str) -> String {
    const UNITS: &[&str] = &["%", "µs", "ms"];
    let mut text = text.to_owned();
    for unit in UNITS {
        text = text.replace(&format!(" {unit}"), &format!("\u{a0}{unit}"));
    }
    text
}

/// The record's JSON such that no text in it can end or open a script element.
fn embedded(record: &Record) -> PreEscaped<String> {
    PreEscaped(record.to_json().replace('<', "\\u003c"))
}
