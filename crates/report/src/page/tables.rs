//! Tables, lists and pairs of a report as HTML.

use maud::{Markup, html};

use crate::table::{Align, Cell, Column, Table, Tone};

/// Items of a list that are shown at once; the rest is to be opened.
const ITEMS_SHOWN: usize = 8;

/// The table under its title; nothing where it has no rows.
pub(crate) fn titled(table: &Table) -> Markup {
    if table.is_empty() {
        return Markup::default();
    }
    html! {
        section {
            h2 { (table.title) }
            @if let Some(note) = &table.note { p.note { (note) } }
            (bare(table))
        }
    }
}

/// The table under its title, to be opened; nothing where it has no rows.
pub(crate) fn folded(table: &Table) -> Markup {
    if table.is_empty() {
        return Markup::default();
    }
    html! {
        details {
            summary { (table.title) }
            @if let Some(note) = &table.note { p.note { (note) } }
            (bare(table))
        }
    }
}

/// The table alone.
pub(crate) fn bare(table: &Table) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(table.title) {
            table.data {
                caption.unseen { (table.title) }
                thead { tr { @for column in &table.columns { (head(column)) } } }
                @for group in &table.groups {
                    tbody { @for row in group { (line(&table.columns, row)) } }
                }
            }
        }
    }
}

/// Items under a title; nothing where there are none.
pub(crate) fn list(class: &str, title: &str, items: &[String]) -> Markup {
    if items.is_empty() {
        return Markup::default();
    }
    let (first, rest) = match items.len() {
        few if few <= ITEMS_SHOWN + 2 => (items, &[][..]),
        _ => items.split_at(ITEMS_SHOWN),
    };
    html! {
        section class=(class) {
            h2 { (title) }
            ul { @for item in first { li { (unbroken(item)) } } }
            @if !rest.is_empty() {
                details {
                    summary { (rest.len()) " more" }
                    ul { @for item in rest { li { (unbroken(item)) } } }
                }
            }
        }
    }
}

/// Names and values.
pub(crate) fn facts(pairs: &[(String, String)]) -> Markup {
    html! { dl { @for (name, value) in pairs { dt { (name) } dd { (value) } } } }
}

/// The text with its figures tied to their units, so that no line breaks between them.
pub(crate) fn unbroken(text: &str) -> String {
    const UNITS: &[&str] = &["%", "µs", "ms"];
    let mut text = text.to_owned();
    for unit in UNITS {
        text = text.replace(&format!(" {unit}"), &format!("\u{a0}{unit}"));
    }
    text
}

fn head(column: &Column) -> Markup {
    html! {
        th scope="col" class=[classes(column, None)] {
            bdi { (column.head) }
            @if !column.unit.is_empty() { " " span.unit { (column.unit) } }
        }
    }
}

fn line(columns: &[Column], row: &[Cell]) -> Markup {
    html! {
        tr {
            @for (index, (column, cell)) in columns.iter().zip(row).enumerate() {
                @if index == 0 {
                    th scope="row" { bdi { (cell.text) } }
                } @else {
                    td class=[classes(column, Some(cell))] {
                        @if column.align == Align::Right { (cell.text) } @else { bdi { (cell.text) } }
                        @if !cell.range.is_empty() { " " span.range { (cell.range) } }
                    }
                }
            }
        }
    }
}

/// Most cells are figures: those are the ones without a class.
fn classes(column: &Column, cell: Option<&Cell>) -> Option<String> {
    let align = match (column.align, cell) {
        (Align::Right, None) => Some("figure"),
        (Align::Left, Some(_)) => Some("word"),
        (Align::Right, Some(_)) | (Align::Left, None) => None,
    };
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
