//! Processor time per request, or per megabyte of flows, and memory of each process, one column per
//! row of the record.

use std::collections::{BTreeMap, BTreeSet};

use tollway_record::record::{Cost, Record, Row};

use super::{Differences, by_protocol, figure, path_short, protocol};
use crate::figures;
use crate::table::{Cell, Column, Table, Tone};

/// Most columns of figures in one cost table; more rows of the record make more tables.
const COST_COLUMNS: usize = 6;

/// The unit of work that processor time is per.
struct Unit {
    title: &'static str,
    of_process: fn(&Cost) -> &BTreeMap<String, f64>,
    of_machine: fn(&Cost) -> Option<f64>,
}

const PER_REQUEST: Unit = Unit {
    title: "CPU per request",
    of_process: |cost| &cost.cpu_us_per_request,
    of_machine: |cost| cost.machine_cpu_us_per_request,
};
const PER_MEGABYTE: Unit = Unit {
    title: "CPU per megabyte",
    of_process: |cost| &cost.cpu_us_per_megabyte,
    of_machine: |cost| cost.machine_cpu_us_per_megabyte,
};

/// Processor time and memory of each process, one column per row of the record.
pub(crate) fn cost_tables(record: &Record) -> Vec<Table> {
    let mut tables = Vec::new();
    let differences = Differences::of(record);
    let mut all: Vec<&Row> = record.rows.iter().collect();
    all.sort_by_key(|row| row.conditions.topology);
    for rows in by_protocol(&all) {
        let name = protocol(rows[0].conditions.protocol);
        let (flows, asked): (Vec<&Row>, Vec<_>) = rows.iter().partition(|row| row.is_flow());
        for (unit, rows) in [(&PER_REQUEST, asked), (&PER_MEGABYTE, flows)] {
            let chunks = rows.chunks(COST_COLUMNS);
            tables.extend(chunks.map(|rows| cpu_table(unit, name, rows, differences)));
        }
    }
    for groups in path_groups(&all, differences).chunks(COST_COLUMNS) {
        tables.push(memory_table(groups, differences));
    }
    tables.retain(|table| !table.is_empty());
    tables
}

fn cpu_table(unit: &Unit, name: &str, rows: &[&Row], differences: Differences) -> Table {
    let processes: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| (unit.of_process)(&row.cost).keys().map(String::as_str))
        .collect();
    let mut group: Vec<Vec<Cell>> = processes
        .into_iter()
        .map(|process| {
            let cells = rows.iter().map(|row| {
                figure((unit.of_process)(&row.cost).get(process).map(|us| figures::digits3(*us)))
            });
            line(process, cells)
        })
        .collect();
    if rows.iter().any(|row| (unit.of_machine)(&row.cost).is_some()) {
        let cells = rows
            .iter()
            .map(|row| figure((unit.of_machine)(&row.cost).map(figures::digits3)))
            .map(|cell| if cell.tone == Tone::Plain { cell.toned(Tone::Strong) } else { cell });
        group.push(line("whole machine", cells));
    }
    Table {
        title: format!("{}, {name}, µs", unit.title),
        note: Some(
            "the whole machine includes the load generator, idle duties and interrupts".to_owned(),
        ),
        columns: cost_columns(rows, differences),
        groups: vec![group],
    }
}

/// Rows of the same subject in the same place, whatever the protocol: its processes are the same.
fn path_groups<'a>(rows: &[&'a Row], differences: Differences) -> Vec<Vec<&'a Row>> {
    let mut groups: Vec<Vec<&'a Row>> = Vec::new();
    for row in rows {
        let key = |row: &Row| {
            let conditions = &row.conditions;
            (conditions.topology, conditions.label(), differences.words(row))
        };
        match groups.iter_mut().find(|group| key(group[0]) == key(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

fn memory_table(groups: &[Vec<&Row>], differences: Differences) -> Table {
    let rows = || groups.iter().flatten();
    let processes: BTreeSet<&str> =
        rows().flat_map(|row| row.cost.rss_bytes.keys().map(String::as_str)).collect();
    let largest = |group: &Vec<&Row>, process: &str| {
        group.iter().filter_map(|row| row.cost.rss_bytes.get(process)).max().copied()
    };
    let group = processes
        .into_iter()
        .map(|process| {
            let cells =
                groups.iter().map(|group| figure(largest(group, process).map(figures::megabytes)));
            line(process, cells)
        })
        .collect();
    let heads: Vec<&Row> = groups.iter().map(|group| group[0]).collect();
    Table {
        title: "Memory per process, MB".to_owned(),
        note: Some("largest resident set over all protocols and blocks".to_owned()),
        columns: cost_columns(&heads, differences),
        groups: vec![group],
    }
}

fn cost_columns(rows: &[&Row], differences: Differences) -> Vec<Column> {
    let of = |row: &&Row| {
        let label = super::clipped(&row.conditions.label());
        let subject = match differences.words(row) {
            words if words.is_empty() => label,
            words => format!("{label}, {words}"),
        };
        match differences.path {
            true => Column::right(path_short(row.conditions.topology), &subject),
            false => Column::right(&subject, ""),
        }
    };
    std::iter::once(Column::left("process", "")).chain(rows.iter().map(of)).collect()
}

fn line(name: &str, cells: impl Iterator<Item = Cell>) -> Vec<Cell> {
    std::iter::once(Cell::plain(name)).chain(cells).collect()
}
