//! Requests, flows and idle processes: subjects in networks, loaded from the first one.
//!
//! `prepare` decides which subjects and rows there are here, `plan` which runs in which order;
//! [`Bench`] starts what they need, `run` makes one run, `assemble` the part of the record.

mod assemble;
mod bench;
mod figures;
mod ground;
mod plan;
mod prepare;
mod probes;
mod reading;
mod run;
mod slices;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use tollway_record::Record;
use tollway_record::Traffic;
use tollway_record::record::{Link, Protocol, SeedTable, Tls};

pub use ground::{Ground, READY_LIMIT};
pub use plan::{Cell, CellArrival, Plan, PlanError};

use super::ExperimentOptions;
use super::journal::Entry;
use super::kind::{Contents, Kind, Run};
use super::measure::MeasuredRow;
use crate::cancel::Cancel;
use crate::error::LabError;
use crate::progress::{Event, Pace, Progress, RunSummary};
use crate::scenario::Scenario;
use crate::subject::{Catalogue, StartedSubject};
use bench::Bench;
pub(super) use prepare::Prepared;
use probes::Probes;

/// Everything that an experiment with requests has running.
pub(super) struct Requests<'a> {
    scenario: &'a Scenario,
    options: &'a ExperimentOptions,
    prepared: &'a Prepared<'a>,
    plan: Plan,
    /// Until it is stopped.
    bench: Option<Bench<'a>>,
    cancel: Cancel,
    probes: Probes,
    facts: Facts,
}

/// The record's data on the parts that ran.
#[derive(Default)]
struct Facts {
    rows: Vec<RowFacts>,
    /// Command line by process.
    processes: BTreeMap<String, String>,
    /// Of the subjects, in their order.
    started: Vec<StartedSubject>,
}

/// The record's data on a row, apart from its runs.
struct RowFacts {
    made_of: String,
    hops: u32,
    tls: Tls,
    link: Option<Link>,
}

impl<'a> Requests<'a> {
    /// Starts everything. The time that this takes counts towards the budget of the scenario.
    pub(super) fn start(
        dir: &Path,
        (scenario, options): (&'a Scenario, &'a ExperimentOptions),
        prepared: &'a Prepared<'a>,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Self, LabError> {
        let begun = Instant::now();
        progress.report(&Event::Plan(&prepared.plan.to_string()));
        for left_out in &prepared.left_out {
            progress.report(&Event::Warning(left_out));
        }
        let bench = Bench::start(dir, (scenario, options), prepared, cancel, progress)?;
        let plan = prepared.plan_after(begun.elapsed())?;
        Ok(Self {
            scenario,
            options,
            prepared,
            plan,
            bench: Some(bench),
            cancel: cancel.clone(),
            probes: Probes::default(),
            facts: Facts::default(),
        })
    }

    /// # Errors
    /// [`LabError::Stopped`] after [`Kind::stop`].
    fn bench(&mut self) -> Result<&mut Bench<'a>, LabError> {
        self.bench.as_mut().ok_or(LabError::Stopped)
    }
}

impl Kind for Requests<'_> {
    fn rows(&self) -> Vec<String> {
        self.plan.cells.iter().map(|cell| cell.id.clone()).collect()
    }

    fn runs(&self) -> Vec<Run> {
        self.plan.runs.clone()
    }

    fn begin(&mut self, progress: &mut dyn Progress) -> Result<(), LabError> {
        let Some(bench) = &self.bench else { return Err(LabError::Stopped) };
        self.probes.take(bench, &self.plan, Some(progress))
    }

    fn round_of(&self, run: &Run) -> (usize, u32) {
        (self.plan.cells[run.cell].phase, run.block)
    }

    fn begin_round(&mut self, is_first: bool, progress: &mut dyn Progress) -> Result<(), LabError> {
        self.bench()?.begin_round(is_first, progress)
    }

    fn run_one(&mut self, run: &Run, rows: &[MeasuredRow]) -> Result<Entry, LabError> {
        let cell = &self.plan.cells[run.cell];
        let rate_rps = rate_of(cell, &self.plan, rows);
        let Some(bench) = &mut self.bench else { return Err(LabError::Stopped) };
        run::run_one(bench, cell, run, rate_rps, &self.cancel)
    }

    fn end_round(&mut self) {}

    fn outcome(&self, run: &Run, entry: &Entry) -> String {
        let Entry::Run { block, .. } = entry else { return "no calls".to_owned() };
        let summary = RunSummary {
            pace: pace(&self.plan.cells[run.cell], &block.traffic),
            mean_us: block.traffic.latency_us.mean,
            errors: block.traffic.errors,
            client_limited: block.traffic.client_limited,
        };
        summary.to_string()
    }

    fn end(&mut self) -> Result<(), LabError> {
        let Some(bench) = &self.bench else { return Err(LabError::Stopped) };
        self.probes.take(bench, &self.plan, None)?;
        let row = |cell: &Cell| {
            let route = bench.route(cell)?;
            Ok(RowFacts {
                made_of: route.made_of.clone(),
                hops: route.hops,
                tls: route.tls,
                link: bench.link(cell.leg.network, self.probes.of(cell.leg.network)),
            })
        };
        let rows = self.plan.cells.iter().map(row).collect::<Result<_, LabError>>()?;
        let (processes, started) = (bench.command_lines().clone(), bench.started().to_vec());
        self.facts = Facts { rows, processes, started };
        Ok(())
    }

    fn stop(&mut self) -> Vec<String> {
        self.bench.take().map_or_else(Vec::new, Bench::stop)
    }

    fn contents(&self, rows: Vec<MeasuredRow>) -> Result<Contents, LabError> {
        assemble::contents(self, rows)
    }

    fn seed_table(&self, record: &Record) -> Option<SeedTable> {
        figures::seed_table(self.scenario, &self.plan, record)
    }
}

/// What a scenario runs here, without starting anything.
pub(super) fn prepare<'a>(
    scenario: &'a Scenario,
    options: &ExperimentOptions,
    catalogue: &Catalogue,
) -> Result<Prepared<'a>, LabError> {
    Prepared::new(scenario, options, catalogue)
}

fn pace(cell: &Cell, traffic: &Traffic) -> Pace {
    if matches!(cell.arrival, CellArrival::Flow(_)) {
        return Pace::of_flow(traffic);
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

/// The rate of a cell in open loop; one that another case finds out is rounded down to tens.
fn rate_of(cell: &Cell, plan: &Plan, rows: &[MeasuredRow]) -> Option<f64> {
    match &cell.arrival {
        CellArrival::Open { rate_rps, .. } => Some(*rate_rps),
        CellArrival::ShareOfSlowest { case, share, .. } => {
            let fits = |other: &Cell| {
                &other.case == case
                    && other.leg.network == cell.leg.network
                    && other.layout == cell.layout
            };
            let rates = plan.cells.iter().zip(rows).filter(|(other, _)| fits(other));
            // A row without an answer is reported by the check of the record, not followed.
            let rates = rates.map(|(_, row)| row.rate_rps()).filter(|&rate| rate > 0.0);
            let slowest = rates.fold(f64::INFINITY, f64::min);
            let rate = if slowest.is_finite() { slowest * share } else { 0.0 };
            Some(((rate / 10.0).floor() * 10.0).max(1.0))
        }
        CellArrival::Closed | CellArrival::Flow(_) | CellArrival::Search(_) | CellArrival::Idle => {
            None
        }
    }
}
