//! Neighbours of the fabric: how long they take from a user's write, or from the control plane's
//! disk, into the kernel's table of an agent, and what that costs at both ends; and packets that are
//! forwarded by that table, next to what the kernel forwards itself.
//!
//! Everything is started again for each row of each block: a control plane with an empty table, and
//! the agents that follow it. Each process reports the stages that happen in it, on one clock.

mod assemble;
mod crossing;
mod disk;
mod forward;
mod plan;
mod rounds;
mod run;
mod site;
mod usage;

use std::path::Path;

use tollway_record::Record;
use tollway_record::record::SeedTable;

pub use plan::{FabricCell, FabricPlan, Forwarded, Sent, Work};
pub use rounds::RoundError;

use super::ExperimentOptions;
use super::journal::Entry;
use super::kind::{Contents, Kind, Run};
use super::measure::MeasuredRow;
use crate::cancel::Cancel;
use crate::error::LabError;
use crate::progress::{Event, Progress};
use crate::scenario::FabricScenario;
use crate::subject::program_paths;
use forward::Crossing;
use site::{Control, Site, may_program};

/// The program of a store that is not embedded.
const ETCD: &str = "etcd";
const NO_ETCD: &str = "there is no program `etcd`; install etcd-server";

/// What of a scenario can be run here.
pub(super) struct Prepared {
    pub(super) plan: FabricPlan,
    /// Rows that need an etcd that is not there, with the reason.
    pub(super) left_out: Vec<String>,
}

/// Everything that an experiment of the fabric has running.
pub(super) struct Fabric<'a> {
    scenario: &'a FabricScenario,
    options: &'a ExperimentOptions,
    prepared: &'a Prepared,
    site: Site,
    /// Times of single syncs of the disk, in order of size.
    sync_us: Vec<f64>,
    /// With the table of the rows that forward, for the rest of the block.
    control: Option<Control>,
    /// Between the hosts, for the rest of the rows of the block that have the same datapath.
    crossing: Option<Crossing>,
}

/// # Errors
/// [`LabError::NeedsRoot`] where this process may not write tables of the kernel.
pub(super) fn check_privilege(
    scenario: &FabricScenario,
    options: &ExperimentOptions,
) -> Result<(), LabError> {
    may_program(&options.isolation)
        .map_err(|why| LabError::NeedsRoot { scenario: scenario.name.value.clone(), why })
}

/// What a scenario runs here, without starting anything.
pub(super) fn prepare(scenario: &FabricScenario, options: &ExperimentOptions) -> Prepared {
    let mut length = scenario.length(options.length);
    length.blocks = options.blocks.unwrap_or(length.blocks);
    let mut plan = FabricPlan::new(scenario, length);
    let left_out = match program_paths(ETCD).is_empty() {
        true => plan.leave_out_etcd(),
        false => Vec::new(),
    };
    let left_out = left_out.into_iter().map(|row| format!("{row}: {NO_ETCD}")).collect();
    Prepared { plan, left_out }
}

impl<'a> Fabric<'a> {
    /// Makes the network and its device.
    pub(super) fn start(
        dir: &Path,
        (scenario, options): (&'a FabricScenario, &'a ExperimentOptions),
        prepared: &'a Prepared,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Self, LabError> {
        progress.report(&Event::Plan(&prepared.plan.to_string()));
        for left_out in &prepared.left_out {
            progress.report(&Event::Warning(left_out));
        }
        progress.report(&Event::Step("making a network with a device of its own"));
        let sync_us = disk::sync_times_us(dir);
        let sync_us = sync_us.map_err(|source| LabError::Write { path: dir.to_owned(), source })?;
        let programs = (options.binary.as_path(), program_paths(ETCD).into_iter().next());
        let site = Site::create(dir, programs, &options.isolation, cancel)?;
        Ok(Self { scenario, options, prepared, site, sync_us, control: None, crossing: None })
    }
}

impl Kind for Fabric<'_> {
    fn rows(&self) -> Vec<String> {
        self.prepared.plan.cells.iter().map(|cell| cell.id.clone()).collect()
    }

    fn runs(&self) -> Vec<Run> {
        self.prepared.plan.runs()
    }

    fn begin(&mut self, _: &mut dyn Progress) -> Result<(), LabError> {
        Ok(())
    }

    fn round_of(&self, run: &Run) -> (usize, u32) {
        (0, run.block)
    }

    fn begin_round(&mut self, _: bool, _: &mut dyn Progress) -> Result<(), LabError> {
        Ok(())
    }

    fn run_one(&mut self, run: &Run, _: &[MeasuredRow]) -> Result<Entry, LabError> {
        run::run_one(self, &self.prepared.plan.cells[run.cell], run)
    }

    fn end_round(&mut self) {
        let crossing = self.crossing.take();
        warn_of(crossing.map(|crossing| self.site.end_crossing(crossing)));
        let control = self.control.take();
        warn_of(control.map(|control| self.site.clear(&control)));
    }

    fn outcome(&self, _: &Run, entry: &Entry) -> String {
        run::outcome(entry)
    }

    fn end(&mut self) -> Result<(), LabError> {
        Ok(())
    }

    fn stop(&mut self) -> Vec<String> {
        // Each row has stopped what it started.
        Vec::new()
    }

    fn contents(&self, rows: Vec<MeasuredRow>) -> Result<Contents, LabError> {
        assemble::contents(self, rows)
    }

    fn seed_table(&self, record: &Record) -> Option<SeedTable> {
        assemble::seed_table(self.scenario, record)
    }
}

fn warn_of(complaints: Option<Vec<String>>) {
    for complaint in complaints.into_iter().flatten() {
        tracing::warn!("{complaint}");
    }
}
