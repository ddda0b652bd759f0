//! A sidecar: the data plane and the runtime API beside it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tollway_proxy::mesh::MeshClient;
use tollway_proxy::{DataPlaneError, SidecarOptions};

use crate::inside::Caller;
use crate::metadata::Metadata;
use crate::server::{Api, serve};

/// Runs a sidecar until `shutdown`, or until its app asks it to end, then drains it.
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
    plane: tollway_proxy::Sidecar,
    api: Option<tokio::task::JoinHandle<()>>,
    asked_to_end: Arc<Notify>,
}

impl Sidecar {
    /// Opens the doors, obtains the identity and begins to serve: calls are taken once this
    /// returns. What is left is done by tasks of the current tokio runtime.
    ///
    /// # Errors
    /// [`DataPlaneError`].
    pub async fn start(options: SidecarOptions) -> Result<Self, DataPlaneError> {
        let mut plane = tollway_proxy::Sidecar::start(options).await?;
        let asked_to_end = Arc::new(Notify::new());
        let api = plane.take_api().map(|streams| {
            let api = Api {
                metadata: Metadata::new(plane.facts()),
                caller: Caller::new(plane.inside()),
                asked_to_end: Arc::clone(&asked_to_end),
            };
            tokio::spawn(serve(api, streams))
        });
        Ok(Self { plane, api, asked_to_end })
    }

    /// Where a door listens, by its name in the ports file.
    #[must_use]
    pub fn port(&self, door: &str) -> Option<SocketAddr> {
        self.plane.port(door)
    }

    /// The client of the control plane: name, status, and the way to leave early.
    #[must_use]
    pub fn mesh(&self) -> Arc<MeshClient> {
        self.plane.mesh()
    }

    /// Whether the app takes connections; true without an app.
    #[must_use]
    pub fn app_ready(&self) -> watch::Receiver<bool> {
        self.plane.app_ready()
    }

    /// Serves until told to end, here or by the app; then leaves the mesh, finishes what is under
    /// way, and ends.
    ///
    /// # Errors
    /// [`DataPlaneError::Thread`] or [`DataPlaneError::Panicked`].
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), DataPlaneError> {
        let asked_to_end = self.asked_to_end;
        let end = async move {
            tokio::select! {
                () = shutdown => {}
                () = asked_to_end.notified() => tracing::info!("the app asks to end"),
            }
        };
        let result = self.plane.serve(end).await;
        if let Some(api) = self.api {
            api.abort();
        }
        result
    }
}
