//! A member of the mesh, sidecar or gateway: put together, run, drained.
//!
//! Listeners are bound before anything is served. The identity comes first. What the control plane
//! sends reaches the data threads through the fan-out. What every data plane has is in
//! `plane.rs`.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tollway_dial::{Targets, Unreached};
use tollway_model::{AddressRange, AppProtocol, ErrorCode, NameError};
use tollway_routing::{AccessList, Resiliency};
use tollway_telemetry::metrics::Part;
use tollway_telemetry::{AdminFacts, DaprMetrics};

use crate::actor_paths::ActorApp;
use crate::api_rules::ApiRules;
use crate::app_addresses::AppAddresses;
use crate::as_daprd::AsDaprd;
use crate::bind::{BoundListeners, advertised};
use crate::conn::ListenerKind;
use crate::egress::AppEgress;
use crate::event_loop::{
    ApiStream, AppTarget, AppTls, Command, LOOPBACK, LoopConfig, MeshProtocol,
};
use crate::facts::Facts;
use crate::fanout::Fanout;
use crate::front::FrontFilesError;
use crate::gateway::reverse::ReverseOptions;
use crate::gateway::reverse::board::{Board, BoardChanges};
use crate::gateway::{GatewayRoutes, Insiders};
use crate::interception::{Interception, listen};
use crate::mesh::{Announcement, MeshClient, MeshConfig, MeshError};
use crate::observe::{Telemetry, TelemetryError, TelemetryOptions};
use crate::plane::{Drained, Parts, Plane, PlaneKind, PlaneOptions};
use crate::probe::Probe;
use crate::runtime_protocol::TurnLease;
use crate::tokens::Tokens;
use crate::web_pages::WebPages;

/// Time for the addresses of names, of the control plane and of a gateway itself.
const GATEWAY_NAMES_WITHIN: Duration = Duration::from_secs(5);
/// From one look-up of these names to the next.
const GATEWAY_NAMES_EVERY: Duration = Duration::from_secs(10);

/// Why a data plane could not start or had to end.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    #[error("cannot listen on {address} for {listener}")]
    Listen { listener: &'static str, address: SocketAddr, source: std::io::Error },
    #[error("others cannot reach {address}; say where they can with --advertise")]
    NoAdvertise { address: SocketAddr },
    #[error(
        "a gateway that only dials out (--dial-out) is not reached at {address}; leave --advertise out"
    )]
    AdvertisedDialOut { address: Targets },
    #[error("the upstream `{text}` cannot be read; write PORT=SERVICE, such as 5432=db.shop.east")]
    Upstream { text: String },
    #[error("the upstream `{text}` names no service")]
    UpstreamName { text: String, source: NameError },
    #[error(
        "the advertised address {names} cannot be found; check --advertise and --advertise-inside"
    )]
    Advertise { names: Targets, source: Unreached },
    #[error("the control plane's address {control} cannot be resolved")]
    Control { control: Targets, source: Unreached },
    #[error(transparent)]
    Front(#[from] FrontFilesError),
    #[error("the address of the app {app} cannot be found; check --to")]
    App { app: String, source: std::io::Error },
    #[error("cannot take part in the mesh")]
    Mesh(#[from] MeshError),
    #[error("cannot start a data-plane thread")]
    EventLoop(#[source] std::io::Error),
    #[error("cannot write the ports file {path}")]
    PortsFile { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("cannot speak TLS with the app")]
    AppTls(#[source] tollway_identity::TlsError),
    #[error("a data-plane thread failed")]
    Thread(#[source] std::io::Error),
    #[error("a data-plane thread panicked; this is a bug")]
    Panicked,
    #[error("the data plane has ended")]
    Ended,
}

impl DataPlaneError {
    /// Its entry in the catalogue of failures.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Listen { source, .. } | Self::EventLoop(source) | Self::Thread(source) => {
                ErrorCode::of_io(source)
            }
            Self::NoAdvertise { .. }
            | Self::AdvertisedDialOut { .. }
            | Self::Advertise { .. }
            | Self::Upstream { .. } => Some(ErrorCode::BadConfiguration),
            Self::UpstreamName { .. } => Some(ErrorCode::BadName),
            Self::Control { .. } => Some(ErrorCode::ControlUnreachable),
            Self::Front(error) => Some(error.code()),
            Self::App { .. } => Some(ErrorCode::AppUnreachable),
            Self::AppTls(_) => Some(ErrorCode::TlsFailed),
            Self::Mesh(error) => error.code(),
            Self::PortsFile { source, .. } => {
                Some(ErrorCode::of_file(source, ErrorCode::FileUnusable))
            }
            Self::Panicked | Self::Ended => Some(ErrorCode::Bug),
            Self::Telemetry(error) => error.code(),
        }
    }
}

/// What both kinds share.
#[derive(Clone, Debug)]
pub struct CommonOptions {
    pub mesh: MeshConfig,
    pub plane: PlaneOptions,
}

/// The app beside a sidecar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppOptions {
    pub address: SocketAddr,
    /// Its further addresses, if it is given by a name that has several.
    pub other_addresses: Vec<SocketAddr>,
    /// The host that requests of the sidecar's own name to it: `HOST:PORT`.
    pub host: String,
    /// Calls of others name that host, too, as daprd has it; otherwise the name of the service.
    pub names_host: bool,
    pub protocol: AppProtocol,
    /// It speaks that over TLS; its certificate is not checked.
    pub is_tls: bool,
    /// Most requests that it has at a time in each data thread; others wait.
    pub max_concurrency: Option<usize>,
    /// How it is asked for its health, if it is. The runtime does so.
    pub health_check: Option<HealthCheck>,
    /// It is asked which actors it runs, if it is called over HTTP. The runtime does so.
    pub asks_actors: bool,
}

impl AppOptions {
    /// Whether a sidecar calls it by paths for its actors, if it runs any: it is asked, and called over HTTP.
    #[must_use]
    pub fn has_actor_paths(&self) -> bool {
        self.asks_actors && matches!(self.protocol, AppProtocol::Http | AppProtocol::H2c)
    }

    pub(crate) fn addresses(&self) -> AppAddresses {
        AppAddresses::new(self.address, self.other_addresses.iter().copied())
    }

    /// What it speaks, in Dapr's words.
    #[must_use]
    pub fn speech(&self) -> String {
        format!("{}{}", self.protocol, if self.is_tls { "s" } else { "" })
    }
}

/// How an app is asked for its health: by a path over HTTP, by `AppCallbackHealthCheck` over gRPC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HealthCheck {
    /// Over HTTP, with a slash in front.
    pub path: String,
    /// From the end of a check to the next.
    pub interval: Duration,
    /// For an answer.
    pub timeout: Duration,
    /// Failed checks in a row that make the app ill. One that succeeds makes it well.
    pub threshold: u32,
}

/// A sidecar.
#[derive(Clone, Debug)]
pub struct SidecarOptions {
    pub common: CommonOptions,
    /// The app, if it takes calls at a port of its own.
    pub app: Option<AppOptions>,
    /// An app without a port of its own takes calls at the ports to which Services of a Kubernetes cluster
    /// lead.
    pub takes_calls_of_services: bool,
    pub http_listen: Vec<SocketAddr>,
    pub grpc_listen: Vec<SocketAddr>,
    pub outbound_listen: Option<SocketAddr>,
    /// Where health and metadata are served to every client, without a token.
    pub public_listen: Option<SocketAddr>,
    /// The inbound listener.
    pub inbound_listen: SocketAddr,
    /// Where other workloads reach the inbound listener, if not where it listens. Port 0: its port.
    pub advertise: Option<SocketAddr>,
    /// What carries the requests of this side to services of HTTP/1.1.
    pub mesh_protocol: MeshProtocol,
    /// `PORT=SERVICE`: loopback ports that stand for TCP services.
    pub upstreams: Vec<String>,
    /// Largest message that the runtime holds whole, in bytes.
    pub message_bytes: usize,
    /// Which parts of the API the app may use, where that is bounded.
    pub api_rules: Option<ApiRules>,
    /// Who may ask what of the app, beside the policies.
    pub access: Option<AccessList>,
    /// What the runtime does about calls that fail.
    pub resilience: Option<Arc<Resiliency>>,
    /// The names of endpoints outside of the mesh that the app may call through the runtime, in addition
    /// to URLs. `None`: it may call nothing there.
    pub external_endpoints: Option<Arc<[String]>>,
    /// Set where the connections of the app are led to it: it listens for them, too.
    pub interception: Option<Interception>,
    /// What the app and the sidecar show each other.
    pub tokens: Tokens,
    /// Which web pages may use the ports of the app's side.
    pub web_pages: WebPages,
    /// Spans and access-log lines of single requests.
    pub telemetry: TelemetryOptions,
    /// Set in daprd's place: what is counted under Dapr's names.
    pub dapr_metrics: Option<Arc<DaprMetrics>>,
    /// Set in daprd's place: what is done as daprd does.
    pub as_daprd: Option<Arc<AsDaprd>>,
}

/// A gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    pub common: CommonOptions,
    pub listen: SocketAddr,
    /// Where other networks reach it, if not where it listens.
    pub advertise: Option<Targets>,
    /// Where its own network calls other networks through it; without it, it does not.
    pub inside_listen: Option<SocketAddr>,
    /// From which addresses it does; without any, those that networks use inside.
    pub inside_allow: Vec<AddressRange>,
    /// Where its own network reaches that, if not where it listens.
    pub advertise_inside: Option<Targets>,
    /// It only dials out: nothing listens for other networks, and the gateways of joined ones are opened
    /// reverse connections.
    pub dial_out: bool,
}

/// A sidecar that takes calls. [`Sidecar::serve`] ends it in good order.
pub struct Sidecar {
    plane: Member,
    probe: Option<tokio::task::JoinHandle<()>>,
    /// Where others reach the inbound listener.
    advertise: SocketAddr,
    /// Without a port of its app's own.
    takes_calls_of_services: bool,
    actor_app: Arc<ActorApp>,
    egress: Arc<AppEgress>,
}

/// Announces a sidecar whose app has no port, so that its runtime can be called.
#[derive(Clone, Debug)]
pub struct Announcer {
    mesh: Arc<MeshClient>,
    address: SocketAddr,
    takes_calls_of_services: bool,
}

impl Announcer {
    /// Says whether calls are taken.
    pub fn announce(&self, ready: bool) {
        let address = self.address;
        let announcement = if self.takes_calls_of_services && !ready {
            Announcement::of_services(address)
        } else {
            let protocol = Some(AppProtocol::Grpc);
            Announcement::Workload { address, protocol, ready }
        };
        self.mesh.register(announcement);
    }
}

impl Sidecar {
    /// Opens the listeners, obtains the identity and begins to serve: calls are taken once this
    /// returns. What is left is done by tasks of the current tokio runtime. `app_health` is the
    /// result of its health check, if there is one: requests come to it only while that is good.
    ///
    /// # Errors
    /// [`DataPlaneError`].
    pub async fn start(
        options: SidecarOptions,
        app_health: Option<watch::Receiver<bool>>,
    ) -> Result<Self, DataPlaneError> {
        let mut listeners = BoundListeners::for_threads(options.common.plane.threads);
        listeners.bind_all("http", &options.http_listen, &ListenerKind::HttpApi)?;
        listeners.bind_all("grpc", &options.grpc_listen, &ListenerKind::GrpcApi)?;
        listeners.bind_all(
            "outbound",
            options.outbound_listen.as_slice(),
            &ListenerKind::Outbound,
        )?;
        listeners.bind_all("public", options.public_listen.as_slice(), &ListenerKind::Public)?;
        let interception = options.interception.as_ref();
        let app_network = interception.and_then(|of| of.network.clone());
        if let Some(interception) = interception {
            listeners.set_app_network(app_network.clone());
            let addresses = listen(interception.port);
            listeners.bind_all("intercept", &addresses, &ListenerKind::Intercepted)?;
        }
        let inbound = listeners.bind("inbound", options.inbound_listen, ListenerKind::Inbound)?;
        let advertise = advertised(options.advertise, inbound)?;
        let common = options.common;
        let fanout = Arc::new(Fanout::default());
        let egress = Arc::<AppEgress>::default();
        fanout.set_tasks(tokio::runtime::Handle::current());
        let mesh = start_mesh(&common, &fanout).await?;
        for text in &options.upstreams {
            listeners.bind_upstream(text, mesh.service())?;
        }
        let app = options.app;
        let app_tls = match &app {
            Some(app) if app.is_tls => Some(AppTls::new().map_err(DataPlaneError::AppTls)?),
            Some(_) | None => None,
        };
        let actor_app =
            Arc::new(ActorApp::new(app.as_ref().is_some_and(AppOptions::has_actor_paths)));
        let withdraw = common.plane.timeouts.withdraw;
        let telemetry = Telemetry::start(options.telemetry, &mesh.credentials().borrow())?;
        let (mesh_protocol, tokens) = (options.mesh_protocol, options.tokens);
        let (api_rules, access) = (options.api_rules.map(Arc::new), options.access.map(Arc::new));
        let addresses = app.as_ref().map(AppOptions::addresses);
        let role = Role {
            app: app.clone(),
            app_addresses: addresses.clone(),
            reached_at: Some(advertise),
            app_tls,
            mesh_protocol,
            gateway: None,
            api_rules,
            access,
            resilience: options.resilience,
            external_endpoints: options.external_endpoints,
            interception: options.interception,
            egress: Arc::clone(&egress),
            tokens,
            web_pages: options.web_pages,
            actor_app: Some(Arc::clone(&actor_app)),
            dapr_metrics: options.dapr_metrics,
            as_daprd: options.as_daprd,
        };
        let plane = Member::start(common.plane, mesh, fanout, listeners, role, telemetry).await?;
        let probe = app.zip(addresses).map(|(app, addresses)| {
            let protocol = app.protocol;
            let (address, protocol) = (advertise, Some(protocol));
            plane.mesh.register(Announcement::Workload { address, protocol, ready: false });
            let probe = Probe {
                app: addresses,
                network: app_network,
                mesh: Arc::clone(&plane.mesh),
                fanout: Arc::clone(&plane.plane.fanout),
                ready: plane.app_ready.clone(),
                app_health,
                withdraw,
            };
            tokio::spawn(probe.run())
        });
        let takes_calls_of_services = probe.is_none() && options.takes_calls_of_services;
        if takes_calls_of_services {
            plane.mesh.register(Announcement::of_services(advertise));
        }
        egress.set_own(own_addresses(&plane.plane.ports, advertise));
        Ok(Self { plane, probe, advertise, takes_calls_of_services, actor_app, egress })
    }

    /// The addresses of a listener of this name, and of those beside it (`NAME-2`).
    pub fn ports<'a>(&'a self, listener: &'a str) -> impl Iterator<Item = SocketAddr> + 'a {
        let is_of = move |name: &str| {
            let rest = name.strip_prefix(listener);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let ports = self.plane.plane.ports.iter();
        ports.filter(move |(name, _)| is_of(name)).map(|(_, address)| *address)
    }

    /// Where a listener listens, by its name in the ports file.
    #[must_use]
    pub fn port(&self, listener: &str) -> Option<SocketAddr> {
        self.plane
            .plane
            .ports
            .iter()
            .find(|(name, _)| name == listener)
            .map(|(_, address)| *address)
    }

    /// The ports of loopback at which its app reaches it.
    #[must_use]
    pub fn loopback_ports(&self) -> Vec<u16> {
        let is_for_others = |name: &str| name == "inbound" || name.starts_with("intercept");
        let ports = self.plane.plane.ports.iter();
        let ports = ports.filter(|(name, address)| {
            let ip = address.ip();
            !is_for_others(name) && (ip.is_loopback() || ip.is_unspecified())
        });
        ports.map(|(_, address)| address.port()).collect()
    }

    /// The client of the control plane: name, status, and the way to leave early.
    #[must_use]
    pub fn mesh(&self) -> Arc<MeshClient> {
        Arc::clone(&self.plane.mesh)
    }

    /// Announces this sidecar where nothing else does: with an app it announces itself.
    #[must_use]
    pub fn announcer(&self) -> Option<Announcer> {
        let announcer = Announcer {
            mesh: self.mesh(),
            address: self.advertise,
            takes_calls_of_services: self.takes_calls_of_services,
        };
        self.probe.is_none().then_some(announcer)
    }

    /// Where its runtime notes whether the app runs actors.
    #[must_use]
    pub fn actor_app(&self) -> Arc<ActorApp> {
        Arc::clone(&self.actor_app)
    }

    /// What its app may call out of the mesh.
    #[must_use]
    pub fn egress(&self) -> Arc<AppEgress> {
        Arc::clone(&self.egress)
    }

    /// What it knows of itself, now and later.
    #[must_use]
    pub fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.plane.facts)
    }

    /// The way into its data plane from within the process.
    #[must_use]
    pub fn loopback_client(&self) -> LoopbackClient {
        LoopbackClient(Arc::clone(&self.plane.plane.fanout))
    }

    /// The connections whose requests this process answers itself; they wait until they are taken
    /// from the receiver. `None` after the first call.
    pub fn take_api(&mut self) -> Option<mpsc::Receiver<ApiStream>> {
        let api = self.plane.plane.api.take()?;
        self.plane.plane.fanout.set_api_taken();
        Some(api)
    }

    /// Whether the app takes connections; true without an app.
    #[must_use]
    pub fn app_ready(&self) -> watch::Receiver<bool> {
        self.plane.app_ready.subscribe()
    }

    /// Serves until `shutdown`; then leaves the mesh, finishes what is under way, and ends.
    ///
    /// # Errors
    /// [`DataPlaneError::Thread`] or [`DataPlaneError::Panicked`].
    pub async fn serve(
        self,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, DataPlaneError> {
        let result = self.plane.serve(shutdown).await;
        if let Some(probe) = self.probe {
            probe.abort();
        }
        result
    }
}

/// Calls as the app beside a sidecar does, without a socket that others reach. A request may carry a
/// [`RuntimeRequest`](crate::RuntimeRequest), which asks for what no app may ask for. A service named
/// by `dapr-app-id: APP.NAMESPACE.NETWORK` gets the path as it is.
#[derive(Clone)]
pub struct LoopbackClient(Arc<Fanout>);

impl LoopbackClient {
    /// A connection, HTTP/1.1 or HTTP/2, to the HTTP API of the sidecar; it does not block.
    ///
    /// # Errors
    /// When no descriptor is left, or the data plane has ended.
    pub fn connect(&self) -> std::io::Result<UnixStream> {
        self.0.connect()
    }

    /// The lease of this number lasts so long now: turns that were begun under it, and that the app
    /// has not taken yet, may be sent until then.
    pub fn renewed(&self, lease: TurnLease) {
        self.0.send_to_all(|| Command::LeaseRenewed(lease));
    }

    /// Ends the call of that number unless its answer has begun: it is answered with a 504 at once,
    /// and with `x-tollway-unprocessed` where nothing of it was sent.
    pub fn call_off(&self, number: u64) {
        self.0.send_to_all(|| Command::CallOff(number));
    }
}

/// Runs a gateway until `shutdown`, then drains it.
///
/// # Errors
/// [`DataPlaneError`].
pub async fn run_gateway(
    options: GatewayOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DataPlaneError> {
    let mut listeners = BoundListeners::for_threads(options.common.plane.threads);
    let (advertise, advertise_inside) = (options.advertise, options.advertise_inside);
    let outside = match (options.dial_out, &advertise) {
        (true, Some(address)) => {
            return Err(DataPlaneError::AdvertisedDialOut { address: address.clone() });
        }
        (true, None) => Vec::new(),
        (false, advertise) => {
            let bound = listeners.bind("gateway", options.listen, ListenerKind::Gateway)?;
            advertised_at(advertise.as_ref(), bound).await?
        }
    };
    let inside = match options.inside_listen {
        Some(listen) => {
            let bound = listeners.bind("inside", listen, ListenerKind::GatewayInside)?;
            advertised_at(advertise_inside.as_ref(), bound).await?
        }
        None => Vec::new(),
    };
    let common = options.common;
    let fanout = Arc::new(Fanout::default());
    let mesh = start_mesh(&common, &fanout).await?;
    let targets = common.mesh.control.clone();
    let control = control_addresses(&targets).await?;
    let network = mesh.service().network.clone();
    let insiders = Insiders::of(options.inside_allow);
    let routes = GatewayRoutes { network, control: control.clone(), insiders };
    let telemetry = Telemetry::start(TelemetryOptions::default(), &mesh.credentials().borrow())?;
    let board = Board::default();
    let reverse = ReverseOptions {
        credentials: mesh.credentials().borrow().clone(),
        own: mesh.service().clone(),
        holds: !inside.is_empty(),
        dials_out: options.dial_out,
        thread: 0,
        board: board.clone(),
    };
    let role = Role { gateway: Some((routes, reverse)), ..Role::default() };
    let mut plane = Member::start(common.plane, mesh, fanout, listeners, role, telemetry).await?;
    let addresses = (outside.clone(), inside.clone());
    plane.mesh.register(Announcement::Gateway { outside, inside, reaches: BTreeSet::new() });
    let (outside, inside) = addresses;
    if let Some(names) = advertise.filter(Targets::have_names) {
        let mesh = Arc::clone(&plane.mesh);
        plane.plane.spawn(follow_names(names, outside, move |now| mesh.set_outside(now)));
    }
    if let Some(names) = advertise_inside.filter(Targets::have_names) {
        let mesh = Arc::clone(&plane.mesh);
        plane.plane.spawn(follow_names(names, inside, move |now| mesh.set_inside(now)));
    }
    plane.plane.spawn(announce_reached(Arc::clone(&plane.mesh), board.changes()));
    if targets.have_names() {
        let fanout = Arc::clone(&plane.plane.fanout);
        let apply = move |now: Vec<_>| fanout.send_to_all(|| Command::ControlAt(now.clone()));
        plane.plane.spawn(follow_names(targets, control, apply));
    }
    // A sender that is dropped would end the wait for it; there is no app to be ready.
    plane.app_ready.send_replace(true);
    plane.serve(shutdown).await.map(drop)
}

/// Keeps the control plane informed of which networks that only dial out are reached from here.
async fn announce_reached(mesh: Arc<MeshClient>, mut changes: BoardChanges) {
    loop {
        mesh.set_reaches(changes.held());
        if !changes.changed().await {
            return;
        }
    }
}

async fn start_mesh(
    common: &CommonOptions,
    fanout: &Arc<Fanout>,
) -> Result<Arc<MeshClient>, DataPlaneError> {
    let callback = Arc::clone(fanout);
    let mesh = MeshClient::start(common.mesh.clone(), move |delta| callback.on_delta(delta));
    let mesh = Arc::new(mesh.await?);
    fanout.set_mesh(Arc::clone(&mesh));
    Ok(mesh)
}

async fn control_addresses(control: &Targets) -> Result<Vec<SocketAddr>, DataPlaneError> {
    let failed = |source| DataPlaneError::Control { control: control.clone(), source };
    control.addresses(GATEWAY_NAMES_WITHIN).await.map_err(failed)
}

/// Where others reach a gateway's listener that is bound to `bound`.
async fn advertised_at(
    wanted: Option<&Targets>,
    bound: SocketAddr,
) -> Result<Vec<SocketAddr>, DataPlaneError> {
    let Some(names) = wanted else { return Ok(vec![advertised(None, bound)?]) };
    let failed = |source| DataPlaneError::Advertise { names: names.clone(), source };
    let addresses = names.addresses(GATEWAY_NAMES_WITHIN).await.map_err(failed)?;
    addresses.into_iter().map(|address| advertised(Some(address), bound)).collect()
}

/// Calls `apply` with the addresses of names each time that others are found; their order means nothing,
/// since servers of names change it. Those known last hold while none is found.
async fn follow_names(
    names: Targets,
    known: Vec<SocketAddr>,
    mut apply: impl FnMut(Vec<SocketAddr>),
) {
    let mut known: HashSet<SocketAddr> = known.into_iter().collect();
    loop {
        tokio::time::sleep(GATEWAY_NAMES_EVERY).await;
        let Ok(found) = names.addresses(GATEWAY_NAMES_WITHIN).await else { continue };
        if found.len() != known.len() || !found.iter().all(|address| known.contains(address)) {
            tracing::info!(%names, addresses = ?found, "other addresses are found");
            known = found.iter().copied().collect();
            apply(found);
        }
    }
}

/// What a member of the mesh does there.
#[derive(Default)]
struct Role {
    /// A sidecar's, if it takes calls.
    app: Option<AppOptions>,
    app_addresses: Option<AppAddresses>,
    /// Where others reach a sidecar.
    reached_at: Option<SocketAddr>,
    app_tls: Option<AppTls>,
    mesh_protocol: MeshProtocol,
    /// Set in a gateway.
    gateway: Option<(GatewayRoutes, ReverseOptions)>,
    api_rules: Option<Arc<ApiRules>>,
    access: Option<Arc<AccessList>>,
    resilience: Option<Arc<Resiliency>>,
    external_endpoints: Option<Arc<[String]>>,
    interception: Option<Interception>,
    egress: Arc<AppEgress>,
    tokens: Tokens,
    web_pages: WebPages,
    /// A sidecar's.
    actor_app: Option<Arc<ActorApp>>,
    dapr_metrics: Option<Arc<DaprMetrics>>,
    as_daprd: Option<Arc<AsDaprd>>,
}

/// A running data plane that takes part in the mesh.
struct Member {
    plane: Plane,
    mesh: Arc<MeshClient>,
    app_ready: watch::Sender<bool>,
    facts: Arc<Facts>,
}

impl Member {
    async fn start(
        options: PlaneOptions,
        mesh: Arc<MeshClient>,
        fanout: Arc<Fanout>,
        listeners: BoundListeners,
        role: Role,
        telemetry: Telemetry,
    ) -> Result<Self, DataPlaneError> {
        let Role {
            app,
            app_addresses,
            reached_at,
            app_tls,
            mesh_protocol,
            gateway,
            api_rules,
            access,
            resilience,
            external_endpoints,
            interception,
            egress,
            tokens,
            web_pages,
            actor_app,
            dapr_metrics,
            as_daprd,
        } = role;
        let names = interception.as_ref().map(|interception| Arc::clone(&interception.names));
        let part = if gateway.is_some() { Part::Gateway } else { Part::Sidecar };
        let app_target = app.as_ref().zip(app_addresses).map(|(app, addresses)| AppTarget {
            addresses,
            protocol: app.protocol,
            host: app.host.as_bytes().into(),
            names_host: app.names_host,
        });
        let config = LoopConfig {
            hop: format!("sidecar {}", mesh.service()),
            home: mesh.service().clone(),
            locality: mesh.locality().clone(),
            app: app_target,
            app_ip: reached_at.map_or(LOOPBACK, |at| at.ip()),
            app_tls,
            app_concurrency: app.as_ref().and_then(|app| app.max_concurrency),
            mesh_protocol,
            api_rules,
            access,
            resilience,
            external_endpoints,
            interception,
            egress: Arc::clone(&egress),
            tokens,
            web_pages,
            actor_app: actor_app.unwrap_or_else(|| Arc::new(ActorApp::new(false))),
            dapr_metrics: dapr_metrics.clone(),
            as_daprd,
            limits: options.limits.clone(),
            timeouts: options.timeouts,
        };
        let kind = match gateway {
            Some((routes, reverse)) => PlaneKind::Gateway(routes, reverse),
            None => PlaneKind::Sidecar(mesh.credentials().borrow().clone()),
        };
        let live = options.live.config.clone();
        let parts = Parts { config, kind, listeners, telemetry, fanout };
        let mut plane = Plane::start(options, parts).await?;
        let (app_ready, app_state) = watch::channel(app.is_none());
        let records = plane.record_metrics();
        let facts = Arc::new(Facts {
            part,
            service: mesh.service().clone(),
            app,
            mesh: mesh.status(),
            credentials: mesh.credentials(),
            app_ready: app_state,
            metrics: plane.metrics.clone(),
            spans: records.spans,
            lines: records.lines,
            dapr_metrics,
            names,
            egress,
            config: live,
        });
        let shown: Arc<dyn AdminFacts> = Arc::clone(&facts) as _;
        plane.show(shown);
        plane.spawn(forward_credentials(Arc::clone(&mesh), Arc::clone(&plane.fanout)));
        plane.open()?;
        Ok(Self { plane, mesh, app_ready, facts })
    }

    /// Serves until `shutdown`; then leaves the mesh, finishes what is under way, and ends.
    async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<Drained, DataPlaneError> {
        let mesh = self.mesh;
        let leave = async move {
            tracing::info!("leaving the mesh");
            mesh.deregister().await;
        };
        self.plane.serve(shutdown, leave).await
    }
}

/// Where a sidecar takes connections: an unspecified address stands for this machine's, of which the one
/// that others use is known.
fn own_addresses(ports: &[(String, SocketAddr)], advertise: SocketAddr) -> Vec<SocketAddr> {
    let bound = ports.iter().map(|(_, address)| *address);
    let meant = bound.map(|address| match address.ip().is_unspecified() {
        true => SocketAddr::new(advertise.ip(), address.port()),
        false => address,
    });
    meant.chain([advertise]).collect()
}

async fn forward_credentials(mesh: Arc<MeshClient>, fanout: Arc<Fanout>) {
    let mut credentials = mesh.credentials();
    while credentials.changed().await.is_ok() {
        let renewed = credentials.borrow_and_update().clone();
        tracing::info!(not_after = ?renewed.not_after(), "new credentials");
        fanout.send_credentials(&renewed);
    }
}
