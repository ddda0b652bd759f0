//! Between the control-plane client and the data-plane threads: who wants which service, and
//! what is known of it.

use std::collections::{HashMap, HashSet};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};
use tollway_identity::Credentials;
use tollway_model::{ServiceName, ServiceState, ServiceUpdate};
use tollway_net::local_pair;

use crate::event_loop::{
    ApiKind, ApiStream, Command, Commands, HostServices, LoopConfig, NotServed,
};
use crate::live::ByThread;
use crate::mesh::{MeshClient, MeshDelta};

/// Connections to the sidecar's own API that wait to be taken.
pub(crate) const API_BACKLOG: usize = 64;

/// Shared by the client's callback and every worker.
#[derive(Default)]
pub(crate) struct Fanout {
    state: Mutex<State>,
    mesh: OnceLock<Arc<MeshClient>>,
    app_unreachable: Notify,
    /// Somebody has taken what this process is to serve itself.
    api_taken: AtomicBool,
}

#[derive(Default)]
struct State {
    workers: Vec<Commands>,
    /// The last state of every service somebody wants (a gateway: of every service).
    known: HashMap<ServiceName, ServiceUpdate>,
    /// Workers that want a service.
    wanted: HashMap<ServiceName, HashSet<usize>>,
    /// Connections from within the process: each worker gets one in turn.
    adopted: usize,
    /// What came before there were workers.
    early: Vec<MeshDelta>,
}

impl Fanout {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client is there; services can be asked for.
    pub(crate) fn set_mesh(&self, mesh: Arc<MeshClient>) {
        // Set once, by the one who starts the data plane.
        let _ = self.mesh.set(mesh);
    }

    /// The workers are there; they get what came before them.
    pub(crate) fn set_workers(&self, workers: Vec<Commands>) {
        let mut state = self.state();
        state.workers = workers;
        for delta in std::mem::take(&mut state.early) {
            state.send(delta);
        }
    }

    /// The client's callback.
    pub(crate) fn on_delta(&self, delta: MeshDelta) {
        let mut state = self.state();
        for update in &delta.services {
            let is_gone = matches!(update.state, ServiceState::Unavailable(_));
            if is_gone && !state.wanted.contains_key(&update.service) {
                // A gateway hears of every service that ever was.
                state.known.remove(&update.service);
            } else {
                state.known.insert(update.service.clone(), update.clone());
            }
        }
        if state.workers.is_empty() {
            state.early.push(delta);
        } else {
            state.send(delta);
        }
    }

    /// New credentials for every worker.
    pub(crate) fn send_credentials(&self, credentials: &Arc<Credentials>) {
        for worker in &self.state().workers {
            worker.send(Command::Credentials(Arc::clone(credentials)));
        }
    }

    /// Somebody serves from now on what this process is to serve itself.
    pub(crate) fn set_api_taken(&self) {
        self.api_taken.store(true, Ordering::Release);
    }

    /// Tells every worker that the app takes no connections.
    pub(crate) fn app_unready(&self) {
        for worker in &self.state().workers {
            worker.send(Command::AppUnready);
        }
    }

    /// Waits until a worker could not connect to the app, or returns at once if one could not
    /// since the last wait.
    pub(crate) async fn app_unreachable(&self) {
        self.app_unreachable.notified().await;
    }

    /// New settings for every worker, and to each its new listeners.
    pub(crate) fn configure(&self, config: &Arc<LoopConfig>, opened: ByThread) {
        let mut opened = opened.into_iter();
        for worker in &self.state().workers {
            worker.send(Command::Configure(Arc::clone(config)));
            if let Some(listeners) = opened.next().filter(|listeners| !listeners.is_empty()) {
                worker.send(Command::OpenListeners(listeners));
            }
        }
    }

    /// A connection to a worker, each in turn; its requests are those of the app to the HTTP API.
    ///
    /// # Errors
    /// When no descriptor is left, or the data plane has ended.
    pub(crate) fn connect(&self) -> std::io::Result<UnixStream> {
        let (ours, theirs) = local_pair()?;
        let mut state = self.state();
        state.adopted = state.adopted.wrapping_add(1);
        let worker = state.workers.get(state.adopted % state.workers.len().max(1));
        if worker.is_some_and(|worker| worker.send(Command::Adopt(theirs))) {
            return Ok(ours);
        }
        Err(std::io::Error::new(std::io::ErrorKind::NotConnected, "the data plane has ended"))
    }

    /// Sends a command to every event loop.
    pub(crate) fn tell(&self, command: impl Fn() -> Command) {
        for worker in &self.state().workers {
            worker.send(command());
        }
    }

    /// A command of its own for every worker, by its number.
    pub(crate) fn tell_each(&self, command: impl Fn(usize) -> Command) {
        for (number, worker) in self.state().workers.iter().enumerate() {
            worker.send(command(number));
        }
    }

    /// Tells every worker to finish.
    pub(crate) fn drain(&self) {
        for worker in &self.state().workers {
            worker.send(Command::Drain);
        }
    }

    fn subscribe(&self, worker: usize, service: &ServiceName) {
        let mut state = self.state();
        state.wanted.entry(service.clone()).or_default().insert(worker);
        match (state.known.get(service), state.workers.get(worker)) {
            (Some(update), Some(worker)) => {
                worker.send(Command::Services(vec![update.clone()]));
            }
            _ => {
                if let Some(mesh) = self.mesh.get() {
                    mesh.subscribe(service.clone());
                }
            }
        }
    }

    fn unsubscribe(&self, worker: usize, service: &ServiceName) {
        let mut state = self.state();
        let Some(workers) = state.wanted.get_mut(service) else { return };
        workers.remove(&worker);
        if workers.is_empty() {
            state.wanted.remove(service);
            state.known.remove(service);
            if let Some(mesh) = self.mesh.get() {
                mesh.unsubscribe(service);
            }
        }
    }
}

impl State {
    fn send(&self, delta: MeshDelta) {
        for worker in &self.workers {
            if let Some(policies) = &delta.policies {
                worker.send(Command::Policies(policies.clone()));
            }
            if !delta.services.is_empty() {
                worker.send(Command::Services(delta.services.clone()));
            }
            if !delta.networks.is_empty() {
                worker.send(Command::Networks(delta.networks.clone()));
            }
        }
    }
}

/// One worker's view of the rest of the process.
pub(crate) struct LoopServices {
    pub(crate) worker: usize,
    pub(crate) fanout: Arc<Fanout>,
    pub(crate) api: mpsc::Sender<ApiStream>,
}

impl HostServices for LoopServices {
    fn subscribe(&self, service: &ServiceName) {
        self.fanout.subscribe(self.worker, service);
    }

    fn unsubscribe(&self, service: &ServiceName) {
        self.fanout.unsubscribe(self.worker, service);
    }

    fn serve_api(&self, stream: ApiStream) -> Result<(), NotServed> {
        // The app's own requests wait for who will serve them.
        let may_wait = stream.kind != ApiKind::Actors;
        if !may_wait && !self.fanout.api_taken.load(Ordering::Acquire) {
            return Err(NotServed::Nobody);
        }
        self.api.try_send(stream).map_err(|error| match error {
            TrySendError::Full(_) => NotServed::Full(API_BACKLOG),
            TrySendError::Closed(_) => NotServed::Nobody,
        })
    }

    fn app_unreachable(&self) {
        self.fanout.app_unreachable.notify_one();
    }
}
