//! Several results over each other: percentiles, spread and course of chosen rows, their figures
//! side by side, and what the files were.

use maud::{Markup, html};
use tollway_record::HistogramError;
use tollway_record::interval::interval;

use super::query::{Query, address};
use super::{PageError, Shelf};
use crate::contents::{self, clipped, shown_time};
use crate::document::{Document, ONLY_ROW, Part};
use crate::figures;
use crate::page::{figure, shell, tables};
use crate::plot::{self, SAMPLES_LIMIT, Sample};
use crate::table::{Cell, Column, Table, Tone};

/// Files that are laid over each other at most.
pub const OVERLAY_LIMIT: usize = 12;

/// Seed of the intervals: equal pages have equal intervals.
const SEED: u64 = 1;

/// A file that takes part.
struct Chosen {
    file: String,
    /// What it is called here: its label if no other has it, else its file.
    name: String,
    document: Document,
}

/// A row that is drawn.
struct Drawn<'a> {
    name: String,
    part: Part<'a>,
    colour: usize,
}

/// The overlay in the state of `query`: each `file` takes part, each `row` is drawn.
///
/// # Errors
/// [`PageError`] when no file is named, or too many; what cannot be read is reported on the page.
pub(crate) fn body(shelf: &Shelf, query: &Query) -> Result<Markup, PageError> {
    let names: Vec<&str> = query.all("file").collect();
    if names.is_empty() {
        return Err(PageError::NothingChosen);
    }
    if names.len() > OVERLAY_LIMIT {
        return Err(PageError::TooMany { count: names.len() });
    }
    let (chosen, broken) = read(shelf, &names);
    let ids = row_ids(&chosen);
    let mut wanted: Vec<&str> = query.all("row").filter(|row| ids.contains(row)).collect();
    if wanted.is_empty() {
        wanted = first_groups(&chosen);
    }
    let drawn = drawn(&chosen, &wanted);
    let title = format!("{} results over each other", chosen.len());
    Ok(html! {
        header {
            div.top {
                p.eyebrow { span.brand { "Tollway" } (back(&names)) }
                (shell::tools(None))
            }
            h1 { (title) }
            @for sentence in verdict(&drawn) { p.verdict { (tables::unbroken(&sentence)) } }
            @for reason in &broken { p.doubt { (reason) } }
        }
        (chooser(&names, &ids, &wanted))
        (charts(&drawn))
        (tables::titled(&figures_table(&drawn)))
        (tables::titled(&files_table(&chosen)))
        (configurations(&chosen))
    })
}

/// The link back to the list, with the selection.
pub(crate) fn back(names: &[&str]) -> Markup {
    let pairs = names.iter().map(|name| ("file", *name));
    html! { a href=(address(".", pairs)) { "All results" } }
}

fn read(shelf: &Shelf, names: &[&str]) -> (Vec<Chosen>, Vec<String>) {
    let mut chosen: Vec<Chosen> = Vec::new();
    let mut broken = Vec::new();
    for name in names {
        if chosen.iter().any(|known| known.file == *name) {
            continue;
        }
        match shelf.folder.document(name) {
            Ok(document) => {
                let (file, name) = ((*name).to_owned(), String::new());
                chosen.push(Chosen { file, name, document });
            }
            Err(error) => {
                broken.push(format!("{}: {}", clipped(name), tollway_model::chain(&error)))
            }
        }
    }
    let labels: Vec<String> = chosen.iter().map(|one| one.document.label().to_owned()).collect();
    for (one, label) in chosen.iter_mut().zip(&labels) {
        let unique = labels.iter().filter(|other| *other == label).count() == 1;
        let stem = one.file.strip_suffix(".json").unwrap_or(&one.file);
        one.name = clipped(if unique && !label.is_empty() { label } else { stem });
    }
    (chosen, broken)
}

/// Ids of all rows, each once, in order; a run's own is not among them.
fn row_ids(chosen: &[Chosen]) -> Vec<&str> {
    let mut ids: Vec<&str> = Vec::new();
    for part in chosen.iter().flat_map(|one| one.document.groups()).flatten() {
        if part.id != ONLY_ROW && !ids.contains(&part.id) {
            ids.push(part.id);
        }
    }
    ids
}

/// The rows that belong together at the beginning of the first experiment; of each further one
/// that has none of these, its own.
fn first_groups(chosen: &[Chosen]) -> Vec<&str> {
    let mut ids: Vec<&str> = Vec::new();
    for one in chosen.iter().filter(|one| matches!(one.document, Document::Experiment(_))) {
        let groups = one.document.groups();
        if !groups.iter().flatten().any(|part| ids.contains(&part.id)) {
            ids.extend(groups.into_iter().next().unwrap_or_default().iter().map(|part| part.id));
        }
    }
    ids
}

fn drawn<'a>(chosen: &'a [Chosen], wanted: &[&str]) -> Vec<Drawn<'a>> {
    let mut drawn = Vec::new();
    for one in chosen {
        let parts = one.document.groups().into_iter().flatten();
        for part in parts.filter(|part| part.id == ONLY_ROW || wanted.contains(&part.id)) {
            let name = match (part.name.is_empty(), wanted.len()) {
                (true, _) => one.name.clone(),
                (false, 1) => one.name.clone(),
                (false, _) => format!("{} · {}", one.name, part.name),
            };
            let colour = drawn.len();
            drawn.push(Drawn { name, part, colour });
        }
    }
    // Rows of several conditions may be called alike.
    for index in 0..drawn.len() {
        let alike = drawn.iter().filter(|other| other.name == drawn[index].name).count();
        if alike > 1 {
            drawn[index].name =
                format!("{} · {}", drawn[index].name, clipped(drawn[index].part.id));
        }
    }
    drawn
}

/// The ends of the field, and why there is no verdict.
fn verdict(drawn: &[Drawn<'_>]) -> Vec<String> {
    let by = |name: &str, figure: fn(&Drawn<'_>) -> Option<f64>| {
        let mut known: Vec<(&str, f64)> =
            drawn.iter().filter_map(|one| Some((one.name.as_str(), figure(one)?))).collect();
        known.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (first, last) = (known.first()?, known.last()?);
        let several = known.len() > 1 && first.1 > 0.0;
        several.then(|| {
            let (lo, hi) = (figures::time(first.1), figures::time(last.1));
            let times = figures::digits3(last.1 / first.1);
            format!("{name}: {lo} ({}) to {hi} ({}), {times} times as long.", first.0, last.0)
        })
    };
    let mut lines: Vec<String> = [
        by("Median", |one| one.part.traffic.latency_us.p50),
        by("p99", |one| one.part.traffic.latency_us.p99),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !lines.is_empty() {
        lines.push(
            "Results of different times were not interleaved: no verdict, whatever the intervals."
                .to_owned(),
        );
    }
    lines
}

fn chooser(names: &[&str], ids: &[&str], wanted: &[&str]) -> Markup {
    if ids.len() < 2 {
        return Markup::default();
    }
    html! {
        form.rows data-auto-submit="" action="overlay" method="get" {
            @for name in names { input type="hidden" name="file" value=(name); }
            fieldset {
                legend { "Rows drawn" }
                @for id in ids {
                    label {
                        input type="checkbox" name="row" value=(id) checked[wanted.contains(id)];
                        bdi { (clipped(id)) }
                    }
                }
            }
            button type="submit" { "Draw" }
        }
    }
}

fn charts(drawn: &[Drawn<'_>]) -> Markup {
    let samples: Result<Vec<Sample>, HistogramError> =
        drawn.iter().map(|one| one.part.sample(&one.name, one.colour)).collect();
    let samples = match samples {
        Ok(samples) => samples,
        Err(error) => return html! { p.doubt { "No curves: " (error) "." } },
    };
    let courses: Vec<_> = drawn.iter().map(|one| one.part.course(&one.name, one.colour)).collect();
    let mut plots = Vec::new();
    plots.extend(plot::percentiles(&samples));
    plots.extend(plot::distribution(&samples));
    plots.extend(plot::courses(&courses, &[]));
    html! {
        section {
            div.charts {
                @for (index, plot) in plots.iter().enumerate() {
                    (figure(&format!("chart-{index}"), plot))
                }
            }
            @if plots.is_empty() { p.note { "None of these rows has enough answers to be drawn." } }
            @if drawn.len() > SAMPLES_LIMIT {
                p.note { "The first " (SAMPLES_LIMIT) " of " (drawn.len()) " rows are drawn." }
            }
            p.note {
                "Bold is the whole run, faint a single block, dashed where fewer than 100 samples \
                 lie beyond. Spread: up to the 99.5th percentile of the slowest."
            }
        }
    }
}

fn figures_table(drawn: &[Drawn<'_>]) -> Table {
    let rows = drawn.iter().map(|one| {
        let traffic = one.part.traffic;
        let latency = &traffic.latency_us;
        let time = |us: Option<f64>| {
            us.map_or_else(
                || Cell::plain(figures::NONE).toned(Tone::Faint),
                |us| Cell::plain(figures::time(us)),
            )
        };
        vec![
            Cell::plain(one.name.as_str()).toned(Tone::Strong),
            Cell::plain(one.part.protocol),
            Cell::plain(figures::count(one.part.connections.into())),
            Cell::plain(traffic.requested_rps.map_or("unpaced".to_owned(), figures::digits3)),
            Cell::plain(figures::digits3_down(traffic.achieved_rps)),
            mean_cell(&one.part),
            time(latency.p50),
            time(latency.p75),
            time(latency.p90),
            time(latency.p99),
            time(latency.p999),
            time(latency.max),
            Cell::plain(figures::count(latency.n)),
            contents::failures(traffic.errors),
        ]
    });
    Table {
        title: "Figures".to_owned(),
        note: Some(
            "the mean with its 95 % interval over blocks, where there are blocks".to_owned(),
        ),
        columns: vec![
            Column::left("result", ""),
            Column::left("protocol", "").spare(1),
            Column::right("conns", "").spare(1),
            Column::right("offered", "req/s"),
            Column::right("achieved", "req/s"),
            Column::right("mean", "[95 % interval]"),
            Column::right("p50", ""),
            Column::right("p75", "").spare(1),
            Column::right("p90", "").spare(1),
            Column::right("p99", ""),
            Column::right("p99.9", ""),
            Column::right("max", ""),
            Column::right("answers", "").spare(1),
            Column::right("errors", ""),
        ],
        groups: vec![rows.collect()],
    }
}

/// The mean, with the interval that its blocks give.
fn mean_cell(part: &Part<'_>) -> Cell {
    let Some(mean) = part.traffic.latency_us.mean else {
        return Cell::plain(figures::NONE).toned(Tone::Faint);
    };
    let blocks = part.block_means_us();
    if blocks.len() < 2 {
        return Cell::plain(figures::time(mean));
    }
    let found = interval(blocks.len(), SEED, |weights| {
        let sum: f64 = blocks.iter().zip(weights).map(|(us, n)| us * f64::from(*n)).sum();
        sum / weights.iter().map(|n| f64::from(*n)).sum::<f64>()
    });
    Cell::with_range(figures::time_with(mean, found.ci95))
}

fn files_table(chosen: &[Chosen]) -> Table {
    let rows = chosen.iter().map(|one| {
        let (machine, versions) = match &one.document {
            Document::Experiment(record) => {
                let machine = &record.machine;
                let cpu = machine.cpu_model.as_deref().unwrap_or(&machine.arch);
                let versions: Vec<String> = record
                    .subjects
                    .iter()
                    .filter(|subject| !subject.version.is_empty())
                    .map(|subject| format!("{} {}", subject.name, subject.version))
                    .collect();
                (format!("{} × {cpu}", machine.cpus), versions.join(", "))
            }
            Document::Run(_) => (String::new(), String::new()),
        };
        vec![
            Cell::plain(one.file.as_str()),
            Cell::plain(one.document.kind().word()),
            Cell::plain(one.document.label()),
            Cell::plain(shown_time(one.document.started_at())),
            Cell::plain(machine),
            Cell::plain(versions),
        ]
    });
    let mut rows: Vec<Vec<Cell>> = rows.collect();
    let mut heads = vec!["file", "kind", "label", "started", "machine", "versions"];
    // Runs do not record their machine.
    if rows.iter().all(|cells| cells[4..].iter().all(|cell| cell.text.is_empty())) {
        rows.iter_mut().for_each(|cells| cells.truncate(4));
        heads.truncate(4);
    }
    Table {
        title: "Files".to_owned(),
        note: None,
        columns: heads.into_iter().map(|head| Column::left(head, "")).collect(),
        groups: vec![rows],
    }
}

/// How each was made, to be opened.
fn configurations(chosen: &[Chosen]) -> Markup {
    html! {
        @for one in chosen {
            details {
                summary { "How it was measured: " strong { bdi { (one.name) } } }
                @match &one.document {
                    Document::Experiment(record) => {
                        (tables::facts(&contents::machine(record)))
                        @for subject in &record.subjects {
                            @for (name, text) in &subject.config {
                                p.note { bdi { (clipped(&subject.name)) } ": " bdi { (clipped(name)) } }
                                pre { code { (text) } }
                            }
                        }
                    }
                    Document::Run(file) => { (tables::facts(&contents::run_facts(file))) }
                }
                p {
                    a href=(address("view", [("file", one.file.as_str())])) { "Its own page" }
                    " · "
                    a href=(address("raw", [("file", one.file.as_str())])) download { "JSON" }
                }
            }
        }
    }
}
