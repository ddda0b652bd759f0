//! A data-plane process: a sidecar or a gateway, put together, run, drained.
//!
//! Doors are bound before anything is served; the identity comes first; what the control plane
//! tells reaches the worker threads through the fan-out.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tollway_model::{AppProtocol, ErrorCode, NameError};
use tollway_net::Listener;
use tollway_telemetry::metrics::Part;
use tollway_telemetry::{DataPlaneMetrics, serve_admin};

use crate::api::{self, Facts};
use crate::connection::Door;
use crate::doors::{Doors, advertised};
use crate::fanout::{API_BACKLOG, Fanout, WorkerOutside};
use crate::limits::{Limits, Timeouts};
use crate::live::{Live, Reconfigurer};
use crate::mesh::{Announcement, MeshClient, MeshConfig, MeshError};
use crate::observe::{Observer, Telemetry, TelemetryError, TelemetryOptions};
use crate::probe::Probe;
use crate::worker::{AppTarget, GatewayRoutes, Worker, WorkerConfig};

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
    /// Metrics and health, for this machine only by default.
    pub admin_listen: SocketAddr,
    /// Data-plane threads.
    pub threads: usize,
    pub limits: Limits,
    pub timeouts: Timeouts,
    /// Receives the bound addresses as JSON, `{"name": "ip:port"}`.
    pub ports_file: Option<PathBuf>,
    /// How it learns of settings that change.
    pub live: Live,
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

/// Runs a sidecar until `shutdown`, then drains it.
///
/// # Errors
/// [`DataPlaneError`].
pub async fn run_sidecar(
    options: SidecarOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DataPlaneError> {
    Sidecar::start(options).await?.serve(shutdown).await
}

/// A sidecar that takes calls. [`Sidecar::serve`] ends it in good order.
pub struct Sidecar {
    plane: Plane,
    probe: Option<tokio::task::JoinHandle<()>>,
}

impl Sidecar {
    /// Opens the doors, obtains the identity and begins to serve: calls are taken once this
    /// returns. What is left is done by tasks of the current tokio runtime.
    ///
    /// # Errors
    /// [`DataPlaneError`].
    pub async fn start(options: SidecarOptions) -> Result<Self, DataPlaneError> {
        let mut doors = Doors::for_threads(options.common.threads);
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
        let withdraw = common.timeouts.withdraw;
        let telemetry = Telemetry::start(options.telemetry, &mesh.credentials().borrow())?;
        let plane = Plane::start(common, mesh, fanout, doors, app, None, telemetry).await?;
        let probe = app.map(|app| {
            let protocol = app.protocol;
            let announcement =
                Announcement::Workload { address: advertise, protocol, ready: false };
            plane.mesh.register(announcement);
            let probe = Probe {
                app: app.address,
                mesh: Arc::clone(&plane.mesh),
                fanout: Arc::clone(&plane.fanout),
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
        self.plane.ports.iter().find(|(name, _)| name == door).map(|(_, address)| *address)
    }

    /// The client of the control plane: name, status, and the way to leave early.
    #[must_use]
    pub fn mesh(&self) -> Arc<MeshClient> {
        Arc::clone(&self.plane.mesh)
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

/// Runs a gateway until `shutdown`, then drains it.
///
/// # Errors
/// [`DataPlaneError`].
pub async fn run_gateway(
    options: GatewayOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DataPlaneError> {
    let mut doors = Doors::for_threads(options.common.threads);
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
    let plane = Plane::start(common, mesh, fanout, doors, None, Some(routes), telemetry).await?;
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

/// A running data plane.
struct Plane {
    mesh: Arc<MeshClient>,
    fanout: Arc<Fanout>,
    threads: Vec<std::thread::JoinHandle<std::io::Result<()>>>,
    background: Vec<tokio::task::JoinHandle<()>>,
    app_ready: watch::Sender<bool>,
    /// Where the doors listen.
    ports: Vec<(String, SocketAddr)>,
    telemetry: Arc<Mutex<Telemetry>>,
}

impl Plane {
    async fn start(
        common: CommonOptions,
        mesh: Arc<MeshClient>,
        fanout: Arc<Fanout>,
        mut doors: Doors,
        app: Option<AppTarget>,
        gateway: Option<GatewayRoutes>,
        telemetry: Telemetry,
    ) -> Result<Self, DataPlaneError> {
        let (api_sender, api_streams) = mpsc::channel(API_BACKLOG);
        let config = Arc::new(WorkerConfig {
            home: mesh.service().clone(),
            app,
            gateway,
            limits: common.limits,
            timeouts: common.timeouts,
        });
        let admin = tokio::net::TcpListener::bind(common.admin_listen).await;
        let listen_failed =
            |source| DataPlaneError::Listen { door: "admin", address: common.admin_listen, source };
        let admin = admin.map_err(listen_failed)?;
        let admin_address = admin.local_addr().map_err(listen_failed)?;
        let mut ports: Vec<(String, SocketAddr)> =
            doors.open.iter().map(|(name, l, _)| (name.clone(), l.address())).collect();
        ports.push(("admin".to_owned(), admin_address));
        let upstreams = std::mem::take(&mut doors.upstreams);
        let listeners = doors.for_each_thread(common.threads)?;
        let mut started = StartedWorkers::default();
        for (worker, listeners) in listeners.into_iter().enumerate() {
            let outside =
                WorkerOutside { worker, fanout: Arc::clone(&fanout), api: api_sender.clone() };
            let observer = telemetry.observer([seed(worker), seed(worker)]);
            started.start(worker, &config, listeners, &mesh, Box::new(outside), observer)?;
        }
        fanout.set_workers(started.commands);
        let (app_ready, app_state) = watch::channel(app.is_none());
        let part = if config.gateway.is_some() { Part::Gateway } else { Part::Sidecar };
        let facts = Arc::new(Facts {
            part,
            service: mesh.service().clone(),
            app: app.map(|app| (app.address, app.protocol)),
            mesh: mesh.status(),
            credentials: mesh.credentials(),
            app_ready: app_state,
            metrics: started.metrics,
            spans: Arc::clone(&telemetry.span_metrics),
            lines: Arc::clone(&telemetry.line_metrics),
            extended: Mutex::default(),
            config: common.live.config.clone(),
        });
        let telemetry = Arc::new(Mutex::new(telemetry));
        let reconfigurer = Reconfigurer {
            live: common.live,
            base: config,
            fanout: Arc::clone(&fanout),
            threads: common.threads,
            upstreams,
            telemetry: Arc::clone(&telemetry),
        };
        let background = vec![
            tokio::spawn(api::serve_api(Arc::clone(&facts), api_streams)),
            tokio::spawn(serve_admin(facts, admin)),
            tokio::spawn(forward_credentials(Arc::clone(&mesh), Arc::clone(&fanout))),
            tokio::spawn(reconfigurer.run()),
        ];
        if let Some(path) = &common.ports_file {
            write_ports(path, &ports)?;
        }
        for (name, address) in &ports {
            tracing::info!(%address, "{name} door open");
        }
        let threads = started.threads;
        Ok(Self { mesh, fanout, threads, background, app_ready, ports, telemetry })
    }

    /// Serves until told to end; then leaves the mesh, finishes what is under way, and ends.
    async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), DataPlaneError> {
        let mut threads = tokio::task::spawn_blocking(move || {
            self.threads.into_iter().try_for_each(|thread| {
                let result = thread.join().map_err(|_| DataPlaneError::Panicked)?;
                result.map_err(DataPlaneError::Thread)
            })
        });
        tokio::select! {
            ended = &mut threads => return ended.unwrap_or(Err(DataPlaneError::Panicked)),
            () = shutdown => {}
        }
        tracing::info!("leaving the mesh");
        self.mesh.deregister().await;
        self.fanout.drain();
        let result = threads.await.unwrap_or(Err(DataPlaneError::Panicked));
        let told = self.telemetry.lock().unwrap_or_else(PoisonError::into_inner).finish();
        told.await;
        for task in self.background {
            task.abort();
        }
        result
    }
}

#[derive(Default)]
struct StartedWorkers {
    commands: Vec<crate::worker::Commands>,
    metrics: Vec<Arc<DataPlaneMetrics>>,
    threads: Vec<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl StartedWorkers {
    fn start(
        &mut self,
        number: usize,
        config: &Arc<WorkerConfig>,
        listeners: Vec<(Listener, Door)>,
        mesh: &MeshClient,
        outside: Box<WorkerOutside>,
        observer: Option<Box<Observer>>,
    ) -> Result<(), DataPlaneError> {
        let metrics = Arc::new(DataPlaneMetrics::default());
        let credentials = mesh.credentials().borrow().clone();
        let (worker, commands) = Worker::new(
            Arc::clone(config),
            listeners,
            credentials,
            outside,
            Arc::clone(&metrics),
            seed(number),
        )
        .map_err(DataPlaneError::Worker)?;
        let worker = worker.observed_by(observer);
        let thread = std::thread::Builder::new()
            .name(format!("data-{number}"))
            .spawn(move || worker.run())
            .map_err(DataPlaneError::Worker)?;
        self.commands.push(commands);
        self.metrics.push(metrics);
        self.threads.push(thread);
        Ok(())
    }
}

/// A start for choices that need no secrecy, different for every process and thread.
pub(crate) fn seed(number: usize) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(number) | 1
}

async fn forward_credentials(mesh: Arc<MeshClient>, fanout: Arc<Fanout>) {
    let mut credentials = mesh.credentials();
    while credentials.changed().await.is_ok() {
        let renewed = credentials.borrow_and_update().clone();
        tracing::info!(not_after = ?renewed.not_after(), "new credentials");
        fanout.send_credentials(&renewed);
    }
}

/// Writes the file whole or not at all: readers wait for it.
fn write_ports(path: &Path, ports: &[(String, SocketAddr)]) -> Result<(), DataPlaneError> {
    let failed = |source| DataPlaneError::PortsFile { path: path.to_owned(), source };
    let object: serde_json::Map<String, serde_json::Value> =
        ports.iter().map(|(name, address)| (name.clone(), address.to_string().into())).collect();
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
    let temporary = directory.unwrap_or(Path::new(".")).join(format!(
        ".{}.{}",
        path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default(),
        std::process::id()
    ));
    let text = serde_json::Value::Object(object).to_string();
    let mut file = std::fs::File::create(&temporary).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)
}
