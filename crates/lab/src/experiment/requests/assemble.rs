//! The record's part of requests: rows, comparisons, and what a reader needs to judge them.

use std::collections::BTreeMap;

use tollway_record::Row;
use tollway_record::check::rate_bound_rps;
use tollway_record::client_limit::limit_against_direct;
use tollway_record::compare::{self, BASELINE_SUBJECT, CompareError, CompareOptions};
use tollway_record::record::{
    Arrival, Comparison, Conditions, IdleUsage, Protocol, Question, Subject, Topology,
};

use super::plan::{Cell, CellArrival, Plan};
use super::prepare::{Prepared, PreparedSubject};
use super::{Facts, Requests, RowFacts};
use crate::error::LabError;
use crate::experiment::ExperimentOptions;
use crate::experiment::kind::Contents;
use crate::experiment::measure::MeasuredRow;
use crate::scenario::{ArrivalSpec, Case, Scenario};
use crate::subject::SubjectName;
use crate::topology::Isolation;

pub(super) fn contents(
    experiment: &Requests<'_>,
    measured: Vec<MeasuredRow>,
) -> Result<Contents, LabError> {
    let Requests { scenario, options, prepared, plan, facts, .. } = experiment;
    let subjects = subjects(prepared, plan, facts, &measured);
    let idle = idle(prepared, plan, &measured);
    let mut rows = Vec::new();
    for ((cell, facts), measured) in plan.cells.iter().zip(&facts.rows).zip(measured) {
        if cell.arrival != CellArrival::Idle {
            rows.push(row(cell, &prepared.subjects[cell.subject], facts, measured)?);
        }
    }
    judge_saturation(&mut rows);
    let compare = CompareOptions { seed: options.seed, margin_pct: scenario.margin_pct };
    Ok(Contents {
        subjects,
        idle,
        comparisons: comparisons(scenario, plan, &rows, compare)?,
        parameters: parameters(scenario, options, plan),
        notes: notes(options, plan, &rows),
        not_measured: not_measured(scenario, options, prepared),
        rows,
        ..Contents::default()
    })
}

fn row(
    cell: &Cell,
    subject: &PreparedSubject,
    facts: &RowFacts,
    measured: MeasuredRow,
) -> Result<Row, LabError> {
    let conditions = Conditions {
        id: cell.id.clone(),
        case: cell.case.clone(),
        subject: subject.name.clone(),
        variant: variant(subject, &facts.made_of),
        protocol: cell.leg.protocol,
        tls: facts.tls,
        hops: facts.hops,
        topology: cell.topology,
        layout: cell.layout,
        arrival: cell.arrival_word(),
        connections: measured.connections.unwrap_or(cell.connections),
        in_flight_per_connection: cell.in_flight_per_connection(),
        payload_bytes: cell.answer_bytes.unwrap_or(u64::from(cell.payload_bytes)),
        link: facts.link.clone(),
        limits: cell.limits,
    };
    let mut row = Row::from_blocks(conditions, measured.blocks)
        .map_err(|source| LabError::Merge { row: cell.id.clone(), source })?;
    row.set_aside = measured.set_aside;
    Ok(row)
}

/// What the row is made of, and the variant.
fn variant(subject: &PreparedSubject, made_of: &str) -> String {
    if subject.special {
        format!("{made_of}, {}", subject.variant.name)
    } else {
        made_of.to_owned()
    }
}

/// In closed loop: who comes near `direct` was not the limit itself.
fn judge_saturation(rows: &mut [Row]) {
    // Of flows, bytes in their time.
    let rate = |row: &Row| match row.is_flow() {
        true => row.traffic.bytes.total() as f64 / row.traffic.duration_s.max(f64::MIN_POSITIVE),
        false => row.traffic.achieved_rps,
    };
    let direct: Vec<(Conditions, f64)> = rows
        .iter()
        .filter(|row| row.conditions.subject == BASELINE_SUBJECT)
        .map(|row| (row.conditions.clone(), rate(row)))
        .collect();
    for row in rows.iter_mut() {
        let own = &row.conditions;
        let unlimited = own.limits.is_none() && own.subject != BASELINE_SUBJECT;
        if !matches!(own.arrival, Arrival::Closed | Arrival::Flow) || !unlimited {
            continue;
        }
        let peer = direct.iter().find(|(other, _)| {
            (&other.case, other.topology, other.layout) == (&own.case, own.topology, own.layout)
        });
        let Some(limit) = peer.and_then(|(_, of)| limit_against_direct(rate(row), *of)) else {
            continue;
        };
        row.traffic.client_limits.push(limit);
        row.traffic.client_limited = true;
    }
}

/// Each row against the baselines of its case, and `direct` far away against `direct` near by.
fn comparisons(
    scenario: &Scenario,
    plan: &Plan,
    rows: &[Row],
    options: CompareOptions,
) -> Result<Vec<Comparison>, LabError> {
    let mut found = Vec::new();
    let cell_of = |row: &Row| plan.cells.iter().find(|cell| cell.id == row.conditions.id);
    for row in rows {
        let Some(cell) = cell_of(row) else { continue };
        // What others are compared with is not compared with them again.
        let label = plan.subjects[cell.subject].as_str();
        let judged = label != BASELINE_SUBJECT;
        for baseline in scenario.baselines.iter().filter(|_| judged) {
            let peer = rows.iter().find(|other| {
                cell_of(other).is_some_and(|other| {
                    plan.subjects[other.subject] == baseline.value
                        && other.subject != cell.subject
                        && (&other.case, other.leg, other.layout)
                            == (&cell.case, cell.leg, cell.layout)
                })
            });
            let toll = baseline.value == BASELINE_SUBJECT && row.conditions.subject == "tollway";
            let question = if toll { Question::AddedByTollway } else { Question::AgainstBaseline };
            add(&mut found, row, peer, question, options)?;
        }
        if label == BASELINE_SUBJECT && cell.topology != Topology::SameNetwork {
            let near = rows.iter().find(|other| {
                let other = &other.conditions;
                other.subject == BASELINE_SUBJECT
                    && other.topology == Topology::SameNetwork
                    && (&other.case, other.layout) == (&row.conditions.case, row.conditions.layout)
            });
            add(&mut found, row, near, Question::AddedByNetwork, options)?;
        }
    }
    Ok(found)
}

fn add(
    found: &mut Vec<Comparison>,
    row: &Row,
    baseline: Option<&Row>,
    question: Question,
    options: CompareOptions,
) -> Result<(), LabError> {
    let Some(baseline) = baseline else { return Ok(()) };
    match compare::compare(row, baseline, question, options) {
        Ok(comparisons) => found.extend(comparisons),
        // The check of the record reports rows without answers.
        Err(CompareError::NoCommonBlock { .. }) => {}
        Err(damaged @ CompareError::Histogram { .. }) => return Err(damaged.into()),
    }
    Ok(())
}

fn subjects(
    prepared: &Prepared<'_>,
    plan: &Plan,
    facts: &Facts,
    measured: &[MeasuredRow],
) -> Vec<Subject> {
    let each = prepared.subjects.iter().enumerate();
    let subject = |(index, subject): (usize, &PreparedSubject)| {
        let cells = plan.cells.iter().zip(&facts.rows).zip(measured);
        let own: Vec<_> = cells.filter(|((cell, _), _)| cell.subject == index).collect();
        let facts_of = own.iter().map(|((_, facts), _)| facts);
        let made_of = facts_of.max_by_key(|facts| facts.hops).map(|facts| facts.made_of.as_str());
        let loads = own.iter().filter(|(_, row)| !row.load_command.is_empty());
        let loads =
            loads.map(|((cell, _), row)| (format!("load {}", cell.id), row.load_command.clone()));
        let started = facts.started.get(index);
        let theirs = |name: &str| started.is_some_and(|s| s.processes.iter().any(|p| p == name));
        let shared = |name: &str| name.ends_with("/echo") || name.starts_with("link/");
        let parts = facts.processes.iter().filter(|(name, _)| shared(name) || theirs(name));
        let parts = parts.map(|(name, command)| (name.clone(), command.clone()));
        let files = started.map(|started| started.config.clone()).unwrap_or_default();
        Subject {
            name: subject.name.clone(),
            variant: variant(subject, made_of.unwrap_or_default()),
            version: subject.version.clone(),
            config: parts.chain(loads).chain(files).collect(),
        }
    };
    each.map(subject).collect()
}

fn idle(prepared: &Prepared<'_>, plan: &Plan, measured: &[MeasuredRow]) -> Vec<IdleUsage> {
    let mut idle: Vec<IdleUsage> = Vec::new();
    for (cell, of) in plan.cells.iter().zip(measured) {
        let subject = &prepared.subjects[cell.subject];
        let mut sums: BTreeMap<&str, (f64, f64, u64)> = BTreeMap::new();
        for entry in &of.idle {
            for (role, (used_s, rss_bytes)) in &entry.usage {
                let sum = sums.entry(role).or_default();
                *sum = (sum.0 + used_s, sum.1 + entry.duration_s, sum.2.max(*rss_bytes));
            }
        }
        idle.extend(sums.into_iter().map(|(role, (used_s, duration_s, rss_bytes))| IdleUsage {
            subject: subject.name.clone(),
            variant: if subject.special { subject.variant.name.to_string() } else { String::new() },
            process: role.to_owned(),
            cpu_cores: if duration_s > 0.0 { used_s / duration_s } else { 0.0 },
            rss_bytes,
            duration_s,
        }));
    }
    idle
}

/// The label of the subject that an idle figure belongs to.
pub(super) fn idle_label(idle: &IdleUsage) -> String {
    let variant = (!idle.variant.is_empty()).then(|| idle.variant.clone());
    SubjectName { name: idle.subject.clone(), variant }.to_string()
}

fn parameters(
    scenario: &Scenario,
    options: &ExperimentOptions,
    plan: &Plan,
) -> BTreeMap<String, serde_json::Value> {
    let isolation = match options.isolation {
        Isolation::Namespaces => "namespaces",
        Isolation::Loopback { .. } => "loopback",
    };
    let mut parameters: BTreeMap<String, serde_json::Value> = [
        ("isolation", isolation.into()),
        ("blocks", plan.blocks.into()),
        ("margin_pct", scenario.margin_pct.into()),
    ]
    .into_iter()
    .map(|(name, value): (&str, serde_json::Value)| (name.to_owned(), value))
    .collect();
    let mut same = |name: &str, values: Vec<serde_json::Value>| {
        if let Some(first) = values.first().filter(|first| values.iter().all(|v| v == *first)) {
            parameters.insert(name.to_owned(), first.clone());
        }
    };
    let loaded = || plan.cells.iter().filter(|cell| cell.arrival != CellArrival::Idle);
    same("window_s", loaded().map(|cell| cell.window.as_secs_f64().into()).collect());
    same("connections", loaded().map(|cell| cell.connections.into()).collect());
    same("payload_bytes", loaded().map(|cell| cell.payload_bytes.into()).collect());
    let rate = |cell: &Cell| match cell.arrival {
        CellArrival::Open { rate_rps, .. } => Some(rate_rps),
        CellArrival::ShareOfSlowest { .. }
        | CellArrival::Closed
        | CellArrival::Flow(_)
        | CellArrival::Search(_)
        | CellArrival::Idle => None,
    };
    same("rate_rps", loaded().map(|cell| rate(cell).into()).collect());
    parameters
}

fn notes(options: &ExperimentOptions, plan: &Plan, rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    if let Isolation::Loopback { reason } = &options.isolation {
        notes.push(format!(
            "All networks share this machine's loopback and the links are relays that delay \
             streams, since network namespaces were not possible: {reason}"
        ));
    }
    notes.extend(connection_notes(plan, rows));
    if rows.iter().any(|row| row.conditions.subject == BASELINE_SUBJECT) {
        notes.push(
            "direct is the same request to the same app over the same link, with nothing \
             between; it runs right before or after the other runs of its case, in turns."
                .into(),
        );
    }
    notes.push(
        "CPU time per request is read from outside over the steady part of each run; \
         control-planes is background work that does not grow with requests. Memory is the \
         resident set during the runs."
            .into(),
    );
    notes.push(
        "The load generator, the app, every part of a subject and the links share this machine's \
         processors; links go first where the lab may say so."
            .into(),
    );
    let aside: usize = rows.iter().map(|row| row.set_aside.len()).sum();
    if aside > 0 {
        notes.push(format!(
            "{aside} runs were repeated since something else used the machine meanwhile; they \
             are kept in the record, set aside."
        ));
    }
    notes
}

/// Notes where the requested number of connections could not carry the rate.
fn connection_notes(plan: &Plan, rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    for row in rows {
        let own = &row.conditions;
        let Some(cell) = plan.cells.iter().find(|cell| cell.id == own.id) else { continue };
        let Some(link) = &own.link else { continue };
        if own.connections == cell.connections || own.protocol != Protocol::Http1 {
            continue;
        }
        let asked = cell.connections;
        let bound = rate_bound_rps(asked, link.rtt_measured_us.p50);
        let note = format!(
            "{} over HTTP/1.1 uses {} connections: each carries one request at a time, so the \
             {asked} asked for can carry at most {bound:.0} requests/s at this round trip.",
            own.topology, own.connections
        );
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

fn not_measured(
    scenario: &Scenario,
    options: &ExperimentOptions,
    prepared: &Prepared<'_>,
) -> Vec<String> {
    let mut left_out = prepared.left_out.clone();
    let links = || scenario.networks.iter().filter_map(|network| network.link);
    let cases = &scenario.cases;
    let saturates = |case: &Case| {
        matches!(case.arrival, ArrivalSpec::Closed | ArrivalSpec::Search(_) | ArrivalSpec::Flow(_))
    };
    let saturated = cases.iter().any(saturates);
    if !saturated {
        left_out.push("The highest rate each subject can carry: the rate is fixed.".to_owned());
    }
    if cases.iter().all(|case| case.handshakes.is_none()) {
        left_out.push("The cost of new connections: they are kept open during a run.".to_owned());
    }
    if links().count() > 0 && links().all(|link| link.loss_pct == 0.0) {
        left_out.push("Packet loss: the links lose nothing unless asked to.".into());
    }
    if let (Isolation::Loopback { .. }, true) = (&options.isolation, links().count() > 0) {
        left_out.push(
            "Handshakes' round trips, congestion control and packet loss over the delay: the \
             relay delays streams, not packets."
                .into(),
        );
        left_out.push(
            "The delay of calls into the caller's network: its gateway is advertised at one \
             relay, so control traffic of all networks sees that delay."
                .into(),
        );
    }
    left_out
}
