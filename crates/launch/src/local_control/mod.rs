//! The local control plane: one for each user of a machine. `tollway run` starts it on demand, and
//! commands that name no control plane use it.
//!
//! It is a process of its own (`process`), since it outlives the process that starts it. A file in
//! its directory (`directory`) holds its address (`state`); only its admin socket proves that it
//! runs. A lock decides which of several processes starts it (`start`). `restart` starts one again
//! that crashed.

mod directory;
mod process;
mod restart;
mod start;
mod state;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tokio::net::UnixStream;
use tollway_control::{AdminClient, AdminError};
use tollway_model::{AppId, ErrorCode, Label};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

pub use directory::DirectoryError;
pub use process::{ServeError, serve};
pub use restart::{ControlEvent, restart_when_absent};
use state::State;

/// How long the control plane stays after its last workload, in milliseconds, unless told
/// otherwise.
pub const LINGER_MS: u64 = 60_000;

/// Time for a control plane of this machine to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Folder of the store and the admin socket.
const STORE: &str = "control";

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
        "the local control plane did not start within {} s; look into its log, {}",
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

/// A local control plane that lives.
#[derive(Clone, Debug)]
pub struct LocalControl {
    directory: PathBuf,
    state: State,
    /// This process started it.
    pub started: bool,
}

/// The local control plane of this user, if it runs. One that crashed is started again, since its
/// workloads wait for it.
///
/// # Errors
/// [`LocalError`], first of all when its directory is not to be trusted.
pub async fn find() -> Result<Option<LocalControl>, LocalError> {
    let Some(directory) = directory::existing()? else { return Ok(None) };
    if let Some(found) = find_in(&directory).await {
        return Ok(Some(found));
    }
    match State::read(&directory) {
        Some(State { pid: 1.., linger_ms, .. }) => {
            find_or_start(Duration::from_millis(linger_ms)).await.map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

/// Whether a local control plane runs.
pub enum Found {
    Running(LocalControl),
    /// It left its state behind; the next command starts it again.
    Crashed,
    Nothing,
}

/// Finds out whether the local control plane of this user runs; starts none.
///
/// # Errors
/// [`LocalError::Directory`] when its directory is not to be trusted, [`LocalError::Silent`] when
/// it does not answer.
pub async fn inspect() -> Result<Found, LocalError> {
    let Some(directory) = directory::existing()? else { return Ok(Found::Nothing) };
    let Some(running) = find_in(&directory).await else {
        let crashed = State::read(&directory).is_some_and(|state| state.pid > 0);
        return Ok(if crashed { Found::Crashed } else { Found::Nothing });
    };
    let status = async { AdminClient::connect(&running.store()).await?.status().await };
    let pid = running.state.pid;
    let silent = |_| LocalError::Silent { pid, timeout: ANSWER_TIMEOUT };
    tokio::time::timeout(ANSWER_TIMEOUT, status).await.map_err(silent)??;
    Ok(Found::Running(running))
}

/// The local control plane of this user; starts it if need be. `linger`: how long it then stays
/// after its last workload.
///
/// # Errors
/// [`LocalError`].
pub async fn find_or_start(linger: Duration) -> Result<LocalControl, LocalError> {
    let directory = directory::prepared()?;
    if let Some(found) = find_in(&directory).await {
        return Ok(found);
    }
    let _lock = start::lock(&directory).await?;
    if let Some(found) = find_in(&directory).await {
        return Ok(found);
    }
    start::start(&directory, linger).await
}

/// The process that listens on the socket must be the one that wrote the state: a crash leaves
/// both files behind.
async fn find_in(directory: &Path) -> Option<LocalControl> {
    let state = State::read(directory)?;
    let peer = UnixStream::connect(socket(directory)).await.ok()?.peer_cred().ok()?;
    let listens = peer.pid().and_then(|pid| u32::try_from(pid).ok()) == Some(state.pid);
    listens.then(|| LocalControl { directory: directory.to_owned(), state, started: false })
}

fn socket(directory: &Path) -> PathBuf {
    directory.join(STORE).join(tollway_control::SOCKET_NAME)
}

impl LocalControl {
    /// Where workloads connect, as `host:port`.
    pub fn address(&self) -> String {
        self.state.control.to_string()
    }

    /// Its store, by which its admin socket is found.
    pub fn store(&self) -> PathBuf {
        self.directory.join(STORE)
    }

    /// A warning when another version of this program started it.
    pub fn version_skew(&self) -> Option<String> {
        let own = env!("CARGO_PKG_VERSION");
        let running = &self.state.version;
        (running != own).then(|| {
            format!(
                "the local control plane has version {running}, this is {own}\n\
                 hint: to replace it, end its apps and `kill {}`",
                self.state.pid
            )
        })
    }

    /// A join token for one app.
    ///
    /// # Errors
    /// [`LocalError::Silent`], [`LocalError::Admin`].
    pub async fn token(
        &self,
        app: &AppId,
        namespace: &Label,
        ttl: Duration,
    ) -> Result<String, LocalError> {
        let scope = v1::AppScope { namespace: namespace.to_string(), app: app.to_string() };
        let request =
            v1::CreateTokenRequest { scope: Some(Scope::App(scope)), ttl_s: ttl.as_secs() };
        let created =
            async { AdminClient::connect(&self.store()).await?.create_token(request).await };
        let silent = |_| LocalError::Silent { pid: self.state.pid, timeout: ANSWER_TIMEOUT };
        let created = tokio::time::timeout(ANSWER_TIMEOUT, created).await.map_err(silent)?;
        Ok(created?.token)
    }
}
