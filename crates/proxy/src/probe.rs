//! Whether the app takes connections, and telling the mesh of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::fanout::Fanout;
use crate::mesh::MeshClient;

/// How often the app's port is looked at while it takes no connections, and while it does.
const PROBE_UNREADY: Duration = Duration::from_millis(100);
const PROBE_READY: Duration = Duration::from_secs(1);

/// Reports to the mesh whether the app accepts connections.
pub(crate) struct Probe {
    pub(crate) app: SocketAddr,
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
            let takes = tokio::net::TcpStream::connect(self.app);
            let takes = tokio::time::timeout(PROBE_READY, takes).await;
            let takes = matches!(takes, Ok(Ok(_)));
            let ready = takes && self.is_healthy();
            if *self.ready.borrow() != ready {
                self.on_change(ready).await;
            }
            self.pause(takes).await;
        }
    }

    fn is_healthy(&mut self) -> bool {
        self.app_health.as_mut().is_none_or(|app_health| *app_health.borrow_and_update())
    }

    /// Until the app is looked at again: at once when a request found it away, or when it fares
    /// otherwise by its own word.
    async fn pause(&mut self, takes: bool) {
        let time = if takes { PROBE_READY } else { PROBE_UNREADY };
        let found_away = async {
            match takes {
                true => self.fanout.app_unreachable().await,
                false => std::future::pending().await,
            }
        };
        let fares_otherwise = async {
            if let Some(app_health) = &mut self.app_health
                && app_health.changed().await.is_ok()
            {
                return;
            }
            // Nobody asks it, or nobody does any more.
            std::future::pending().await
        };
        // Whatever it was, the next look tells.
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = found_away => {}
            () = fares_otherwise => {}
        }
    }

    async fn on_change(&self, ready: bool) {
        tracing::info!(app = %self.app, ready, "the app's state changed");
        // Who acts on it here finds it announced, or about to be.
        self.mesh.set_ready(ready);
        self.ready.send_replace(ready);
        if !ready {
            tokio::time::sleep(self.withdraw).await;
            self.fanout.app_unready();
        }
    }
}
