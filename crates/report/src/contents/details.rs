//! Detailed figures: service time and response time, phases, errors, blocks.

use std::collections::BTreeSet;

use tollway_record::record::{Block, Record, Row};
use tollway_record::{LatencyUs, Traffic};

use super::{figure, nothing};
use crate::figures;
use crate::table::{Cell, Column, Table, Tone};

/// Blocks that are listed; the record has all.
const BLOCKS_LIMIT: usize = 400;

/// The tables that are there only where the record has what they show.
pub(crate) fn detail_tables(record: &Record) -> Vec<Table> {
    let tables = [service_table(record), phase_table(record), error_table(record)];
    let tables = tables.into_iter().filter(|table| !table.is_empty());
    tables.map(Table::without_empty_columns).collect()
}

/// Response time, service time and how late requests were sent; empty in closed loop, where the
/// first two are the same.
fn service_table(record: &Record) -> Table {
    let mut columns = vec![Column::left("row", ""), Column::left("time", "")];
    columns.extend(latency_columns());
    let rows = record.rows.iter().filter(|row| row.traffic.lateness.is_some());
    let groups = rows.map(|row| {
        let id = row.conditions.id.as_str();
        let mut group = vec![
            latency_line(Some(id), "response", &row.traffic.latency_us),
            latency_line(Some(id), "service", &row.traffic.service_us),
        ];
        group.extend(lateness_line(id, &row.traffic));
        group
    });
    Table {
        title: "Response, service and lateness, µs".to_owned(),
        note: Some(
            "response time counts from the intended start, service time from the send; lateness \
             is the generator's own delay between the two, worst block"
                .to_owned(),
        ),
        columns,
        groups: groups.collect(),
    }
}

fn lateness_line(id: &str, traffic: &Traffic) -> Option<Vec<Cell>> {
    let lateness = traffic.lateness?;
    let known = LatencyUs {
        p50: Some(lateness.p50_us),
        p99: Some(lateness.p99_us),
        max: Some(lateness.max_us),
        n: traffic.scheduled().saturating_sub(traffic.dropped),
        ..LatencyUs::default()
    };
    Some(latency_line(Some(id), "lateness", &known))
}

/// Each phase over the requests or connections that had it.
fn phase_table(record: &Record) -> Table {
    let mut columns = vec![Column::left("row", ""), Column::left("phase", "")];
    columns.extend(latency_columns());
    let groups = record.rows.iter().map(|row| {
        let phases = row.traffic.phases_us.iter();
        phases
            .map(|(name, latency)| {
                latency_line(Some(&row.conditions.id), &name.replace('_', " "), latency)
            })
            .collect()
    });
    Table {
        title: "Phases, µs".to_owned(),
        note: Some("each over the requests or connections that had it".to_owned()),
        columns,
        groups: groups.filter(|group: &Vec<_>| !group.is_empty()).collect(),
    }
}

fn error_table(record: &Record) -> Table {
    let failed = |row: &&Row| {
        let traffic = &row.traffic;
        traffic.errors > 0 || traffic.unfinished > 0 || traffic.dropped > 0
    };
    let rows: Vec<&Row> = record.rows.iter().filter(failed).collect();
    let kinds: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.traffic.errors_by_kind.keys().map(String::as_str)).collect();
    let line = |row: &&Row, name: &str, count: u64| {
        let traffic = &row.traffic;
        let share = count as f64 / (traffic.scheduled().max(1)) as f64;
        vec![
            Cell::plain(row.conditions.id.as_str()),
            Cell::plain(name),
            Cell::plain(figures::count(count)).toned(Tone::Doubt),
            Cell::plain(figures::percent(share)),
        ]
    };
    let groups = rows.iter().map(|row| {
        let traffic = &row.traffic;
        let by_kind =
            kinds.iter().filter_map(|kind| Some((*kind, *traffic.errors_by_kind.get(*kind)?)));
        let other = [("unfinished", traffic.unfinished), ("never sent", traffic.dropped)];
        by_kind
            .chain(other)
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| line(row, name, count))
            .collect()
    });
    Table {
        title: "Errors".to_owned(),
        note: Some("share of all requests that were due in the window".to_owned()),
        columns: vec![
            Column::left("row", ""),
            Column::left("what happened", ""),
            Column::right("requests", ""),
            Column::right("share", ""),
        ],
        groups: groups.filter(|group: &Vec<_>| !group.is_empty()).collect(),
    }
}

/// Every run of every row, with what the machine did meanwhile; those that were set aside, too.
pub(crate) fn block_table(record: &Record) -> Table {
    let by_row: Vec<_> = record.rows.iter().map(runs_of).collect();
    let total: usize = by_row.iter().map(Vec::len).sum();
    let noisy = by_row.iter().flatten().any(|(_, block, _)| block.noise.is_some());
    let mut left = BLOCKS_LIMIT;
    let mut groups = Vec::new();
    for runs in by_row {
        let shown = runs.len().min(left);
        left -= shown;
        let lines = runs[..shown].iter();
        groups.push(
            lines.map(|(row, block, counts)| block_line(row, block, *counts, noisy)).collect(),
        );
    }
    groups.retain(|group: &Vec<_>| !group.is_empty());
    let note = (total > BLOCKS_LIMIT)
        .then(|| format!("the first {BLOCKS_LIMIT} of {total}; the record has all"));
    Table { title: "Single blocks".to_owned(), note, columns: block_columns(noisy), groups }
}

/// The row's runs, and whether they count.
fn runs_of(row: &Row) -> Vec<(&Row, &Block, bool)> {
    let counted = row.blocks.iter().map(|block| (row, block, true));
    counted.chain(row.set_aside.iter().map(|block| (row, block, false))).collect()
}

fn block_columns(noisy: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::left("row", ""),
        Column::right("block", ""),
        Column::right("position", "in the block"),
        Column::right("achieved", "req/s"),
        Column::right("mean", "µs"),
        Column::right("p50", "µs"),
        Column::right("p99", "µs"),
        Column::right("errors", ""),
        Column::right("throttled", "ms"),
        Column::right("stolen", "of CPU"),
        Column::right("calibration", "µs"),
    ];
    if noisy {
        columns.push(Column::right("foreign CPU", "cores"));
        columns.push(Column::right("CPU pressure", "of time"));
    }
    columns.push(Column::left("remark", ""));
    columns
}

fn block_line(row: &Row, block: &Block, counts: bool, noisy: bool) -> Vec<Cell> {
    let (traffic, cost) = (&block.traffic, &block.cost);
    let latency = &traffic.latency_us;
    let throttled = cost.throttled_us.map(|us| figures::digits3(us as f64 / 1e3));
    let mut cells = vec![
        Cell::plain(row.conditions.id.as_str()),
        Cell::plain(figures::count(block.block.into())),
        Cell::plain(figures::count(block.position.into())),
        Cell::plain(figures::digits3_down(traffic.achieved_rps)),
        figure(latency.mean.map(figures::digits3)),
        figure(latency.p50.map(figures::digits3)),
        figure(latency.p99.map(figures::digits3)),
        Cell::plain(figures::count(traffic.errors)),
        figure(throttled),
        figure(block.steal_fraction.map(figures::percent)),
        figure(block.calibration_us.map(figures::digits3)),
    ];
    if noisy {
        let noise = block.noise.as_ref();
        let foreign = noise.and_then(|noise| noise.foreign_cpu_cores).map(figures::digits3);
        let pressure = noise.and_then(|noise| noise.cpu_pressure_fraction).map(figures::percent);
        cells.extend([figure(foreign), figure(pressure)]);
    }
    cells.push(match remarks(block, counts) {
        remarks if remarks.is_empty() => nothing(),
        remarks => Cell::plain(remarks.join("; ")).toned(Tone::Doubt),
    });
    cells
}

/// Why a run is doubtful, or counts nowhere.
fn remarks(block: &Block, counts: bool) -> Vec<String> {
    let limits = block.traffic.client_limits.iter().map(|limit| format!("client-limited: {limit}"));
    let mut remarks: Vec<String> = block.outside_gate.iter().cloned().chain(limits).collect();
    if !counts {
        remarks.insert(0, "set aside and repeated".to_owned());
    }
    remarks
}

pub(super) fn latency_columns() -> [Column; 8] {
    ["mean", "p50", "p75", "p90", "p99", "p99.9", "max", "samples"]
        .map(|name| Column::right(name, ""))
}

pub(super) fn latency_line(id: Option<&str>, name: &str, latency: &LatencyUs) -> Vec<Cell> {
    let LatencyUs { mean, p50, p75, p90, p99, p999, max, n } = *latency;
    let figures = [mean, p50, p75, p90, p99, p999, max];
    let mut cells: Vec<Cell> = id.into_iter().chain([name]).map(Cell::plain).collect();
    cells.extend(figures.map(|us| figure(us.map(figures::digits3))));
    cells.push(Cell::plain(figures::count(n)));
    cells
}
