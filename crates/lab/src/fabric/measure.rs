//! Runs the plan: block after block, each row with a control plane of its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollway_record::neighbours::{NeighbourRun, Stage};
use tollway_record::record::{Arrival, Cost, FabricBlock, Noise};
use tollway_record::{Block, RunResult, Traffic};

use super::ETCD;
use super::forward::{Crossing, ECHO};
use super::plan::{FabricCell, FabricPlan, Forwarded, Work};
use super::rounds::{RoundError, of_lists, of_restart, of_writes};
use super::site::{Agent, AgentPlace, Control, DEVICE, READY_LIMIT, Site};
use super::usage::Before;
use crate::calibrate::calibrate;
use crate::error::LabError;
use crate::experiment::Gate;
use crate::process::Spec;
use crate::progress::{Event, Pace, Progress};
use crate::sample::{MachineUsage, ProcessUsage};

/// The smallest table, which even a single neighbour has.
const LEAST_CAPACITY: u32 = 1_024;

/// How often what the control plane uses is read while clients ask.
const READ_EVERY: Duration = Duration::from_millis(50);

const MEGABYTE: f64 = 1e6;

/// Roles of processes in the record.
const CONTROL_ROLE: &str = "control";
const AGENT: &str = "agent";
const WRITER: &str = "writer";

/// Command line by process.
type CommandLines = BTreeMap<String, String>;

/// Blocks of one row, of one kind or the other.
#[derive(Default, Clone)]
pub(super) struct MeasuredCell {
    pub(super) rounds: Vec<FabricBlock>,
    pub(super) requests: Vec<Block>,
}

/// A block of a row.
enum Taken {
    Rounds(Box<FabricBlock>),
    Requests(Box<Block>),
}

/// What the runs gave.
#[derive(Default)]
pub(super) struct Measured {
    /// In the order of the plan's cells.
    pub(super) cells: Vec<MeasuredCell>,
    pub(super) warnings: Vec<String>,
    /// Rows of blocks that were repeated.
    pub(super) repeated: usize,
    pub(super) command_lines: CommandLines,
    /// Time that the hypervisor took, of all.
    pub(super) steal_fraction: Option<f64>,
}

pub(super) fn measure(
    site: &mut Site,
    plan: &FabricPlan,
    (gate, seed): (Gate, u64),
    progress: &mut dyn Progress,
) -> Result<Measured, LabError> {
    let total = plan.cells.len() * plan.blocks as usize;
    let mut measured =
        Measured { cells: vec![MeasuredCell::default(); plan.cells.len()], ..Measured::default() };
    let (machine, mut repeats_left) = (MachineUsage::read().ok(), gate.repeats(total));
    let mut done = 0;
    let order = plan.order();
    for block in 0..plan.blocks {
        let mut standing = Standing::default();
        for place in &order {
            let (cell, measured_cell) = (&plan.cells[*place], &mut measured.cells[*place]);
            let mut attempt = 0;
            let taken = loop {
                let calibration_us = Some(calibrate().as_secs_f64() * 1e6);
                let command_lines = &mut measured.command_lines;
                let mut taken = standing.run_one(site, cell, seed, command_lines)?;
                taken.note(block, calibration_us);
                let again =
                    taken.is_outside(gate) && attempt < gate.repeats_of_run && repeats_left > 0;
                if !again {
                    break taken;
                }
                (attempt, repeats_left) = (attempt + 1, repeats_left - 1);
                measured.repeated += 1;
            };
            done += 1;
            let (row, outside_gate) = (cell.id.as_str(), taken.is_outside(gate));
            let told = &taken.told();
            progress.told(&Event::Rounds { done, total, row, block, told, outside_gate });
            match taken {
                Taken::Rounds(block) => measured_cell.rounds.push(*block),
                Taken::Requests(mut block) => {
                    block.outside_gate = gate.judge(&block);
                    measured_cell.requests.push(*block);
                }
            }
        }
        standing.end(site);
    }
    let since = MachineUsage::read().ok().zip(machine);
    measured.steal_fraction = since.map(|(last, first)| last.since(&first).steal_fraction());
    // Rows of requests are looked at by the check of the record.
    for (cell, of) in plan.cells.iter().zip(&measured.cells) {
        let blocks = &of.rounds;
        let outside = blocks.iter().filter(|block| is_outside(block, gate)).count();
        if outside > 0 {
            let all = blocks.len();
            measured.warnings.push(format!(
                "{}: {outside} of {all} blocks were disturbed by others and could not be repeated \
                 any more",
                cell.id
            ));
        }
    }
    Ok(measured)
}

impl Taken {
    fn of_rounds(block: FabricBlock) -> Self {
        Self::Rounds(Box::new(block))
    }

    fn of_requests(block: Block) -> Self {
        Self::Requests(Box::new(block))
    }

    fn is_outside(&self, gate: Gate) -> bool {
        match self {
            Self::Rounds(block) => is_outside(block, gate),
            Self::Requests(block) => !gate.judge(block).is_empty(),
        }
    }

    /// Says when it was.
    fn note(&mut self, number: u32, us: Option<f64>) {
        match self {
            Self::Rounds(of) => (of.block, of.calibration_us) = (number, us),
            Self::Requests(of) => (of.block, of.calibration_us) = (number, us),
        }
    }

    /// Median of its rounds until all was there, or of its requests; how fast it went where
    /// nothing was asked.
    fn told(&self) -> String {
        let ms = |us: Option<f64>| format!("{:.3} ms", us.unwrap_or_default() / 1e3);
        match self {
            Self::Rounds(block) => ms(block.stages_us.get(&Stage::Total).copied()),
            Self::Requests(block) if block.particulars.throughput.is_some() => {
                Pace::Megabytes(megabytes_per_s(&block.traffic)).to_string()
            }
            Self::Requests(block) if block.traffic.latency_us.n == 0 => {
                Pace::Packets(block.traffic.achieved_rps).to_string()
            }
            Self::Requests(block) => ms(block.traffic.latency_us.p50),
        }
    }
}

/// What stands while the rows of a block go over the same way.
#[derive(Default)]
struct Standing {
    /// With the table of the rows.
    control: Option<Control>,
    crossing: Option<Crossing>,
}

impl Standing {
    /// A row of a block; one that forwards over what stands, another with a control plane of its
    /// own.
    fn run_one(
        &mut self,
        site: &mut Site,
        cell: &FabricCell,
        seed: u64,
        command_lines: &mut CommandLines,
    ) -> Result<Taken, LabError> {
        match cell.work {
            Work::Forward(over) => self.forward(site, (cell, over), seed, command_lines),
            Work::List => {
                with_control(site, cell, command_lines, |site, control, command_lines| {
                    list(site, control, cell, command_lines).map(Taken::of_rounds)
                })
            }
            Work::Restart => with_control(site, cell, command_lines, |site, control, _| {
                restart(site, control, cell).map(Taken::of_rounds)
            }),
            Work::Watch | Work::Fanout | Work::Churn => {
                with_control(site, cell, command_lines, |site, control, command_lines| {
                    watch(site, control, cell, command_lines).map(Taken::of_rounds)
                })
            }
            Work::Get => with_control(site, cell, command_lines, |site, control, command_lines| {
                get(site, control, cell, seed, command_lines).map(Taken::of_requests)
            }),
        }
    }

    fn forward(
        &mut self,
        site: &mut Site,
        (cell, over): (&FabricCell, Forwarded),
        seed: u64,
        command_lines: &mut CommandLines,
    ) -> Result<Taken, LabError> {
        let way = over.way;
        if way.mode().is_some() && self.control.is_none() {
            let control = site.start_control(cell.store)?;
            site.fill(&control, cell.table)?;
            site.teach_guest(&control)?;
            self.control = Some(control);
        }
        let crossing = match self.crossing.take() {
            Some(crossing) if crossing.way() == way => crossing,
            other => {
                complain(other.map(|before| site.end_crossing(before)));
                site.cross(way, self.control.as_ref(), cell.table)?
            }
        };
        let crossing = self.crossing.insert(crossing);
        let load = site.load_of(crossing, (cell, over), seed)?;
        let (told, first) = watch_load(site, &load, cell.window, &[ECHO])?;
        command_lines.extend(site.command_lines());
        command_lines.insert(cell.id.clone(), load.command_line());
        let run = crossing.result_of((cell, over.sent), &load, &told)?;
        Ok(Taken::of_requests(block_of(site, first, run)))
    }

    fn end(self, site: &mut Site) {
        complain(self.crossing.map(|crossing| site.end_crossing(crossing)));
        complain(self.control.map(|control| site.clear(&control)));
    }
}

fn complain(complaints: Option<Vec<String>>) {
    for complaint in complaints.into_iter().flatten() {
        tracing::warn!("{complaint}");
    }
}

/// Whether something foreign disturbed it; what it measured says nothing about that.
fn is_outside(block: &FabricBlock, gate: Gate) -> bool {
    block.steal_fraction.is_some_and(|steal| steal > gate.steal_fraction)
        || block.foreign_cpu_cores.is_some_and(|cores| cores > gate.foreign_cpu_cores)
}

/// With a control plane that nothing else has, and whose table is empty.
fn with_control(
    site: &mut Site,
    cell: &FabricCell,
    command_lines: &mut CommandLines,
    measure: impl FnOnce(&mut Site, &Control, &mut CommandLines) -> Result<Taken, LabError>,
) -> Result<Taken, LabError> {
    let control = site.start_control(cell.store)?;
    let outcome = measure(site, &control, command_lines);
    command_lines.extend(site.command_lines());
    complain(Some(site.clear(&control)));
    outcome
}

/// Agents look up what is there.
fn get(
    site: &mut Site,
    control: &Control,
    cell: &FabricCell,
    seed: u64,
    command_lines: &mut CommandLines,
) -> Result<Block, LabError> {
    site.fill(control, cell.table)?;
    let spec = site.gets(control, cell, seed);
    let (told, first) = watch_load(site, &spec, cell.window, &[CONTROL_ROLE, ETCD])?;
    command_lines.insert(cell.id.clone(), spec.command_line());
    let run = RunResult::from_json(told.trim()).map_err(|source| LabError::Result {
        row: cell.id.clone(),
        path: spec.name.clone().into(),
        source,
    })?;
    Ok(block_of(site, first, run))
}

/// Runs a load to its end; what it has told, and what was used when its window began, which ends
/// when it does.
fn watch_load(
    site: &Site,
    spec: &Spec,
    window: Duration,
    roles: &[&'static str],
) -> Result<(String, Before), LabError> {
    let mut running = site.supervisor.begin(spec)?;
    let mut readings = vec![Before::take(site, roles)];
    while !running.has_ended() {
        site.cancel.sleep(READ_EVERY)?;
        readings.push(Before::take(site, roles));
    }
    let told = site.supervisor.finish_told(spec, &mut running, READY_LIMIT)?;
    let last = readings.last().map_or_else(Instant::now, |reading| reading.at);
    let from = last.checked_sub(window).unwrap_or(last);
    let first = readings.iter().position(|reading| reading.at >= from).unwrap_or(0);
    Ok((told, readings.swap_remove(first)))
}

/// A run of requests, of a flow or of packets, and what was used for each of them since `first`.
fn block_of(site: &Site, first: Before, run: RunResult) -> Block {
    let window_s = first.at.elapsed().as_secs_f64();
    let is_flow = run.throughput.is_some();
    let traffic = &run.traffic;
    let per_s = match is_flow {
        true => megabytes_per_s(traffic),
        false => traffic.achieved_rps,
    };
    let units = (per_s * window_s).max(1.0);
    let mut used = FabricBlock::default();
    let busy = first.close(site, units as u64, &mut used);
    // Packets are made in turns; what they take of a processor is their time.
    let is_packets = run.arrival == Arrival::Packets;
    let of_machine = busy.filter(|_| !is_packets).map(|busy| busy.as_secs_f64() * 1e6 / units);
    let of_processes = used.cpu_us_per_entry;
    let mut cost = Cost { rss_bytes: used.rss_bytes, ..Cost::default() };
    if is_flow {
        cost.cpu_us_per_megabyte = of_processes;
        cost.machine_cpu_us_per_megabyte = of_machine;
    } else {
        cost.cpu_us_per_request = of_processes;
        cost.machine_cpu_us_per_request = of_machine;
    }
    let mut block = Block::from_run(0, 0, run, cost);
    block.steal_fraction = used.steal_fraction;
    block.noise = Some(Noise { foreign_cpu_cores: used.foreign_cpu_cores, ..Noise::default() });
    block
}

fn megabytes_per_s(traffic: &Traffic) -> f64 {
    traffic.bytes.total() as f64 / MEGABYTE / traffic.duration_s.max(f64::MIN_POSITIVE)
}

fn list(
    site: &mut Site,
    control: &Control,
    cell: &FabricCell,
    command_lines: &mut CommandLines,
) -> Result<FabricBlock, LabError> {
    site.fill(control, cell.entries)?;
    let before = Before::take(site, &[CONTROL_ROLE, ETCD]);
    let run = site.list(control, cell.rounds, capacity(cell.entries))?;
    command_lines.insert("list".to_owned(), run.command_line.join(" "));
    let mut block = of_lists(&run.rounds).map_err(failed_in(cell))?;
    if run.entries != u64::from(cell.entries) {
        let (expected, found) = (cell.entries.into(), run.entries);
        return Err(LabError::TableDiffers { row: cell.id.clone(), expected, found });
    }
    before.close(site, u64::from(cell.entries) * run.rounds.len() as u64, &mut block);
    note_rounds(&mut block, AGENT, &run);
    block.rss_bytes.insert(AGENT.to_owned(), run.peak_rss_bytes);
    Ok(block)
}

/// An agent begins again and again with what it has.
fn restart(site: &mut Site, control: &Control, cell: &FabricCell) -> Result<FabricBlock, LabError> {
    site.fill(control, cell.entries)?;
    let agent = start_agent(site, control, cell)?;
    site.wait_journal(&agent)?;
    let before = Before::take(site, &[CONTROL_ROLE]);
    let mut rounds = Vec::new();
    for _ in 0..cell.rounds {
        let (began_ns, marks) = site.restart_agent(&agent)?;
        rounds.push(of_restart(began_ns, &marks).map_err(failed_in(cell))?);
    }
    let mut block = of_lists(&rounds).map_err(failed_in(cell))?;
    before.close(site, u64::from(cell.entries) * rounds.len() as u64, &mut block);
    let usage = site.pid(AGENT).and_then(|pid| ProcessUsage::read(pid).ok());
    block.rss_bytes.extend(usage.map(|usage| (AGENT.to_owned(), usage.rss_bytes)));
    check_programmed(site, cell)?;
    Ok(block)
}

/// Starts the agent of a row, with room for all that the row brings.
fn start_agent(site: &mut Site, control: &Control, cell: &FabricCell) -> Result<Agent, LabError> {
    let place = AgentPlace { devices: &[DEVICE.to_owned()], mode: None };
    site.start_agent(control, capacity(cell.all_entries()), place)
}

fn failed_in(cell: &FabricCell) -> impl Fn(RoundError) -> LabError {
    |source| LabError::Round { row: cell.id.clone(), source }
}

/// Whether the kernel's table has what the control plane's has.
fn check_programmed(site: &Site, cell: &FabricCell) -> Result<(), LabError> {
    let (found, expected) = (site.programmed()?, u64::from(cell.all_entries()));
    if found == expected {
        return Ok(());
    }
    Err(LabError::TableDiffers { row: cell.id.clone(), expected, found })
}

fn watch(
    site: &mut Site,
    control: &Control,
    cell: &FabricCell,
    command_lines: &mut CommandLines,
) -> Result<FabricBlock, LabError> {
    if cell.table > 0 {
        site.fill(control, cell.table)?;
    }
    let agent = start_agent(site, control, cell)?;
    let before = Before::take(site, &[CONTROL_ROLE, AGENT, ETCD]);
    let run = site.write(control, cell)?;
    command_lines.insert("write".to_owned(), run.command_line.join(" "));
    let last = run.rounds.last().map_or(0, |round| round.revision);
    let marks = site.marks(&agent, last)?;
    let mut block = of_writes(&run.rounds, &marks).map_err(failed_in(cell))?;
    before.close(site, run.entries * run.rounds.len() as u64, &mut block);
    note_rounds(&mut block, WRITER, &run);
    check_programmed(site, cell)?;
    Ok(block)
}

/// A table that these neighbours fill by half or more.
fn capacity(entries: u32) -> u32 {
    entries.max(LEAST_CAPACITY).next_power_of_two()
}

/// What the process of the rounds used for each neighbour while it measured.
fn note_rounds(block: &mut FabricBlock, role: &str, run: &NeighbourRun) {
    let entries = (run.entries * run.rounds.len() as u64).max(1);
    let cpu_us: f64 = run.rounds.iter().map(|round| round.cpu_us).sum();
    block.cpu_us_per_entry.insert(role.to_owned(), cpu_us / entries as f64);
}
