//! Why a supervised process could not do its part.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::cancel::Cancelled;
use tollway_net::ports_file::PortsError;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot start {name} ({})", .program.display())]
    Spawn { name: String, program: PathBuf, source: io::Error },
    #[error("cannot watch {name}")]
    Watch { name: String, source: io::Error },
    #[error("no process is called {name}")]
    Unknown { name: String },
    #[error("{name} ended with {status}{}", log_excerpt(.log, .tail))]
    Exited { name: String, status: ExitStatus, log: PathBuf, tail: String },
    #[error("{name} was not ready ({what}) after {} s{}", .limit.as_secs_f64(), log_excerpt(.log, .tail))]
    NotReady { name: String, what: &'static str, limit: Duration, log: PathBuf, tail: String },
    #[error("{name} did not end within {} s{}", .limit.as_secs_f64(), log_excerpt(.log, .tail))]
    TooLong { name: String, limit: Duration, log: PathBuf, tail: String },
    #[error("cannot use log file {}", .path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Ports { source: PortsError },
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// The end of the process's log, for the end of a message.
fn log_excerpt(log: &std::path::Path, tail: &str) -> String {
    if tail.is_empty() {
        return "; it printed nothing".into();
    }
    let indented: String = tail.lines().map(|line| format!("\n  | {line}")).collect();
    format!("; the end of {}:{indented}", log.display())
}
