//! The mark of the pod whose control plane serves, of several: a label by which their Service finds it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tollway_model::{KubeName, chain};
use tracing::{info, warn};

use crate::Cluster;

/// The label; its value is `true`, or it is not there.
pub(crate) const SERVES: &str = "tollway.dev/serves";
const PAUSE: Duration = Duration::from_secs(1);

/// The mark of one pod.
pub struct ServingMark {
    pods: Api<Pod>,
    at: KubeName,
}

impl ServingMark {
    #[must_use]
    pub fn of(cluster: &Cluster, at: KubeName) -> Self {
        Self { pods: Api::namespaced(cluster.client.clone(), &at.namespace), at }
    }

    /// Waits until the pod has it.
    pub async fn set(&self) {
        self.write(Some("true")).await;
    }

    /// Waits until the pod does not have it: a former process of this pod may have set it.
    pub async fn clear(&self) {
        self.write(None).await;
    }

    async fn write(&self, value: Option<&str>) {
        let change = Patch::Merge(json!({"metadata": {"labels": {SERVES: value}}}));
        let mut is_late = false;
        loop {
            match self.pods.patch(&self.at.name, &PatchParams::default(), &change).await {
                Ok(_) => break,
                Err(error) => {
                    let error = chain(&error);
                    if !std::mem::replace(&mut is_late, true) {
                        warn!(error, pod = %self.at, value, "the label {SERVES} cannot be set; it is tried again");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        if is_late {
            info!(pod = %self.at, value, "the label {SERVES} is set");
        }
    }
}
