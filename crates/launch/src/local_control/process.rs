//! The process of the local control plane: `tollway local-control DIR`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use thiserror::Error;
use tollway_control::{ControlPlane, Options, StartError};
use tollway_model::{NameError, NetworkName};

use super::state::{STORE, State};

/// Name of its network.
const NETWORK: &str = "local";
/// Time for a predecessor that has stopped serving to leave the store.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// Why the process of the local control plane ended with an error.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot open {directory}")]
    Open { directory: String, source: std::io::Error },
    #[error("cannot write in {directory}")]
    Write { directory: String, source: std::io::Error },
    #[error("{0}")]
    Name(#[from] NameError),
    #[error("{0}")]
    Start(#[from] StartError),
}

/// Serves until no workload was connected for `linger`, or `shutdown` completes.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    directory: &Path,
    linger: Duration,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let shown = || directory.display().to_string();
    // Programs that remove old files from a shared directory skip locked directories.
    let held = std::fs::File::open(directory)
        .map_err(|source| ServeError::Open { directory: shown(), source })?;
    let _ = rustix::fs::flock(&held, FlockOperation::NonBlockingLockShared);
    let mut options = Options::new(directory.join(STORE), NetworkName::new(NETWORK)?);
    // Workloads of a predecessor that crashed look for it where it was.
    let before = State::read(directory).map_or(0, |state| state.control.port());
    options.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, before));
    options.linger = Some(linger);
    // All its apps are of one user. Those that are not in daprd's place share nothing.
    options.share_actor_types = true;
    let plane = bind(options).await?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let linger_ms = u64::try_from(linger.as_millis()).unwrap_or(u64::MAX);
    let mut state = State { version, pid: std::process::id(), linger_ms, control: plane.address() };
    let unwritable = |source| ServeError::Write { directory: shown(), source };
    state.write(directory).map_err(unwritable)?;
    plane.serve(shutdown).await?;
    state.pid = 0;
    state.write(directory).map_err(unwritable)
}

async fn bind(mut options: Options) -> Result<ControlPlane, StartError> {
    let until = Instant::now() + PREDECESSOR_TIMEOUT;
    loop {
        match ControlPlane::bind(options.clone()).await {
            Err(StartError::Listen { .. }) if options.listen.port() != 0 => {
                options.listen.set_port(0);
            }
            Err(error) if error.is_in_use() && Instant::now() < until => {
                tokio::time::sleep(RETRY_EVERY).await;
            }
            bound => return bound,
        }
    }
}
