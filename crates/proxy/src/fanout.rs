//! Between the control-plane client and the data-plane threads: who wants which service, and
//! what is known of it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, Semaphore, mpsc};
use tollway_dial::in_turn;
use tollway_identity::Credentials;
use tollway_model::{HostName, ServiceName, ServiceState, ServiceUpdate};
use tollway_net::local_pair;

use crate::event_loop::{
    ApiKind, ApiStream, Command, Commands, LoopConfig, NotServed, ProcessServices,
};
use crate::live::ByThread;
use crate::mesh::{MeshClient, MeshDelta, RoutesUpdate, ServiceRoutes};

/// Names of hosts out of the mesh that are looked for at a time.
const LOOKUPS_LIMIT: usize = 64;
/// Time for the addresses of such a name.
const LOOKUP_WITHIN: Duration = Duration::from_secs(5);
/// Connections to the sidecar's own API that wait to be taken.
pub(crate) const API_BACKLOG: usize = 64;

/// Shared by the client of the control plane and every data thread.
#[derive(Default)]
pub(crate) struct Fanout {
    state: Mutex<State>,
    mesh: OnceLock<Arc<MeshClient>>,
    app_unreachable: Notify,
    /// A task has taken the connections to this process's own API.
    api_taken: AtomicBool,
    /// Where the addresses of hosts out of the mesh are looked for.
    tasks: OnceLock<Handle>,
    lookups: Lookups,
}

#[derive(Default)]
struct State {
    threads: Vec<Commands>,
    /// The last state of every service that a thread wants (in a gateway: of every service).
    known: HashMap<ServiceName, ServiceUpdate>,
    /// The routes of every service that a thread wants and that has any.
    routes: HashMap<ServiceName, Arc<ServiceRoutes>>,
    /// Threads that want a service.
    wanted: HashMap<ServiceName, HashSet<usize>>,
    /// Connections from within the process so far: each goes to the thread after that of the last.
    adopted: usize,
    /// What came before there were threads.
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

    /// Sets the threads, and sends them what came before.
    pub(crate) fn set_threads(&self, threads: Vec<Commands>) {
        let mut state = self.state();
        state.threads = threads;
        for delta in std::mem::take(&mut state.early) {
            state.send(delta);
        }
    }

    /// Tasks run there.
    pub(crate) fn set_tasks(&self, tasks: Handle) {
        // Set once, by the one who starts the data plane.
        let _ = self.tasks.set(tasks);
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
        for update in &delta.routes {
            match &update.routes {
                Some(routes) => {
                    state.routes.insert(update.service.clone(), Arc::clone(routes));
                }
                None => {
                    state.routes.remove(&update.service);
                }
            }
        }
        if state.threads.is_empty() {
            state.early.push(delta);
        } else {
            state.send(delta);
        }
    }

    /// Sends new credentials to every thread.
    pub(crate) fn send_credentials(&self, credentials: &Arc<Credentials>) {
        for thread in &self.state().threads {
            thread.send(Command::Credentials(Arc::clone(credentials)));
        }
    }

    /// From now on a task serves this process's own API.
    pub(crate) fn set_api_taken(&self) {
        self.api_taken.store(true, Ordering::Release);
    }

    /// Reports to every thread that the app accepts no connections.
    pub(crate) fn app_unready(&self) {
        for thread in &self.state().threads {
            thread.send(Command::AppUnready);
        }
    }

    /// Waits until a thread could not connect to the app, or returns at once if one could not
    /// since the last wait.
    pub(crate) async fn app_unreachable(&self) {
        self.app_unreachable.notified().await;
    }

    /// Sends new settings to every thread, and its new listeners to each.
    pub(crate) fn configure(&self, config: &Arc<LoopConfig>, opened: ByThread) {
        let mut opened = opened.into_iter();
        for thread in &self.state().threads {
            thread.send(Command::Configure(Arc::clone(config)));
            if let Some(listeners) = opened.next().filter(|listeners| !listeners.is_empty()) {
                thread.send(Command::OpenListeners(listeners));
            }
        }
    }

    /// A connection to the next worker; its requests are those of the app to the HTTP API.
    ///
    /// # Errors
    /// When no descriptor is left, or the data plane has ended.
    pub(crate) fn connect(&self) -> std::io::Result<UnixStream> {
        let (ours, theirs) = local_pair()?;
        let mut state = self.state();
        state.adopted = state.adopted.wrapping_add(1);
        let thread = state.threads.get(state.adopted % state.threads.len().max(1));
        if thread.is_some_and(|thread| thread.send(Command::Adopt(theirs))) {
            return Ok(ours);
        }
        Err(std::io::Error::new(std::io::ErrorKind::NotConnected, "the data plane has ended"))
    }

    /// Sends a command to every event loop.
    pub(crate) fn send_to_all(&self, command: impl Fn() -> Command) {
        for thread in &self.state().threads {
            thread.send(command());
        }
    }

    /// Sends a command of its own to every event loop, by its number.
    pub(crate) fn send_to_each(&self, command: impl Fn(usize) -> Command) {
        for (number, thread) in self.state().threads.iter().enumerate() {
            thread.send(command(number));
        }
    }

    /// Starts the drain of every event loop.
    pub(crate) fn drain(&self) {
        for thread in &self.state().threads {
            thread.send(Command::Drain);
        }
    }

    fn subscribe(&self, thread: usize, service: &ServiceName) {
        let mut state = self.state();
        state.wanted.entry(service.clone()).or_default().insert(thread);
        match (state.known.get(service), state.threads.get(thread)) {
            (Some(update), Some(thread)) => {
                if let Some(routes) = state.routes.get(service) {
                    let routes = Some(Arc::clone(routes));
                    let known = RoutesUpdate::known(service.clone(), routes);
                    thread.send(Command::Routes(vec![known]));
                }
                thread.send(Command::Services(vec![update.clone()]));
            }
            _ => {
                if let Some(mesh) = self.mesh.get() {
                    mesh.subscribe(service.clone());
                }
            }
        }
    }

    fn unsubscribe(&self, thread: usize, service: &ServiceName) {
        let mut state = self.state();
        let Some(threads) = state.wanted.get_mut(service) else { return };
        threads.remove(&thread);
        if threads.is_empty() {
            state.wanted.remove(service);
            state.known.remove(service);
            state.routes.remove(service);
            if let Some(mesh) = self.mesh.get() {
                mesh.unsubscribe(service);
            }
        }
    }
}

/// Looks for the addresses of hosts out of the mesh, a few at a time.
#[derive(Debug)]
struct Lookups(Arc<Semaphore>);

impl Default for Lookups {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOKUPS_LIMIT)))
    }
}

impl Lookups {
    /// The addresses of a name, or why there are none.
    async fn find(&self, name: &HostName) -> Result<Vec<IpAddr>, String> {
        let host = name.to_string();
        let permit = Arc::clone(&self.0).try_acquire_owned();
        let permit = permit.map_err(|_| format!("{LOOKUPS_LIMIT} names are being looked for"))?;
        // One that does not end keeps its permit for as long as its thread.
        let found = tokio::spawn(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await;
            drop(permit);
            found.map(|found| in_turn(found).into_iter().map(|address| address.ip()).collect())
        });
        match tokio::time::timeout(LOOKUP_WITHIN, found).await {
            Ok(Ok(found)) => found.map_err(|error| error.to_string()),
            Ok(Err(_)) => Err("the search for its address ended early".to_owned()),
            Err(_) => Err("no name server has answered in time".to_owned()),
        }
    }
}

impl State {
    fn send(&self, delta: MeshDelta) {
        for thread in &self.threads {
            if let Some(policies) = &delta.policies {
                thread.send(Command::Policies(policies.clone()));
            }
            if let Some(traffic) = &delta.traffic {
                thread.send(Command::Traffic(traffic.clone()));
            }
            if let Some(egress) = &delta.egress {
                thread.send(Command::Egress(egress.clone()));
            }
            if let Some(ports) = &delta.ports {
                thread.send(Command::Ports(Arc::clone(ports)));
            }
            // A service is called by its routes as soon as it is known.
            if !delta.routes.is_empty() {
                thread.send(Command::Routes(delta.routes.clone()));
            }
            if !delta.services.is_empty() {
                thread.send(Command::Services(delta.services.clone()));
            }
            if delta.applied.is_awaited() {
                thread.send(Command::Applied(delta.applied.clone()));
            }
            if !delta.networks.is_empty() {
                thread.send(Command::Networks(delta.networks.clone()));
            }
        }
    }
}

/// One worker's view of the rest of the process.
pub(crate) struct DataThreadServices {
    pub(crate) thread: usize,
    pub(crate) fanout: Arc<Fanout>,
    pub(crate) api: mpsc::Sender<ApiStream>,
}

impl ProcessServices for DataThreadServices {
    fn subscribe(&self, service: &ServiceName) {
        self.fanout.subscribe(self.thread, service);
    }

    fn unsubscribe(&self, service: &ServiceName) {
        self.fanout.unsubscribe(self.thread, service);
    }

    fn is_followed(&self) -> bool {
        self.fanout.mesh.get().is_none_or(|mesh| mesh.status().borrow().connected)
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

    fn find_addresses(&self, name: &HostName) {
        let Some(tasks) = self.fanout.tasks.get() else { return };
        let (fanout, thread, name) = (Arc::clone(&self.fanout), self.thread, name.clone());
        tasks.spawn(async move {
            let found = fanout.lookups.find(&name).await;
            if let Some(thread) = fanout.state().threads.get(thread) {
                thread.send(Command::Addresses(name, found));
            }
        });
    }

    fn certificate_refused(&self) {
        if let Some(mesh) = self.fanout.mesh.get() {
            mesh.certificate_refused();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_so_many_names_are_looked_for_at_a_time() {
        let lookups = Lookups::default();
        let name = HostName::read("localhost").unwrap();
        let take = |_| Arc::clone(&lookups.0).try_acquire_owned().unwrap();
        let mut others: Vec<_> = (0..LOOKUPS_LIMIT).map(take).collect();
        let refused = lookups.find(&name).await.unwrap_err();
        assert_eq!(refused, "64 names are being looked for");
        others.pop();
        let found = lookups.find(&name).await.unwrap();
        assert!(found.iter().all(IpAddr::is_loopback) && !found.is_empty(), "{found:?}");
        // It has given its permit back.
        lookups.find(&name).await.unwrap();
        assert!(lookups.0.available_permits() == 1);
    }
}
