//! A member of the mesh, sidecar or gateway: put together, run, drained.
//!
//! Doors are bound before anything is served; the identity comes first; what the control plane
//! tells reaches the worker threads through the fan-out. What every data plane has is in
//! `plane.rs`.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tollway_model::{AppProtocol, ErrorCode, NameError};
use tollway_telemetry::AdminFacts;
use tollway_telemetry::metrics::Part;

use crate::connection::Door;
use crate::doors::{Doors, advertised};
use crate::facts::Facts;
use crate::fanout::Fanout;
use crate::front::FrontFilesError;
use crate::mesh::{Announcement, MeshClient, MeshConfig, MeshError};
use crate::observe::{Telemetry, TelemetryError, TelemetryOptions};
use crate::plane::{Parts, Plane, PlaneOptions};
use crate::probe::Probe;
use crate::tls::PlaneTls;
use crate::worker::{ApiStream, AppTarget, GatewayRoutes, MeshProtocol, WorkerConfig};

/// Why a data plane could not start or had to end.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    #[error("cannot listen on {address} for {door}")]
    Listen { door: &'static str, address: SocketAddr, source: std::io::Error },
    #[error("others cannot reach {address}; say where they can with --advertise")]
    NoAdvertise { address: SocketAddr },
    #[error("the upstream `{text}` cannot be read; write PORT=SERVICE, such as 5432=db.shop.east")]
    Upstream { text: String },
    #[error("the upstream `{text}` names no service")]
    UpstreamName { text: String, source: NameError },
    #[error("the control plane's address {control} cannot be resolved")]
    Control { control: String, source: std::io::Error },
    #[error(transparent)]
    Front(#[from] FrontFilesError),
    #[error("the address of the app {app} cannot be found; check --to")]
    App { app: String, source: std::io::Error },
    #[error("cannot take part in the mesh")]
    Mesh(#[from] MeshError),
    #[error("cannot start a data-plane thread")]
    Worker(#[source] std::io::Error),
    #[error("cannot write the ports file {path}")]
    PortsFile { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
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
            Self::Listen { source, .. } | Self::Worker(source) | Self::Thread(source) => {
                ErrorCode::of_io(source)
            }
            Self::NoAdvertise { .. } | Self::Upstream { .. } => Some(ErrorCode::BadConfiguration),
            Self::UpstreamName { .. } => Some(ErrorCode::BadName),
            Self::Control { .. } => Some(ErrorCode::ControlUnreachable),
            Self::Front(error) => Some(error.code()),
            Self::App { .. } => Some(ErrorCode::AppUnreachable),
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

/// A sidecar.
#[derive(Clone, Debug)]
pub struct SidecarOptions {
    pub common: CommonOptions,
    /// The app, if it takes calls.
    pub app: Option<(SocketAddr, AppProtocol)>,
    pub http_listen: SocketAddr,
    pub grpc_listen: SocketAddr,
    pub outbound_listen: SocketAddr,
    /// The mesh door.
    pub inbound_listen: SocketAddr,
    /// Where other workloads reach the mesh door, if not where it listens. Port 0: its port.
    pub advertise: Option<SocketAddr>,
    /// What carries the requests of this side to services of HTTP/1.1.
    pub mesh_protocol: MeshProtocol,
    /// `PORT=SERVICE`: loopback ports that stand for TCP services.
    pub upstreams: Vec<String>,
    /// What is told of single requests.
    pub telemetry: TelemetryOptions,
}

/// A gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    pub common: CommonOptions,
    pub listen: SocketAddr,
    /// Where other networks reach it, if not where it listens. Port 0: its port.
    pub advertise: Option<SocketAddr>,
    /// Where its own network reaches it, if not where others do.
    pub advertise_inside: Option<SocketAddr>,
}

/// A sidecar that takes calls. [`Sidecar::serve`] ends it in good order.
pub struct Sidecar {
    plane: Member,
    probe: Option<tokio::task::JoinHandle<()>>,
}

impl Sidecar {
    /// Opens the doors, obtains the identity and begins to serve: calls are taken once this
    /// returns. What is left is done by tasks of the current tokio runtime.
    ///
    /// # Errors
    /// [`DataPlaneError`].
    pub async fn start(options: SidecarOptions) -> Result<Self, DataPlaneError> {
        let mut doors = Doors::for_threads(options.common.plane.threads);
        doors.bind("http", options.http_listen, Door::HttpApi)?;
        doors.bind("grpc", options.grpc_listen, Door::GrpcApi)?;
        doors.bind("outbound", options.outbound_listen, Door::Outbound)?;
        let inbound = doors.bind("inbound", options.inbound_listen, Door::Inbound)?;
        let advertise = advertised(options.advertise, inbound)?;
        let common = options.common;
        let fanout = Arc::new(Fanout::default());
        let mesh = start_mesh(&common, &fanout).await?;
        for text in &options.upstreams {
            doors.bind_upstream(text, mesh.service())?;
        }
        let app = options.app.map(|(address, protocol)| AppTarget { address, protocol });
        let withdraw = common.plane.timeouts.withdraw;
        let telemetry = Telemetry::start(options.telemetry, &mesh.credentials().borrow())?;
        let role = Role { app, mesh_protocol: options.mesh_protocol, gateway: None };
        let plane = Member::start(common.plane, mesh, fanout, doors, role, telemetry).await?;
        let probe = app.map(|app| {
            let protocol = app.protocol;
            let announcement =
                Announcement::Workload { address: advertise, protocol, ready: false };
            plane.mesh.register(announcement);
            let probe = Probe {
                app: app.address,
                mesh: Arc::clone(&plane.mesh),
                fanout: Arc::clone(&plane.plane.fanout),
                ready: plane.app_ready.clone(),
                withdraw,
            };
            tokio::spawn(probe.run())
        });
        Ok(Self { plane, probe })
    }

    /// Where a door listens, by its name in the ports file.
    #[must_use]
    pub fn port(&self, door: &str) -> Option<SocketAddr> {
        self.plane.plane.ports.iter().find(|(name, _)| name == door).map(|(_, address)| *address)
    }

    /// The client of the control plane: name, status, and the way to leave early.
    #[must_use]
    pub fn mesh(&self) -> Arc<MeshClient> {
        Arc::clone(&self.plane.mesh)
    }

    /// What it knows of itself, now and later.
    #[must_use]
    pub fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.plane.facts)
    }

    /// The way into its data plane from within the process.
    #[must_use]
    pub fn inside(&self) -> Inside {
        Inside(Arc::clone(&self.plane.plane.fanout))
    }

    /// Connections whose requests this process is to answer itself. Given once: as long as nobody
    /// serves them, they wait.
    pub fn take_api(&mut self) -> Option<mpsc::Receiver<ApiStream>> {
        self.plane.plane.api.take()
    }

    /// Whether the app takes connections; true without an app.
    #[must_use]
    pub fn app_ready(&self) -> watch::Receiver<bool> {
        self.plane.app_ready.subscribe()
    }

    /// Serves until told to end; then leaves the mesh, finishes what is under way, and ends.
    ///
    /// # Errors
    /// [`DataPlaneError::Thread`] or [`DataPlaneError::Panicked`].
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), DataPlaneError> {
        let result = self.plane.serve(shutdown).await;
        if let Some(probe) = self.probe {
            probe.abort();
        }
        result
    }
}

/// Calls as the app beside a sidecar would, without a socket that others could reach.
#[derive(Clone)]
pub struct Inside(Arc<Fanout>);

impl Inside {
    /// A connection, HTTP/1.1 or HTTP/2, to the HTTP API of the sidecar; it does not block.
    ///
    /// # Errors
    /// When no descriptor is left, or the data plane has ended.
    pub fn connect(&self) -> std::io::Result<UnixStream> {
        self.0.connect()
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
    let mut doors = Doors::for_threads(options.common.plane.threads);
    let bound = doors.bind("gateway", options.listen, Door::Gateway)?;
    let outside = advertised(options.advertise, bound)?;
    let inside = match options.advertise_inside {
        Some(_) => advertised(options.advertise_inside, bound)?,
        None => outside,
    };
    let common = options.common;
    let fanout = Arc::new(Fanout::default());
    let mesh = start_mesh(&common, &fanout).await?;
    let control = resolve(&common.mesh.control).await?;
    let routes = GatewayRoutes { network: mesh.service().network.clone(), control };
    let telemetry = Telemetry::start(TelemetryOptions::default(), &mesh.credentials().borrow())?;
    let mesh_protocol = MeshProtocol::default();
    let role = Role { app: None, mesh_protocol, gateway: Some(routes) };
    let plane = Member::start(common.plane, mesh, fanout, doors, role, telemetry).await?;
    plane.mesh.register(Announcement::Gateway { outside, inside });
    // A sender that is dropped would end the wait for it; there is no app to be ready.
    plane.app_ready.send_replace(true);
    plane.serve(shutdown).await
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

async fn resolve(control: &str) -> Result<SocketAddr, DataPlaneError> {
    let failed = |source| DataPlaneError::Control { control: control.to_owned(), source };
    let mut found = tokio::net::lookup_host(control).await.map_err(failed)?;
    found.next().ok_or_else(|| failed(std::io::Error::other("the name has no address")))
}

/// What a member of the mesh does there.
struct Role {
    /// A sidecar's, if it takes calls.
    app: Option<AppTarget>,
    mesh_protocol: MeshProtocol,
    /// Set in a gateway.
    gateway: Option<GatewayRoutes>,
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
        doors: Doors,
        role: Role,
        telemetry: Telemetry,
    ) -> Result<Self, DataPlaneError> {
        let Role { app, mesh_protocol, gateway } = role;
        let part = if gateway.is_some() { Part::Gateway } else { Part::Sidecar };
        let config = WorkerConfig {
            hop: format!("sidecar {}", mesh.service()),
            home: mesh.service().clone(),
            app,
            mesh_protocol,
            gateway,
            limits: options.limits.clone(),
            timeouts: options.timeouts,
        };
        let tls = PlaneTls::mesh(mesh.credentials().borrow().clone());
        let live = options.live.config.clone();
        let parts = Parts { config, tls, doors, telemetry, fanout };
        let mut plane = Plane::start(options, parts).await?;
        let (app_ready, app_state) = watch::channel(app.is_none());
        let told = plane.told();
        let facts = Arc::new(Facts {
            part,
            service: mesh.service().clone(),
            app: app.map(|app| (app.address, app.protocol)),
            mesh: mesh.status(),
            credentials: mesh.credentials(),
            app_ready: app_state,
            metrics: plane.metrics.clone(),
            spans: told.spans,
            lines: told.lines,
            config: live,
        });
        let shown: Arc<dyn AdminFacts> = Arc::clone(&facts) as _;
        plane.show(shown);
        plane.beside(forward_credentials(Arc::clone(&mesh), Arc::clone(&plane.fanout)));
        plane.open()?;
        Ok(Self { plane, mesh, app_ready, facts })
    }

    /// Serves until told to end; then leaves the mesh, finishes what is under way, and ends.
    async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), DataPlaneError> {
        let mesh = self.mesh;
        let leave = async move {
            tracing::info!("leaving the mesh");
            mesh.deregister().await;
        };
        self.plane.serve(shutdown, leave).await
    }
}

async fn forward_credentials(mesh: Arc<MeshClient>, fanout: Arc<Fanout>) {
    let mut credentials = mesh.credentials();
    while credentials.changed().await.is_ok() {
        let renewed = credentials.borrow_and_update().clone();
        tracing::info!(not_after = ?renewed.not_after(), "new credentials");
        fanout.send_credentials(&renewed);
    }
}
