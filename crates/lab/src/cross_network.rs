//! The scenario `cross-network`: what a call costs within a network, to another network of the
//! same region, and to another region, with and without Tollway.
//!
//! Three networks stand side by side (`west`, where the caller is, `near` and `far`), rather than
//! one whose link is changed: TCP's BBR keeps the shortest round trip it saw for ten seconds.
//! Stages: `bench` starts everything, `measure` runs the plan, `assemble` makes the record.

mod assemble;
mod bench;
mod measure;
mod mesh;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use tollway_record::Record;
use tollway_record::record::{Protocol, Topology};

use crate::cancel::Cancel;
use crate::error::LabError;
use crate::plan::{self, Placement, SubjectKind, Workload};
use crate::progress::{Event, Progress};
use crate::topology::Isolation;
use crate::work_dir::WorkDir;
use bench::Bench;

/// The scenario's name in the record.
pub const SCENARIO: &str = "cross-network";

/// Kept back from the budget for stopping everything and writing the result.
const CLOSING_RESERVE: Duration = Duration::from_secs(4);
/// Round trip between networks of the same region.
const NEAR_RTT: Duration = Duration::from_micros(800);
/// Round trip between the regions: UK South to West US.
const FAR_RTT: Duration = Duration::from_millis(138);

/// What to run.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The binary whose parts are started.
    pub binary: PathBuf,
    pub isolation: Isolation,
    /// [`Workload::budget`] counts from the start of the scenario here, start-up included.
    pub workload: Workload,
    /// One-way variation of the links' delay; on each at most its delay.
    pub jitter: Duration,
    /// Share of packets lost on the links, each way.
    pub loss: f64,
    /// Of links, load and bootstrap.
    pub seed: u64,
    /// Kept in the record.
    pub command_line: Vec<String>,
    /// Kept in the record.
    pub version: String,
    /// Where the working directory is made; it is removed after success.
    pub work_root: PathBuf,
}

impl DemoOptions {
    /// The whole scenario in less than three minutes, or less than one with `quick`, by the
    /// binary that is running.
    pub fn new(isolation: Isolation, quick: bool) -> Result<Self, LabError> {
        let binary = std::env::current_exe().map_err(|source| LabError::OwnBinary { source })?;
        let placement = |topology, rtt| Placement { topology, rtt };
        let (blocks, budget_s) = if quick { (3, 55) } else { (5, 176) };
        let workload = Workload {
            placements: vec![
                placement(Topology::SameNetwork, Duration::ZERO),
                placement(Topology::OtherNetwork, NEAR_RTT),
                placement(Topology::OtherRegion, FAR_RTT),
            ],
            protocols: vec![Protocol::Http1, Protocol::GrpcUnary],
            subjects: vec![SubjectKind::Direct, SubjectKind::Tollway],
            rate_rps: 1_000,
            connections: 16,
            payload_bytes: 1_024,
            blocks,
            budget: Duration::from_secs(budget_s),
        };
        Ok(Self {
            binary,
            isolation,
            workload,
            jitter: Duration::ZERO,
            loss: 0.0,
            seed: 1,
            command_line: std::env::args().collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            work_root: std::env::temp_dir(),
        })
    }
}

/// Runs the scenario; Ctrl-C, SIGTERM and SIGHUP end it early and clean up. Blocks the calling
/// thread, from which all processes are started.
pub fn run_demo(options: &DemoOptions, progress: &mut dyn Progress) -> Result<Record, LabError> {
    let cancel = Cancel::on_signals().map_err(|source| LabError::Signals { source })?;
    run(options, &cancel, progress)
}

/// Like [`run_demo`], ended by `cancel`.
pub fn run(
    options: &DemoOptions,
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<Record, LabError> {
    let root = &options.work_root;
    let dir =
        WorkDir::create(root).map_err(|source| LabError::WorkDir { dir: root.clone(), source })?;
    run_in(dir.path(), options, cancel, progress).map_err(|error| {
        if error.is_cancelled() {
            return error;
        }
        LabError::Kept { logs: dir.keep(), source: Box::new(error) }
    })
}

fn run_in(
    dir: &std::path::Path,
    options: &DemoOptions,
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<Record, LabError> {
    let (started_at, started) = (SystemTime::now(), Instant::now());
    // A workload that cannot fit is refused before anything is started.
    plan::plan(options.workload.clone())?;
    let mut bench = Bench::start(dir, options, cancel, progress)?;
    let workload = Workload {
        budget: options
            .workload
            .budget
            .saturating_sub(started.elapsed())
            .saturating_sub(CLOSING_RESERVE),
        ..options.workload.clone()
    };
    let plan = plan::plan(workload)?;
    progress.told(&Event::Plan(&plan));
    let mut measured = measure::measure(&mut bench, &plan, cancel, progress)?;
    progress.told(&Event::Step("stopping everything"));
    measured.warnings.extend(bench.stop());
    for warning in &measured.warnings {
        progress.told(&Event::Warning(warning));
    }
    let timing = assemble::Timing { started_at, duration: started.elapsed() };
    assemble::record(options, &plan, measured, timing)
}
