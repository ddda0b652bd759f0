//! Measures neighbours of the fabric: how long they take from a user's write, or from the control
//! plane's disk, into the kernel's table of an agent, and what that costs at both ends; and what is
//! forwarded by that table, beside what the kernel forwards itself.
//!
//! Everything is started anew for each row of each block: a control plane with an empty table, and
//! who follows it. Stages are told by those in whom they happen, on one clock.

mod assemble;
mod crossing;
mod disk;
mod forward;
mod measure;
mod plan;
mod rounds;
mod scenario;
mod site;
mod usage;

use std::path::Path;
use std::time::{Instant, SystemTime};

use tollway_record::Record;

pub use plan::{FabricCell, FabricPlan, Forwarded, Sent, Work};
pub use rounds::RoundError;
pub use scenario::{
    FABRIC_SCENARIO_SCHEMA, FabricCase, FabricFigure, FabricLength, FabricLengths, FabricScenario,
    FabricSeed, Measure, Store, Way,
};

use crate::cancel::Cancel;
use crate::error::LabError;
use crate::experiment::ExperimentOptions;
use crate::progress::{Event, Progress};
use crate::subject::places;
use crate::work_dir::WorkDir;
use assemble::Circumstances;
use measure::measure;
use site::{Site, may_program};

/// The program of a store that is not embedded.
const ETCD: &str = "etcd";
const NO_ETCD: &str = "there is no program `etcd`; install etcd-server";

/// A scenario of the fabric, and how it is run. Of the options those that only requests have, such
/// as subjects and windows, are not looked at; it cannot be resumed.
#[derive(Debug, Clone)]
pub struct FabricExperiment {
    pub scenario: FabricScenario,
    pub options: ExperimentOptions,
}

impl FabricExperiment {
    #[must_use]
    pub fn plan(&self) -> FabricPlan {
        let mut length = self.scenario.length(self.options.length);
        length.blocks = self.options.blocks.unwrap_or(length.blocks);
        FabricPlan::new(&self.scenario, length)
    }

    /// Runs it; Ctrl-C, SIGTERM and SIGHUP end it early and clean up. Blocks the calling thread,
    /// from which all processes are started.
    ///
    /// # Errors
    /// [`LabError`]: without root on the host, or when a process fails.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<Record, LabError> {
        let cancel = Cancel::on_signals().map_err(|source| LabError::Signals { source })?;
        let options = &self.options;
        may_program(&options.isolation).map_err(|why| LabError::NeedsRoot {
            scenario: self.scenario.name.value.clone(),
            why,
        })?;
        let root = &options.work_root;
        let failed = |source| LabError::WorkDir { dir: root.clone(), source };
        let dir = WorkDir::create(root).map_err(failed)?;
        let result = self.run_in(dir.path(), &cancel, progress);
        result.map_err(|error| match error.is_cancelled() {
            true => error,
            false => LabError::Kept { logs: dir.keep(), source: Box::new(error) },
        })
    }

    fn run_in(
        &self,
        dir: &Path,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Record, LabError> {
        let (started_at, started) = (SystemTime::now(), Instant::now());
        let mut plan = self.plan();
        let etcd = places(ETCD).into_iter().next();
        let left_out = if etcd.is_some() { Vec::new() } else { plan.leave_out_etcd() };
        progress.told(&Event::FabricPlan(&plan));
        for row in &left_out {
            progress.told(&Event::Warning(&format!("{row} is left out: {NO_ETCD}")));
        }
        progress.told(&Event::Step("making a network with a device of its own"));
        let sync_us = disk::sync_times_us(dir);
        let sync_us = sync_us.map_err(|source| LabError::Write { path: dir.to_owned(), source })?;
        let options = &self.options;
        let mut site = Site::create(dir, (&options.binary, etcd), &options.isolation, cancel)?;
        let measured = measure(&mut site, &plan, (options.gate, options.seed), progress)?;
        for warning in &measured.warnings {
            progress.told(&Event::Warning(warning));
        }
        let circumstances =
            Circumstances { started_at, duration: started.elapsed(), sync_us: &sync_us, left_out };
        assemble::record(self, &plan, measured, &circumstances)
    }
}
