//! The first sentences of a report: what Tollway adds, and how far that can be believed.

use tollway_record::record::{Comparison, Protocol, Question, Record, Row, Topology};

use super::{means, protocol, warnings};
use crate::figures;

/// One line per protocol: what Tollway adds to the mean call, place by place, and where that could
/// not be measured. A last line where warnings qualify them.
pub(crate) fn headline(record: &Record) -> Vec<String> {
    let mut lines: Vec<_> =
        Protocol::ALL.iter().filter_map(|wanted| protocol_line(record, *wanted)).collect();
    if lines.is_empty() {
        lines.push("This record has no pair of rows with and without Tollway.".to_owned());
    }
    match warnings(record).len() {
        0 => {}
        1 => lines.push("A warning below qualifies these figures.".to_owned()),
        count => lines.push(format!("{count} warnings below qualify these figures.")),
    }
    lines
}

fn protocol_line(record: &Record, wanted: Protocol) -> Option<String> {
    let mut measured = Vec::new();
    let mut limited: Vec<(&str, String)> = Vec::new();
    let pairs = means(record, Question::AddedByTollway);
    for (comparison, row) in pairs.filter(|(_, row)| row.conditions.protocol == wanted) {
        match limit_instead(record, comparison, row) {
            Some(why) => limited.push((place(row), why)),
            None => measured.push(headline_phrase(comparison, row)),
        }
    }
    let subject = if measured.is_empty() { "what Tollway adds" } else { "What it adds" };
    let mut sentences = Vec::new();
    if !measured.is_empty() {
        sentences.push(format!("Tollway {}.", join_phrases(&measured)));
    }
    sentences.extend(limited.iter().map(|(place, why)| {
        format!("{subject} {place} could not be measured: the load generator was the limit, {why}.")
    }));
    (!sentences.is_empty()).then(|| format!("{}: {}", protocol(wanted), sentences.join(" ")))
}

/// Why a pair that shows no difference shows nothing: its load generator could not keep up in one
/// of the rows, so what was told apart, or was not, is the generator.
fn limit_instead(record: &Record, comparison: &Comparison, row: &Row) -> Option<String> {
    within_noise(comparison)?;
    let rows = [(record.row(&comparison.baseline_row), "without it"), (Some(row), "with it")];
    rows.iter().find_map(|(row, which)| {
        let traffic = &(*row)?.traffic;
        let limit = traffic.client_limits.first().filter(|_| traffic.client_limited)?;
        Some(format!("{which} {limit}"))
    })
}

/// The interval of the difference, where it holds zero.
fn within_noise(comparison: &Comparison) -> Option<[f64; 2]> {
    comparison.difference_ci95_us.filter(|[lo, hi]| *lo <= 0.0 && *hi >= 0.0)
}

fn place(row: &Row) -> &'static str {
    match row.conditions.topology {
        Topology::SameNetwork => "in the same network",
        Topology::OtherNetwork => "to another network",
        Topology::OtherRegion => "to another region",
    }
}

/// The phrase's verb, and the rest of it.
fn headline_phrase(comparison: &Comparison, row: &Row) -> (&'static str, String) {
    let place = place(row);
    let us = comparison.difference_us;
    if let Some([lo, hi]) = within_noise(comparison) {
        let (lo, hi) = (figures::difference(lo), figures::difference(hi));
        return ("adds", format!("nothing that can be told from noise {place} ({lo} to {hi})"));
    }
    let verb = if us < 0.0 { "takes away" } else { "adds" };
    let size = figures::size(us, comparison.difference_ci95_us);
    let share = comparison.ratio.filter(|_| row.conditions.link.is_some());
    let share =
        share.map(|ratio| format!(" ({} of the call)", figures::percent((ratio - 1.0).abs())));
    (verb, format!("{size} {place}{}", share.unwrap_or_default()))
}

/// The phrases as one list; a verb is said again only where it changes.
fn join_phrases(phrases: &[(&str, String)]) -> String {
    let mut sentence = String::new();
    let mut said = "";
    for (index, (verb, rest)) in phrases.iter().enumerate() {
        sentence.push_str(match index {
            0 => "",
            last if last + 1 == phrases.len() => " and ",
            _ => ", ",
        });
        if *verb != said {
            sentence.push_str(verb);
            sentence.push(' ');
        }
        sentence.push_str(rest);
        said = verb;
    }
    sentence
}
