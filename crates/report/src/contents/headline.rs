//! The first sentences of a report: what Tollway adds, and how far that can be believed.

mod rates;

use std::collections::BTreeSet;

use tollway_record::record::{Comparison, Protocol, Question, Record, Row, Topology, Verdict};

use super::pairs::{Contest, Pair, TOLLWAY};
use super::{Differences, contests, protocol, under, warnings};
use crate::figures;

/// More paths than this are summarised by their range; the tables have each.
const PATHS_TOLD: usize = 3;
/// Most rows of a single subject in the headline; the tables have each.
const ROWS_ALONE: usize = 12;

/// One line per protocol: what Tollway adds to the mean call, place by place, or which share of
/// direct's rate it reaches at full load; then the other subjects. A last line where warnings qualify them.
pub(crate) fn headline(record: &Record) -> Vec<String> {
    let (contests, differences) = (contests(record), Differences::of(record));
    let mut lines = Vec::new();
    for wanted in Protocol::ALL {
        for contest in contests.iter().filter(|c| c.question == Question::AddedByTollway) {
            lines.extend(tolls(contest, *wanted, differences));
        }
    }
    lines.extend(others(&contests, differences));
    lines.extend(super::fabric::headline(record));
    if lines.is_empty() {
        lines.extend(alone(record));
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

/// What was reached where nothing but one subject was measured, of a few rows.
fn alone(record: &Record) -> Vec<String> {
    let subject = |row: &Row| (row.conditions.subject.clone(), row.conditions.variant.clone());
    if record.rows.iter().map(subject).collect::<BTreeSet<_>>().len() > 1 {
        return Vec::new();
    }
    let sentence = |row: &Row| {
        let latency = &row.traffic.latency_us;
        let p50 = latency.p50.map(|us| format!(", median {}", figures::time(us)));
        let p99 = latency.p99.map(|us| format!(", p99 {}", figures::time(us)));
        let rate = figures::digits3_down(row.traffic.achieved_rps);
        let (p50, p99) = (p50.unwrap_or_default(), p99.unwrap_or_default());
        format!("{}: {rate} requests/s{p50}{p99}.", row.conditions.id)
    };
    record.rows.iter().map(sentence).take(ROWS_ALONE).collect()
}

/// The question of an experiment of that scenario; of others, the scenario's name.
pub(crate) fn question(record: &Record) -> String {
    let known = match record.scenario.as_str() {
        "cross-network" => "What does this path cost?",
        "invocation" => "What does a call through the mesh cost?",
        "actors" => "What does an actor cost?",
        "control-plane-cost" => "What does a control plane cost?",
        "tls" => "What does encryption cost?",
        "push" => "What does a stream of messages cost?",
        "throughput" => "How much passes through in a second?",
        "max-rate" => "How many calls a second are too many?",
        "cpu-limits" => "What is left of it with little CPU?",
        "load-steps" => "What does more load cost?",
        "neighbours-list" => "How soon does an agent have its group?",
        "neighbours-churn" => "How far behind is a table that changes?",
        "fabric-forwarding" => "What does forwarding a packet cost?",
        "neighbours-fanout" => "How soon do all agents have a neighbour?",
        "neighbours-get" => "What does a look-up of a neighbour take?",
        "neighbours-watch" => "How soon is a neighbour where it is needed?",
        other => return super::clipped(other),
    };
    known.to_owned()
}

/// What Tollway, as it usually is, does to a protocol: at full load and at given rates.
fn tolls(contest: &Contest<'_>, wanted: Protocol, differences: Differences) -> Vec<String> {
    let own = |pair: &&Pair<'_>| {
        pair.row.conditions.protocol == wanted && pair.row.conditions.label() == TOLLWAY
    };
    let (full, paced): (Vec<&Pair<'_>>, Vec<_>) =
        contest.pairs.iter().filter(own).partition(|pair| pair.full_load().is_some());
    let name = protocol(wanted);
    let sentences = [rates::full_load(&full, differences), at_given_rates(&paced, differences)];
    sentences.into_iter().flatten().map(|sentence| format!("{name}: {sentence}")).collect()
}

/// What every other subject adds to direct, and variants of Tollway to Tollway as it usually is:
/// one line per protocol and path where these are few, else one per protocol. Other baselines are
/// the tables'.
fn others(contests: &[Contest<'_>], differences: Differences) -> Vec<String> {
    let against_tollway = |contest: &&Contest<'_>| contest.baseline == TOLLWAY;
    let compared_closer = |pair: &Pair<'_>| {
        let contest = contests.iter().find(against_tollway);
        contest
            .is_some_and(|c| c.pairs.iter().any(|p| p.row.conditions.id == pair.row.conditions.id))
    };
    let mut lines = Vec::new();
    for contest in contests {
        let is_shown = |pair: &&Pair<'_>| match (contest.question, contest.baseline.as_str()) {
            (Question::AddedByNetwork, _) => false,
            (Question::AddedByTollway, _) => pair.label() != TOLLWAY && !compared_closer(pair),
            (Question::AgainstBaseline, TOLLWAY) => pair.row.conditions.subject == TOLLWAY,
            (Question::AgainstBaseline, _) => contest.is_against_direct(),
        };
        let pairs: Vec<&Pair<'_>> = contest.pairs.iter().filter(is_shown).collect();
        lines.extend(lines_of(contest, &pairs, differences));
    }
    lines
}

fn lines_of(contest: &Contest<'_>, pairs: &[&Pair<'_>], differences: Differences) -> Vec<String> {
    // By protocol and path: a phrase for each subject.
    let mut paths: Vec<((Protocol, String), Said)> = Vec::new();
    let mut subjects: Vec<(Protocol, Subjects<'_>)> = Vec::new();
    for pair in pairs {
        let protocol = pair.row.conditions.protocol;
        let said = (pair.label(), against(contest, &[pair]));
        under(&mut paths, (protocol, path(pair.row, differences))).push(said);
        under(under(&mut subjects, protocol), pair.label()).push(*pair);
    }
    let name = |wanted: Protocol| match contest.is_against_direct() {
        true => protocol(wanted).to_owned(),
        false => format!("{} against {}", protocol(wanted), contest.baseline),
    };
    if paths.len() <= PATHS_TOLD {
        let line = |((protocol, path), said): ((Protocol, String), Said)| {
            format!("{}, {path}: {}.", name(protocol), one_by_one(said))
        };
        return paths.into_iter().map(line).collect();
    }
    let line = |(protocol, subjects): (Protocol, Subjects<'_>)| {
        let said = subjects.into_iter().map(|(label, pairs)| (label, against(contest, &pairs)));
        format!("{}: {}.", name(protocol), one_by_one(said.collect()))
    };
    subjects.into_iter().map(line).collect()
}

/// Labels, and a phrase for each.
type Said = Vec<(String, String)>;

/// Pairs by the label of their row.
type Subjects<'a> = Vec<(String, Vec<&'a Pair<'a>>)>;

/// All phrases as one list; subjects with equal phrases are named together.
fn one_by_one(said: Said) -> String {
    let mut by_words: Vec<(String, Vec<String>)> = Vec::new();
    for (subject, words) in said {
        under(&mut by_words, words).push(subject);
    }
    let phrases: Vec<String> = by_words
        .into_iter()
        .map(|(words, subjects)| match subjects.as_slice() {
            [one] => format!("{one} {words}"),
            [several @ .., last] => {
                let words = words.replacen("adds ", "add ", 1).replacen("reaches ", "reach ", 1);
                format!("{} and {last} each {words}", several.join(", "))
            }
            [] => String::new(),
        })
        .collect();
    phrases.join("; ")
}

/// A phrase for these pairs of one subject: a share of the baseline's rate, or an added time.
fn against(contest: &Contest<'_>, pairs: &[&Pair<'_>]) -> String {
    let (full, paced): (Vec<&Pair<'_>>, Vec<_>) =
        pairs.iter().copied().partition(|pair| pair.full_load().is_some());
    let means: Vec<&Comparison> = paced.iter().filter_map(|pair| pair.mean()).collect();
    let added = (!means.is_empty()).then(|| added_words(&means, &contest.baseline));
    let shares = rates::share_words(&full, &contest.baseline);
    shares.into_iter().chain(added).collect::<Vec<_>>().join(" and ")
}

/// What these comparisons add to the baseline, as one phrase: `adds 61 µs`, `adds −3 µs to 61 µs in
/// 5 cases`, `adds nothing that can be distinguished from noise`.
fn added_words(comparisons: &[&Comparison], baseline: &str) -> String {
    let clear = comparisons.iter().filter(|comparison| within_noise(comparison).is_none());
    let differences: Vec<f64> = clear.map(|comparison| comparison.difference_us).collect();
    let cases = |count: usize| match comparisons.len() {
        1 => String::new(),
        all if all == count => format!(" in {all} cases"),
        all => format!(" in {count} of {all} cases"),
    };
    match (differences.as_slice(), comparisons) {
        ([], _) => {
            format!("adds nothing that can be distinguished from noise{}", cases(comparisons.len()))
        }
        ([us], [comparison]) if *us < 0.0 => {
            let size = figures::size(*us, comparison.difference_ci95_us);
            format!("takes {size} less than {baseline}")
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

/// The sentences on pairs at the same given rate; `None` without such.
fn at_given_rates(pairs: &[&Pair<'_>], differences: Differences) -> Option<String> {
    let mut measured = Vec::new();
    let mut compared = Vec::new();
    let mut limited: Vec<(String, String)> = Vec::new();
    for pair in pairs {
        let Some(comparison) = pair.mean() else { continue };
        match limit_instead(comparison, pair) {
            Some(why) => limited.push((path(pair.row, differences), why)),
            None => {
                compared.push(comparison);
                measured.push(headline_phrase(comparison, pair.row, differences));
            }
        }
    }
    // The first sentence goes on behind the protocol's name.
    let subject = |first: bool| if first { "what Tollway adds" } else { "What it adds" };
    let mut sentences = Vec::new();
    if !measured.is_empty() {
        sentences.push(match compared.len() > PATHS_TOLD {
            true => format!("Tollway {}.", added_words(&compared, "direct")),
            false => format!("Tollway {}.", join_phrases(&measured)),
        });
    }
    if limited.len() > PATHS_TOLD {
        let count = limited.len();
        let limit = "could not be measured: the load generator was the limit";
        sentences.push(format!("{} in {count} cases {limit}.", subject(sentences.is_empty())));
        limited.clear();
    }
    for (path, why) in limited {
        let subject = subject(sentences.is_empty());
        sentences.push(format!(
            "{subject} {path} could not be measured: the load generator was the limit, {why}."
        ));
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Why a pair that shows no difference shows nothing: its load generator could not keep up in one
/// of the rows, so the comparison is of the generator.
fn limit_instead(comparison: &Comparison, pair: &Pair<'_>) -> Option<String> {
    within_noise(comparison)?;
    let rows = [(pair.baseline, "without it"), (Some(pair.row), "with it")];
    rows.iter().find_map(|(row, which)| {
        let traffic = &(*row)?.traffic;
        let limit = traffic.client_limits.first().filter(|_| traffic.client_limited)?;
        Some(format!("{which} {limit}"))
    })
}

/// The interval of the difference, where it holds zero and the verdict, which goes by the ratio,
/// distinguishes the two no better.
fn within_noise(comparison: &Comparison) -> Option<[f64; 2]> {
    if matches!(comparison.verdict, Verdict::Faster | Verdict::Slower) {
        return None;
    }
    comparison.difference_ci95_us.filter(|[lo, hi]| *lo <= 0.0 && *hi >= 0.0)
}

/// Where, and in which case where there are several.
fn path(row: &Row, differences: Differences) -> String {
    let path = match row.conditions.topology {
        Topology::SameNetwork => "in the same network",
        Topology::OtherNetwork => "to another network",
        Topology::OtherRegion => "to another region",
    };
    match differences.words(row) {
        words if words.is_empty() => path.to_owned(),
        words => format!("{path} ({words})"),
    }
}

/// The phrase's verb, and the rest of it.
fn headline_phrase(
    comparison: &Comparison,
    row: &Row,
    differences: Differences,
) -> (&'static str, String) {
    let path = path(row, differences);
    let us = comparison.difference_us;
    if let Some([lo, hi]) = within_noise(comparison) {
        let (lo, hi) = (figures::difference(lo), figures::difference(hi));
        return (
            "adds",
            format!("nothing that can be distinguished from noise {path} ({lo} to {hi})"),
        );
    }
    let verb = if us < 0.0 { "takes away" } else { "adds" };
    let size = figures::size(us, comparison.difference_ci95_us);
    let share = comparison.ratio.filter(|_| row.conditions.link.is_some());
    let share =
        share.map(|ratio| format!(" ({} of the call)", figures::percent((ratio - 1.0).abs())));
    (verb, format!("{size} {path}{}", share.unwrap_or_default()))
}

/// The phrases as one list; a verb is repeated only if it changes.
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
