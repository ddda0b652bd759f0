//! Why there is no local control plane to work with, with the code of each failure.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tollway_control::AdminError;
use tollway_model::ErrorCode;

use super::directory::DirectoryError;

/// Why there is no local control plane to work with.
#[derive(Debug, Error)]
pub enum LocalError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("no local control plane runs; start an app with `tollway run`, or name another one")]
    NotRunning,
    #[error("cannot lock {}", path.display())]
    Lock { path: PathBuf, source: std::io::Error },
    #[error(
        "another process has been starting the local control plane for {} s; end it, or remove {}",
        timeout.as_secs(), path.display()
    )]
    Busy { path: PathBuf, timeout: Duration },
    #[error("cannot start the local control plane")]
    Spawn(#[source] std::io::Error),
    #[error("the local control plane did not start: {reason}; {hint}")]
    Ended { reason: String, hint: String, code: Option<ErrorCode> },
    #[error(
        "the local control plane did not start within {} s; read its log, {}",
        timeout.as_secs(), log.display()
    )]
    NotReady { timeout: Duration, log: PathBuf },
    #[error(
        "the local control plane (pid {pid}) does not answer within {} s; end it with `kill -9 {pid}` and try again",
        timeout.as_secs()
    )]
    Silent { pid: u32, timeout: Duration },
    #[error("the local control plane refused")]
    Admin(#[from] AdminError),
}

impl LocalError {
    /// Its entry in the catalogue of failures; `None` where the cause has one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Directory(error) => Some(error.code()),
            Self::Ended { code, .. } => Some(code.unwrap_or(ErrorCode::NoControlPlane)),
            Self::Lock { source, .. } => Some(ErrorCode::of_file(source, ErrorCode::FileUnusable)),
            Self::NotRunning
            | Self::Busy { .. }
            | Self::Spawn(_)
            | Self::NotReady { .. }
            | Self::Silent { .. } => Some(ErrorCode::NoControlPlane),
            Self::Admin(_) => None,
        }
    }
}
