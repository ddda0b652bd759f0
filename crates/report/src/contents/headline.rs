//! The first sentences of a report: what Tollway adds, and how far that can be believed.

use tollway_record::record::{Comparison, Protocol, Question, Record, Row, Topology};

use super::{means, protocol, warnings};
use crate::figures;

/// One line per protocol: what Tollway adds to the mean call, place by place. A last line where
/// warnings qualify them.
pub(crate) fn headline(record: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    for wanted in Protocol::ALL {
        let phrases: Vec<_> = means(record, Question::AddedByTollway)
            .filter(|(_, row)| row.conditions.protocol == *wanted)
            .map(|(comparison, row)| headline_phrase(comparison, row))
            .collect();
        if !phrases.is_empty() {
            lines.push(format!("{}: Tollway {}.", protocol(*wanted), join_phrases(&phrases)));
        }
    }
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

/// The phrase's verb, and the rest of it.
fn headline_phrase(comparison: &Comparison, row: &Row) -> (&'static str, String) {
    let place = match row.conditions.topology {
        Topology::SameNetwork => "in the same network",
        Topology::OtherNetwork => "to another network",
        Topology::OtherRegion => "to another region",
    };
    let us = comparison.difference_us;
    if let Some([lo, hi]) =
        comparison.difference_ci95_us.filter(|[lo, hi]| *lo <= 0.0 && *hi >= 0.0)
    {
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
