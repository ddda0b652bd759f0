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

/// Tells the mesh when the app takes connections and when it does not.
pub(crate) struct Probe {
    pub(crate) app: SocketAddr,
    pub(crate) mesh: Arc<MeshClient>,
    pub(crate) fanout: Arc<Fanout>,
    pub(crate) ready: watch::Sender<bool>,
    /// Time for the mesh to hear of it before callers are sent elsewhere: sooner, they would be
    /// led here again.
    pub(crate) withdraw: Duration,
}

impl Probe {
    /// Runs until dropped.
    pub(crate) async fn run(self) {
        loop {
            let takes = tokio::net::TcpStream::connect(self.app);
            let takes = tokio::time::timeout(PROBE_READY, takes).await;
            let ready = matches!(takes, Ok(Ok(_)));
            if self.ready.send_if_modified(|was| std::mem::replace(was, ready) != ready) {
                self.on_change(ready).await;
            }
            self.pause(ready).await;
        }
    }

    /// Until the app is looked at again: at once when a request found it away.
    async fn pause(&self, ready: bool) {
        if ready {
            let found_away = self.fanout.app_unreachable();
            // Either way the next look tells.
            let _ = tokio::time::timeout(PROBE_READY, found_away).await;
        } else {
            tokio::time::sleep(PROBE_UNREADY).await;
        }
    }

    async fn on_change(&self, ready: bool) {
        tracing::info!(app = %self.app, ready, "the app's state changed");
        self.mesh.set_ready(ready);
        if !ready {
            tokio::time::sleep(self.withdraw).await;
            self.fanout.app_unready();
        }
    }
}
