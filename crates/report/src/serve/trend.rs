//! One row through all results that have it: how its figures moved from run to run.

use std::sync::Arc;

use maud::{Markup, html};
use tollway_record::LatencyUs;

use super::PageError;
use super::overlay::back;
use super::query::{Query, address};
use super::shelf::{Entry, Listing, RowFigures, Summary, figures_of};
use crate::contents::{clipped, shown_time};
use crate::document::ONLY_ROW;
use crate::figures;
use crate::page::{figure, shell, tables};
use crate::plot::{Axis, Kind, Line, Plot, Unit, Weight, rounded};

/// A figure's name, and its field.
type Figure = (&'static str, fn(&LatencyUs) -> Option<f64>);

/// What is drawn over time.
const FIGURES: &[Figure] = &[
    ("p50", |latency| latency.p50),
    ("p75", |latency| latency.p75),
    ("p90", |latency| latency.p90),
    ("p99", |latency| latency.p99),
    ("p99.9", |latency| latency.p999),
    ("mean", |latency| latency.mean),
];

/// A row of one result.
struct Moment<'a> {
    entry: &'a Entry,
    summary: &'a Summary,
    unix_s: f64,
    row: &'a RowFigures,
}

/// The trend in the state of `query`: the results that match `q`, or each `file`; one `row`.
///
/// # Errors
/// [`PageError::NoTrend`] when no result has a time and figures.
pub(crate) fn body(listing: &Listing, query: &Query) -> Result<Markup, PageError> {
    let files: Vec<&str> = query.all("file").collect();
    let filter = query.first("q").unwrap_or_default();
    let wanted = |entry: &&Arc<Entry>| match files.is_empty() {
        true => entry.matches(filter),
        false => files.contains(&entry.found.name.as_str()),
    };
    let entries: Vec<&Entry> = listing.entries.iter().filter(wanted).map(Arc::as_ref).collect();
    let ids = ids(&entries);
    let chosen = query.first("row").filter(|row| ids.iter().any(|(id, _)| id == row));
    let Some(id) = chosen.or_else(|| ids.first().map(|(id, _)| *id)) else {
        return Err(PageError::NoTrend);
    };
    let moments = moments(&entries, id);
    Ok(html! {
        header {
            div.top {
                p.eyebrow { span.brand { "Tollway" } (back(&files)) }
                (shell::tools(None))
            }
            h1 { "From run to run" }
            p.verdict { (tables::unbroken(&sentence(id, &moments))) }
        }
        (chooser(&files, filter, &ids, id))
        section {
            div.charts {
                @for (index, plot) in plots(&moments).iter().enumerate() {
                    (figure(&format!("chart-{index}"), plot))
                }
            }
        }
        (table(&moments))
    })
}

/// Rows by the number of results that have them, the most frequent first.
fn ids<'a>(entries: &[&'a Entry]) -> Vec<(&'a str, usize)> {
    let mut ids: Vec<(&str, usize)> = Vec::new();
    for summary in entries.iter().filter_map(|entry| entry.summary.as_ref().ok()) {
        for row in summary.rows.iter().filter(|_| summary.unix_s.is_some()) {
            match ids.iter_mut().find(|(id, _)| *id == row.id) {
                Some((_, count)) => *count += 1,
                None => ids.push((&row.id, 1)),
            }
        }
    }
    ids.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    ids
}

/// The row in every result that has it, in order of time.
fn moments<'a>(entries: &[&'a Entry], id: &str) -> Vec<Moment<'a>> {
    let mut moments: Vec<Moment<'_>> = entries
        .iter()
        .filter_map(|entry| {
            let summary = entry.summary.as_ref().ok()?;
            let row = summary.rows.iter().find(|row| row.id == id)?;
            Some(Moment { entry, summary, unix_s: summary.unix_s?, row })
        })
        .collect();
    moments.sort_by(|a, b| a.unix_s.total_cmp(&b.unix_s));
    moments
}

fn sentence(id: &str, moments: &[Moment<'_>]) -> String {
    let medians: Vec<f64> = moments.iter().filter_map(|moment| moment.row.latency_us.p50).collect();
    let ends =
        medians.iter().copied().reduce(f64::min).zip(medians.iter().copied().reduce(f64::max));
    let range = ends.map(|(lo, hi)| {
        let (lo, hi) = (figures::time(lo), figures::time(hi));
        format!(", median between {lo} and {hi}")
    });
    let results = if moments.len() == 1 { "result" } else { "results" };
    format!("{}: {} {results}{}.", shown_id(id), moments.len(), range.unwrap_or_default())
}

/// A row's id as it is shown; single runs have none.
fn shown_id(id: &str) -> String {
    if id == ONLY_ROW { "Single runs".to_owned() } else { clipped(id) }
}

fn chooser(files: &[&str], filter: &str, ids: &[(&str, usize)], chosen: &str) -> Markup {
    if ids.len() < 2 {
        return Markup::default();
    }
    html! {
        form.rows data-auto-submit="" action="trend" method="get" {
            @for file in files { input type="hidden" name="file" value=(file); }
            input type="hidden" name="q" value=(filter);
            label {
                "Row "
                select name="row" {
                    @for (id, count) in ids {
                        option value=(id) selected[*id == chosen] { (shown_id(id)) " (" (count) ")" }
                    }
                }
            }
            button type="submit" { "Draw" }
        }
    }
}

fn plots(moments: &[Moment<'_>]) -> Vec<Plot> {
    let xs: Vec<f64> = moments.iter().map(|moment| moment.unix_s).collect();
    let line = |name: &str, colour, ys: Vec<Option<f64>>| Line {
        name: name.to_owned(),
        colour,
        weight: Weight::Bold,
        dashed: false,
        ys: ys.into_iter().map(|y| y.map(rounded)).collect(),
    };
    let times: Vec<Line> = FIGURES
        .iter()
        .enumerate()
        .map(|(colour, (name, figure))| {
            line(name, colour, moments.iter().map(|m| figure(&m.row.latency_us)).collect())
        })
        .filter(|line| line.ys.iter().any(Option::is_some))
        .collect();
    let rates = moments.iter().map(|moment| Some(moment.row.achieved_rps)).collect();
    let plot = |title: &str, label: &str, unit, lines| Plot {
        kind: Kind::Points,
        title: title.to_owned(),
        x: Axis::linear("started", Unit::Date),
        y: Axis::from_zero(label, unit),
        xs: xs.clone(),
        lines,
        marks: Vec::new(),
    };
    let mut plots = Vec::new();
    if !times.is_empty() {
        plots.push(plot("Response time", "response time", Unit::Us, times));
    }
    plots.push(plot("Rate", "rate", Unit::Rps, vec![line("achieved", 1, rates)]));
    plots
}

fn table(moments: &[Moment<'_>]) -> Markup {
    html! {
        section {
            h2 { "Figures" }
            div.wide tabindex="0" role="region" aria-label="Figures of every result" {
                table {
                    caption.unseen { "Figures of every result, newest first" }
                    thead {
                        tr {
                            th scope="col" { "started" }
                            th scope="col" { "result" }
                            @for head in ["mean", "p50", "p75", "p90", "p99", "p99.9", "max"] {
                                th.figure scope="col" { (head) }
                            }
                            th.figure scope="col" { "achieved" span.unit { "req/s" } }
                            th.figure scope="col" { "errors" }
                        }
                    }
                    tbody {
                        @for moment in moments.iter().rev() {
                            @let name = moment.entry.found.name.as_str();
                            tr {
                                th scope="row" { (shown_time(&moment.summary.started_at)) }
                                td {
                                    a href=(address("view", [("file", name)])) { bdi { (name) } }
                                }
                                @for figure in figures_of(&moment.row.latency_us) {
                                    td.figure { (figure) }
                                }
                                td.figure { (figures::digits3_down(moment.row.achieved_rps)) }
                                td.figure { (figures::count(moment.row.errors)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
