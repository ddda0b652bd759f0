//! The first sentences of a report: what Tollway adds, and how far that can be believed.

use tollway_record::record::{Comparison, Protocol, Question, Record, Row, Topology};

use super::{Differences, clipped, means, protocol, warnings};
use crate::figures;

/// One line per protocol: what Tollway adds to the mean call, place by place, and where that could
/// not be measured. A last line where warnings qualify them.
pub(crate) fn headline(record: &Record) -> Vec<String> {
    let mut lines: Vec<_> =
        Protocol::ALL.iter().filter_map(|wanted| protocol_line(record, *wanted)).collect();
    lines.extend(against_direct(record));
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

/// What an experiment of that scenario asks; of others, the scenario's name.
pub(crate) fn question(record: &Record) -> String {
    let known = match record.scenario.as_str() {
        "cross-network" => "What does this path cost?",
        "invocation" => "What does a call through the mesh cost?",
        "control-plane-cost" => "What does a control plane cost?",
        "tls" => "What does encryption cost?",
        "push" => "What does a stream of messages cost?",
        "throughput" => "How much passes through in a second?",
        "max-rate" => "How many calls a second are too many?",
        "cpu-limits" => "What is left of it with little CPU?",
        "load-steps" => "What does more load cost?",
        other => return clipped(other),
    };
    known.to_owned()
}

/// More paths than this are told by their range; the tables have each.
const PATHS_TOLD: usize = 3;

/// What every other subject adds to the mean of direct: one line per protocol and path, or per
/// protocol and subject where there are many.
fn against_direct(record: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    for wanted in Protocol::ALL {
        let pairs: Vec<_> = means(record, Question::AgainstBaseline)
            .filter(|(_, row)| row.conditions.protocol == *wanted)
            .collect();
        let mut paths: Vec<(String, Vec<String>)> = Vec::new();
        let mut subjects: Vec<(String, Vec<&Comparison>)> = Vec::new();
        for (comparison, row) in &pairs {
            let subject = clipped(&row.conditions.subject);
            let said = format!("{subject} {}", added_words(&[*comparison]));
            push_under(&mut paths, place(record, row), said);
            push_under(&mut subjects, subject, *comparison);
        }
        let protocol = protocol(*wanted);
        if paths.len() <= PATHS_TOLD {
            let line = |(path, said): (String, Vec<String>)| {
                format!("{protocol}, {path}: {}.", said.join(", "))
            };
            lines.extend(paths.into_iter().map(line));
        } else {
            let line = |(subject, all): (String, Vec<&Comparison>)| {
                format!("{protocol}: {subject} {}.", added_words(&all))
            };
            lines.extend(subjects.into_iter().map(line));
        }
    }
    lines
}

fn push_under<T>(lists: &mut Vec<(String, Vec<T>)>, name: String, item: T) {
    match lists.iter_mut().find(|(known, _)| *known == name) {
        Some((_, items)) => items.push(item),
        None => lists.push((name, vec![item])),
    }
}

/// What these comparisons say is added, as one phrase: `adds 61 µs`, `adds −3 µs to 61 µs in 5
/// cases`, `adds nothing that can be told from noise`.
fn added_words(comparisons: &[&Comparison]) -> String {
    let told = comparisons.iter().filter(|comparison| within_noise(comparison).is_none());
    let differences: Vec<f64> = told.map(|comparison| comparison.difference_us).collect();
    let cases = |count: usize| match comparisons.len() {
        1 => String::new(),
        all if all == count => format!(" in {all} cases"),
        all => format!(" in {count} of {all} cases"),
    };
    match (differences.as_slice(), comparisons) {
        ([], _) => format!("adds nothing that can be told from noise{}", cases(comparisons.len())),
        ([us], [comparison]) if *us < 0.0 => {
            format!("takes {} less than direct", figures::size(*us, comparison.difference_ci95_us))
        }
        ([us], [comparison]) => {
            format!("adds {}", figures::size(*us, comparison.difference_ci95_us))
        }
        (all, _) => {
            let lo = all.iter().copied().fold(f64::INFINITY, f64::min);
            let hi = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let shown = if lo < 0.0 { figures::difference } else { figures::time };
            format!("adds {} to {}{}", shown(lo), shown(hi), cases(all.len()))
        }
    }
}

fn protocol_line(record: &Record, wanted: Protocol) -> Option<String> {
    let mut measured = Vec::new();
    let mut compared = Vec::new();
    let mut limited: Vec<(String, String)> = Vec::new();
    let pairs = means(record, Question::AddedByTollway);
    for (comparison, row) in pairs.filter(|(_, row)| row.conditions.protocol == wanted) {
        match limit_instead(record, comparison, row) {
            Some(why) => limited.push((place(record, row), why)),
            None => {
                compared.push(comparison);
                measured.push(headline_phrase(record, comparison, row));
            }
        }
    }
    // The first sentence goes on behind the protocol's name.
    let subject = |first: bool| if first { "what Tollway adds" } else { "What it adds" };
    let mut sentences = Vec::new();
    if !measured.is_empty() {
        sentences.push(match compared.len() > PATHS_TOLD {
            true => format!("Tollway {}.", added_words(&compared)),
            false => format!("Tollway {}.", join_phrases(&measured)),
        });
    }
    if limited.len() > PATHS_TOLD {
        let count = limited.len();
        let limit = "could not be measured: the load generator was the limit";
        sentences.push(format!("{} in {count} cases {limit}.", subject(sentences.is_empty())));
        limited.clear();
    }
    for (place, why) in limited {
        let subject = subject(sentences.is_empty());
        sentences.push(format!(
            "{subject} {place} could not be measured: the load generator was the limit, {why}."
        ));
    }
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

/// Where, and in which case where there are several.
fn place(record: &Record, row: &Row) -> String {
    let place = match row.conditions.topology {
        Topology::SameNetwork => "in the same network",
        Topology::OtherNetwork => "to another network",
        Topology::OtherRegion => "to another region",
    };
    match Differences::of(record).words(row) {
        words if words.is_empty() => place.to_owned(),
        words => format!("{place} ({words})"),
    }
}

/// The phrase's verb, and the rest of it.
fn headline_phrase(record: &Record, comparison: &Comparison, row: &Row) -> (&'static str, String) {
    let place = place(record, row);
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
