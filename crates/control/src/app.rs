//! The one place that wires a control plane: open the store, identity first, bind, then serve.

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tollway_net::{Listener, ListenerOptions};
use tollway_store::{Limits, Store};
use tollway_telemetry::serve_admin;
use tollway_wire::v1::admin_server::AdminServer;
use tollway_wire::v1::discovery_server::DiscoveryServer;
use tollway_wire::v1::identity_server::IdentityServer;
use tollway_wire::v1::neighbours_server::NeighboursServer;
use tollway_wire::v1::peering_server::PeeringServer;
use tollway_wire::v1::placement_server::PlacementServer;
use tollway_wire::v1::registry_server::RegistryServer;
use tollway_wire::v1::reminders_server::RemindersServer;
use tollway_wire::v1::state_server::StateServer;
use tollway_wire::{MESSAGE_LIMIT_BYTES, REMINDERS_REQUEST_BYTES};
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};
use tracing::{error, info, warn};

use crate::admin::AdminService;
use crate::admin_client::SOCKET_NAME;
use crate::admin_socket::{bind_admin, commands};
use crate::app_state::{AppState, STATE_REQUEST_BYTES, StateService};
use crate::catalogue::{Catalogue, Home};
use crate::discovery::DiscoveryService;
use crate::error::StartError;
use crate::holders::Holders;
use crate::hub::Hub;
use crate::issue::IdentityService;
use crate::metrics::{CommitMetrics, ControlFacts};
use crate::neighbours::{Door, NEIGHBOURS_REQUEST_BYTES, Neighbours, NeighboursService};
use crate::options::Options;
use crate::peering::{PeeringService, join, link};
use crate::placement::{PlacementService, Placements};
use crate::places::Places;
use crate::plane::Plane;
use crate::registry::RegistryService;
use crate::reminders::{Reminders, RemindersService};
use crate::standstill::Standstill;
use crate::stores::Stores;
use crate::untaken::CountUntaken;
use crate::{feed, linger, listener, own, sweep};

/// Name of the store's one file in its directory.
const STORE_NAME: &str = "tollway.store";
/// Streams of one connection.
const STREAMS_PER_CONNECTION_LIMIT: u32 = 64;
/// Requests of one connection that are worked on at once.
const REQUESTS_PER_CONNECTION_LIMIT: usize = 64;
/// Bytes of one request that names one workload, one network or a bundle of roots. Anybody may send
/// such a one; what follows services by name may be as long as [`MESSAGE_LIMIT_BYTES`], and is read
/// only from workloads and networks with a certificate.
const REQUEST_LIMIT_BYTES: usize = 32 << 10;
/// Bytes that a peer may send on a stream and on a connection before they are taken.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of a head, and 32 for each line.
const HEAD_LIMIT_BYTES: u32 = 16 << 10;
/// Streams of one connection that were called off before they were looked at, and streams that had
/// to be reset for its peer's mistakes: over either, the connection ends.
const CALLED_OFF_LIMIT: usize = 20;
const MISTAKES_LIMIT: usize = 256;
/// A connection that does not answer a ping is closed after this and [`PING_TIMEOUT`].
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for streams to end when the control plane stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Binds and serves until `shutdown` completes.
///
/// # Errors
/// [`StartError`]; once it serves it ends only by `shutdown`, [`Options::linger`], or because
/// another control plane may serve from the same etcd.
pub async fn serve(
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), StartError> {
    let mut shutdown = std::pin::pin!(shutdown);
    let bound = tokio::select! {
        bound = ControlPlane::bind(options) => bound?,
        // One that stands by may be told to stop, too.
        () = &mut shutdown => return Ok(()),
    };
    bound.serve(shutdown).await
}

/// A control plane that is bound and does not serve yet.
pub struct ControlPlane {
    plane: Arc<Plane>,
    listener: TcpListener,
    admin: UnixListener,
    /// Metrics and health, where wanted.
    metrics: Option<TcpListener>,
    commits: Arc<CommitMetrics>,
    address: SocketAddr,
    /// Ends the background work when the control plane is dropped, served or not.
    guard: DropGuard,
}

impl ControlPlane {
    /// Opens the store, makes or reads the authority, and binds the port and the admin socket.
    /// Background work has begun; connections wait until [`ControlPlane::serve`].
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn bind(options: Options) -> Result<Self, StartError> {
        make_directory(&options.store)?;
        let stores = Stores::begin(&options).await?;
        let store = stores.open(STORE_NAME, Limits::default()).await?;
        if let Stores::Directory(directory) = &stores {
            // The directory is closed to others already; the file holds the authority's key.
            let (path, mode) = (store_file(directory), std::fs::Permissions::from_mode(0o600));
            std::fs::set_permissions(&path, mode)
                .map_err(|source| StartError::Directory { path, source })?;
        }
        let commits = Arc::new(CommitMetrics::default());
        let recorder = commits.clone();
        store.observe_commits(move |commit| recorder.record(commit));
        let (listener, address) = bind(options.listen)
            .map_err(|source| StartError::Listen { address: options.listen, source })?;
        let mut ports = vec![("control", address)];
        let mut metrics = None;
        if let Some(wanted) = options.admin_listen {
            let (listener, bound) = bind(wanted)
                .map_err(|source| StartError::ListenAdmin { address: wanted, source })?;
            ports.push(("admin", bound));
            metrics = Some(listener);
        }
        let admin = bind_admin(&options.store)?;
        let plane = start(options, store, stores).await?;
        if let Some(path) = &plane.options.ports_file {
            let failed = |source| StartError::PortsFile { path: path.clone(), source };
            tollway_net::write_ports(path, ports).map_err(failed)?;
        }
        let guard = plane.stop.clone().drop_guard();
        Ok(Self { plane, listener, admin, metrics, commits, address, guard })
    }

    /// Where workloads connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The lowest revision that every connected data plane and joined network has applied;
    /// `None` when nobody is connected.
    #[must_use]
    pub fn applied_everywhere(&self) -> Option<tollway_model::Revision> {
        self.plane.hub.applied_everywhere()
    }

    /// Serves until `shutdown` completes or nobody came for [`Options::linger`]; then tells every
    /// stream and returns within a bound.
    ///
    /// # Errors
    /// [`StartError::Lost`].
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), StartError> {
        let Self { plane, listener, admin, metrics, commits, address, guard: _guard } = self;
        info!(network = %plane.authority.network(), %address, "serving");
        let (ready, connections) = listener::ready_queue();
        plane.tasks.spawn(listener::accept(plane.clone(), listener, ready));
        let stop = plane.stop.clone();
        if let Some(listener) = metrics {
            let facts = Arc::new(ControlFacts { plane: plane.clone(), commits });
            let serving = serve_admin(facts, listener);
            plane.tasks.spawn(stop.clone().run_until_cancelled_owned(serving));
        }
        let public = public_server(&plane).serve_with_incoming_shutdown(
            ReceiverStream::new(connections),
            stop.clone().cancelled_owned(),
        );
        let neighbours = NeighboursService { plane: plane.clone(), door: Door::Operator };
        let private = Server::builder()
            .add_service(AdminServer::new(AdminService(plane.clone())))
            .add_service(
                NeighboursServer::new(neighbours)
                    .max_decoding_message_size(NEIGHBOURS_REQUEST_BYTES),
            )
            .serve_with_incoming_shutdown(commands(admin), stop.clone().cancelled_owned());
        let mut servers = Box::pin(async { tokio::join!(public, private) });
        let mut is_lost = false;
        let told_to_stop = tokio::select! {
            () = shutdown => None,
            () = linger::unused(&plane) => None,
            () = plane.stores.lost() => {
                is_lost = true;
                None
            }
            ended = &mut servers => Some(ended),
        };
        let ended = match told_to_stop {
            Some(ended) => Some(ended),
            None => {
                info!("stopping");
                stop.cancel();
                tokio::time::timeout(STOP_TIMEOUT, &mut servers).await.ok()
            }
        };
        stop.cancel();
        if let Some((Err(reason), _) | (_, Err(reason))) = &ended {
            error!(reason = %tollway_model::chain(reason), "a server failed");
        }
        plane.tasks.close();
        if tokio::time::timeout(STOP_TIMEOUT, plane.tasks.wait()).await.is_err() {
            warn!(tasks = plane.tasks.len(), "some tasks did not end in time");
        }
        // The socket of a control plane that is gone must not be taken for a living one.
        let _ = std::fs::remove_file(plane.options.store.join(SOCKET_NAME));
        let stores = plane.stores.clone();
        drop(plane);
        stores.release().await;
        if is_lost { Err(StartError::Lost) } else { Ok(()) }
    }
}

fn public_server(plane: &Arc<Plane>) -> Router<Stack<CountUntaken, Identity>> {
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_LIMIT)
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_LIMIT)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEAD_LIMIT_BYTES)
        .http2_max_pending_accept_reset_streams(Some(CALLED_OFF_LIMIT))
        .http2_max_local_error_reset_streams(Some(MISTAKES_LIMIT))
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .layer(CountUntaken)
        .add_service(
            IdentityServer::new(IdentityService(plane.clone()))
                .max_decoding_message_size(REQUEST_LIMIT_BYTES),
        )
        .add_service(
            RegistryServer::new(RegistryService(plane.clone()))
                .max_decoding_message_size(REQUEST_LIMIT_BYTES),
        )
        .add_service(
            DiscoveryServer::new(DiscoveryService(plane.clone()))
                .max_decoding_message_size(MESSAGE_LIMIT_BYTES),
        )
        .add_service(
            PlacementServer::new(PlacementService(plane.clone()))
                .max_decoding_message_size(MESSAGE_LIMIT_BYTES),
        )
        .add_service(
            PeeringServer::new(PeeringService(plane.clone()))
                .max_decoding_message_size(REQUEST_LIMIT_BYTES),
        )
        .add_service(
            StateServer::new(StateService(plane.clone()))
                .max_decoding_message_size(STATE_REQUEST_BYTES),
        )
        .add_service(
            RemindersServer::new(RemindersService(plane.clone()))
                .max_decoding_message_size(REMINDERS_REQUEST_BYTES),
        )
        .add_service(
            NeighboursServer::new(NeighboursService { plane: plane.clone(), door: Door::Mesh })
                .max_decoding_message_size(REQUEST_LIMIT_BYTES),
        )
}

/// Identity, catalogue and the tasks that keep them current.
async fn start(options: Options, store: Store, stores: Stores) -> Result<Arc<Plane>, StartError> {
    let authority = own::load_authority(&store, &options).await?;
    let home = Home {
        network: options.network.clone(),
        trust_domain: options.trust_domain.clone(),
        root: authority.root_der().to_vec(),
        egress: options.egress,
    };
    let hub = Hub::new(feed::load(&store, home).await?);
    let ttl = options.certificate_ttl;
    let credentials = own::issue(&authority, &hub.read(Catalogue::trust), ttl)?;
    let (current, credentials) = watch::channel(Arc::new(credentials));
    let placements = Arc::new(Placements::load(&store, options.timing.actor_lease).await?);
    let plane = Arc::new(Plane {
        places: Arc::new(Places::new(options.connections)),
        options,
        store,
        stores,
        hub,
        app_state: AppState::default(),
        reminders: Reminders::default(),
        neighbours: Neighbours::default(),
        authority: Arc::new(authority),
        holders: Holders::default(),
        standstill: Standstill::default(),
        placements: placements.clone(),
        connected: Arc::default(),
        credentials,
        stop: CancellationToken::new(),
        tasks: TaskTracker::new(),
        used: AtomicBool::new(false),
    });
    let until_stop = |plane: &Plane| plane.stop.clone();
    let feed = feed::run(plane.store.clone(), plane.hub.clone());
    plane.tasks.spawn(until_stop(&plane).run_until_cancelled_owned(feed));
    let keep = async move { placements.keep().await };
    plane.tasks.spawn(until_stop(&plane).run_until_cancelled_owned(keep));
    plane.tasks.spawn(own::keep_current(
        plane.authority.clone(),
        plane.hub.clone(),
        ttl,
        current,
        plane.stop.clone(),
    ));
    join::forget_pending(&plane).await.map_err(StartError::Pending)?;
    plane.tasks.spawn(link::supervise(plane.clone()));
    let watched = plane.clone();
    let watch = async move { watched.standstill.watch().await };
    plane.tasks.spawn(until_stop(&plane).run_until_cancelled_owned(watch));
    let sweep = sweep::run(plane.store.clone());
    plane.tasks.spawn(until_stop(&plane).run_until_cancelled_owned(sweep));
    Ok(plane)
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

/// Room for all that come at once, such as the sidecars of a network after a restart: who finds no
/// place among those who wait is not told, and tries again after a second.
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
    async fn many_who_come_at_once_find_a_place() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let (_listener, address) = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        // Nobody accepts: whoever finds no place is not answered, however often he tries.
        let waiting: Vec<_> =
            (0..500).map(|_| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).collect();
        assert_eq!(waiting.len(), 500);
    }
}
