//! Connections to the control plane, as the runtime uses them.
//!
//! [`ControlLink`] is the seam at which tests put a server of their own in place of a control plane.

use tollway_model::chain;
use tollway_proxy::mesh::MeshClient;
use tonic::transport::Channel;

/// Opens connections to the control plane of the network.
#[tonic::async_trait]
pub(crate) trait ControlLink: Send + Sync {
    /// Opens a connection that is secured as this workload.
    ///
    /// # Errors
    /// The reason, as text.
    async fn connect(&self) -> Result<Channel, String>;

    /// Waits until the control plane holds the registration of this workload.
    async fn registered(&self);
}

#[tonic::async_trait]
impl ControlLink for MeshClient {
    async fn connect(&self) -> Result<Channel, String> {
        Self::connect(self).await.map_err(|error| chain(&error))
    }

    async fn registered(&self) {
        Self::registered(self).await;
    }
}
