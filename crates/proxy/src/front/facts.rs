//! What a front shows on its admin port.

use std::sync::Arc;

use tokio::sync::watch;
use tollway_model::RunningConfig;
use tollway_telemetry::metrics::{Part, add_build, add_exports, add_process, names};
use tollway_telemetry::{AdminFacts, DataPlaneMetrics, Page};

use super::follow::Status;
use crate::plane::RecordMetrics;

/// What the page is made of.
pub(super) struct FrontFacts {
    pub(super) metrics: Vec<Arc<DataPlaneMetrics>>,
    pub(super) records: RecordMetrics,
    pub(super) status: watch::Receiver<Status>,
    /// The settings that run.
    pub(super) config: watch::Receiver<RunningConfig>,
}

impl AdminFacts for FrontFacts {
    fn add_metrics(&self, page: &mut Page) {
        let threads: Vec<_> = self.metrics.iter().map(AsRef::as_ref).collect();
        DataPlaneMetrics::add_to(page, &threads);
        add_exports(page, &threads, &self.records.spans, &self.records.lines);
        let status = *self.status.borrow();
        page.single(&names::CERTIFICATES_REVISION, status.revision);
        page.single(&names::CERTIFICATE_CHANGES_REFUSED, status.refused);
        page.single(&names::CERTIFICATE_EXPIRY, status.expires);
        add_build(page, Part::Front);
        add_process(page);
    }

    fn config(&self) -> RunningConfig {
        self.config.borrow().clone()
    }

    /// Its listeners are open once there is an admin port; whether the app answers is the app's.
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }
}
