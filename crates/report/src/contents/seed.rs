//! Published figures with today's below them, and what subjects use without load.

use std::collections::BTreeMap;

use tollway_record::record::{FigureUnit, Record, SeedFigure, SeedTable, SeedValue};

use crate::figures;
use crate::table::{Cell, Column, Table};

/// A published figure in words.
pub(crate) struct SeedLines {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    /// Names and figures: `Linkerd` and `0.71`; none where nothing was published.
    pub(crate) published: Vec<(String, String)>,
    /// By subject.
    pub(crate) today: Vec<(String, String)>,
}

/// Every figure of the table that the record repeats.
pub(crate) fn seed_lines(table: &SeedTable) -> Vec<SeedLines> {
    table.figures.iter().map(lines).collect()
}

fn lines(figure: &SeedFigure) -> SeedLines {
    let figure_of = |value: f64| value_text(figure.unit, value);
    let published = figure.seed.iter().map(|(of, value)| match value {
        SeedValue::One(one) => (of.clone(), figure_of(*one)),
        SeedValue::Range([lo, hi]) => {
            (of.clone(), format!("{}–{}", figure_of(*lo), figure_of(*hi)))
        }
    });
    let today = figure.today.iter().map(|(of, value)| (of.clone(), figure_of(*value)));
    SeedLines {
        what: figure.what.clone(),
        unit: figure.unit.as_str(),
        published: published.collect(),
        today: today.collect(),
    }
}

fn value_text(unit: FigureUnit, value: f64) -> String {
    match unit {
        FigureUnit::RequestsPerSecond | FigureUnit::MegabitsPerSecond if value >= 100.0 => {
            figures::count(value.round() as u64)
        }
        FigureUnit::OfDirect => format!("{value:.2}"),
        FigureUnit::Microseconds
        | FigureUnit::Milliseconds
        | FigureUnit::RequestsPerSecond
        | FigureUnit::MegabitsPerSecond
        | FigureUnit::Millicores
        | FigureUnit::Mebibytes => figures::digits3(value),
    }
}

/// What each process uses without load.
pub(crate) fn idle_table(record: &Record) -> Table {
    let mut groups: BTreeMap<String, Vec<Vec<Cell>>> = BTreeMap::new();
    for idle in &record.idle {
        let variant =
            if idle.variant.is_empty() { String::new() } else { format!(":{}", idle.variant) };
        let subject = format!("{}{variant}", idle.subject);
        groups.entry(subject.clone()).or_default().push(vec![
            Cell::plain(subject),
            Cell::plain(idle.process.clone()),
            Cell::plain(figures::digits3(idle.cpu_cores * 1e3)),
            Cell::plain(figures::megabytes(idle.rss_bytes)),
        ]);
    }
    Table {
        title: "Without load".to_owned(),
        note: None,
        columns: vec![
            Column::left("subject", ""),
            Column::left("process", ""),
            Column::right("CPU", "millicores"),
            Column::right("memory", "MB"),
        ],
        groups: groups.into_values().collect(),
    }
}
