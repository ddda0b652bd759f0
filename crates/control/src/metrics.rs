//! What the control plane shows on its admin port.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tokio::sync::watch;
use tollway_identity::Credentials;
use tollway_store::Store;
use tollway_telemetry::Page;
use tollway_telemetry::metrics::names;

use crate::app_state::AppState;
use crate::catalogue::Catalogue;
use crate::commits::CommitMetrics;
use crate::connections::{ConnectionLimits, ShareLimit, StreamLimits};
use crate::hub::Hub;
use crate::instance_keys::InstanceKeys;
use crate::issue::IssuePaces;
use crate::neighbours::Neighbours;
use crate::peering::PeerCounts;
use crate::reminders::Reminders;
use crate::resources::ResourceCounts;
use crate::restored::SeenAhead;
use crate::services::ClusterService;

/// What is read from the catalogue at once.
struct Census {
    local: usize,
    joined: usize,
    workloads: usize,
    gateways: usize,
    networks: usize,
    reachable: usize,
    passed_over: usize,
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
            passed_over: peers().map(|(_, peer)| peer.link.passed_over.len()).sum(),
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
        page.single(&names::JOINED_GATEWAYS_PASSED_OVER, self.passed_over);
    }
}

/// What the admin port shows of a control plane.
pub(crate) struct ControlFacts {
    pub(crate) store: Store,
    pub(crate) commits: Arc<CommitMetrics>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) peers: Arc<PeerCounts>,
    pub(crate) keys: Arc<InstanceKeys>,
    pub(crate) limits: Arc<ConnectionLimits>,
    pub(crate) streams: Arc<StreamLimits>,
    pub(crate) followed: Arc<ShareLimit>,
    pub(crate) issue_paces: Arc<IssuePaces>,
    pub(crate) seen_ahead: Arc<SeenAhead>,
    pub(crate) app_state: Arc<AppState>,
    pub(crate) reminders: Arc<Reminders>,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) resources: Arc<ResourceCounts>,
    pub(crate) credentials: watch::Receiver<Arc<Credentials>>,
}

impl ControlFacts {
    fn add_store(&self, page: &mut Page) {
        let size = self.store.size();
        page.single(&names::STORE_REVISION, self.store.revision());
        page.single(&names::STORE_ENTRIES, size.entries);
        page.single(&names::STORE_LEASES, size.leases);
        page.single(&names::STORE_LIVE_BYTES, size.live_bytes);
        page.single(&names::STORE_FILE_BYTES, size.file_bytes);
        let (durations, failed) = (&names::STORE_COMMIT_DURATION, &names::STORE_COMMIT_FAILURES);
        self.commits.add_to(page, durations, failed);
    }
}

impl ControlFacts {
    fn add_resources(&self, page: &mut Page) {
        let mut resources = page.family(&names::CUSTOM_RESOURCES);
        for (kind, (stored, others)) in self.resources.get() {
            resources.sample(&[("kind", kind.as_str()), ("state", "accepted")], stored);
            resources.sample(&[("kind", kind.as_str()), ("state", "refused")], others);
        }
    }
}

impl ControlFacts {
    fn add_services(&self, page: &mut Page) {
        let (mesh, mixed) = self.hub.read(|catalogue| {
            let is_whole = |of: &Arc<ClusterService>| of.mixed_ports().is_empty();
            let (whole, mixed): (Vec<bool>, Vec<bool>) =
                catalogue.cluster_services().map(is_whole).partition(|is_whole| *is_whole);
            (whole.len(), mixed.len())
        });
        let mut services = page.family(&names::CLUSTER_SERVICES);
        services.sample(&[("state", "mesh")], mesh);
        services.sample(&[("state", "mixed")], mixed);
    }
}

impl ControlFacts {
    pub(crate) fn add_to(&self, page: &mut Page) {
        let followed = self.hub.followed();
        self.limits.add_to(page);
        self.streams.add_to(page, &self.followed, self.issue_paces.refused());
        self.keys.add_to(page);
        page.single(&names::WATCHERS, followed.watchers);
        page.single(&names::WATCHER_LAG, followed.lag);
        page.single(&names::WATCHERS_AHEAD, self.seen_ahead.count());
        self.hub.read(Census::of).add_to(page);
        self.peers.add_to(page);
        self.add_store(page);
        self.app_state.add_to(page);
        self.reminders.counts.add_to(page);
        self.neighbours.counts.add_to(page);
        self.add_resources(page);
        self.add_services(page);
        let credentials = self.credentials.borrow().clone();
        let expiry = credentials.not_after().duration_since(UNIX_EPOCH).unwrap_or_default();
        page.single(&names::CERTIFICATE_EXPIRY, expiry.as_secs());
        page.single(&names::TRUST_REVISION, credentials.bundles().revision());
    }
}
