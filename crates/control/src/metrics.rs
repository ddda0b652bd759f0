//! What the control plane shows on its admin port.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tollway_model::RunningConfig;
use tollway_store::Commit;
use tollway_telemetry::metrics::{Counter, Durations, Metric, Part, add_build, add_process, names};
use tollway_telemetry::{AdminFacts, Page};

use crate::catalogue::Catalogue;
use crate::plane::Plane;

/// What the store's writer tells; it is the only writer of these.
#[derive(Default, Debug)]
pub(crate) struct CommitMetrics {
    durations: Durations,
    failed: Counter,
}

impl CommitMetrics {
    pub(crate) fn record(&self, commit: Commit) {
        if commit.durable {
            self.durations.record(commit.took);
        } else {
            self.failed.add(1);
        }
    }

    pub(crate) fn add_to(
        &self,
        page: &mut Page,
        durations: &'static Metric,
        failed: &'static Metric,
    ) {
        page.durations(durations, &[], &[&self.durations]);
        page.single(failed, self.failed.value());
    }
}

/// What is read from the catalogue at once.
struct Census {
    local: usize,
    joined: usize,
    workloads: usize,
    gateways: usize,
    networks: usize,
    reachable: usize,
}

impl Census {
    fn of(catalogue: &Catalogue) -> Self {
        let peers = || catalogue.peers().filter(|(_, peer)| peer.joined().is_some());
        Self {
            local: catalogue.service_count(),
            joined: peers().map(|(_, peer)| peer.services.len()).sum(),
            workloads: catalogue.local_services().map(|n| catalogue.workload_count(n)).sum(),
            gateways: catalogue.gateways().count(),
            networks: peers().count(),
            reachable: peers().filter(|(_, peer)| peer.link.reachable).count(),
        }
    }

    fn add_to(&self, page: &mut Page) {
        let mut services = page.family(&names::SERVICES);
        services.sample(&[("scope", "local")], self.local);
        services.sample(&[("scope", "joined")], self.joined);
        page.single(&names::WORKLOADS, self.workloads);
        page.single(&names::GATEWAYS, self.gateways);
        page.single(&names::JOINED_NETWORKS, self.networks);
        page.single(&names::JOINED_NETWORKS_REACHABLE, self.reachable);
    }
}

/// The admin port's view of a control plane.
pub(crate) struct ControlFacts {
    pub(crate) plane: Arc<Plane>,
    pub(crate) commits: Arc<CommitMetrics>,
}

impl ControlFacts {
    fn add_store(&self, page: &mut Page) {
        let size = self.plane.store.size();
        page.single(&names::STORE_REVISION, self.plane.store.revision());
        page.single(&names::STORE_ENTRIES, size.entries);
        page.single(&names::STORE_LEASES, size.leases);
        page.single(&names::STORE_LIVE_BYTES, size.live_bytes);
        page.single(&names::STORE_FILE_BYTES, size.file_bytes);
        let (durations, failed) = (&names::STORE_COMMIT_DURATION, &names::STORE_COMMIT_FAILURES);
        self.commits.add_to(page, durations, failed);
    }
}

impl AdminFacts for ControlFacts {
    fn add_metrics(&self, page: &mut Page) {
        let hub = &self.plane.hub;
        let followed = hub.followed();
        self.plane.places.add_to(page);
        page.single(&names::WATCHERS, followed.watchers);
        page.single(&names::WATCHER_LAG, followed.lag);
        hub.read(Census::of).add_to(page);
        self.add_store(page);
        self.plane.app_state.add_to(page);
        self.plane.reminders.counts.add_to(page);
        self.plane.neighbours.counts.add_to(page);
        let credentials = self.plane.own_credentials();
        let expiry = credentials.not_after().duration_since(UNIX_EPOCH).unwrap_or_default();
        page.single(&names::CERTIFICATE_EXPIRY, expiry.as_secs());
        page.single(&names::TRUST_REVISION, credentials.bundles().revision());
        add_build(page, Part::Control);
        add_process(page);
    }

    fn config(&self) -> RunningConfig {
        self.plane.options.config.borrow().clone()
    }

    /// It binds this port last, when it can do all its work.
    fn ready(&self) -> Result<(), String> {
        Ok(())
    }
}
