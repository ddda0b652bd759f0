//! Runs a scenario: everything started, every run of the plan made, a record written.
//!
//! There are two kinds of measurement, requests and the fabric (a `Kind` each); each decides which
//! rows and runs there are, starts what they need and makes a run. The stages are shared: `measure`
//! makes the runs in order and repeats disturbed ones ([`Gate`]), `journal` stores what is done so
//! that a killed experiment goes on, `assemble` makes the record.

mod assemble;
mod fabric;
mod gate;
mod journal;
mod kind;
mod measure;
mod minutes;
mod requests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tollway_record::Record;

pub use fabric::{FabricCell, FabricPlan, Forwarded, RoundError, Sent, Work};
pub use gate::Gate;
pub use journal::{Header, Journal, JournalError, SubjectText};
pub use kind::Run;
pub use minutes::minutes;
pub use requests::{Cell, CellArrival, Ground, Plan, PlanError, READY_LIMIT};

use crate::cancel::Cancel;
use crate::error::LabError;
use crate::progress::{Event, Progress};
use crate::scenario::{AnyScenario, LengthName};
use crate::subject::{Catalogue, SubjectName};
use crate::topology::Isolation;
use crate::work_dir::WorkDir;
use fabric::Fabric;
use kind::Kind;
use requests::Requests;

/// What to run, and where.
#[derive(Debug, Clone)]
pub struct ExperimentOptions {
    /// The binary whose parts are started.
    pub binary: PathBuf,
    pub isolation: Isolation,
    pub length: LengthName,
    /// Instead of the length's.
    pub blocks: Option<u32>,
    /// Instead of the length's.
    pub window: Option<Duration>,
    /// Instead of the scenario's; what a case names that is not among them is left out.
    pub subjects: Option<Vec<SubjectName>>,
    /// Subjects of the catalogue that are not built in, for a resumed experiment.
    pub subject_files: Vec<SubjectText>,
    pub gate: Gate,
    /// Of links, load and bootstrap.
    pub seed: u64,
    /// Kept in the record.
    pub command_line: Vec<String>,
    /// Kept in the record.
    pub version: String,
    /// Where the working directory is made; it is removed after success.
    pub work_root: PathBuf,
    /// Keep each finished run, so that an ended experiment can go on.
    pub resumable: bool,
}

impl ExperimentOptions {
    /// The usual length, by the binary that is running.
    pub fn new(isolation: Isolation) -> Result<Self, LabError> {
        let binary = std::env::current_exe().map_err(|source| LabError::OwnBinary { source })?;
        Ok(Self {
            binary,
            isolation,
            length: LengthName::Usual,
            blocks: None,
            window: None,
            subjects: None,
            subject_files: Vec::new(),
            gate: Gate::default(),
            seed: 1,
            command_line: std::env::args().collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            work_root: std::env::temp_dir(),
            resumable: true,
        })
    }
}

/// A scenario with the text it was read from, which a resumed experiment reads again.
#[derive(Debug, Clone)]
pub struct Experiment {
    pub scenario: AnyScenario,
    pub text: String,
    pub options: ExperimentOptions,
}

/// What would be run here, and what would be left out and why.
#[derive(Debug)]
pub struct Preview {
    /// A few lines for the screen.
    pub plan: String,
    /// From the start to the end of the last run, without repetitions.
    pub expected: Duration,
    pub left_out: Vec<String>,
}

impl Experiment {
    /// Decides everything that can be decided without starting anything.
    pub fn preview(&self, catalogue: &Catalogue) -> Result<Preview, LabError> {
        match &self.scenario {
            AnyScenario::Requests(scenario) => {
                let prepared = requests::prepare(scenario, &self.options, catalogue)?;
                let (plan, left_out) = (prepared.plan, prepared.left_out);
                Ok(Preview { plan: plan.to_string(), expected: plan.expected, left_out })
            }
            AnyScenario::Fabric(scenario) => {
                let fabric::Prepared { plan, left_out } = fabric::prepare(scenario, &self.options);
                Ok(Preview { plan: plan.to_string(), expected: plan.expected, left_out })
            }
        }
    }

    /// Runs it; Ctrl-C, SIGTERM and SIGHUP end it early and clean up. Blocks the calling thread,
    /// from which all processes are started.
    pub fn run(
        &self,
        catalogue: &Catalogue,
        progress: &mut dyn Progress,
    ) -> Result<Record, LabError> {
        let cancel = Cancel::on_signals().map_err(|source| LabError::Signals { source })?;
        self.run_until(catalogue, &cancel, progress)
    }

    /// Like [`Experiment::run`], ended by `cancel`.
    pub fn run_until(
        &self,
        catalogue: &Catalogue,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Record, LabError> {
        self.check_privilege()?;
        let root = &self.options.work_root;
        let failed = |source| LabError::WorkDir { dir: root.clone(), source };
        let dir = WorkDir::create(root).map_err(failed)?;
        let journal = if self.options.resumable {
            Some(Journal::create(dir.path(), &self.header())?)
        } else {
            None
        };
        self.carry_on(dir, journal, catalogue, cancel, progress)
    }

    /// Goes on with an experiment that was ended, in its directory.
    pub fn resume(
        &self,
        dir: &Path,
        catalogue: &Catalogue,
        progress: &mut dyn Progress,
    ) -> Result<Record, LabError> {
        let cancel = Cancel::on_signals().map_err(|source| LabError::Signals { source })?;
        self.check_privilege()?;
        let failed = |source| LabError::WorkDir { dir: dir.to_path_buf(), source };
        let dir = WorkDir::reopen(dir).map_err(failed)?;
        let journal = Journal::open(dir.path())?;
        self.carry_on(dir, Some(journal), catalogue, &cancel, progress)
    }

    fn carry_on(
        &self,
        dir: WorkDir,
        mut journal: Option<Journal>,
        catalogue: &Catalogue,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Record, LabError> {
        let result = self.run_in(dir.path(), &mut journal, catalogue, cancel, progress);
        let resumable = journal.is_some_and(|journal| journal.finished() > 0);
        result.map_err(|error| match (error.is_cancelled(), resumable) {
            (true, false) => error,
            (true, true) => {
                let left = dir.keep_journal();
                LabError::Interrupted { dir: left, source: Box::new(error) }
            }
            (false, _) => LabError::Failed { logs: dir.keep(), source: Box::new(error) },
        })
    }

    fn run_in(
        &self,
        dir: &Path,
        journal: &mut Option<Journal>,
        catalogue: &Catalogue,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Record, LabError> {
        let started = (SystemTime::now(), Instant::now());
        let options = &self.options;
        match &self.scenario {
            AnyScenario::Requests(scenario) => {
                let prepared = requests::prepare(scenario, options, catalogue)?;
                let scenario = (&**scenario, options);
                let mut kind = Requests::start(dir, scenario, &prepared, cancel, progress)?;
                self.measure(&mut kind, journal, started, progress)
            }
            AnyScenario::Fabric(scenario) => {
                let prepared = fabric::prepare(scenario, options);
                let scenario = (&**scenario, options);
                let mut kind = Fabric::start(dir, scenario, &prepared, cancel, progress)?;
                self.measure(&mut kind, journal, started, progress)
            }
        }
    }

    /// Makes the runs of what is running, stops it and makes the record.
    fn measure(
        &self,
        kind: &mut dyn Kind,
        journal: &mut Option<Journal>,
        (started_at, started): (SystemTime, Instant),
        progress: &mut dyn Progress,
    ) -> Result<Record, LabError> {
        let mut measured = measure::measure(kind, self.options.gate, journal, progress)?;
        progress.report(&Event::Step("stopping everything"));
        measured.warnings.extend(kind.stop());
        for warning in &measured.warnings {
            progress.report(&Event::Warning(warning));
        }
        let timing = assemble::Timing {
            started_at: journal.as_ref().map_or(started_at, Journal::started_at),
            duration: started.elapsed()
                + journal.as_ref().map_or(Duration::ZERO, Journal::spent_before),
        };
        assemble::record(self, kind, measured, &timing)
    }

    fn check_privilege(&self) -> Result<(), LabError> {
        match &self.scenario {
            AnyScenario::Requests(_) => Ok(()),
            AnyScenario::Fabric(scenario) => fabric::check_privilege(scenario, &self.options),
        }
    }

    fn header(&self) -> Header {
        let options = &self.options;
        Header {
            scenario: self.text.clone(),
            started_at: SystemTime::now(),
            version: options.version.clone(),
            length: options.length,
            blocks: options.blocks,
            window_s: options.window.map(|window| window.as_secs_f64()),
            subjects: options
                .subjects
                .as_ref()
                .map(|subjects| subjects.iter().map(ToString::to_string).collect()),
            subject_files: options.subject_files.clone(),
            seed: options.seed,
            command_line: options.command_line.clone(),
        }
    }
}
