//! A running data plane: its threads, listeners, admin port and telemetry, whatever it serves.
//!
//! Sidecar and gateway (`dataplane.rs`) and front (`front/`) put together what they are, start it
//! here, and add what runs beside it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tollway_identity::Credentials;
use tollway_net::{Listener, let_start_go, write_ports};
use tollway_telemetry::trace::SpanMetrics;
use tollway_telemetry::{AdminFacts, DataPlaneMetrics, LineMetrics, serve_admin};

use crate::bind::BoundListeners;
use crate::conn::ListenerKind;
use crate::dataplane::DataPlaneError;
use crate::event_loop::{ApiStream, Composition, EventLoop, Http, LoopConfig};
use crate::fanout::{API_BACKLOG, DataThreadServices, Fanout};
use crate::front::Served;
use crate::gateway::reverse::ReverseOptions;
use crate::gateway::{Gateway, GatewayRoutes};
use crate::limits::{Limits, Timeouts};
use crate::live::{Live, Reconfigurer};
use crate::observe::{Observer, Telemetry};

/// How long after its listeners have opened, and again, what only the start has used may go: the second
/// time is for what came late, such as its certificate and those of its first callers.
const STARTED: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(5)];

/// Settings of every data plane.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// Metrics and health; `None` for nowhere.
    pub admin_listen: Option<SocketAddr>,
    /// Data-plane threads.
    pub threads: usize,
    pub limits: Limits,
    pub timeouts: Timeouts,
    /// Receives the bound addresses as JSON, `{"name": "ip:port"}`.
    pub ports_file: Option<PathBuf>,
    /// How it learns of settings that change.
    pub live: Live,
}

/// What a data plane is.
#[derive(Clone)]
pub(crate) enum PlaneKind {
    /// With its first credentials.
    Sidecar(Arc<Credentials>),
    Gateway(GatewayRoutes, ReverseOptions),
    /// With its first certificates.
    Front(Served),
}

/// Parts of a data plane.
pub(crate) struct Parts {
    pub(crate) config: LoopConfig,
    pub(crate) kind: PlaneKind,
    pub(crate) listeners: BoundListeners,
    pub(crate) telemetry: Telemetry,
    pub(crate) fanout: Arc<Fanout>,
}

/// Counts of the spans and of the lines of the access log.
pub(crate) struct RecordMetrics {
    pub(crate) spans: Arc<SpanMetrics>,
    pub(crate) lines: Arc<LineMetrics>,
}

/// Data threads that run.
pub(crate) struct Plane {
    pub(crate) fanout: Arc<Fanout>,
    /// One for each thread.
    pub(crate) metrics: Vec<Arc<DataPlaneMetrics>>,
    /// Where the listeners are.
    pub(crate) ports: Vec<(String, SocketAddr)>,
    /// Connections to the process's own API, until a task serves them.
    pub(crate) api: Option<mpsc::Receiver<ApiStream>>,
    threads: Vec<std::thread::JoinHandle<std::io::Result<usize>>>,
    background: Vec<tokio::task::JoinHandle<()>>,
    admin: Option<tokio::net::TcpListener>,
    ports_file: Option<PathBuf>,
    telemetry: Arc<Mutex<Telemetry>>,
}

impl Plane {
    /// Opens the admin port and starts the threads.
    pub(crate) async fn start(options: PlaneOptions, parts: Parts) -> Result<Self, DataPlaneError> {
        let Parts { config, kind, mut listeners, telemetry, fanout } = parts;
        let mut ports: Vec<(String, SocketAddr)> =
            listeners.open.iter().map(|(name, l, _)| (name.clone(), l.address())).collect();
        let mut admin = None;
        if let Some(address) = options.admin_listen {
            let failed = |source| DataPlaneError::Listen { listener: "admin", address, source };
            let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
            ports.push(("admin".to_owned(), listener.local_addr().map_err(failed)?));
            admin = Some(listener);
        }
        let upstreams = std::mem::take(&mut listeners.upstreams);
        let listeners = listeners.for_each_thread(options.threads)?;
        let (api_sender, api) = mpsc::channel(API_BACKLOG);
        let board = match &kind {
            PlaneKind::Gateway(_, reverse) => Some(reverse.board.clone()),
            PlaneKind::Sidecar(_) | PlaneKind::Front(_) => None,
        };
        let config = Arc::new(config);
        let mut started = DataThreads::default();
        for (thread, listeners) in listeners.into_iter().enumerate() {
            let services =
                DataThreadServices { thread, fanout: Arc::clone(&fanout), api: api_sender.clone() };
            let observer = telemetry.observer([seed(thread), seed(thread)]);
            let metrics = Arc::new(DataPlaneMetrics::default());
            started.metrics.push(Arc::clone(&metrics));
            let start =
                ThreadStart { number: thread, config: &config, listeners, metrics, observer };
            started.start(start, kind.clone(), services)?;
        }
        if let Some(board) = board {
            board.set_threads(started.commands.clone());
        }
        fanout.set_threads(started.commands);
        let telemetry = Arc::new(Mutex::new(telemetry));
        let reconfigurer = Reconfigurer {
            live: options.live,
            base: config,
            fanout: Arc::clone(&fanout),
            threads: options.threads,
            upstreams,
            telemetry: Arc::clone(&telemetry),
        };
        Ok(Self {
            fanout,
            metrics: started.metrics,
            ports,
            api: Some(api),
            threads: started.threads,
            background: vec![tokio::spawn(reconfigurer.run())],
            admin,
            ports_file: options.ports_file,
            telemetry,
        })
    }

    /// What it counts of spans and lines.
    pub(crate) fn record_metrics(&self) -> RecordMetrics {
        let telemetry = self.telemetry.lock().unwrap_or_else(PoisonError::into_inner);
        let (spans, lines) = (&telemetry.span_metrics, &telemetry.line_metrics);
        RecordMetrics { spans: Arc::clone(spans), lines: Arc::clone(lines) }
    }

    /// Runs a task for as long as it serves.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.push(tokio::spawn(task));
    }

    /// Serves the admin port.
    pub(crate) fn show(&mut self, facts: Arc<dyn AdminFacts>) {
        if let Some(admin) = self.admin.take() {
            self.spawn(serve_admin(facts, admin));
        }
    }

    /// Announces where its listeners are: everything that serves them runs.
    pub(crate) fn open(&mut self) -> Result<(), DataPlaneError> {
        if let Some(path) = &self.ports_file {
            let ports = self.ports.iter().map(|(name, address)| (name.as_str(), *address));
            let failed = |source| DataPlaneError::PortsFile { path: path.clone(), source };
            write_ports(path, ports).map_err(failed)?;
        }
        for (name, address) in &self.ports {
            tracing::info!(%address, "{name} listener open");
        }
        self.spawn(async {
            for wait in STARTED {
                tokio::time::sleep(wait).await;
                let_start_go();
            }
        });
        Ok(())
    }

    /// Serves until `shutdown`; then runs `leave`, finishes what is under way, and ends.
    pub(crate) async fn serve(
        self,
        shutdown: impl Future<Output = ()>,
        leave: impl Future<Output = ()>,
    ) -> Result<Drained, DataPlaneError> {
        let mut threads = tokio::task::spawn_blocking(move || {
            self.threads.into_iter().try_fold(Drained::default(), |mut all, thread| {
                let result = thread.join().map_err(|_| DataPlaneError::Panicked)?;
                all.cut_off += result.map_err(DataPlaneError::Thread)?;
                Ok(all)
            })
        });
        tokio::select! {
            ended = &mut threads => return ended.unwrap_or(Err(DataPlaneError::Panicked)),
            () = shutdown => {}
        }
        leave.await;
        self.fanout.drain();
        let result = threads.await.unwrap_or(Err(DataPlaneError::Panicked));
        let written = self.telemetry.lock().unwrap_or_else(PoisonError::into_inner).finish();
        written.await;
        for task in self.background {
            task.abort();
        }
        result
    }
}

/// How a data plane ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Requests that were cut off since the time for them was over.
    pub cut_off: usize,
}

#[derive(Default)]
struct DataThreads {
    commands: Vec<crate::event_loop::Commands>,
    metrics: Vec<Arc<DataPlaneMetrics>>,
    threads: Vec<std::thread::JoinHandle<std::io::Result<usize>>>,
}

/// What a data thread starts with, whatever it serves.
struct ThreadStart<'c> {
    number: usize,
    config: &'c Arc<LoopConfig>,
    listeners: Vec<(Listener, ListenerKind)>,
    metrics: Arc<DataPlaneMetrics>,
    observer: Option<Box<Observer>>,
}

impl DataThreads {
    /// Starts a thread of this kind. Event loops are made here, in a function without type parameters
    /// that is not asynchronous, so that they are compiled as a part of this crate: what is generic or
    /// asynchronous is compiled in the crate that uses it, where nothing is optimised for speed.
    fn start(
        &mut self,
        start: ThreadStart<'_>,
        kind: PlaneKind,
        services: DataThreadServices,
    ) -> Result<(), DataPlaneError> {
        match kind {
            PlaneKind::Sidecar(credentials) => {
                let sidecar = Http::sidecar(start.config, credentials, Box::new(services));
                self.start_loop(start, sidecar)
            }
            PlaneKind::Gateway(routes, reverse) => {
                let reverse = ReverseOptions { thread: start.number, ..reverse };
                self.start_loop(start, Gateway::new(routes, reverse))
            }
            PlaneKind::Front(served) => {
                self.start_loop(start, Http::front(served, Box::new(services)))
            }
        }
    }

    fn start_loop(
        &mut self,
        start: ThreadStart<'_>,
        plane: impl Composition + Send + 'static,
    ) -> Result<(), DataPlaneError> {
        let ThreadStart { number, config, listeners, metrics, observer } = start;
        let (event_loop, commands) = EventLoop::new(
            Arc::clone(config),
            listeners,
            metrics,
            Instant::now(),
            seed(number),
            plane,
        )
        .map_err(DataPlaneError::EventLoop)?;
        let event_loop = event_loop.observed_by(observer);
        let thread = std::thread::Builder::new()
            .name(format!("data-{number}"))
            .spawn(move || event_loop.run())
            .map_err(DataPlaneError::EventLoop)?;
        self.commands.push(commands);
        self.threads.push(thread);
        Ok(())
    }
}

/// A start for choices that need no secrecy, different for every process and thread.
pub(crate) fn seed(number: usize) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(number) | 1
}
