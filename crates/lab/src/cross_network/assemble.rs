//! Makes the record of what was measured, with everything a reader needs to judge it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tollway_record::check::{check, rate_bound_rps};
use tollway_record::compare::{CompareOptions, compare_all};
use tollway_record::record::{
    Arrival, Conditions, Layout, Machine, Protocol, SCHEMA, Subject, Tls,
};
use tollway_record::{Record, Row};

use super::measure::{Measured, MeasuredCell};
use super::{DemoOptions, SCENARIO};
use crate::error::LabError;
use crate::machine;
use crate::plan::{Cell, Plan, SubjectKind};
use crate::topology::Isolation;

/// When the scenario ran.
pub(super) struct Timing {
    pub(super) started_at: SystemTime,
    pub(super) duration: Duration,
}

pub(super) fn record(
    options: &DemoOptions,
    plan: &Plan,
    measured: Measured,
    timing: Timing,
) -> Result<Record, LabError> {
    let machine = machine(&measured);
    let subjects = subjects(options, plan, &measured);
    let mut rows = Vec::new();
    for (cell, measured) in plan.cells.iter().zip(measured.cells) {
        rows.push(row(cell, measured, plan)?);
    }
    let mut record = Record {
        schema: SCHEMA.into(),
        scenario: SCENARIO.into(),
        started_at: humantime::format_rfc3339_millis(timing.started_at).to_string(),
        duration_s: timing.duration.as_secs_f64(),
        command_line: options.command_line.clone(),
        machine,
        parameters: parameters(options, plan),
        subjects,
        comparisons: compare_all(&rows, CompareOptions::seeded(options.seed))?,
        notes: notes(options, plan, &rows),
        warnings: measured.warnings,
        not_measured: not_measured(options),
        rows,
        idle: Vec::new(),
        seed_table: None,
    };
    record.warnings.extend(check(&record));
    Ok(record)
}

fn machine(measured: &Measured) -> Machine {
    let mut machine = machine::describe();
    machine.steal_fraction = measured.steal_fraction;
    if let Some(pressure) = measured.cpu_pressure {
        machine.details.insert("psi_cpu_some_fraction".into(), format!("{pressure:.4}"));
    }
    machine
}

fn row(cell: &Cell, measured: MeasuredCell, plan: &Plan) -> Result<Row, LabError> {
    let crosses = measured.link.is_some();
    let tollway = cell.subject == SubjectKind::Tollway;
    let conditions = Conditions {
        id: cell.id(),
        case: cell.protocol.to_string(),
        subject: cell.subject.name().into(),
        variant: variant(cell.subject, crosses).into(),
        protocol: cell.protocol,
        tls: if tollway { Tls::Mtls } else { Tls::Plain },
        hops: match (tollway, crosses) {
            (false, _) => 0,
            (true, false) => 2,
            (true, true) => 3,
        },
        topology: cell.placement.topology,
        layout: Layout::Shared,
        arrival: Arrival::OpenUniform,
        connections: cell.connections,
        payload_bytes: u64::from(plan.workload.payload_bytes),
        link: measured.link,
        limits: None,
    };
    Row::from_blocks(conditions, measured.blocks)
        .map_err(|source| LabError::Merge { row: cell.id(), source })
}

fn variant(subject: SubjectKind, crosses: bool) -> &'static str {
    match (subject, crosses) {
        (SubjectKind::Direct, _) => "plain",
        (SubjectKind::Tollway, false) => "sidecar–sidecar",
        (SubjectKind::Tollway, true) => "sidecar–gateway–sidecar",
    }
}

fn subjects(options: &DemoOptions, plan: &Plan, measured: &Measured) -> Vec<Subject> {
    let subject = |&kind: &SubjectKind| {
        let loads = plan.cells.iter().zip(&measured.cells).filter(|(cell, _)| cell.subject == kind);
        let loads = loads.map(|(cell, m)| (format!("load {}", cell.id()), m.load_command.clone()));
        let shared = |name: &str| name.ends_with("/echo") || name.starts_with("link/");
        let parts = measured
            .processes
            .iter()
            .filter(|(name, _)| kind == SubjectKind::Tollway || shared(name))
            .map(|(name, command)| (name.clone(), command.clone()));
        Subject {
            name: kind.name().into(),
            variant: variant(kind, plan.cells.iter().any(|cell| !cell.placement.rtt.is_zero()))
                .into(),
            version: match kind {
                SubjectKind::Direct => String::new(),
                SubjectKind::Tollway => options.version.clone(),
            },
            config: parts.chain(loads).collect(),
        }
    };
    plan.workload.subjects.iter().map(subject).collect()
}

fn parameters(options: &DemoOptions, plan: &Plan) -> BTreeMap<String, serde_json::Value> {
    let workload = &plan.workload;
    let isolation = match options.isolation {
        Isolation::Namespaces => "namespaces",
        Isolation::Loopback { .. } => "loopback",
    };
    [
        ("seed", options.seed.into()),
        ("tollway_version", options.version.clone().into()),
        ("isolation", isolation.into()),
        ("rate_rps", workload.rate_rps.into()),
        ("connections", workload.connections.into()),
        ("payload_bytes", workload.payload_bytes.into()),
        ("blocks", workload.blocks.into()),
        ("window_s", plan.window.as_secs_f64().into()),
        ("budget_s", options.workload.budget.as_secs_f64().into()),
        ("link_jitter_us", (options.jitter.as_secs_f64() * 1e6).into()),
        ("link_loss_pct", (options.loss * 100.0).into()),
    ]
    .into_iter()
    .map(|(name, value): (&str, serde_json::Value)| (name.to_owned(), value))
    .collect()
}

fn notes(options: &DemoOptions, plan: &Plan, rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    if let Isolation::Loopback { reason } = &options.isolation {
        notes.push(format!(
            "All networks share this machine's loopback and the links are relays that delay \
             streams, since network namespaces were not possible: {reason}"
        ));
    }
    notes.extend(connection_notes(plan, rows));
    notes.push(
        "direct is the same request to the same app over the same link, plain, without Tollway; \
         it runs right before or after each Tollway run, in turns."
            .into(),
    );
    notes.push(
        "CPU time per request is read from outside over the steady part of each run; \
         control-planes is background work that does not grow with requests. Memory is the \
         resident set during the runs."
            .into(),
    );
    notes.push(
        "The load generator, the app, every Tollway part and the links share this machine's \
         processors; links go first where the lab may say so."
            .into(),
    );
    notes
}

/// Says where the asked number of connections could not carry the rate.
fn connection_notes(plan: &Plan, rows: &[Row]) -> Vec<String> {
    let asked = plan.workload.connections;
    let differs = |row: &&Row| row.conditions.connections != asked;
    let direct = |row: &&Row| row.conditions.protocol == Protocol::Http1;
    let mut told = Vec::new();
    for row in rows.iter().filter(differs).filter(direct) {
        let Some(link) = &row.conditions.link else { continue };
        let bound = rate_bound_rps(asked, link.rtt_measured_us.p50);
        let note = format!(
            "{} over HTTP/1.1 uses {} connections: each carries one request at a time, so {asked} \
             can carry at most {bound:.0} requests/s at this round trip.",
            row.conditions.topology, row.conditions.connections
        );
        if !told.contains(&note) {
            told.push(note);
        }
    }
    told
}

fn not_measured(options: &DemoOptions) -> Vec<String> {
    let mut left_out = vec![
        "The highest rate each subject can carry: the rate is fixed.".to_owned(),
        "The cost of new connections: connections are kept open during a run.".to_owned(),
    ];
    if options.loss == 0.0 {
        left_out.push("Packet loss: the links lose nothing unless asked to.".into());
    }
    if let Isolation::Loopback { .. } = options.isolation {
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
