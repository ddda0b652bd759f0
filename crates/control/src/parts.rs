//! The parts of a running control plane, and what each of its services gets of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tollway_identity::{Authority, Credentials, RootPin};
use tollway_model::{AddressRange, ErrorCode};
use tollway_store::Store;
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
use tracing::{info, warn};

use crate::admin::AdminService;
use crate::app_state::{AppState, STATE_REQUEST_BYTES, StateService};
use crate::background::Background;
use crate::catalogue::{Catalogue, Home};
use crate::commits::CommitMetrics;
use crate::connected::Connected;
use crate::connections::Acceptor;
use crate::connections::ConnectionLimits;
use crate::connections::OpenConnections;
use crate::connections::{LimitStreams, Limits, Own, ShareLimit, StreamLimits, TrackSendBacklog};
use crate::discovery::{DiscoveryService, Streams};
use crate::error::StartError;
use crate::holders::Holders;
use crate::hub::Hub;
use crate::instance_keys::InstanceKeys;
use crate::issue::{IdentityService, IssuePaces};
use crate::issued::IssuedLog;
use crate::linger::Use;
use crate::metrics::ControlFacts;
use crate::neighbours::{Access, NEIGHBOURS_REQUEST_BYTES, Neighbours, NeighboursService};
use crate::options::{ConnectionOptions, FollowOptions, Options, Timing};
use crate::pace::Paces;
use crate::peering::bundles::JoinBundles;
use crate::peering::{Moves, Peering, PeeringService, bundles, join, link};
use crate::placement::{PlacementService, Placements, release_lapsed};
use crate::pods::{Cluster, Lifetimes};
use crate::registry::{Registrations, RegistryService};
use crate::reminders::{Reminders, RemindersService};
use crate::resources::{ResourceCounts, ResourceObjects, Resources};
use crate::restored::SeenAhead;
use crate::services::{FollowedServices, Services};
use crate::standstill::Standstill;
use crate::stores::Stores;
use crate::tokens::Tokens;
use crate::{feed, own, sweep};

/// Streams of one connection.
const STREAMS_PER_CONNECTION_LIMIT: u32 = 64;
/// Requests of one connection that are worked on at once.
const REQUESTS_PER_CONNECTION_LIMIT: usize = 64;
/// Bytes of one request that names one workload, one network or a bundle of roots. Any peer may send
/// such a one; what follows services by name may be as long as [`MESSAGE_LIMIT_BYTES`], and is read
/// only from workloads and networks with a certificate.
const REQUEST_LIMIT_BYTES: usize = 32 << 10;
/// Bytes that a peer may send on a stream and on a connection before they are taken.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of a head, and 32 for each line.
const HEAD_LIMIT_BYTES: u32 = 16 << 10;
/// Streams of one connection that were cancelled before they were read, and streams that were reset
/// for the peer's errors. More of either end the connection.
const CALLED_OFF_LIMIT: usize = 20;
const MISTAKES_LIMIT: usize = 256;
/// With fewer for workloads and gateways the operator is warned.
const FEW_CONNECTIONS: usize = 1_000;
/// A connection that does not answer a ping is closed after this and [`PING_TIMEOUT`].
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// What calls at the port pass before they are served.
type PublicLayers = Stack<LimitStreams, Stack<TrackSendBacklog, Identity>>;

/// Names that a service with few instances may follow, in bytes, and what each instance adds: 500
/// names of a usual length.
const FOLLOWED_BYTES_PER_SERVICE: u64 = 16 << 20;
const FOLLOWED_STEP_BYTES: u64 = 64 << 10;

/// Made once by [`Parts::start`]; services hold clones of what they need.
pub(crate) struct Parts {
    store: Store,
    commits: Arc<CommitMetrics>,
    /// What opens the other stores.
    pub(crate) stores: Stores,
    pub(crate) hub: Arc<Hub>,
    authority: Arc<Authority>,
    /// The control plane's own, renewed and with the current trust.
    credentials: watch::Receiver<Arc<Credentials>>,
    /// Notified when they have ended, to renew them at once.
    ended: Arc<Notify>,
    keys: Arc<InstanceKeys>,
    certificate_ttl: Duration,
    cluster: Option<Cluster>,
    resources: Option<Arc<dyn Resources>>,
    services: Option<Arc<dyn Services>>,
    join_bundles: Option<Arc<dyn JoinBundles>>,
    resource_counts: Arc<ResourceCounts>,
    workload_addresses: Vec<AddressRange>,
    timing: Timing,
    app_state: Arc<AppState>,
    reminders: Arc<Reminders>,
    neighbours: Arc<Neighbours>,
    placements: Arc<Placements>,
    peering: Arc<Peering>,
    limits: Arc<ConnectionLimits>,
    streams: Arc<StreamLimits>,
    /// Bytes of the names that streams follow.
    followed: Arc<ShareLimit>,
    connected: Arc<Connected>,
    seen_ahead: Arc<SeenAhead>,
    open_connections: Arc<OpenConnections>,
    issued: IssuedLog,
    issue_paces: Arc<IssuePaces>,
    spending: Arc<Mutex<()>>,
    standstill: Arc<Standstill>,
    pub(crate) noted: Arc<Use>,
    pub(crate) background: Background,
}

/// The limits of connections that the descriptors of this process allow.
fn connections_within_descriptors(wanted: ConnectionOptions) -> ConnectionOptions {
    let descriptors = tollway_net::descriptor_limit();
    let connections = wanted.within(descriptors);
    let ConnectionOptions { authenticated, joined, unauthenticated, handshakes, .. } = connections;
    if connections == wanted || authenticated >= FEW_CONNECTIONS {
        info!(descriptors, authenticated, joined, "limits of connections");
    } else {
        let hint = ErrorCode::OutOfDescriptors.entry().remedy;
        warn!(
            descriptors,
            authenticated,
            joined,
            unauthenticated,
            handshakes,
            hint,
            "the limit of descriptors lowers the limits of connections"
        );
    }
    connections
}

fn followed_limit(options: FollowOptions) -> Arc<ShareLimit> {
    let limits = Limits::of(options.bytes, options.bytes_per_instance)
        .with_growth(FOLLOWED_BYTES_PER_SERVICE, FOLLOWED_STEP_BYTES);
    ShareLimit::new("bytes of names that it follows", limits, Own::Stays)
}

impl Parts {
    /// Reads the state and starts the tasks that keep it current.
    pub(crate) async fn start(
        options: &Options,
        address: SocketAddr,
        store: Store,
        stores: Stores,
    ) -> Result<Self, StartError> {
        let commits = Arc::new(CommitMetrics::default());
        let recorder = commits.clone();
        store.observe_commits(move |commit| recorder.record(commit));
        let authority = Arc::new(own::load_authority(&store, options).await?);
        let home = Home {
            network: options.network.clone(),
            trust_domain: options.trust_domain.clone(),
            root: authority.root_der().to_vec(),
            remote_calls: options.remote_calls,
            egress: options.egress,
            listen: address,
            peer_addresses: options.peer_addresses.clone().into(),
        };
        let hub = Hub::new(feed::load(&store, home).await?);
        let certificate_ttl = options.certificate_ttl;
        let own = own::issue(
            &authority,
            &hub.read(Catalogue::trust),
            certificate_ttl,
            options.key_exchange,
        )?;
        let (current, credentials) = watch::channel(Arc::new(own));
        let timing = options.timing.clone();
        let placements =
            Placements::load(&store, timing.actor_lease, options.share_actor_types).await?;
        let placements = Arc::new(placements);
        let keys = Arc::new(InstanceKeys::load(store.clone(), options).await?);
        let (background, standstill) = (Background::default(), Arc::<Standstill>::default());
        let peering = Arc::new(Peering {
            store: store.clone(),
            hub: hub.clone(),
            authority: authority.clone(),
            current: credentials.clone(),
            timing: timing.clone(),
            key_exchange: options.key_exchange,
            background: background.clone(),
            counts: Arc::default(),
            moves: Moves::default(),
        });
        let reminders = Reminders::new(stores.clone(), placements.clone(), background.clone());
        let neighbours = Neighbours::new(stores.clone(), options.neighbours, background.clone());
        let connections = connections_within_descriptors(options.connections);
        let parts = Self {
            app_state: Arc::new(AppState::new(stores.clone(), background.clone())),
            reminders: Arc::new(reminders),
            neighbours: Arc::new(neighbours),
            limits: Arc::new(ConnectionLimits::new(connections)),
            streams: StreamLimits::new(connections.authenticated),
            followed: followed_limit(options.followed),
            connected: Arc::default(),
            seen_ahead: Arc::default(),
            open_connections: Arc::default(),
            issued: IssuedLog::new(store.clone()),
            issue_paces: Arc::new(IssuePaces::new(options.timing.certificates_burst)),
            spending: Arc::default(),
            noted: Arc::default(),
            store,
            commits,
            stores,
            hub,
            authority,
            credentials,
            ended: Arc::default(),
            keys,
            certificate_ttl,
            cluster: options.pods.clone().map(Cluster::new),
            resources: options.resources.clone(),
            services: options.services.clone(),
            join_bundles: options.join_bundles.clone(),
            resource_counts: Arc::default(),
            workload_addresses: options.workload_addresses.clone(),
            timing,
            placements,
            peering,
            standstill,
            background,
        };
        parts.spawn_tasks(current).await?;
        Ok(parts)
    }

    async fn spawn_tasks(
        &self,
        current: watch::Sender<Arc<Credentials>>,
    ) -> Result<(), StartError> {
        let background = &self.background;
        background.spawn_until_stop(feed::run(self.store.clone(), self.hub.clone()));
        let placements = self.placements.clone();
        background.spawn_until_stop(async move { placements.keep().await });
        let placements = self.placements.clone();
        let stop = background.stop.clone();
        background.spawn(async move { placements.write(stop).await });
        background.spawn_until_stop(release_lapsed(
            self.placements.clone(),
            self.reminders.clone(),
            self.app_state.clone(),
        ));
        background.spawn(own::keep_current(
            self.authority.clone(),
            self.hub.clone(),
            (self.certificate_ttl, self.peering.key_exchange),
            current,
            self.ended.clone(),
            background.stop.clone(),
        ));
        if let Some(cluster) = self.cluster.clone() {
            let root = RootPin::of(self.authority.network(), self.authority.root_der());
            for at in cluster.roots() {
                background.spawn_until_stop(cluster.clone().announce(at.clone(), root.clone()));
            }
            let (keys, store) = (self.keys.clone(), self.store.clone());
            background.spawn_until_stop(Lifetimes { cluster, keys, store }.follow());
        }
        if let Some(resources) = self.resources.clone() {
            let (store, hub) = (self.store.clone(), self.hub.clone());
            let counts = self.resource_counts.clone();
            let objects = ResourceObjects { resources, store, hub, counts };
            background.spawn_until_stop(objects.follow());
        }
        if let Some(services) = self.services.clone() {
            let (store, hub) = (self.store.clone(), self.hub.clone());
            background.spawn_until_stop(FollowedServices { services, store, hub }.follow());
        }
        join::forget_pending(&self.peering).await.map_err(StartError::Pending)?;
        if let Some(kept) = self.join_bundles.clone() {
            background.spawn_until_stop(bundles::follow(self.peering.clone(), kept));
        }
        background.spawn(link::supervise(self.peering.clone()));
        let standstill = self.standstill.clone();
        background.spawn_until_stop(async move { standstill.watch().await });
        background.spawn_until_stop(sweep::run(sweep::Swept {
            store: self.store.clone(),
            hub: self.hub.clone(),
            keys: self.keys.clone(),
            issued: self.issued.clone(),
            network: self.authority.network().clone(),
        }));
        background.spawn_until_stop(self.open_connections.clone().follow(self.credentials.clone()));
        Ok(())
    }

    /// The services at the port for workloads, gateways and joined networks.
    pub(crate) fn public_server(&self) -> Router<PublicLayers> {
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
            .layer(TrackSendBacklog)
            .layer(LimitStreams(self.streams.clone()))
            .add_service(
                IdentityServer::new(self.identity()).max_decoding_message_size(REQUEST_LIMIT_BYTES),
            )
            .add_service(
                RegistryServer::new(self.registry()).max_decoding_message_size(REQUEST_LIMIT_BYTES),
            )
            .add_service(
                DiscoveryServer::new(self.discovery())
                    .max_decoding_message_size(MESSAGE_LIMIT_BYTES),
            )
            .add_service(
                PlacementServer::new(self.placement())
                    .max_decoding_message_size(MESSAGE_LIMIT_BYTES),
            )
            .add_service(
                PeeringServer::new(PeeringService(self.peering.clone()))
                    .max_decoding_message_size(REQUEST_LIMIT_BYTES),
            )
            .add_service(
                StateServer::new(self.state()).max_decoding_message_size(STATE_REQUEST_BYTES),
            )
            .add_service(
                RemindersServer::new(self.reminders_service())
                    .max_decoding_message_size(REMINDERS_REQUEST_BYTES),
            )
            .add_service(
                NeighboursServer::new(self.neighbours_service(Access::Agent))
                    .max_decoding_message_size(REQUEST_LIMIT_BYTES),
            )
    }

    /// The services at the admin socket.
    pub(crate) fn private_server(&self) -> Router {
        let admin = AdminService {
            store: self.store.clone(),
            hub: self.hub.clone(),
            connected: self.connected.clone(),
            tokens: self.tokens(),
            issued: self.issued.clone(),
            open_connections: self.open_connections.clone(),
            certificate_ttl: self.certificate_ttl,
            grace: self.keys.grace(),
            peering: self.peering.clone(),
            placements: self.placements.clone(),
            app_state: self.app_state.clone(),
            reminders: self.reminders.clone(),
        };
        let neighbours = NeighboursServer::new(self.neighbours_service(Access::Operator))
            .max_decoding_message_size(NEIGHBOURS_REQUEST_BYTES);
        Server::builder().add_service(AdminServer::new(admin)).add_service(neighbours)
    }

    /// What the accept loop gets.
    pub(crate) fn acceptor(&self) -> Acceptor {
        Acceptor {
            home: self.authority.trust_domain().clone(),
            credentials: self.credentials.clone(),
            ended: self.ended.clone(),
            keys: self.keys.clone(),
            limits: self.limits.clone(),
            open_connections: self.open_connections.clone(),
            background: self.background.clone(),
        }
    }

    /// What the admin port shows.
    pub(crate) fn facts(&self) -> ControlFacts {
        ControlFacts {
            store: self.store.clone(),
            commits: self.commits.clone(),
            hub: self.hub.clone(),
            peers: self.peering.counts.clone(),
            keys: self.keys.clone(),
            limits: self.limits.clone(),
            streams: self.streams.clone(),
            followed: self.followed.clone(),
            issue_paces: self.issue_paces.clone(),
            seen_ahead: self.seen_ahead.clone(),
            app_state: self.app_state.clone(),
            reminders: self.reminders.clone(),
            neighbours: self.neighbours.clone(),
            resources: self.resource_counts.clone(),
            credentials: self.credentials.clone(),
        }
    }

    fn tokens(&self) -> Tokens {
        Tokens {
            authority: self.authority.clone(),
            store: self.store.clone(),
            noted: self.noted.clone(),
            spending: self.spending.clone(),
        }
    }

    fn identity(&self) -> IdentityService {
        IdentityService {
            tokens: self.tokens(),
            keys: self.keys.clone(),
            hub: self.hub.clone(),
            issued: self.issued.clone(),
            paces: self.issue_paces.clone(),
            cluster: self.cluster.clone(),
            certificate_ttl: self.certificate_ttl,
        }
    }

    fn registry(&self) -> RegistryService {
        RegistryService(Arc::new(Registrations {
            store: self.store.clone(),
            hub: self.hub.clone(),
            keys: self.keys.clone(),
            pods: self.cluster.clone(),
            timing: self.timing.clone(),
            workload_addresses: self.workload_addresses.clone(),
            holders: Holders::default(),
            standstill: self.standstill.clone(),
            background: self.background.clone(),
            paces: Paces::default(),
        }))
    }

    fn discovery(&self) -> DiscoveryService {
        DiscoveryService(Arc::new(Streams {
            hub: self.hub.clone(),
            authority: self.authority.clone(),
            followed: self.followed.clone(),
            connected: self.connected.clone(),
            seen_ahead: self.seen_ahead.clone(),
            // Data planes are many, and each has other signs of life than this.
            heartbeat: self.timing.heartbeat * 2,
            background: self.background.clone(),
        }))
    }

    fn placement(&self) -> PlacementService {
        PlacementService {
            hub: self.hub.clone(),
            network: self.authority.network().clone(),
            placements: self.placements.clone(),
            followed: self.followed.clone(),
            background: self.background.clone(),
        }
    }

    fn state(&self) -> StateService {
        StateService { hub: self.hub.clone(), state: self.app_state.clone() }
    }

    fn reminders_service(&self) -> RemindersService {
        RemindersService { hub: self.hub.clone(), reminders: self.reminders.clone() }
    }

    fn neighbours_service(&self, access: Access) -> NeighboursService {
        NeighboursService {
            hub: self.hub.clone(),
            neighbours: self.neighbours.clone(),
            heartbeat: self.timing.heartbeat,
            background: self.background.clone(),
            access,
        }
    }
}
