//! Why apps did not start or could not run on, with the code of each failure.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;
use tollway_config::{FileError, Mistakes};
use tollway_identity::TokenError;
use tollway_intercept::InterceptError;
use tollway_model::{ErrorCode, NameError};
use tollway_proxy::DataPlaneError;
use tollway_runtime::SidecarError;

use crate::local_control::LocalError;

/// Exit codes of a shell for a command that it does not find, and for one that it may not run.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;
/// The app did not start.
#[derive(Debug, Error)]
pub enum CannotStart {
    #[error("there is no program `{program}`; check its name and your PATH")]
    Missing { program: String },
    #[error("`{program}` cannot be run; check that it is a program, and its mode")]
    Refused { program: String, source: io::Error },
}

impl CannotStart {
    /// The reason why the program did not start.
    pub(crate) fn of(program: String, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::NotFound {
            return Self::Missing { program };
        }
        Self::Refused { program, source }
    }

    /// The exit code, as a shell has it.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Missing { .. } => NOT_FOUND,
            Self::Refused { .. } => NOT_EXECUTABLE,
        }
    }
}

/// The app could not listen, and its sidecar would take the port of another process for the app's.
#[derive(Debug, Error)]
#[error("another process listens on {address}")]
pub struct AppPortTaken {
    pub address: SocketAddr,
}

/// Why apps did not start or could not run on. Texts have the form `WHAT; WHAT TO DO`.
#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("{0}")]
    Local(#[from] LocalError),
    #[error("the local control plane gave an unusable token")]
    Token(#[from] TokenError),
    /// A token is set for a control plane that is not named.
    #[error(
        "{variable} is set, and no control plane is named that it is for; name it with \
         {option} HOST:PORT, or unset {variable} to use the local one"
    )]
    UnusedToken { variable: &'static str, option: &'static str },
    #[error("{0}")]
    AppPortTaken(#[from] AppPortTaken),
    #[error("{0}")]
    CannotStart(#[from] CannotStart),
    #[error("{0}")]
    Name(#[from] NameError),
    /// The connections of the app cannot be led to its sidecar.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
    /// The sidecar did not start.
    #[error("{0}")]
    Sidecar(#[source] SidecarError),
    /// The sidecar did not end in order after the app.
    #[error("{0}")]
    Drain(#[source] DataPlaneError),
    #[error("the sidecar has ended, so the app was message to end too")]
    SidecarEnded,
    #[error("the sidecar has failed, so the app was message to end too")]
    SidecarFailed(#[source] DataPlaneError),
    /// A run file cannot be read.
    #[error("{0}")]
    File(#[from] FileError),
    /// All mistakes in a run file.
    #[error("{0}")]
    RunFile(#[from] Mistakes),
    #[error("the folder of {file} cannot be found; check the path")]
    Folder { file: String, source: io::Error },
    /// A call of the operating system failed.
    #[error("{what}")]
    System { what: String, source: io::Error },
}

impl LaunchError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }

    /// The code of the failure; `None` where the cause has one, or there is none.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::UnusedToken { .. } => Some(ErrorCode::BadConfiguration),
            Self::AppPortTaken(_) => Some(ErrorCode::PortTaken),
            Self::Intercept(_) => Some(ErrorCode::NotInterceptable),
            Self::CannotStart(_) => Some(ErrorCode::AppNotStarted),
            Self::Folder { .. } => Some(ErrorCode::FileUnusable),
            Self::RunFile(_) => Some(ErrorCode::BadConfiguration),
            Self::File(error) => Some(error.code()),
            Self::Local(_)
            | Self::Token(_)
            | Self::Name(_)
            | Self::Sidecar(_)
            | Self::Drain(_)
            | Self::SidecarEnded
            | Self::SidecarFailed(_)
            | Self::System { .. } => None,
        }
    }
}
