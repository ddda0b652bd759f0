//! Neighbours of the fabric: how long they take from stage to stage, and what that costs.

use std::collections::BTreeSet;

use tollway_record::neighbours::Stage;
use tollway_record::record::{FabricRow, Record, StageFigure};

use super::{figure, nothing, under};
use crate::figures::{self, NONE};
use crate::table::{Cell, Column, Table, Tone};

/// Stages by case; where neighbours are written, how long each took; what they cost.
pub(crate) fn fabric_tables(record: &Record) -> Vec<Table> {
    let cases = by_case(record);
    let mut tables: Vec<Table> = cases.iter().map(|(case, rows)| stage_table(case, rows)).collect();
    tables.extend(cases.iter().filter_map(|(case, rows)| latency_table(case, rows)));
    tables.extend(cases.iter().map(|(case, rows)| cost_table(case, rows)));
    tables
}

/// Rows by case, both in the order of the record.
fn by_case(record: &Record) -> Vec<(&str, Vec<&FabricRow>)> {
    let mut cases: Vec<(&str, Vec<&FabricRow>)> = Vec::new();
    for row in &record.fabric {
        under(&mut cases, row.conditions.case.as_str()).push(row);
    }
    cases
}

/// By what rows of a case differ, and how much of it one has.
fn sized(rows: &[&FabricRow]) -> (&'static str, fn(&FabricRow) -> u64) {
    if rows.iter().any(|row| row.conditions.agents.is_some()) {
        return ("agents", |row| row.conditions.agents.unwrap_or(1));
    }
    ("neighbours", |row| row.conditions.entries)
}

/// One sentence for each case: the largest size and the smallest.
pub(super) fn headline(record: &Record) -> Vec<String> {
    let sentence = |(case, rows): (&str, Vec<&FabricRow>)| {
        let (of, size) = sized(&rows);
        let sizes: BTreeSet<u64> = [rows.first()?, rows.last()?].map(|row| size(row)).into();
        let phrases = sizes.iter().rev().filter_map(|wanted| {
            let row = rows.iter().find(|row| size(row) == *wanted)?;
            let total = row.stage(Stage::Total)?;
            let (count, time) = (figures::count(*wanted), figures::time(total.total_ms * 1e3));
            Some(match *wanted {
                _ if of == "agents" => format!("{count} {of} have it in {time}"),
                1 => format!("1 in {time}"),
                _ => format!("{count} in {time}, {} each", figures::time(total.us_per_entry)),
            })
        });
        let phrases: Vec<String> = phrases.collect();
        (!phrases.is_empty()).then(|| format!("{case}: {}.", phrases.join("; ")))
    };
    by_case(record).into_iter().filter_map(sentence).collect()
}

/// How the figures came about, instead of the note on blocks of requests.
pub(super) fn plan(record: &Record) -> String {
    let blocks = record.fabric.iter().map(|row| row.blocks.len()).max().unwrap_or_default();
    format!(
        "{blocks} blocks, rows in turns. Intervals are 95 %, over blocks. {NONE} stands for a \
         percentile with fewer than 100 samples beyond it, and for what was not measured."
    )
}

fn stage_table(case: &str, rows: &[&FabricRow]) -> Table {
    let stages: Vec<Stage> = Stage::ALL
        .into_iter()
        .filter(|stage| rows.iter().any(|row| row.stage(*stage).is_some()))
        .collect();
    let (of, size) = sized(rows);
    let mut columns = vec![Column::right(of, "")];
    columns.extend(stages.iter().map(|stage| {
        let column = Column::right(stage.as_str(), "");
        if *stage == Stage::Total { column } else { column.spare(1) }
    }));
    columns.extend([Column::right("each", "µs"), Column::right("rounds", "").spare(2)]);
    let line = |row: &&FabricRow| {
        let mut cells = vec![Cell::plain(figures::count(size(row)))];
        cells.extend(stages.iter().map(|stage| match row.stage(*stage) {
            Some(figure) => time_of(figure),
            None => nothing(),
        }));
        let each = row.stage(Stage::Total).map(|total| figures::digits3(total.us_per_entry));
        cells.extend([figure(each), Cell::plain(figures::count(row.round_us.n))]);
        cells
    };
    Table {
        title: format!("{case}: until neighbours had come so far"),
        note: Some(
            "from the beginning of a round; total: the last one was read in the kernel's table, and \
             the last agent had it"
                .to_owned(),
        ),
        columns,
        groups: vec![rows.iter().map(line).collect()],
    }
}

fn time_of(figure: &StageFigure) -> Cell {
    let us = figure.total_ms * 1e3;
    if figure.stage != Stage::Total {
        return Cell::plain(figures::time(us));
    }
    let ci95 = figure.total_ci95_ms.map(|ends| ends.map(|end| end * 1e3));
    Cell::with_range(figures::time_with(us, ci95)).toned(Tone::Strong)
}

/// Percentiles of rounds, and of single neighbours where they are written.
fn latency_table(case: &str, rows: &[&FabricRow]) -> Option<Table> {
    let (of, size) = sized(rows);
    let time = |us: Option<f64>| figure(us.map(figures::time));
    let each = |row: &FabricRow, of: fn(&tollway_record::LatencyUs) -> Option<f64>| {
        time(row.entry_us.as_ref().and_then(of))
    };
    let line = |row: &&FabricRow| {
        vec![
            Cell::plain(figures::count(size(row))),
            time(row.round_us.p50),
            time(row.round_us.p99),
            time(row.round_us.max),
            each(row, |latency| latency.p50),
            each(row, |latency| latency.p99),
            each(row, |latency| latency.max),
        ]
    };
    let table = Table {
        title: format!("{case}: percentiles"),
        note: Some(
            "of whole rounds; and of single neighbours, each from its own write until it could be \
             read in the kernel's table"
                .to_owned(),
        ),
        columns: vec![
            Column::right(of, ""),
            Column::right("round", "p50"),
            Column::right("round", "p99"),
            Column::right("round", "largest"),
            Column::right("neighbour", "p50"),
            Column::right("neighbour", "p99"),
            Column::right("neighbour", "largest"),
        ],
        groups: vec![rows.iter().map(line).collect()],
    };
    let table = table.without_empty_columns();
    (!table.is_empty()).then_some(table)
}

fn cost_table(case: &str, rows: &[&FabricRow]) -> Table {
    let names = |of: fn(&FabricRow) -> Vec<&String>| -> BTreeSet<&String> {
        rows.iter().flat_map(|row| of(row)).collect()
    };
    let (used, held) = (
        names(|row| row.cpu_us_per_entry.keys().collect()),
        names(|row| row.rss_bytes.keys().collect()),
    );
    let (of, size) = sized(rows);
    let mut columns = vec![Column::right(of, "")];
    columns.extend(used.iter().map(|name| Column::right(name, "µs each")));
    columns.extend(held.iter().map(|name| Column::right(name, "MB")));
    let line =
        |row: &&FabricRow| {
            let mut cells = vec![Cell::plain(figures::count(size(row)))];
            cells.extend(used.iter().map(|name| {
                figure(row.cpu_us_per_entry.get(*name).map(|us| figures::digits3(*us)))
            }));
            cells.extend(held.iter().map(|name| {
                figure(row.rss_bytes.get(*name).map(|bytes| figures::megabytes(*bytes)))
            }));
            cells
        };
    Table {
        title: format!("{case}: processor and memory"),
        note: Some(
            "processor time for each neighbour, waits between small rounds included; resident \
             memory at the end, without the kernel's table"
                .to_owned(),
        ),
        columns,
        groups: vec![rows.iter().map(line).collect()],
    }
}
