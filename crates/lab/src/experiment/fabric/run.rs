//! One block of a row: rounds of neighbours, or a load on the table.

use std::time::{Duration, Instant};

use tollway_record::neighbours::{NeighbourRun, Stage};
use tollway_record::record::{Arrival, Cost, FabricBlock, Noise};
use tollway_record::{Block, RunResult};

use super::forward::ECHO;
use super::plan::{FabricCell, Forwarded, Work};
use super::rounds::{RoundError, of_lists, of_restart, of_writes};
use super::site::{Agent, AgentDevices, Control, DEVICE, READY_LIMIT, Site};
use super::usage::Before;
use super::{ETCD, Fabric, warn_of};
use crate::calibrate::calibrate;
use crate::error::LabError;
use crate::experiment::journal::Entry;
use crate::experiment::kind::Run;
use crate::process::Spec;
use crate::progress::Pace;
use crate::sample::ProcessUsage;

/// The smallest table, which even a single neighbour has.
const LEAST_CAPACITY: u32 = 1_024;

/// How often what the control plane uses is read while clients ask.
const READ_EVERY: Duration = Duration::from_millis(50);

/// Roles of processes in the record.
const CONTROL_ROLE: &str = "control";
const AGENT: &str = "agent";
const WRITER: &str = "writer";

/// One block of a row.
pub(super) fn run_one(
    fabric: &mut Fabric<'_>,
    cell: &FabricCell,
    run: &Run,
) -> Result<Entry, LabError> {
    let calibration_us = Some(calibrate().as_secs_f64() * 1e6);
    let seed = fabric.options.seed;
    let site = &mut fabric.site;
    let (load_command, mut block) = match cell.work {
        Work::List => return rounds(site, cell, (run, calibration_us), list),
        Work::Restart => return rounds(site, cell, (run, calibration_us), restart),
        Work::Watch | Work::Fanout | Work::Churn => {
            return rounds(site, cell, (run, calibration_us), watch);
        }
        Work::Get => with_control(site, cell, |site, control| get(site, control, cell, seed))?,
        Work::Forward(over) => forward(fabric, (cell, over), seed)?,
    };
    (block.block, block.calibration_us) = (run.block, calibration_us);
    Ok(Entry::Run {
        cell: cell.id.clone(),
        connections: cell.agents,
        block: Box::new(block),
        set_aside: false,
        load_command,
    })
}

fn rounds(
    site: &mut Site,
    cell: &FabricCell,
    (run, calibration_us): (&Run, Option<f64>),
    measure: impl FnOnce(&mut Site, &Control, &FabricCell) -> Result<FabricBlock, LabError>,
) -> Result<Entry, LabError> {
    let mut block = with_control(site, cell, |site, control| measure(site, control, cell))?;
    (block.block, block.calibration_us) = (run.block, calibration_us);
    Ok(Entry::Rounds { cell: cell.id.clone(), block: Box::new(block), set_aside: false })
}

/// Median of the rounds until everything was there, or of the requests; the rate of what is not
/// answered.
pub(super) fn outcome(entry: &Entry) -> String {
    let ms = |us: Option<f64>| format!("{:.3} ms", us.unwrap_or_default() / 1e3);
    match entry {
        Entry::Rounds { block, .. } => ms(block.stages_us.get(&Stage::Total).copied()),
        Entry::Run { block, .. } if block.particulars.throughput.is_some() => {
            Pace::of_flow(&block.traffic).to_string()
        }
        Entry::Run { block, .. } if block.traffic.latency_us.n == 0 => {
            Pace::Packets(block.traffic.achieved_rps).to_string()
        }
        Entry::Run { block, .. } => ms(block.traffic.latency_us.p50),
        Entry::Idle(_) => String::new(),
    }
}

/// A row over a datapath, which is made unless the row before has it.
fn forward(
    fabric: &mut Fabric<'_>,
    (cell, over): (&FabricCell, Forwarded),
    seed: u64,
) -> Result<(String, Block), LabError> {
    let Fabric { site, control, crossing, .. } = fabric;
    let datapath = over.datapath;
    if datapath.mode().is_some() && control.is_none() {
        let started = site.start_control(cell.store)?;
        site.fill(&started, cell.table)?;
        site.teach_guest(&started)?;
        *control = Some(started);
    }
    let made = match crossing.take() {
        Some(made) if made.datapath() == datapath => made,
        other => {
            warn_of(other.map(|before| site.end_crossing(before)));
            site.cross(datapath, control.as_ref(), cell.table)?
        }
    };
    let crossing = crossing.insert(made);
    let load = site.load_of(crossing, (cell, over), seed)?;
    let (output, first) = watch_load(site, &load, cell.window, &[ECHO])?;
    site.note_command_lines();
    let run = crossing.result_of((cell, over.sent), &load, &output)?;
    Ok((load.command_line(), block_of(site, first, run)))
}

/// With a control plane of its own, whose table is empty.
fn with_control<T>(
    site: &mut Site,
    cell: &FabricCell,
    measure: impl FnOnce(&mut Site, &Control) -> Result<T, LabError>,
) -> Result<T, LabError> {
    let control = site.start_control(cell.store)?;
    let outcome = measure(site, &control);
    site.note_command_lines();
    warn_of(Some(site.clear(&control)));
    outcome
}

/// Agents look up existing neighbours.
fn get(
    site: &mut Site,
    control: &Control,
    cell: &FabricCell,
    seed: u64,
) -> Result<(String, Block), LabError> {
    site.fill(control, cell.table)?;
    let spec = site.gets(control, cell, seed);
    let (output, first) = watch_load(site, &spec, cell.window, &[CONTROL_ROLE, ETCD])?;
    let run = RunResult::from_json(output.trim()).map_err(|source| LabError::Result {
        row: cell.id.clone(),
        path: spec.name.clone().into(),
        source,
    })?;
    Ok((spec.command_line(), block_of(site, first, run)))
}

/// Runs a load to its end. Returns its output, and what was used when its window began, which ends
/// with it.
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
    let output = site.supervisor.finish_with_output(spec, &mut running, READY_LIMIT)?;
    let last = readings.last().map_or_else(Instant::now, |reading| reading.at);
    let from = last.checked_sub(window).unwrap_or(last);
    let first = readings.iter().position(|reading| reading.at >= from).unwrap_or(0);
    Ok((output, readings.swap_remove(first)))
}

/// A run of requests, of a flow or of packets, and what was used for each of them since `first`.
fn block_of(site: &Site, first: Before, run: RunResult) -> Block {
    let window_s = first.at.elapsed().as_secs_f64();
    let is_flow = run.throughput.is_some();
    let per_s = match is_flow {
        true => Pace::of_flow(&run.traffic).per_s(),
        false => run.traffic.achieved_rps,
    };
    let units = (per_s * window_s).max(1.0);
    let mut used = FabricBlock::default();
    let busy = first.close(site, units as u64, &mut used);
    // Packets are made in bursts; what they take of a processor is their time.
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

fn list(site: &mut Site, control: &Control, cell: &FabricCell) -> Result<FabricBlock, LabError> {
    site.fill(control, cell.entries)?;
    let before = Before::take(site, &[CONTROL_ROLE, ETCD]);
    let run = site.list(control, cell.rounds, capacity(cell.entries))?;
    site.note_command_line("list", &run.command_line.join(" "));
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

/// An agent restarts again and again with its table and its journal.
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

/// Starts the agent of a row, with room for all neighbours of the row.
fn start_agent(site: &mut Site, control: &Control, cell: &FabricCell) -> Result<Agent, LabError> {
    let devices = AgentDevices { names: &[DEVICE.to_owned()], mode: None };
    site.start_agent(control, capacity(cell.all_entries()), devices)
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

fn watch(site: &mut Site, control: &Control, cell: &FabricCell) -> Result<FabricBlock, LabError> {
    if cell.table > 0 {
        site.fill(control, cell.table)?;
    }
    let agent = start_agent(site, control, cell)?;
    let before = Before::take(site, &[CONTROL_ROLE, AGENT, ETCD]);
    let run = site.write(control, cell)?;
    site.note_command_line("write", &run.command_line.join(" "));
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
