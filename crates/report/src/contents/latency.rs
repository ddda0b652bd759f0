//! Rates and percentiles of one section.

use tollway_record::record::Row;

use super::{Section, by_protocol, failures, nothing, protocol};
use crate::figures::{self, TimeUnit};
use crate::table::{Cell, Column, Table, Tone};

/// Rates and percentiles of one section. Flows and packets have neither; they have tables of their
/// own.
pub(crate) fn latency_table(section: &Section<'_>) -> Table {
    let asked: Vec<&Row> = section.rows.iter().copied().filter(|row| !row.is_one_way()).collect();
    let scale = Scale::of(&asked);
    let percentile = |name: &str| Column::right(name, scale.unit.name());
    let mut columns = vec![
        Column::left("protocol", ""),
        Column::left("subject", ""),
        Column::right("conns", "").spare(1),
        Column::right("offered", "req/s"),
        Column::right("achieved", "req/s"),
        percentile("p50"),
        percentile("p75"),
        percentile("p90"),
        percentile("p99"),
        percentile("p99.9"),
        Column::right("requests", "").spare(2),
        Column::right("errors", ""),
    ];
    let linked = asked.iter().any(|row| row.conditions.link.is_some());
    if linked {
        columns.insert(2, Column::right("link RTT", scale.unit.name()));
    }
    // A differing condition is named next to its subject.
    if section.differences.any() {
        columns.insert(1, Column::left("case", ""));
    }
    let limited = asked.iter().any(|row| row.traffic.client_limited);
    if limited {
        columns.push(Column::left("remark", ""));
    }
    let cells = |row: &&Row| {
        let mut cells = latency_cells(row, &scale);
        if linked {
            let rtt_us = row.conditions.link.as_ref().map(|link| link.rtt_measured_us.p50);
            let rtt = rtt_us.map_or_else(nothing, |us| Cell::plain(scale.show(us)));
            cells.insert(2, rtt);
        }
        if section.differences.any() {
            cells.insert(1, Cell::plain(section.differences.words(row)));
        }
        if limited {
            let remark = if row.traffic.client_limited { "client-limited" } else { "" };
            cells.push(Cell::plain(remark).toned(Tone::Doubt));
        }
        cells
    };
    let groups =
        by_protocol(&asked).into_iter().map(|rows| rows.iter().map(cells).collect()).collect();
    Table { title: section.title.to_owned(), note: Some(section.link.clone()), columns, groups }
}

fn latency_cells(row: &Row, scale: &Scale) -> Vec<Cell> {
    let (conditions, traffic) = (&row.conditions, &row.traffic);
    let scaled = |us: Option<f64>| match us {
        Some(us) => Cell::plain(scale.show(us)),
        None => nothing(),
    };
    let missed = traffic.requested_rps.is_some_and(|rps| traffic.achieved_rps < rps * 0.99);
    let latency = &traffic.latency_us;
    vec![
        Cell::plain(protocol(conditions.protocol)),
        Cell::plain(super::clipped(&conditions.label())).toned(Tone::Strong),
        Cell::plain(figures::count(conditions.connections.into())),
        Cell::plain(traffic.requested_rps.map_or("unpaced".to_owned(), figures::digits3)),
        Cell::plain(figures::digits3_down(traffic.achieved_rps)).doubted(missed),
        scaled(latency.p50),
        scaled(latency.p75),
        scaled(latency.p90),
        scaled(latency.p99),
        scaled(latency.p999),
        Cell::plain(figures::count(traffic.requests)),
        failures(traffic.errors),
    ]
}

/// One unit for a whole section, so that its figures can be compared at a glance.
struct Scale {
    unit: TimeUnit,
    /// Places after the point where three digits would hide everything but the link.
    decimals: Option<i32>,
}

impl Scale {
    fn of(rows: &[&Row]) -> Self {
        let medians = || rows.iter().filter_map(|row| row.traffic.latency_us.p50);
        let largest = medians().fold(0.0, f64::max);
        // Up to 10 ms microseconds have no more than four digits.
        let unit = if largest < 10_000.0 { TimeUnit::Micro } else { TimeUnit::of(largest) };
        let smallest = medians().fold(largest, f64::min);
        let all_alike = rows.iter().any(|row| row.conditions.link.is_some())
            && largest > 0.0
            && (largest - smallest) / largest < 0.005;
        // One part in ten thousand is what the histograms resolve.
        let decimals = (all_alike && unit != TimeUnit::Micro)
            .then(|| 4 - (largest / unit.us()).log10().floor() as i32);
        Self { unit, decimals }
    }

    fn show(&self, us: f64) -> String {
        let scaled = us / self.unit.us();
        self.decimals
            .map_or_else(|| figures::digits3(scaled), |decimals| figures::fixed(scaled, decimals))
    }
}
