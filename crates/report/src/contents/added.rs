//! What the network, Tollway or another subject adds to a call: differences, intervals, verdicts.

use tollway_record::record::{Comparison, Metric, Record, Topology, Verdict};

use super::pairs::{Contest, Pair};
use super::{Differences, clipped, contests, figure, nothing, path_short, protocol};
use crate::figures;
use crate::table::{Cell, Column, Table, Tone};

/// One table for each question, and for each baseline.
pub(crate) fn added_tables(record: &Record) -> Vec<Table> {
    let differences = Differences::of(record);
    contests(record).iter().map(|contest| added_table(contest, differences)).collect()
}

fn added_table(contest: &Contest<'_>, differences: Differences) -> Table {
    let shape = Shape {
        differences,
        subjects: contest.names_subjects(),
        rates: contest.pairs.iter().any(|pair| pair.full_load().is_some()),
        means: contest.pairs.iter().any(|pair| pair.full_load().is_none()),
    };
    let mut groups: Vec<Vec<Vec<Cell>>> = Vec::new();
    for topology in Topology::ALL {
        let here = contest.pairs.iter().filter(|p| p.row.conditions.topology == *topology);
        let rows: Vec<_> = here.filter_map(|pair| shape.cells(pair)).collect();
        groups.extend((!rows.is_empty()).then_some(rows));
    }
    let (title, note) = (contest.title(), Some(contest.note()));
    Table { title, note, columns: shape.columns(), groups }.without_empty_columns()
}

/// The optional columns.
struct Shape {
    differences: Differences,
    subjects: bool,
    rates: bool,
    /// Whether means are judged; where only rates are, response times are summarised.
    means: bool,
}

impl Shape {
    fn columns(&self) -> Vec<Column> {
        let mut columns: Vec<Column> =
            self.differences.path.then(|| Column::left("path", "")).into_iter().collect();
        columns.push(Column::left("protocol", ""));
        columns.extend(self.differences.any().then(|| Column::left("case", "")));
        columns.extend(self.subjects.then(|| Column::left("subject", "")));
        columns.extend(self.rates.then(|| Column::right("rate, ratio", "[95 % interval]")));
        columns.push(Column::right("mean", "[95 % interval]"));
        columns.extend(self.means.then(|| Column::right("ratio", "[95 % interval]").spare(2)));
        columns.push(Column::right("Δ p50", ""));
        columns.extend(self.means.then(|| Column::right("Δ p90", "")));
        columns.extend([
            Column::right("Δ p99", ""),
            Column::right("Δ CPU/request", "[95 % interval]").spare(1),
            Column::left("verdict", if self.rates { "of the rate" } else { "of the mean" }),
        ]);
        columns
    }

    fn cells(&self, pair: &Pair<'_>) -> Option<Vec<Cell>> {
        let (primary, mean) = (pair.primary()?, pair.mean());
        let conditions = &pair.row.conditions;
        let quantile =
            |metric| figure(pair.find(metric).map(|c| figures::difference(c.difference_us)));
        let difference = |c: &Comparison| {
            Cell::with_range(figures::difference_with(c.difference_us, c.difference_ci95_us))
        };
        let ratio = mean.and_then(|mean| {
            Some(Cell::with_range(figures::ratio_with(mean.ratio?, mean.ratio_ci95)))
        });
        let mut cells: Vec<Cell> = Vec::new();
        let path = self.differences.path.then(|| path_short(conditions.topology));
        cells.extend(path.into_iter().chain([protocol(conditions.protocol)]).map(Cell::plain));
        if self.differences.any() {
            cells.push(Cell::plain(self.differences.words(pair.row)));
        }
        cells.extend(self.subjects.then(|| Cell::plain(clipped(&conditions.label()))));
        cells.extend(self.rates.then(|| rate_ratio(pair).unwrap_or_else(nothing)));
        let mean_tone = if self.rates { Tone::Plain } else { Tone::Strong };
        cells.push(mean.map_or_else(nothing, |mean| difference(mean).toned(mean_tone)));
        cells.extend(self.means.then(|| ratio.unwrap_or_else(nothing)));
        cells.push(quantile(Metric::LatencyP50));
        cells.extend(self.means.then(|| quantile(Metric::LatencyP90)));
        cells.extend([
            quantile(Metric::LatencyP99),
            pair.find(Metric::MachineCpu).map_or_else(nothing, difference),
            verdict_cell(primary),
        ]);
        Some(cells)
    }
}

/// The row's rate over the baseline's.
fn rate_ratio(pair: &Pair<'_>) -> Option<Cell> {
    let (ratio, ends) = inverse(pair.full_load()?)?;
    Some(Cell::with_range(figures::ratio_with(ratio, ends)).toned(Tone::Strong))
}

/// From time per answer (or megabyte) to the rate: the ratio and its interval.
pub(super) fn inverse(per_answer: &Comparison) -> Option<(f64, Option<[f64; 2]>)> {
    let ratio = per_answer.ratio.filter(|ratio| *ratio > 0.0)?;
    let ends = per_answer.ratio_ci95.filter(|[lo, hi]| *lo > 0.0 && hi.is_finite());
    Some((1.0 / ratio, ends.map(|[lo, hi]| [1.0 / hi, 1.0 / lo])))
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
