//! A local control plane that runs: its address, its admin socket, its tokens.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use tollway_control::AdminClient;
use tollway_model::{AppId, Label};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

use super::error::LocalError;
use super::state::{STORE, State, socket};

/// Time for a control plane of this machine to answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A local control plane that lives.
#[derive(Clone, Debug)]
pub struct LocalControl {
    directory: PathBuf,
    pub(super) state: State,
    /// This process started it.
    pub started: bool,
}

/// The process that listens on the socket must be the one that wrote the state: a crash leaves
/// both files behind.
pub(super) async fn find_in(directory: &Path) -> Option<LocalControl> {
    let state = State::read(directory)?;
    let peer = UnixStream::connect(socket(directory)).await.ok()?.peer_cred().ok()?;
    let listens = peer.pid().and_then(|pid| u32::try_from(pid).ok()) == Some(state.pid);
    listens.then(|| LocalControl { directory: directory.to_owned(), state, started: false })
}

impl LocalControl {
    /// Where workloads connect.
    pub fn address(&self) -> SocketAddr {
        self.state.control
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

    /// A join token for one app. It stays in the process that asks for it, which may need it again
    /// when its certificate has ended meanwhile (a machine that slept), so its uses are not limited.
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
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let uses = Some(0);
        let request = v1::CreateTokenRequest { scope: Some(Scope::App(scope)), ttl_ms, uses };
        let created =
            async { AdminClient::connect(&self.store()).await?.create_token(request).await };
        let silent = |_| LocalError::Silent { pid: self.state.pid, timeout: ANSWER_TIMEOUT };
        let created = tokio::time::timeout(ANSWER_TIMEOUT, created).await.map_err(silent)?;
        Ok(created?.token)
    }
}
