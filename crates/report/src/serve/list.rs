//! The first page: every result of the folder, to be filtered, opened and chosen.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::query::{Query, address};
use super::shelf::{Entry, Listing, Shelf};
use crate::contents::shown_time;
use crate::page::{shell, tables};

/// The list in the state of `query`: `q` is the filter, each `file` a choice.
pub(crate) fn body(shelf: &Shelf, listing: &Listing, query: &Query) -> Markup {
    let filter = query.first("q").unwrap_or_default();
    let chosen: BTreeSet<&str> = query.all("file").collect();
    let folder = shelf.folder.path().display().to_string();
    html! {
        header {
            div.top {
                p.eyebrow { span.brand { "Tollway" } bdi { (folder) } }
                (shell::tools(None))
            }
            h1 { "Results" }
        }
        form #list action="overlay" method="get" {
            div.bar {
                label.unseen for="filter" { "Filter" }
                input #filter type="search" name="q" value=(filter) autocomplete="off"
                    spellcheck="false" placeholder="Filter by label, scenario, subject, file";
                // Enter in the filter without a script filters, so this button is the first.
                button.unseen type="submit" formaction="." tabindex="-1" { "Filter" }
                button #overlay type="submit" { "Overlay" }
                button #trend type="submit" formaction="trend" { "Trend" }
                output #count { (listing.entries.len()) " results" }
            }
            @if listing.entries.is_empty() { (nothing(&folder)) } @else {
                ul #results.results {
                    @for entry in &listing.entries {
                        (item(entry, filter, chosen.contains(entry.found.name.as_str())))
                    }
                }
            }
        }
        @if listing.older > 0 {
            p.note { (listing.older) " older files are not listed." }
        }
        p.note.hints {
            kbd { "/" } " filter, " kbd { "↑" } kbd { "↓" } " move, " kbd { "space" } " choose, "
            kbd { "enter" } " open, " kbd { "o" } " overlay, " kbd { "t" } " trend, "
            kbd { "esc" } " clear. The address keeps the filter and the choice."
        }
    }
}

fn nothing(folder: &str) -> Markup {
    html! {
        p {
            "No result in " bdi { (folder) } " yet. These make some:"
        }
        ul {
            li { code { "tollway lab run invocation --quick --json invocation.json" } }
            li { code { "tollway load http --json run.json URL" } }
            li { code { "fortio load -json run.json URL" } }
        }
    }
}

fn item(entry: &Entry, filter: &str, chosen: bool) -> Markup {
    let name = entry.found.name.as_str();
    let hidden = !entry.matches(filter);
    html! {
        li data-words=(entry.words()) hidden[hidden] class=[entry.summary.is_err().then_some("broken")] {
            @match &entry.summary {
                Ok(summary) => {
                    input type="checkbox" name="file" value=(name) checked[chosen]
                        aria-label=(format!("choose {name}"));
                    div.what {
                        a.open href=(address("view", [("file", name)])) { bdi { (summary.label) } }
                        span.kind { (summary.kind.word()) }
                        @if summary.subjects != summary.label {
                            span.subjects { bdi { (summary.subjects) } }
                        }
                        p.finding { (tables::unbroken(&summary.finding)) }
                    }
                    div.when {
                        time { (shown_time(&summary.started_at)) }
                        span.file { bdi { (name) } }
                    }
                }
                Err(reason) => {
                    input type="checkbox" disabled aria-label=(format!("{name} cannot be read"));
                    div.what {
                        span.open tabindex="-1" { bdi { (name) } }
                        p.finding.doubt { "Not shown: " (reason) }
                    }
                    div.when { span.file { (entry.found.stamp.length) " bytes" } }
                }
            }
        }
    }
}
