//! Makes the record of what was measured, with everything a reader needs to judge it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tollway_record::check::check;
use tollway_record::compare::{
    BASELINE_SUBJECT, CompareError, CompareOptions, compare, compare_all,
};
use tollway_record::record::{
    Arrival, Comparison, Conditions, FabricConditions, FabricRow, FigureUnit, Layout, Protocol,
    Question, SCHEMA, SeedFigure, SeedTable, Subject, Tls, Topology,
};
use tollway_record::{Record, Row};

use super::forward::payload_bytes;
use super::measure::{Measured, MeasuredCell};
use super::plan::{FabricCell, FabricPlan, Forwarded, Sent, Work};
use super::scenario::{FabricFigure, Way};
use super::{FabricExperiment, NO_ETCD};
use crate::error::LabError;
use crate::machine;

/// The name of what is measured.
const SUBJECT: &str = "tollway";
const BRIDGE: &str = "kernel-bridge";
const VARIANT: &str = "control plane and agents";

/// What a reader of rows of packets must know.
const NOTES_OF_PACKETS: [&str; 5] = [
    "Two hosts, each in a network namespace with a VXLAN tunnel of the kernel to a machine between \
     them, by virtual cables. direct: the tunnels end at each other, with nothing between. \
     kernel-routing: neither do they end in the middle, which routes what the hosts send. \
     kernel-bridge: two tunnels that a bridge joins, with as many guests in its table and in the \
     tunnel's as the forwarder has; all of them behind one host, of which the kernel needs to know \
     less.",
    "A virtual cable has no card that computes checksums or splits what is too long. tc forwards \
     whole bundles of TCP as the kernel does; XDP takes single packets, which the hosts' kernel \
     then has to cut and to sum up: that, and not forwarding, is what a flow shows of it here.",
    "Echoes are sent every 2 ms by ping, one at a time. Calls are questions of 64 bytes over one \
     connection, each sent when the one before is answered.",
    "Packets are written by a program in the kernel, 96 bytes of headers each time, and leave in \
     batches of 64; they are counted at host B's device and taken away, by XDP behind direct and \
     xdp, by tc behind the others. All of it happens on one processor. Where there is no program \
     of XDP, the middle receives as a driver of hardware does, merging what it can (GRO).",
    "The time of a packet less that of direct is what the middle takes for it. Random flows go to \
     one neighbour after the other without order, so that each look-up finds its part of the table \
     in no cache.",
];

/// When the experiment ran, and on what disk.
pub(super) struct Circumstances<'a> {
    pub(super) started_at: SystemTime,
    pub(super) duration: Duration,
    /// Times of single syncs, in order of size.
    pub(super) sync_us: &'a [f64],
    /// Rows that need an etcd that is not there.
    pub(super) left_out: Vec<String>,
}

pub(super) fn record(
    experiment: &FabricExperiment,
    plan: &FabricPlan,
    measured: Measured,
    circumstances: &Circumstances<'_>,
) -> Result<Record, LabError> {
    let (scenario, options) = (&experiment.scenario, &experiment.options);
    let mut machine = machine::describe();
    machine.steal_fraction = measured.steal_fraction;
    let mut fabric = Vec::new();
    let mut rows = Vec::new();
    for (cell, MeasuredCell { rounds, requests }) in plan.cells.iter().zip(measured.cells) {
        let failed = |source| LabError::Merge { row: cell.id.clone(), source };
        match cell.work {
            Work::Get | Work::Forward(_) => {
                rows.push(Row::from_blocks(of_requests(cell), requests).map_err(failed)?);
            }
            Work::List | Work::Restart | Work::Watch | Work::Fanout | Work::Churn => {
                let row = FabricRow::from_blocks(of_rounds(cell), rounds, options.seed);
                fabric.push(row.map_err(failed)?);
            }
        }
    }
    let seed_table = seed_table(experiment, &fabric, &rows);
    let comparisons = comparisons(&rows, options.seed)?;
    let subjects = subjects(plan, measured.command_lines);
    let mut record = Record {
        schema: SCHEMA.into(),
        scenario: scenario.name.value.clone(),
        started_at: humantime::format_rfc3339_millis(circumstances.started_at).to_string(),
        duration_s: circumstances.duration.as_secs_f64(),
        command_line: options.command_line.clone(),
        machine,
        parameters: parameters(experiment, plan, circumstances.sync_us),
        subjects,
        rows,
        fabric,
        comparisons,
        notes: notes(experiment, plan, measured.repeated),
        warnings: measured.warnings,
        not_measured: not_measured(
            plan.cells.iter().all(|cell| cell.forwarded().is_some()),
            &circumstances.left_out,
        ),
        idle: Vec::new(),
        seed_table,
    };
    record.warnings.extend(check(&record));
    Ok(record)
}

fn of_rounds(cell: &FabricCell) -> FabricConditions {
    FabricConditions {
        id: cell.id.clone(),
        case: cell.case.clone(),
        entries: cell.entries.into(),
        table: Some(cell.table.into()).filter(|table| *table > 0),
        agents: Some(cell.agents.into()).filter(|_| cell.work == Work::Fanout),
        rate_per_s: cell.rate_per_s,
    }
}

fn of_requests(cell: &FabricCell) -> Conditions {
    let of_agents = Conditions {
        id: cell.id.clone(),
        case: cell.id.replace('/', "-"),
        subject: SUBJECT.to_owned(),
        variant: VARIANT.to_owned(),
        protocol: Protocol::GrpcUnary,
        tls: Tls::Mtls,
        hops: 0,
        topology: Topology::SameNetwork,
        layout: Layout::Shared,
        arrival: match cell.rate_per_s {
            Some(_) => Arrival::OpenUniform,
            None => Arrival::Closed,
        },
        connections: cell.agents,
        in_flight_per_connection: None,
        payload_bytes: 0,
        link: None,
        limits: None,
    };
    let Some(Forwarded { way, sent, .. }) = cell.forwarded() else { return of_agents };
    let (subject, variant) = made_of(way);
    let (protocol, arrival) = match sent {
        Sent::Ping => (Protocol::Icmp, Arrival::OpenUniform),
        Sent::Calls => (Protocol::Tcp, Arrival::Closed),
        Sent::Bulk => (Protocol::Tcp, Arrival::Flow),
        Sent::Packets => (Protocol::Vxlan, Arrival::Packets),
    };
    Conditions {
        case: cell.case.clone(),
        subject: subject.to_owned(),
        variant: variant.to_owned(),
        protocol,
        arrival,
        tls: Tls::Plain,
        hops: u32::from(way != Way::Direct),
        payload_bytes: payload_bytes(sent).into(),
        ..of_agents
    }
}

/// Subject and variant of a way.
fn made_of(way: Way) -> (&'static str, &'static str) {
    match way {
        Way::Direct => (BASELINE_SUBJECT, "cable"),
        Way::Xdp => (SUBJECT, "forwarder"),
        Way::XdpGeneric => (SUBJECT, "forwarder, xdp-generic"),
        Way::Tc => (SUBJECT, "forwarder, tc"),
        Way::KernelBridge => (BRIDGE, "two tunnels"),
        Way::KernelRouting => ("kernel-routing", "no tunnel"),
    }
}

/// Who is measured, with the command lines of all that ran beside Tollway.
fn subjects(plan: &FabricPlan, command_lines: BTreeMap<String, String>) -> Vec<Subject> {
    let mut ways: Vec<Way> =
        plan.cells.iter().filter_map(|cell| Some(cell.forwarded()?.way)).collect();
    ways.sort_unstable();
    ways.dedup();
    let mut named: Vec<(&str, &str)> = ways.into_iter().map(made_of).collect();
    if plan.cells.iter().any(|cell| cell.forwarded().is_none()) {
        named.insert(0, (SUBJECT, VARIANT));
    }
    let kernel = machine::describe().kernel;
    let mut subjects: Vec<Subject> = named
        .into_iter()
        .map(|(name, variant)| Subject {
            name: name.to_owned(),
            variant: variant.to_owned(),
            version: match name == SUBJECT {
                true => crate::VERSION.to_owned(),
                false => kernel.clone(),
            },
            config: BTreeMap::new(),
        })
        .collect();
    let ours = subjects.iter().position(|subject| subject.name == SUBJECT).unwrap_or(0);
    if let Some(subject) = subjects.get_mut(ours) {
        subject.config = command_lines;
    }
    subjects
}

/// Each way against the cable, and the forwarder against the kernel's bridge.
fn comparisons(rows: &[Row], seed: u64) -> Result<Vec<Comparison>, LabError> {
    let options = CompareOptions::seeded(seed);
    let mut found = compare_all(rows, options)?;
    let ours = rows.iter().filter(|row| row.conditions.subject == SUBJECT && !row.is_silent());
    for row in ours {
        let fits = |other: &&Row| {
            other.conditions.subject == BRIDGE && other.conditions.case == row.conditions.case
        };
        let Some(bridge) = rows.iter().filter(|row| !row.is_silent()).find(fits) else { continue };
        match compare(row, bridge, Question::AgainstBaseline, options) {
            Ok(of_row) => found.extend(of_row),
            Err(CompareError::NoCommonBlock { .. }) => {}
            Err(damaged @ CompareError::Histogram { .. }) => return Err(damaged.into()),
        }
    }
    Ok(found)
}

fn not_measured(is_of_packets: bool, left_out: &[String]) -> Vec<String> {
    let mut parts = if is_of_packets {
        vec!["A network card: its driver, its queues, and what it computes itself.".to_owned()]
    } else {
        vec!["Agents on other machines: the way to them, and their clocks.".to_owned()]
    };
    parts.extend(left_out.iter().map(|row| format!("{row}: {NO_ETCD}.")));
    parts
}

fn parameters(
    experiment: &FabricExperiment,
    plan: &FabricPlan,
    sync_us: &[f64],
) -> BTreeMap<String, serde_json::Value> {
    let options = &experiment.options;
    let mut parameters: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    let mut add = |name: &str, value: serde_json::Value| {
        parameters.insert(name.to_owned(), value);
    };
    add("seed", options.seed.into());
    add("tollway_version", options.version.clone().into());
    add("length", options.length.as_str().into());
    add("blocks", plan.blocks.into());
    add("gate_steal_fraction", options.gate.steal_fraction.into());
    add("gate_foreign_cpu_cores", options.gate.foreign_cpu_cores.into());
    for (name, share) in [("disk_sync_p50_us", 0.5), ("disk_sync_p90_us", 0.9)] {
        let at = (sync_us.len().saturating_sub(1)) as f64 * share;
        if let Some(us) = sync_us.get(at as usize) {
            add(name, (us.round() as u64).into());
        }
    }
    parameters
}

fn notes(experiment: &FabricExperiment, plan: &FabricPlan, repeated: usize) -> Vec<String> {
    let mut notes = experiment.scenario.notes.clone();
    let does = |work| plan.cells.iter().any(|cell| cell.work == work);
    if plan.cells.iter().any(|cell| cell.forwarded().is_some()) {
        notes.extend(NOTES_OF_PACKETS.map(str::to_owned));
    }
    if plan.cells.iter().any(|cell| cell.forwarded().is_none()) {
        notes.push(
            "Each row of each block has a control plane of its own, without neighbours but for the \
             `table` that a row has from the start. A time is the median of the blocks' medians \
             over rounds; times are of one clock of this machine, taken by whom the stage \
             happens to."
                .to_owned(),
        );
    }
    if does(Work::Get) {
        notes.push(
            "Agents look single neighbours up with their certificate over mutual TLS, each \
             on a connection of its own with one question at a time. Latency counts from when a \
             question was meant to be asked, where there is a rate. Processor time per request is \
             the control plane's over the window."
                .to_owned(),
        );
    }
    if does(Work::List) {
        notes.push(
            "A list begins when the agent asks, on a connection that is there, and ends when the \
             last neighbour is read in the kernel's table, which was empty. What the agent does \
             after that, looking for what is too much in the table, is in its processor time."
                .to_owned(),
        );
    }
    if does(Work::Restart) {
        notes.push(
            "A restart begins when the agent's process is started, whose table the kernel has kept \
             and whose journal is current; it ends when the agent follows its group and has all of \
             it, none of which was programmed anew."
                .to_owned(),
        );
    }
    if [Work::Watch, Work::Fanout, Work::Churn].into_iter().any(does) {
        notes.push(
            "A write begins when the operator's program hands over the first request, of up to \
             1,024 packed neighbours, and ends when an agent's process has read the last neighbour \
             in the kernel's table. Durable is the answer, behind the disk's sync: an agent may \
             have a neighbour before its writer is answered."
                .to_owned(),
        );
    }
    if does(Work::Watch) || does(Work::Fanout) {
        notes.push(
            "The next round begins when every agent has said that it holds the last one."
                .to_owned(),
        );
    }
    if does(Work::Fanout) {
        notes.push(
            "One of the agents has a table in the kernel. The others are in the writer's process, \
             each with a certificate and a connection of its own, and have what they have received; \
             their processor time is the writer's."
                .to_owned(),
        );
    }
    if does(Work::Churn) {
        notes.push(
            "Changes are written ten times a second, or one by one where they are fewer, whether or \
             not those before have come to their end: times count from when they were to be \
             written."
                .to_owned(),
        );
    }
    notes.push(
        "The disk's own sync of 4 KiB is disk_sync_p50_us among the parameters. Every process \
         shares this machine's processors with the others."
            .to_owned(),
    );
    if repeated > 0 {
        notes.push(format!(
            "{repeated} rows of blocks were repeated since something else used the machine \
             meanwhile; they are not kept."
        ));
    }
    notes
}

fn seed_table(
    experiment: &FabricExperiment,
    fabric: &[FabricRow],
    rows: &[Row],
) -> Option<SeedTable> {
    let seed = experiment.scenario.seed.as_ref()?;
    let figures = seed.figures.iter().map(|figure| SeedFigure {
        what: figure.what.clone(),
        unit: figure.unit,
        seed: figure.published.clone(),
        today: today(figure, fabric)
            .or_else(|| looked_up(figure, rows))
            .map(|value| (SUBJECT.to_owned(), value))
            .into_iter()
            .collect(),
    });
    Some(SeedTable {
        title: seed.title.clone(),
        notes: seed.notes.clone(),
        figures: figures.collect(),
    })
}

/// Half of the look-ups of so many agents took so long.
fn looked_up(figure: &FabricFigure, rows: &[Row]) -> Option<f64> {
    let id = format!("{}/{}", figure.case.value, figure.row);
    let row = rows.iter().find(|row| row.conditions.id == id)?;
    let us = row.traffic.latency_us.p50?;
    Some(if figure.unit == FigureUnit::Milliseconds { us / 1e3 } else { us })
}

/// The same figure in this record, in its unit.
fn today(figure: &FabricFigure, rows: &[FabricRow]) -> Option<f64> {
    let id = format!("{}/{}", figure.case.value, figure.row);
    let row = rows.iter().find(|row| row.conditions.id == id)?;
    let stage = row.stage(figure.stage)?;
    let us = if figure.each { stage.us_per_entry } else { stage.total_ms * 1e3 };
    Some(if figure.unit == FigureUnit::Milliseconds { us / 1e3 } else { us })
}
