//! How to read the figures, doubts about them, and what they were measured on.

use std::collections::BTreeSet;

use tollway_record::check;
use tollway_record::record::{Arrival, IntervalMethod, Record};

use super::{arrival, under};
use crate::figures::{self, NONE};

/// Most warnings of one kind that are listed one by one.
const ALIKE_SHOWN: usize = 2;

/// How to read the figures: blocks, intervals, what a dash means; then the record's own notes.
pub(crate) fn notes(record: &Record) -> Vec<String> {
    if !record.fabric.is_empty() {
        return [super::fabric::plan(record)].into_iter().chain(record.notes.clone()).collect();
    }
    let mut notes = vec![plan(record)];
    notes.extend(interval_note(record));
    let limited = record.rows.iter().any(|row| row.traffic.client_limited);
    notes.extend(limited.then(|| {
        "Client-limited: the load generator was at its own limit, so the figure is its, not the \
         subject's."
            .to_owned()
    }));
    notes.push(format!(
        "Latency is response time, from the intended start of a request to the last byte of its \
         answer. {NONE} stands for a percentile with fewer than 100 samples beyond it, and for \
         what was not measured. Δ is the difference of two percentiles, not the percentile of a \
         difference; only means can be subtracted."
    ));
    notes.extend(record.notes.iter().cloned());
    notes
}

fn plan(record: &Record) -> String {
    let blocks = record.rows.iter().map(|row| row.blocks.len()).max().unwrap_or_default();
    let window = record
        .rows
        .iter()
        .flat_map(|row| &row.blocks)
        .map(|block| block.traffic.duration_s)
        .fold(0.0, f64::max);
    let payloads: BTreeSet<u64> =
        record.rows.iter().map(|row| row.conditions.payload_bytes).collect();
    let payloads: Vec<_> = payloads.into_iter().map(figures::count).collect();
    let arrivals: BTreeSet<Arrival> =
        record.rows.iter().map(|row| row.conditions.arrival).collect();
    let arrivals: Vec<_> = arrivals.into_iter().map(arrival).collect();
    format!(
        "{blocks} interleaved blocks, {} s measured per row and block; {}; payload {} bytes.",
        figures::digits_short(window),
        arrivals.join(" and "),
        payloads.join(" and "),
    )
}

fn interval_note(record: &Record) -> Option<String> {
    let methods: BTreeSet<IntervalMethod> =
        record.comparisons.iter().filter_map(|comparison| comparison.method).collect();
    let texts: Vec<_> = methods
        .into_iter()
        .map(|method| match method {
            IntervalMethod::BlockT => "Student's t over blocks (fewer than 6)",
            IntervalMethod::BlockBootstrap => "bootstrap over blocks",
            IntervalMethod::Search => "of searches, what their two ends leave open",
        })
        .collect();
    (!texts.is_empty()).then(|| format!("95 % intervals: {}.", texts.join("; ")))
}

/// The record's warnings and what the checks find, each once.
pub(crate) fn warnings(record: &Record) -> Vec<String> {
    let mut warnings = record.warnings.clone();
    for doubt in check::check(record) {
        if !warnings.contains(&doubt) {
            warnings.push(doubt);
        }
    }
    warnings
}

/// The warnings; one that concerns more than [`ALIKE_SHOWN`] rows appears once.
pub(crate) fn warnings_in_short(record: &Record) -> Vec<String> {
    let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
    for warning in warnings(record) {
        under(&mut kinds, kind_of(record, &warning)).push(warning);
    }
    let line = |(_, alike): (String, Vec<String>)| match alike.len() {
        few if few <= ALIKE_SHOWN => alike,
        many => vec![format!("{}; alike in {} more rows", alike[0], many - 1)],
    };
    kinds.into_iter().flat_map(line).collect()
}

/// The warning without its row and its figures.
fn kind_of(record: &Record, warning: &str) -> String {
    match warning.split_once(": ") {
        Some((id, doubt)) if record.row(id).is_some() => {
            doubt.chars().filter(|c| !c.is_ascii_digit() && !".,".contains(*c)).collect()
        }
        _ => warning.to_owned(),
    }
}

/// Machine and versions, as pairs of name and value.
pub(crate) fn machine(record: &Record) -> Vec<(String, String)> {
    let machine = &record.machine;
    let cpus =
        format!("{} × {}", machine.cpus, machine.cpu_model.as_deref().unwrap_or(&machine.arch));
    let mut facts = vec![("processors".to_owned(), cpus)];
    let mut add = |name: &str, value: Option<String>| {
        facts.extend(value.filter(|v| !v.is_empty()).map(|value| (name.to_owned(), value)));
    };
    add("memory", machine.memory_bytes.map(|b| format!("{} GB", figures::digits3(b as f64 / 1e9))));
    add("system", Some(format!("{}, Linux {}, {}", machine.os, machine.kernel, machine.arch)));
    add("virtualization", machine.virtualization.clone());
    add("governor", machine.cpu_governor.clone());
    add("congestion control", machine.congestion_control.clone());
    add("stolen", machine.steal_fraction.map(|f| format!("{} of CPU time", figures::percent(f))));
    for (name, value) in &machine.details {
        add(name, Some(value.clone()));
    }
    for subject in record.subjects.iter().filter(|subject| !subject.version.is_empty()) {
        add(&subject.name, Some(format!("{} ({})", subject.version, subject.variant)));
    }
    let named = record.parameters.iter().map(|(name, value)| format!("{name}={value}"));
    add("parameters", Some(named.collect::<Vec<_>>().join(" ")));
    add("command", Some(record.command_line.join(" ")));
    facts
}
