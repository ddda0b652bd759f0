//! What the network, Tollway or a peer adds to a call: differences, intervals, verdicts.

use tollway_record::record::{Comparison, Metric, Question, Record, Row, Topology, Verdict};

use super::{Differences, figure, means, nothing, place_short, protocol};
use crate::figures;
use crate::table::{Cell, Column, Table, Tone};

/// What the network (or Tollway) adds: mean with interval, quantile differences, ratio, verdict.
pub(crate) fn added_table(record: &Record, question: Question) -> Table {
    let (title, note) = match question {
        Question::AddedByNetwork => (
            "Added by the network",
            "direct over this path minus direct in the same network, without Tollway in either",
        ),
        Question::AddedByTollway => {
            ("Added by Tollway", "tollway minus direct over the same path, interleaved")
        }
        Question::AgainstBaseline => ("Against direct", "subject minus direct over the same path"),
    };
    let differences = Differences::of(record);
    let subject = (question == Question::AgainstBaseline).then(|| Column::left("subject", ""));
    let mut columns = vec![Column::left("path", ""), Column::left("protocol", "")];
    columns.extend(differences.any().then(|| Column::left("case", "")));
    columns.extend(subject);
    columns.extend([
        Column::right("mean", "[95 % interval]"),
        Column::right("ratio", "[95 % interval]").spare(2),
        Column::right("Δ p50", ""),
        Column::right("Δ p90", ""),
        Column::right("Δ p99", ""),
        Column::right("Δ CPU/request", "[95 % interval]").spare(1),
        Column::left("verdict", "of the mean"),
    ]);
    let mut groups: Vec<Vec<Vec<Cell>>> = Vec::new();
    for topology in Topology::ALL {
        let rows: Vec<_> = means(record, question)
            .filter(|(_, row)| row.conditions.topology == *topology)
            .map(|(mean, row)| added_cells(record, mean, row))
            .collect();
        groups.extend((!rows.is_empty()).then_some(rows));
    }
    Table { title: title.to_owned(), note: Some(note.to_owned()), columns, groups }
}

fn added_cells(record: &Record, mean: &Comparison, row: &Row) -> Vec<Cell> {
    let find = |metric: Metric| {
        record.comparisons.iter().find(|c| {
            c.metric == metric && c.row == mean.row && c.baseline_row == mean.baseline_row
        })
    };
    let quantile = |metric| figure(find(metric).map(|c| figures::difference(c.difference_us)));
    let cpu = find(Metric::MachineCpu)
        .map(|c| Cell::with_range(figures::difference_with(c.difference_us, c.difference_ci95_us)));
    let mut cells = vec![
        Cell::plain(place_short(row.conditions.topology)),
        Cell::plain(protocol(row.conditions.protocol)),
    ];
    let differences = Differences::of(record);
    if differences.any() {
        cells.push(Cell::plain(differences.words(row)));
    }
    if mean.question == Question::AgainstBaseline {
        cells.push(Cell::plain(row.conditions.subject.as_str()));
    }
    let ratio = mean.ratio.map(|r| Cell::with_range(figures::ratio_with(r, mean.ratio_ci95)));
    cells.extend([
        Cell::with_range(figures::difference_with(mean.difference_us, mean.difference_ci95_us))
            .toned(Tone::Strong),
        ratio.unwrap_or_else(nothing),
        quantile(Metric::LatencyP50),
        quantile(Metric::LatencyP90),
        quantile(Metric::LatencyP99),
        cpu.unwrap_or_else(nothing),
        verdict_cell(mean),
    ]);
    cells
}

fn verdict_cell(comparison: &Comparison) -> Cell {
    match comparison.verdict {
        Verdict::Same => {
            Cell::plain(format!("same within {} %", figures::digits_short(comparison.margin_pct)))
        }
        Verdict::Undecided => Cell::plain("undecided").toned(Tone::Doubt),
        decided @ (Verdict::Faster | Verdict::Slower) => Cell::plain(decided.as_str()),
    }
}
