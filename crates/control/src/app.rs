//! The one place that wires a control plane: open the store, identity first, bind, then serve.

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::DropGuard;
use tokio_util::task::AbortOnDropHandle;
use tollway_model::NetworkName;
use tollway_net::{Listener, ListenerOptions};
use tollway_store::Limits;
use tracing::{error, info, warn};

use crate::admin_client::SOCKET_NAME;
use crate::admin_port::AdminPort;
use crate::admin_socket::{bind_admin, commands};
use crate::background::Background;
use crate::error::StartError;
use crate::options::Options;
use crate::parts::Parts;
use crate::stores::Stores;
use crate::{connections, linger};

/// Name of the store's one file in its directory.
const STORE_NAME: &str = "tollway.store";
/// Time for streams to end when the control plane stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// A control plane that is bound and does not serve yet.
pub struct ControlPlane {
    parts: Parts,
    options: Options,
    listener: TcpListener,
    admin: UnixListener,
    admin_port: Arc<AdminPort>,
    /// Serves it, where it is wanted.
    shown: Option<AbortOnDropHandle<()>>,
    address: SocketAddr,
    /// Ends the background work when the control plane is dropped, served or not.
    guard: DropGuard,
}

impl ControlPlane {
    /// Opens the store, makes or reads the authority, and binds the port and the admin socket. With etcd it
    /// waits until no other control plane serves from there; it may be dropped before.
    /// Background work has begun; connections wait until [`ControlPlane::serve`].
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn bind(options: Options) -> Result<Self, StartError> {
        NetworkName::of_network(options.network.as_str())?;
        make_directory(&options.store)?;
        let admin_port = AdminPort::new(options.config.clone());
        // Another control plane of this machine may have the port, while it serves.
        let early =
            options.admin_listen.filter(|_| options.etcd.is_some()).and_then(|at| bind(at).ok());
        let mut shown = early.map(|(listener, at)| (admin_port.serve(listener), at));
        let stores = Stores::begin(&options, admin_port.other_master()).await?;
        let store = stores.open(STORE_NAME, Limits::default()).await?;
        if let Stores::Directory(directory) = &stores {
            // The directory is closed to others already; the file holds the authority's key.
            let (path, mode) = (store_file(directory), std::fs::Permissions::from_mode(0o600));
            std::fs::set_permissions(&path, mode)
                .map_err(|source| StartError::Directory { path, source })?;
        }
        let (listener, address) = bind(options.listen)
            .map_err(|source| StartError::Listen { address: options.listen, source })?;
        let mut ports = vec![("control", address)];
        if let (Some(wanted), None) = (options.admin_listen, &shown) {
            let (listener, bound) = bind(wanted)
                .map_err(|source| StartError::ListenAdmin { address: wanted, source })?;
            shown = Some((admin_port.serve(listener), bound));
        }
        let shown = shown.map(|(served, bound)| {
            ports.push(("admin", bound));
            served
        });
        let admin = bind_admin(&options.store)?;
        let parts = Parts::start(&options, address, store, stores).await?;
        if let Some(path) = &options.ports_file {
            let failed = |source| StartError::PortsFile { path: path.clone(), source };
            tollway_net::write_ports(path, ports).map_err(failed)?;
        }
        let guard = parts.background.stop.clone().drop_guard();
        Ok(Self { parts, options, listener, admin, admin_port, shown, address, guard })
    }

    /// Where workloads connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The lowest revision that every connected data plane and joined network has applied;
    /// `None` when none is connected.
    #[must_use]
    pub fn applied_everywhere(&self) -> Option<tollway_model::Revision> {
        self.parts.hub.applied_everywhere()
    }

    /// Serves until `shutdown` completes or no peer was connected for [`Options::linger`]; then ends every
    /// stream and returns within a bound.
    ///
    /// # Errors
    /// [`StartError::Lost`].
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), StartError> {
        let Self { parts, options, listener, admin, admin_port, shown, address, guard: _guard } =
            self;
        let Background { tasks, stop } = parts.background.clone();
        info!(network = %options.network, %address, "serving");
        let (ready, connections) = connections::ready_queue();
        parts.background.spawn_until_stop(connections::accept(parts.acceptor(), listener, ready));
        admin_port.show(Some(parts.facts()));
        let public = parts.public_server().serve_with_incoming_shutdown(
            ReceiverStream::new(connections),
            stop.clone().cancelled_owned(),
        );
        let private = parts
            .private_server()
            .serve_with_incoming_shutdown(commands(admin), stop.clone().cancelled_owned());
        let mut servers = Box::pin(async { tokio::join!(public, private) });
        let mut is_lost = false;
        let ended = tokio::select! {
            () = shutdown => None,
            () = linger::unused(options.linger, &parts.hub, &parts.noted) => None,
            () = parts.stores.lost() => {
                is_lost = true;
                None
            }
            ended = &mut servers => Some(ended),
        };
        let ended = match ended {
            Some(ended) => Some(ended),
            None => {
                info!("stopping");
                stop.cancel();
                tokio::time::timeout(STOP_TIMEOUT, &mut servers).await.ok()
            }
        };
        stop.cancel();
        drop(shown);
        admin_port.show(None);
        if let Some((Err(reason), _) | (_, Err(reason))) = &ended {
            error!(reason = %tollway_model::chain(reason), "a server failed");
        }
        tasks.close();
        if tokio::time::timeout(STOP_TIMEOUT, tasks.wait()).await.is_err() {
            warn!(tasks = tasks.len(), "some tasks did not end in time");
        }
        // A client must not take the socket of a control plane that has ended for one that serves.
        let _ = std::fs::remove_file(options.store.join(SOCKET_NAME));
        let stores = parts.stores.clone();
        drop(parts);
        stores.release().await;
        if is_lost { Err(StartError::Lost) } else { Ok(()) }
    }
}

/// The file of the store in a directory.
#[must_use]
pub fn store_file(directory: &Path) -> PathBuf {
    directory.join(STORE_NAME)
}

fn make_directory(path: &Path) -> Result<(), StartError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StartError::Directory { path: path.to_owned(), source })
}

/// With a queue for many connections at once, such as those of a network's sidecars after a restart:
/// a peer that finds the queue full is not answered, and tries again after a second.
fn bind(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = Listener::bind(address, ListenerOptions::default())?;
    let bound = listener.address();
    Ok((TcpListener::from_std(listener.into_socket())?, bound))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn many_connections_at_once_find_a_place_in_the_queue() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let (_listener, address) = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        // No connection is accepted: a peer without a place in the queue is not answered.
        let waiting: Vec<_> =
            (0..500).map(|_| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).collect();
        assert_eq!(waiting.len(), 500);
    }
}
