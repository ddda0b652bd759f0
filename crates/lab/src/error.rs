//! Why a scenario could not be run to its end.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tollway_model::ErrorCode;
use tollway_net::device::DeviceError;
use tollway_net::netns::NetnsError;
use tollway_record::neighbours::NeighbourRunError;
use tollway_record::run::RunError;
use tollway_record::{CompareError, HistogramError};

use crate::affinity::AffinityError;
use crate::cancel::Cancelled;
use crate::cgroup::CgroupError;
use crate::experiment::RoundError;
use crate::experiment::{JournalError, PlanError};
use crate::ping::PingError;
use crate::process::ProcessError;
use crate::sample::SampleError;
use crate::subject::{CertificateError, TemplateError};
use tollway_net::ports_file::PortsError;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("cannot make a working directory in {dir}; set TMPDIR to one that is writable")]
    WorkDir { dir: PathBuf, source: io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot find the running program's own file; give the tollway binary explicitly")]
    OwnBinary { source: io::Error },
    #[error("cannot listen for signals")]
    Signals { source: io::Error },
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Ping(#[from] PingError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("the description of {subject} cannot be used")]
    Adapter { subject: String, source: TemplateError },
    #[error("no listener {name:?} was published")]
    Unpublished { name: String },
    #[error("no subject is called {name}; known are {known}")]
    UnknownSubject { name: String, known: String },
    #[error("{subject} gave no way to call {row}")]
    NoRoute { subject: String, row: String },
    #[error(
        "{subject} has no sidecar that could activate an actor behind {url}; name only subjects with sidecars \
         in the case's `subjects`"
    )]
    NoActors { subject: String, url: String },
    #[error(
        "{subject} needs networks that packets cross; run as root, or where user namespaces and \
         TUN are allowed"
    )]
    NeedsPackets { subject: String },
    #[error("{subject} cannot run: {why}")]
    MissingProgram { subject: String, why: String },
    #[error(
        "{scenario} writes tables of the kernel, which needs root on the host: {why}; run it as root"
    )]
    NeedsRoot { scenario: String, why: String },
    #[error("the rounds of {row} have no times")]
    Round { row: String, source: RoundError },
    #[error("what `{command}` has printed is not usable")]
    Rounds { command: String, source: NeighbourRunError },
    #[error("the marks that the agent has written are not usable ({path})")]
    Marks { path: PathBuf, source: serde_json::Error },
    #[error("{row}: the kernel's table has {found} neighbours, {expected} were written")]
    TableDiffers { row: String, expected: u64, found: u64 },
    #[error(transparent)]
    Device { source: DeviceError },
    #[error("cannot find a free port in {network}")]
    FreePort { network: String, source: io::Error },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    #[error("the experiment was stopped already")]
    Stopped,
    /// The user ended it, and it can go on.
    #[error("{source}; go on with: tollway lab run --resume {}", .dir.display())]
    Interrupted { dir: PathBuf, source: Box<LabError> },
    #[error(
        "calls to {service} did not succeed within {} s of trying: {requests} answered, \
         {errors} failed ({kinds}) in the last attempt",
        .limit.as_secs()
    )]
    Unreachable { service: String, limit: Duration, requests: u64, errors: u64, kinds: String },
    #[error("cannot read the result of the load generator for {row} ({path})")]
    ReadResult { row: String, path: PathBuf, source: io::Error },
    #[error("the load generator's result for {row} is not usable ({path})")]
    Result { row: String, path: PathBuf, source: RunError },
    #[error("the runs of {row} cannot be merged")]
    Merge { row: String, source: HistogramError },
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// The error, and the folder of all logs.
    #[error("{source}; logs of all processes: {}", .logs.display())]
    Failed { logs: PathBuf, source: Box<LabError> },
}

impl LabError {
    /// Its entry in the catalogue of failures.
    #[must_use]
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others concern one run only")]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::WorkDir { source, .. } | Self::Write { source, .. } => {
                Some(ErrorCode::of_file(source, ErrorCode::FileUnusable))
            }
            Self::Namespace(NetnsError::Create { .. } | NetnsError::UserNamespace { .. }) => {
                Some(ErrorCode::MissingPrivilege)
            }
            Self::NeedsRoot { .. } => Some(ErrorCode::MissingPrivilege),
            Self::Failed { source, .. } => source.code(),
            _ => None,
        }
    }

    /// Whether the user ended it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        if let Self::Failed { source, .. } | Self::Interrupted { source, .. } = self {
            return source.is_cancelled();
        }
        matches!(self, Self::Cancelled(_) | Self::Process(ProcessError::Cancelled(_)))
    }
}
