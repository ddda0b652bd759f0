//! Examines whether the app takes connections, and reports it to the mesh.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tollway_dial::race;
use tollway_net::AppNetwork;

use crate::app_addresses::AppAddresses;
use crate::fanout::Fanout;
use crate::mesh::MeshClient;

/// How often the app's port is examined while it takes no connections, and while it does.
const PROBE_UNREADY: Duration = Duration::from_millis(100);
const PROBE_READY: Duration = Duration::from_secs(1);

/// Connects to an address of the app, which may be in a network namespace of its own.
async fn connect(network: Option<Arc<AppNetwork>>, address: SocketAddr) -> io::Result<TcpStream> {
    match network {
        Some(network) if address.ip().is_loopback() => {
            let socket = network.socket(address)?;
            TcpSocket::from_std_stream(socket.into()).connect(address).await
        }
        Some(_) | None => TcpStream::connect(address).await,
    }
}

/// Reports to the mesh whether the app accepts connections.
pub(crate) struct Probe {
    pub(crate) app: AppAddresses,
    /// The network namespace of the app, if it has one of its own.
    pub(crate) network: Option<Arc<AppNetwork>>,
    pub(crate) mesh: Arc<MeshClient>,
    pub(crate) fanout: Arc<Fanout>,
    pub(crate) ready: watch::Sender<bool>,
    /// Result of the app's own health check, if there is one.
    pub(crate) app_health: Option<watch::Receiver<bool>>,
    /// Time for the mesh to learn of it before callers are sent elsewhere. Sooner, they would be sent here
    /// again.
    pub(crate) withdraw: Duration,
}

impl Probe {
    /// Runs until dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let takes = self.app_takes().await;
            let ready = takes && self.is_healthy();
            if *self.ready.borrow() != ready {
                self.on_change(ready).await;
            }
            self.pause(takes).await;
        }
    }

    /// Whether the app takes a connection. Of several addresses the best is tried first, then each.
    async fn app_takes(&self) -> bool {
        let connect = |address| connect(self.network.clone(), address);
        let best = tokio::time::timeout(PROBE_READY, connect(self.app.best())).await;
        if matches!(best, Ok(Ok(_))) {
            return true;
        }
        if !self.app.are_several() {
            return false;
        }
        let all: Vec<_> = self.app.all().collect();
        match tokio::time::timeout(PROBE_READY, race(&all, connect)).await {
            Ok(Ok((_, address))) => {
                self.app.note_good(address);
                true
            }
            Ok(Err(_)) | Err(_) => false,
        }
    }

    fn is_healthy(&mut self) -> bool {
        self.app_health.as_mut().is_none_or(|app_health| *app_health.borrow_and_update())
    }

    /// Waits until the app is to be examined again: at once when a data thread could not connect to
    /// it, or when the result of its health check has changed.
    async fn pause(&mut self, takes: bool) {
        let time = if takes { PROBE_READY } else { PROBE_UNREADY };
        let unreachable = async {
            match takes {
                true => self.fanout.app_unreachable().await,
                false => std::future::pending().await,
            }
        };
        let health_changed = async {
            if let Some(app_health) = &mut self.app_health
                && app_health.changed().await.is_ok()
            {
                return;
            }
            // There is no health check, or it has ended.
            std::future::pending().await
        };
        // Whichever of them ends the wait, the next examination finds the state of the app.
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = unreachable => {}
            () = health_changed => {}
        }
    }

    async fn on_change(&self, ready: bool) {
        tracing::info!(app = %self.app.best(), ready, "the app's state changed");
        // The announcement is changed first: tasks that wait for `ready` find it made, or on its way.
        self.mesh.set_ready(ready);
        self.ready.send_replace(ready);
        if !ready {
            tokio::time::sleep(self.withdraw).await;
            self.fanout.app_unready();
        }
    }
}
