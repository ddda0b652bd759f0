//! The record's part of neighbours and packets: rows, comparisons, and what a reader needs to judge
//! them.

use std::collections::BTreeMap;

use tollway_record::compare::{
    BASELINE_SUBJECT, CompareError, CompareOptions, compare, compare_all,
};
use tollway_record::record::{
    Arrival, Comparison, Conditions, FabricBlock, FabricConditions, FabricRow, FigureUnit, Layout,
    Protocol, Question, SeedFigure, SeedTable, Subject, Tls, Topology,
};
use tollway_record::{Record, Row};

use super::forward::payload_bytes;
use super::plan::{FabricCell, FabricPlan, Forwarded, Sent, Work};
use super::{Fabric, Prepared};
use crate::error::LabError;
use crate::experiment::gate::Gate;
use crate::experiment::kind::Contents;
use crate::experiment::measure::MeasuredRow;
use crate::machine;
use crate::scenario::{Datapath, FabricFigure, FabricScenario};

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

pub(super) fn contents(
    experiment: &Fabric<'_>,
    measured: Vec<MeasuredRow>,
) -> Result<Contents, LabError> {
    let Fabric { options, prepared, site, .. } = experiment;
    let plan = &prepared.plan;
    let mut command_lines = site.command_lines().clone();
    let mut repeated = 0;
    let (mut fabric, mut rows, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for (cell, of) in plan.cells.iter().zip(measured) {
        let failed = |source| LabError::Merge { row: cell.id.clone(), source };
        repeated += of.repeated_rounds + of.set_aside.len();
        match cell.work {
            Work::Get | Work::Forward(_) => {
                command_lines.insert(cell.id.clone(), of.load_command);
                let mut row = Row::from_blocks(of_requests(cell), of.blocks).map_err(failed)?;
                row.set_aside = of.set_aside;
                rows.push(row);
            }
            Work::List | Work::Restart | Work::Watch | Work::Fanout | Work::Churn => {
                warnings.extend(disturbed(cell, &of.rounds, options.gate));
                let row = FabricRow::from_blocks(of_rounds(cell), of.rounds, options.seed);
                fabric.push(row.map_err(failed)?);
            }
        }
    }
    Ok(Contents {
        comparisons: comparisons(&rows, options.seed)?,
        subjects: subjects(plan, command_lines),
        parameters: parameters(plan, &experiment.sync_us),
        notes: notes(plan, repeated),
        not_measured: not_measured(prepared),
        rows,
        fabric,
        warnings,
        ..Contents::default()
    })
}

/// A warning if blocks of rounds were disturbed; those of loads are reported by the record's check.
fn disturbed(cell: &FabricCell, blocks: &[FabricBlock], gate: Gate) -> Option<String> {
    let is_outside = |block: &&FabricBlock| {
        !gate.reasons(block.steal_fraction, block.foreign_cpu_cores).is_empty()
    };
    let outside = blocks.iter().filter(is_outside).count();
    (outside > 0).then(|| {
        let all = blocks.len();
        format!(
            "{}: {outside} of {all} blocks were disturbed by others and could not be repeated any \
             more",
            cell.id
        )
    })
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
    let Some(Forwarded { datapath, sent, .. }) = cell.forwarded() else { return of_agents };
    let (subject, variant) = made_of(datapath);
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
        hops: u32::from(datapath != Datapath::Direct),
        payload_bytes: payload_bytes(sent).into(),
        ..of_agents
    }
}

/// Subject and variant of a datapath.
fn made_of(datapath: Datapath) -> (&'static str, &'static str) {
    match datapath {
        Datapath::Direct => (BASELINE_SUBJECT, "cable"),
        Datapath::Xdp => (SUBJECT, "forwarder"),
        Datapath::XdpGeneric => (SUBJECT, "forwarder, xdp-generic"),
        Datapath::Tc => (SUBJECT, "forwarder, tc"),
        Datapath::KernelBridge => (BRIDGE, "two tunnels"),
        Datapath::KernelRouting => ("kernel-routing", "no tunnel"),
    }
}

/// The subjects, with the command lines of all processes that ran beside Tollway.
fn subjects(plan: &FabricPlan, command_lines: BTreeMap<String, String>) -> Vec<Subject> {
    let mut datapaths: Vec<Datapath> =
        plan.cells.iter().filter_map(|cell| Some(cell.forwarded()?.datapath)).collect();
    datapaths.sort_unstable();
    datapaths.dedup();
    let mut named: Vec<(&str, &str)> = datapaths.into_iter().map(made_of).collect();
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

/// Each path compared with the cable, and the forwarder with the kernel's bridge.
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

fn not_measured(prepared: &Prepared) -> Vec<String> {
    let is_of_packets = prepared.plan.cells.iter().all(|cell| cell.forwarded().is_some());
    let mut parts = if is_of_packets {
        vec!["A network card: its driver, its queues, and what it computes itself.".to_owned()]
    } else {
        vec!["Agents on other machines: the network to them, and their clocks.".to_owned()]
    };
    parts.extend(prepared.left_out.iter().map(|row| format!("{row}.")));
    parts
}

fn parameters(plan: &FabricPlan, sync_us: &[f64]) -> BTreeMap<String, serde_json::Value> {
    let mut parameters = BTreeMap::from([("blocks".to_owned(), plan.blocks.into())]);
    for (name, share) in [("disk_sync_p50_us", 0.5), ("disk_sync_p90_us", 0.9)] {
        let at = (sync_us.len().saturating_sub(1)) as f64 * share;
        if let Some(us) = sync_us.get(at as usize) {
            parameters.insert(name.to_owned(), (us.round() as u64).into());
        }
    }
    parameters
}

fn notes(plan: &FabricPlan, repeated: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let does = |work| plan.cells.iter().any(|cell| cell.work == work);
    if plan.cells.iter().any(|cell| cell.forwarded().is_some()) {
        notes.extend(NOTES_OF_PACKETS.map(str::to_owned));
    }
    if plan.cells.iter().any(|cell| cell.forwarded().is_none()) {
        notes.push(
            "Each row of each block has a control plane of its own, without neighbours but for the \
             `table` that a row has from the start. A time is the median of the blocks' medians \
             over rounds; times are of one clock of this machine, taken in the process in which the \
             stage happens."
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
            "{repeated} blocks of rows were repeated since something else used the machine \
             meanwhile; those of loads are in the record, set aside."
        ));
    }
    notes
}

/// Published figures with today's, from the record's rows.
pub(super) fn seed_table(scenario: &FabricScenario, record: &Record) -> Option<SeedTable> {
    let seed = scenario.seed.as_ref()?;
    let figures = seed.figures.iter().map(|figure| SeedFigure {
        what: figure.what.clone(),
        unit: figure.unit,
        seed: figure.published.clone(),
        today: today(figure, &record.fabric)
            .or_else(|| looked_up(figure, &record.rows))
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

/// The median time of look-ups by so many agents.
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
