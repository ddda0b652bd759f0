//! Makes the runs of a plan in their order: takes over what was made before, repeats what something
//! else on the machine disturbed, writes each run to the journal.

use std::time::Instant;

use tollway_record::record::{Block, FabricBlock};

use super::gate::Gate;
use super::journal::{Entry, IdleEntry, Journal};
use super::kind::Kind;
use crate::error::LabError;
use crate::progress::{Event, Progress};
use crate::sample::{MachineUsage, cpu_pressure};

/// What the runs gave.
pub(super) struct Measured {
    /// In the order of the plan's rows.
    pub(super) rows: Vec<MeasuredRow>,
    pub(super) warnings: Vec<String>,
    /// Time that the hypervisor took, of all.
    pub(super) steal_fraction: Option<f64>,
    /// Share of the time in which some task waited for a processor.
    pub(super) cpu_pressure: Option<f64>,
}

/// What the runs of one row gave.
#[derive(Default)]
pub(super) struct MeasuredRow {
    /// Of requests, flows and packets.
    pub(super) blocks: Vec<Block>,
    /// Runs that were disturbed and repeated.
    pub(super) set_aside: Vec<Block>,
    /// Of rounds of neighbours.
    pub(super) rounds: Vec<FabricBlock>,
    /// How many blocks of rounds were disturbed and repeated.
    pub(super) repeated_rounds: usize,
    /// Of processes without load.
    pub(super) idle: Vec<IdleEntry>,
    /// The first run's.
    pub(super) load_command: String,
    /// The last run's, where it had a load generator.
    pub(super) connections: Option<u32>,
}

pub(super) fn measure(
    kind: &mut dyn Kind,
    gate: Gate,
    journal: &mut Option<Journal>,
    progress: &mut dyn Progress,
) -> Result<Measured, LabError> {
    let (machine, pressure, start) = (MachineUsage::read()?, cpu_pressure(), Instant::now());
    kind.begin(progress)?;
    let ids = kind.rows();
    let mut rows: Vec<MeasuredRow> = ids.iter().map(|_| MeasuredRow::default()).collect();
    let mut warnings = Vec::new();
    if let Some(journal) = journal {
        warnings.extend(resume(journal, &ids, &mut rows, progress));
    }
    run_all(kind, (gate, &ids), journal, &mut rows, progress)?;
    kind.end()?;
    let elapsed = start.elapsed();
    Ok(Measured {
        rows,
        warnings,
        steal_fraction: Some(MachineUsage::read()?.since(&machine).steal_fraction()),
        cpu_pressure: pressure
            .zip(cpu_pressure())
            .map(|(before, after)| (after.saturating_sub(before)).div_duration_f64(elapsed)),
    })
}

/// Takes over the runs of the journal. Returns a sentence for the report.
fn resume(
    journal: &Journal,
    ids: &[String],
    rows: &mut [MeasuredRow],
    progress: &mut dyn Progress,
) -> Option<String> {
    let mut taken = 0;
    for entry in journal.entries() {
        let Some(index) = ids.iter().position(|id| id == entry.cell()) else { continue };
        taken += 1;
        rows[index].add(entry.clone());
    }
    (taken > 0).then(|| {
        progress.report(&Event::Step(&format!("going on after {taken} runs")));
        format!(
            "{taken} runs were made before the experiment was interrupted; the rest after it, by \
             processes that were started anew"
        )
    })
}

fn run_all(
    kind: &mut dyn Kind,
    (gate, ids): (Gate, &[String]),
    journal: &mut Option<Journal>,
    rows: &mut [MeasuredRow],
    progress: &mut dyn Progress,
) -> Result<(), LabError> {
    let runs = kind.runs();
    let mut repeats_left = gate.repeats(runs.len());
    let mut last = None;
    for (done, run) in runs.iter().enumerate() {
        if rows[run.cell].has(run.block) {
            continue;
        }
        let round = kind.round_of(run);
        if last != Some(round) {
            if last.is_some() {
                kind.end_round();
            }
            kind.begin_round(last.is_none(), progress)?;
            last = Some(round);
        }
        for attempt in 0.. {
            let mut entry = kind.run_one(run, rows)?;
            let is_outside = entry.judge(gate);
            let again = is_outside && attempt < gate.repeats_of_run && repeats_left > 0;
            entry.set_aside(again);
            let outcome = kind.outcome(run, &entry);
            let (total, row) = (runs.len(), ids[run.cell].as_str());
            progress.report(&Event::Run {
                done: done + 1,
                total,
                row,
                block: run.block,
                outcome: &outcome,
                is_outside,
            });
            if let Some(journal) = journal {
                journal.write(&entry)?;
            }
            rows[run.cell].add(entry);
            if !again {
                break;
            }
            repeats_left -= 1;
        }
    }
    kind.end_round();
    Ok(())
}

impl MeasuredRow {
    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Run { block, set_aside, load_command, connections, .. } => {
                if self.load_command.is_empty() {
                    self.load_command = load_command;
                }
                self.connections = Some(connections);
                let blocks = if set_aside { &mut self.set_aside } else { &mut self.blocks };
                blocks.push(*block);
            }
            Entry::Rounds { set_aside: true, .. } => self.repeated_rounds += 1,
            Entry::Rounds { block, .. } => self.rounds.push(*block),
            Entry::Idle(idle) => self.idle.push(idle),
        }
    }

    fn has(&self, block: u32) -> bool {
        self.blocks.iter().any(|known| known.block == block)
            || self.rounds.iter().any(|known| known.block == block)
            || self.idle.iter().any(|known| known.block == block)
    }

    /// Mean rate of the answers so far.
    pub(super) fn rate_rps(&self) -> f64 {
        let answered: f64 =
            self.blocks.iter().map(|b| b.traffic.achieved_rps * b.traffic.duration_s).sum();
        let seconds: f64 = self.blocks.iter().map(|b| b.traffic.duration_s).sum();
        if seconds > 0.0 { answered / seconds } else { 0.0 }
    }
}
