//! Runs the plan in its order, and takes over what was run before.

mod first_call;
mod load;
mod probes;
mod run;

use std::collections::BTreeMap;
use std::time::Instant;

use tollway_record::Traffic;
use tollway_record::record::{Block, Link, Protocol, Tls};

use super::bench::Bench;
use super::journal::{Entry, IdleEntry, Journal};
use super::plan::{Cell, CellArrival, Plan};
use crate::cancel::Cancel;
use crate::error::LabError;
use crate::progress::{Event, Pace, Progress, RunSummary};
use crate::sample::{MachineUsage, cpu_pressure};
use crate::subject::Standing;
use probes::Probes;
use run::run_one;

/// What the runs gave.
pub(super) struct Measured {
    /// In the order of the plan's cells.
    pub(super) cells: Vec<MeasuredCell>,
    pub(super) warnings: Vec<String>,
    /// Command line by process.
    pub(super) processes: BTreeMap<String, String>,
    /// Of the subjects, in their order.
    pub(super) standing: Vec<Standing>,
    pub(super) steal_fraction: Option<f64>,
    /// Share of the time in which some task waited for a processor.
    pub(super) cpu_pressure: Option<f64>,
}

#[derive(Default)]
pub(super) struct MeasuredCell {
    pub(super) blocks: Vec<Block>,
    pub(super) set_aside: Vec<Block>,
    pub(super) idle: Vec<IdleEntry>,
    pub(super) link: Option<Link>,
    /// The first run's.
    pub(super) load_command: String,
    /// Of the first run: where another case finds out the rate.
    pub(super) connections: u32,
    pub(super) made_of: String,
    pub(super) hops: u32,
    pub(super) tls: Option<Tls>,
}

pub(super) fn measure(
    bench: &mut Bench<'_>,
    plan: &Plan,
    journal: &mut Option<Journal>,
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<Measured, LabError> {
    let (machine, pressure, start) = (MachineUsage::read()?, cpu_pressure(), Instant::now());
    let mut probes = Probes::default();
    probes.take(bench, plan, Some(progress))?;
    let mut cells = plan_cells(bench, plan)?;
    let mut warnings = Vec::new();
    if let Some(journal) = journal {
        warnings.extend(resume(journal, plan, &mut cells, progress));
    }
    run_all(bench, plan, journal, &mut cells, cancel, progress)?;
    probes.take(bench, plan, None)?;
    for (cell, measured) in plan.cells.iter().zip(&mut cells) {
        measured.link = bench.link(cell.leg.network, probes.of(cell.leg.network));
    }
    let elapsed = start.elapsed();
    Ok(Measured {
        cells,
        warnings,
        processes: bench.command_lines.clone(),
        standing: bench.standing.clone(),
        steal_fraction: Some(MachineUsage::read()?.since(&machine).steal_fraction()),
        cpu_pressure: pressure
            .zip(cpu_pressure())
            .map(|(before, after)| (after.saturating_sub(before)).div_duration_f64(elapsed)),
    })
}

fn plan_cells(bench: &Bench<'_>, plan: &Plan) -> Result<Vec<MeasuredCell>, LabError> {
    let of = |cell: &Cell| {
        let route = bench.route(cell)?;
        Ok(MeasuredCell {
            made_of: route.made_of.clone(),
            hops: route.hops,
            tls: Some(route.tls),
            connections: cell.connections,
            ..MeasuredCell::default()
        })
    };
    plan.cells.iter().map(of).collect()
}

/// Takes over what the journal holds. Returns a sentence for the report.
fn resume(
    journal: &Journal,
    plan: &Plan,
    cells: &mut [MeasuredCell],
    progress: &mut dyn Progress,
) -> Option<String> {
    let mut taken = 0;
    for entry in journal.entries() {
        let Some(index) = plan.cells.iter().position(|cell| cell.id == entry.cell()) else {
            continue;
        };
        taken += 1;
        cells[index].take(entry.clone());
    }
    let told = format!(
        "{taken} runs were made before the experiment was interrupted; the rest after it, by \
         processes that were started anew"
    );
    (taken > 0).then(|| {
        progress.told(&Event::Step(&format!("going on after {taken} runs")));
        told
    })
}

impl MeasuredCell {
    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Run { block, set_aside, load_command, connections, .. } => {
                if self.load_command.is_empty() {
                    self.load_command = load_command;
                }
                self.connections = connections;
                let blocks = if set_aside { &mut self.set_aside } else { &mut self.blocks };
                blocks.push(*block);
            }
            Entry::Idle(idle) => self.idle.push(idle),
        }
    }

    fn has(&self, block: u32) -> bool {
        self.blocks.iter().any(|known| known.block == block)
            || self.idle.iter().any(|known| known.block == block)
    }

    /// Mean rate of the answers so far.
    fn rate_rps(&self) -> f64 {
        let answered: f64 =
            self.blocks.iter().map(|b| b.traffic.achieved_rps * b.traffic.duration_s).sum();
        let seconds: f64 = self.blocks.iter().map(|b| b.traffic.duration_s).sum();
        if seconds > 0.0 { answered / seconds } else { 0.0 }
    }
}

fn run_all(
    bench: &mut Bench<'_>,
    plan: &Plan,
    journal: &mut Option<Journal>,
    cells: &mut [MeasuredCell],
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<(), LabError> {
    let gate = bench.experiment.options.gate;
    let mut repeats_left = gate.repeats(plan.runs.len());
    let mut last = None;
    for (done, run) in plan.runs.iter().enumerate() {
        let cell = &plan.cells[run.cell];
        if cells[run.cell].has(run.block) {
            continue;
        }
        let round = (cell.phase, run.block);
        if last != Some(round) {
            bench.begin_block(last.is_none(), progress)?;
            last = Some(round);
        }
        let rate_rps = rate_of(cell, plan, cells);
        for attempt in 0.. {
            let mut entry = run_one(bench, cell, run, rate_rps, cancel)?;
            if let Entry::Run { block, set_aside, .. } = &mut entry {
                block.outside_gate = gate.judge(block);
                let again = !block.outside_gate.is_empty()
                    && attempt < gate.repeats_of_run
                    && repeats_left > 0;
                *set_aside = again;
                tell(block, cell, (done + 1, plan.runs.len()), progress);
            }
            if let Some(journal) = journal {
                journal.write(&entry)?;
            }
            let again = entry.is_set_aside();
            cells[run.cell].take(entry);
            if !again {
                break;
            }
            repeats_left -= 1;
        }
    }
    Ok(())
}

fn tell(block: &Block, cell: &Cell, (done, total): (usize, usize), progress: &mut dyn Progress) {
    let summary = RunSummary {
        pace: pace(cell, &block.traffic),
        mean_us: block.traffic.latency_us.mean,
        errors: block.traffic.errors,
        client_limited: block.traffic.client_limited,
        outside_gate: !block.outside_gate.is_empty(),
    };
    let (row, block) = (cell.id.as_str(), block.block);
    progress.told(&Event::Run { done, total, row, block, summary: &summary });
}

fn pace(cell: &Cell, traffic: &Traffic) -> Pace {
    if matches!(cell.arrival, CellArrival::Flow(_)) {
        let seconds = traffic.duration_s.max(f64::MIN_POSITIVE);
        return Pace::Megabytes(traffic.bytes.total() as f64 / 1e6 / seconds);
    }
    match cell.leg.protocol {
        Protocol::GrpcStream => Pace::Messages(traffic.achieved_rps),
        Protocol::Http1
        | Protocol::Http2
        | Protocol::GrpcUnary
        | Protocol::Tcp
        | Protocol::Icmp
        | Protocol::Vxlan => Pace::Requests(traffic.achieved_rps),
    }
}

/// The rate of a cell in open loop; what others find out is rounded down to whole tens.
fn rate_of(cell: &Cell, plan: &Plan, cells: &[MeasuredCell]) -> Option<f64> {
    match &cell.arrival {
        CellArrival::Open { rate_rps, .. } => Some(*rate_rps),
        CellArrival::ShareOfSlowest { case, share, .. } => {
            let beside = |other: &Cell| {
                &other.case == case
                    && other.leg.network == cell.leg.network
                    && other.layout == cell.layout
            };
            let rates = plan.cells.iter().zip(cells).filter(|(other, _)| beside(other));
            // Who answered nothing is told by the check of the record, not followed.
            let rates = rates.map(|(_, of)| of.rate_rps()).filter(|&rate| rate > 0.0);
            let slowest = rates.fold(f64::INFINITY, f64::min);
            let rate = if slowest.is_finite() { slowest * share } else { 0.0 };
            Some(((rate / 10.0).floor() * 10.0).max(1.0))
        }
        CellArrival::Closed | CellArrival::Flow(_) | CellArrival::Search(_) | CellArrival::Idle => {
            None
        }
    }
}
