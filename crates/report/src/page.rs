//! The report of an experiment as one HTML file that opens from disk and fetches nothing.
//!
//! `maud` writes and escapes the markup (checked at compile time, no run-time templates). Tables
//! and drawings are in the file; the script in it only makes them easier to read.

mod figure;
mod forest;
pub(crate) mod run;
pub(crate) mod shell;
pub(crate) mod tables;

use maud::{Markup, PreEscaped, html as markup};
use tollway_record::{HistogramError, Record};

use crate::contents::{self, Differences, Group, Section, SeedLines};
use crate::document::RunFile;
use crate::figures::NONE;
use crate::plot;
use shell::Page;

pub(crate) use figure::figure;

/// With more groups than this in a place, all but the first are to be opened.
const GROUPS_OPEN: usize = 4;

/// The whole report as one HTML document, the record's JSON embedded under the id `record`.
/// A row whose histogram is damaged has its figures, and the reason instead of its curve.
#[must_use]
pub fn html(record: &Record) -> String {
    let title = format!("Tollway · {} · {}", record.scenario, record.started_at);
    let content = |tools| body(record, tools);
    on_disk(&title, &record.scenario, content, shell::data(record))
}

/// The page of a run, in the same manner.
pub(crate) fn run_html(file: &RunFile) -> String {
    let name = run::title(file);
    let title = format!("Tollway · {name} · {}", file.run.started_at);
    on_disk(&title, &name, |tools| run::body(file, tools), shell::data(&file.run))
}

fn on_disk(
    title: &str,
    name: &str,
    content: impl FnOnce(Markup) -> Markup,
    json: PreEscaped<String>,
) -> String {
    let download = format!("{}.json", file_name(name));
    let body = markup! {
        (content(shell::tools(Some(&download))))
        script type="application/json" id="record" { (json) }
    };
    Page::on_disk(title, body).into_string()
}

/// The report of a record, under `tools`.
pub(crate) fn body(record: &Record, tools: Markup) -> Markup {
    let groups = contents::groups(record);
    markup! {
        (header(record, tools))
        (tables::list("warnings", "Warnings", &contents::warnings_in_short(record)))
        @let contests = contents::contests(record);
        @let differences = Differences::of(record);
        @let (first, other) = contests.split_at(forest::shown_first(&contests));
        @for (index, contest) in first.iter().enumerate() {
            (forest::ratios(&format!("ratios-{index}"), contest, differences))
            (forest::added(&format!("added-{index}"), contest, differences))
        }
        @for (index, contest) in other.iter().enumerate() {
            (forest::folded(&format!("folded-{index}"), contest, differences))
        }
        (ladders(&groups))
        @for (index, section) in contents::sections(record).iter().enumerate() {
            (latency_section(index, section, &groups))
        }
        @for table in &contents::particular_tables(record) { (tables::titled(table)) }
        @for table in &contents::added_tables(record) { (tables::titled(table)) }
        @for table in &contents::fabric_tables(record) { (tables::titled(table)) }
        @for cost in &contents::cost_tables(record) { (tables::titled(cost)) }
        (tables::titled(&contents::idle_table(record)))
        (published(record))
        @for table in &contents::detail_tables(record) { (tables::folded(table)) }
        (tables::folded(&contents::block_table(record)))
        (tables::list("notes", "Notes", &contents::notes(record)))
        (tables::list("notes", "Not measured here", &record.not_measured))
        (machine(record))
    }
}

fn header(record: &Record, tools: Markup) -> Markup {
    markup! {
        header {
            div.top {
                p.eyebrow {
                    span.brand { "Tollway" }
                    bdi { (record.scenario) }
                    time datetime=(record.started_at) { (contents::shown_time(&record.started_at)) }
                }
                (tools)
            }
            h1 { bdi { (contents::question(record)) } }
            @for sentence in contents::headline(record) {
                p.verdict { (tables::unbroken(&sentence)) }
            }
        }
    }
}

fn latency_section(index: usize, section: &Section<'_>, groups: &[Group<'_>]) -> Markup {
    let topology = section.rows.first().map(|row| row.conditions.topology);
    let here = |group: &&Group<'_>| {
        group.rows.first().map(|named| named.row.conditions.topology) == topology
    };
    let groups: Vec<_> = groups.iter().filter(here).collect();
    let table = contents::latency_table(section);
    markup! {
        section {
            h2 { (table.title) }
            @if let Some(note) = &table.note { p.note { (note) } }
            @if !table.is_empty() { (tables::bare(&table)) }
            @for (at, group) in groups.iter().enumerate() {
                @let charts = charts(&format!("chart-{index}-{at}"), group);
                @if groups.len() <= GROUPS_OPEN {
                    @if !charts.0.is_empty() && !table.is_empty() { h3 { (group.title) } }
                    (charts)
                } @else {
                    details open[at == 0] {
                        summary { (group.title) }
                        (charts)
                    }
                }
            }
            @if !table.is_empty() {
                p.note {
                    "Percentiles: bold is all blocks merged, faint a single block, dashed where \
                     fewer than 100 samples lie beyond. Spread: up to the 99.5th percentile of the \
                     slowest."
                }
            }
        }
    }
}

/// Response times by rate, where there are several rates.
fn ladders(groups: &[Group<'_>]) -> Markup {
    let climbs = contents::climbs(groups);
    let plots: Vec<_> =
        climbs.iter().filter_map(|(title, climbs)| plot::ladder(title, climbs)).collect();
    if plots.is_empty() {
        return Markup::default();
    }
    markup! {
        section {
            h2 { "With more load" }
            div.charts {
                @for (index, plot) in plots.iter().enumerate() {
                    (figure(&format!("chart-rate-{index}"), plot))
                }
            }
        }
    }
}

/// Percentiles, spread and course of a group's rows.
fn charts(id: &str, group: &Group<'_>) -> Markup {
    let samples = match group.samples() {
        Ok(samples) => samples,
        Err(error) => return no_curve(group, &error),
    };
    let percentiles = plot::percentiles(&samples);
    let distribution = plot::distribution(&samples);
    let courses = plot::courses(&group.courses(), &group.joints_s());
    markup! {
        @if percentiles.is_some() || distribution.is_some() {
            div.charts {
                @if let Some(plot) = &percentiles { (figure(&format!("{id}-p"), plot)) }
                @if let Some(plot) = &distribution { (figure(&format!("{id}-d"), plot)) }
            }
        }
        @if !courses.is_empty() {
            details {
                summary { "Over time: " (group.title) }
                div.charts {
                    @for (index, plot) in courses.iter().enumerate() {
                        (figure(&format!("{id}-t{index}"), plot))
                    }
                }
            }
        }
    }
}

fn no_curve(group: &Group<'_>, error: &HistogramError) -> Markup {
    markup! { p.doubt { "No curve of " (group.title) ": " (error) "." } }
}

/// Published figures, with today's.
fn published(record: &Record) -> Markup {
    let Some(table) = &record.seed_table else { return Markup::default() };
    markup! {
        section {
            h2 { (table.title) }
            p.note { "Published figures, and the same figures of this experiment." }
            div.wide tabindex="0" role="region" aria-label=(table.title) {
                table.published {
                    caption.unseen { (table.title) }
                    thead {
                        tr {
                            th scope="col" { "figure" }
                            th scope="col" { "published" }
                            th scope="col" { "today" }
                        }
                    }
                    @for SeedLines { what, unit, published, today } in contents::seed_lines(table) {
                        tbody {
                            tr {
                                th scope="row" { (what) " " span.unit { (unit) } }
                                td data-column="published" { (named_values(&published)) }
                                td.strong data-column="today" { (named_values(&today)) }
                            }
                        }
                    }
                }
            }
            @if !table.notes.is_empty() { ul { @for note in &table.notes { li { (note) } } } }
        }
    }
}

/// One under the other, names and figures in columns of their own.
fn named_values(values: &[(String, String)]) -> Markup {
    markup! {
        @if values.is_empty() { span.faint { (NONE) } }
        @for (name, value) in values {
            span.pair { bdi { (name) } span.value { (value) } }
        }
    }
}

fn machine(record: &Record) -> Markup {
    markup! {
        section {
            h2 { "Machine and versions" }
            (tables::facts(&contents::machine(record)))
        }
        @for subject in record.subjects.iter().filter(|subject| !subject.config.is_empty()) {
            details {
                summary {
                    "Processes and configuration: "
                    strong { bdi { (contents::clipped(&subject.name)) } }
                    @if !subject.variant.is_empty() {
                        " (" bdi { (contents::clipped(&subject.variant)) } ")"
                    }
                }
                dl.config {
                    @for (name, text) in &subject.config {
                        dt { bdi { (name) } }
                        dd { code { (text) } }
                    }
                }
            }
        }
    }
}

/// What is left of a name when only plain letters may be in a file's name.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let name: String = name.chars().take(contents::NAME_LIMIT).map(plain).collect();
    if name.is_empty() { "record".to_owned() } else { name }
}
