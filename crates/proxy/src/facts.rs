//! What a member of the mesh knows of itself: its admin port shows it, and the runtime API.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tokio::sync::watch;
use tollway_identity::Credentials;
use tollway_model::{RunningConfig, ServiceName};
use tollway_telemetry::metrics::{Part, add_build, add_exports, add_process, names};
use tollway_telemetry::trace::SpanMetrics;
use tollway_telemetry::{AdminFacts, DaprMetrics, DataPlaneMetrics, LineMetrics, Page};

use crate::dataplane::AppOptions;
use crate::egress::AppEgress;
use crate::interception::{NameAnswer, NameTable};
use crate::mesh::{Announcement, MeshStatus};

/// A running sidecar or gateway, as it is at this moment.
pub struct Facts {
    pub(crate) part: Part,
    pub(crate) service: ServiceName,
    pub(crate) app: Option<AppOptions>,
    pub(crate) mesh: watch::Receiver<MeshStatus>,
    pub(crate) credentials: watch::Receiver<Arc<Credentials>>,
    /// Whether the app takes connections; true without an app.
    pub(crate) app_ready: watch::Receiver<bool>,
    pub(crate) metrics: Vec<Arc<DataPlaneMetrics>>,
    pub(crate) spans: Arc<SpanMetrics>,
    pub(crate) lines: Arc<LineMetrics>,
    /// Set where the connections of the app are led here.
    pub(crate) names: Option<Arc<NameTable>>,
    pub(crate) egress: Arc<AppEgress>,
    /// Set in daprd's place.
    pub(crate) dapr_metrics: Option<Arc<DaprMetrics>>,
    /// The settings that run.
    pub(crate) config: watch::Receiver<RunningConfig>,
}

impl Facts {
    /// Its own name in the mesh.
    #[must_use]
    pub fn service(&self) -> &ServiceName {
        &self.service
    }

    /// Its app; `None` if it only makes calls.
    #[must_use]
    pub fn app(&self) -> Option<&AppOptions> {
        self.app.as_ref()
    }

    /// Whether the control plane has answered: names can be called.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.mesh.borrow().connected
    }

    /// Whether the control plane holds that the app takes calls; true without an app.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        let takes_calls = |announced: &Announcement| {
            matches!(announced, Announcement::Workload { ready: true, .. })
        };
        self.app.is_none() || self.mesh.borrow().registered.as_ref().is_some_and(takes_calls)
    }

    /// Whether the app takes connections; true without an app.
    #[must_use]
    pub fn is_app_ready(&self) -> bool {
        *self.app_ready.borrow()
    }
}

impl AdminFacts for Facts {
    fn add_metrics(&self, page: &mut Page) {
        let threads: Vec<_> = self.metrics.iter().map(AsRef::as_ref).collect();
        DataPlaneMetrics::add_to(page, &threads);
        add_exports(page, &threads, &self.spans, &self.lines);
        let counts = self.names.as_ref().map(|names| names.counts()).unwrap_or_default();
        for (answer, count) in NameAnswer::WORDS.into_iter().zip(counts) {
            page.family(&names::INTERCEPTED_NAMES).sample(&[("answer", answer)], count);
        }
        for (decision, count) in AppEgress::WORDS.into_iter().zip(self.egress.counts()) {
            page.family(&names::EGRESS).sample(&[("decision", decision)], count);
        }
        page.single(&names::APP_READY, u8::from(*self.app_ready.borrow()));
        let status = self.mesh.borrow().clone();
        page.single(&names::CONTROL_CONNECTED, u8::from(status.connected));
        page.single(&names::CONTROL_REGISTERED, u8::from(status.registered.is_some()));
        page.single(&names::CONTROL_REVISION, status.revision);
        let credentials = self.credentials.borrow().clone();
        let expiry = credentials.not_after().duration_since(UNIX_EPOCH).unwrap_or_default();
        page.single(&names::CERTIFICATE_EXPIRY, expiry.as_secs());
        page.single(&names::TRUST_REVISION, credentials.bundles().revision());
        add_build(page, self.part);
        add_process(page);
        if let Some(metrics) = &self.dapr_metrics {
            metrics.add_to(page);
        }
    }

    fn config(&self) -> RunningConfig {
        self.config.borrow().clone()
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.mesh.borrow().clone();
        if !status.connected {
            let reason = status.last_error.unwrap_or_else(|| "it has not answered yet".to_owned());
            return Err(format!("no control plane: {reason}"));
        }
        if !*self.app_ready.borrow() {
            return Err("the app takes no connections".to_owned());
        }
        Ok(())
    }
}
