//! The data plane's client of the control plane: its identity, its registration, and what it
//! knows of the services it calls.
//!
//! Runs on tokio, beside the data loop, which it only touches through the callback given to
//! [`MeshClient::start`]. It keeps serving what it knows when the control plane is away, comes
//! back with jitter, and resumes from the revision it had.

mod check;
mod config;
mod connect;
mod control_at;
mod egress;
mod enroll;
mod error;
mod knowledge;
mod policies;
mod routes;
mod session;
mod state_folder;
mod supervise;
mod traffic;

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tollway_identity::{Credentials, Expected, client_config};
use tollway_model::{Instance, Locality, NetworkName, Revision, ServiceName, ServiceUpdate};
use tollway_wire::NetworkUpdate;
use tonic::transport::Channel;

use control_at::ControlAt;

use crate::served_ports::ServedPorts;

pub use check::{ControlCheck, check_control};
pub use tollway_identity::RootPin;

pub use config::{
    Announcement, MeshConfig, PodToken, Role, StateDirectory, TOKEN_VARIABLE, TokenSource,
};
pub use egress::EgressUpdate;
pub use error::MeshError;
pub use policies::{Applied, PolicyUpdate};
pub use routes::{RoutesUpdate, ServiceRoutes};
pub use state_folder::StateFolderError;
pub use tollway_dial::{Targets, TargetsError};
pub use traffic::TrafficUpdate;

/// Longest wait for the control plane to confirm that a registration is gone.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// New states, together as of `revision`. What is not mentioned is as it was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeshDelta {
    pub revision: Revision,
    pub services: Vec<ServiceUpdate>,
    /// What is done with requests for services, where that changed; only for sidecars.
    pub routes: Vec<RoutesUpdate>,
    /// Only for gateways.
    pub networks: Vec<NetworkUpdate>,
    /// Who may call the own service, when that changed; only for sidecars.
    pub policies: Option<PolicyUpdate>,
    /// What the traffic policies of the own service come to, when that changed; only for sidecars.
    pub traffic: Option<TrafficUpdate>,
    /// Behind states of services that are called in any network.
    pub applied: Applied,
    /// What the app may call out of the mesh, when that changed; only for sidecars.
    pub egress: Option<EgressUpdate>,
    /// Ports of the app beside its own that Services of a cluster lead to, when that changed; only for
    /// sidecars.
    pub(crate) ports: Option<Arc<ServedPorts>>,
}

/// How it stands with the control plane.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeshStatus {
    /// The stream of updates is open.
    pub connected: bool,
    /// The announcement that the control plane holds.
    pub registered: Option<Announcement>,
    /// Everything up to here was applied.
    pub revision: Revision,
    /// What went wrong last; `None` while connected.
    pub last_error: Option<String>,
}

/// A handle; the client ends when it is dropped. It then just falls silent: call
/// [`MeshClient::deregister`] before, to leave in good order.
#[derive(Debug)]
pub struct MeshClient {
    shared: Arc<Shared>,
    service: ServiceName,
    instance: Instance,
    locality: Locality,
    _guard: DropGuard,
}

/// What the handle and the background task share.
#[derive(Debug)]
struct Shared {
    desired: Mutex<HashSet<ServiceName>>,
    /// The desired subscriptions changed.
    subscriptions: Notify,
    /// Where the control plane is.
    control: watch::Sender<Targets>,
    control_at: ControlAt,
    announcement: watch::Sender<Option<Announcement>>,
    /// An announcement was sent to the control plane, which has not confirmed its end.
    announced: watch::Sender<bool>,
    credentials: watch::Sender<Arc<Credentials>>,
    /// A peer has refused the certificate as one that has ended.
    refused: Notify,
    status: watch::Sender<MeshStatus>,
    /// Number of the last set of policies or routes that is applied everywhere; 0 before.
    changes_applied: watch::Sender<u64>,
}

impl MeshClient {
    /// Obtains a first identity and starts the client on the current tokio runtime. `on_delta`
    /// is called from there with every change, in order; it must return quickly.
    ///
    /// # Errors
    /// [`MeshError`] when the token is unusable, the control plane refuses, or it does not
    /// answer within [`MeshConfig::start_timeout`].
    pub async fn start(
        config: MeshConfig,
        on_delta: impl FnMut(MeshDelta) + Send + 'static,
    ) -> Result<Self, MeshError> {
        let control = watch::Sender::new(config.control.clone());
        let control_at = ControlAt::new(control.subscribe());
        let (who, credentials) = enroll::first(&config, control_at.clone()).await?;
        let (service, instance) = (who.service.clone(), who.instance.clone());
        let shared = Arc::new(Shared::new(control, control_at, credentials));
        let stop = CancellationToken::new();
        let run = supervise::run(who, shared.clone(), Box::new(on_delta));
        tokio::spawn(stop.clone().run_until_cancelled_owned(run));
        let locality = config.locality;
        Ok(Self { shared, service, instance, locality, _guard: stop.drop_guard() })
    }

    /// The own service, with the network that the token named.
    #[must_use]
    pub fn service(&self) -> &ServiceName {
        &self.service
    }

    /// Where this process runs, as its operator states it.
    #[must_use]
    pub fn locality(&self) -> &Locality {
        &self.locality
    }

    /// What distinguishes this process from other replicas of the service.
    #[must_use]
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The present certificate and trust; changes when either is renewed.
    #[must_use]
    pub fn credentials(&self) -> watch::Receiver<Arc<Credentials>> {
        self.shared.credentials.subscribe()
    }

    /// A peer has refused the present certificate as one that has ended: it is renewed now, unless it
    /// was issued a moment ago.
    pub fn certificate_refused(&self) {
        self.shared.refused.notify_one();
    }

    /// The same control plane, with the same authority, is at another address now.
    pub fn move_control(&self, address: Targets) {
        self.shared.control.send_if_modified(|present| {
            let has_moved = *present != address;
            *present = address;
            has_moved
        });
    }

    /// Connects to the control plane, as this workload, beside the connection that this client
    /// has. The channel does not dial again when it breaks.
    ///
    /// # Errors
    /// [`MeshError`].
    pub async fn connect(&self) -> Result<Channel, MeshError> {
        let (name, config) = self.control_tls()?;
        let connected = connect::connect(&self.shared.control_at, name, config).await?;
        Ok(connected.channel)
    }

    /// With what a connection to the control plane is secured, as this workload: for those who make
    /// connections of their own. It lasts as long as the present certificate.
    ///
    /// # Errors
    /// [`MeshError`].
    pub fn control_tls(&self) -> Result<(ServerName<'static>, Arc<ClientConfig>), MeshError> {
        let credentials = self.shared.credentials.borrow().clone();
        let trust_domain = &credentials.spiffe_id().trust_domain;
        let expected = Expected::home_control(&self.service.network, trust_domain);
        let config = client_config(&credentials, &expected, connect::ALPN)?;
        Ok((expected.server_name()?, config))
    }

    /// Asks for the state of a service and its changes. Cheap, idempotent, from any thread. The
    /// state comes by the callback, also when the service is unknown.
    pub fn subscribe(&self, service: ServiceName) {
        if self.shared.desired().insert(service) {
            self.shared.subscriptions.notify_one();
        }
    }

    /// Ends a subscription. No update of the service comes once this was carried out.
    pub fn unsubscribe(&self, service: &ServiceName) {
        if self.shared.desired().remove(service) {
            self.shared.subscriptions.notify_one();
        }
    }

    /// Announces this instance to the mesh, or replaces what was announced.
    pub fn register(&self, announcement: Announcement) {
        self.shared.announcement.send_replace(Some(announcement));
    }

    /// Whether this workload should be sent requests. Does nothing before
    /// [`MeshClient::register`] and for a gateway.
    pub fn set_ready(&self, now_ready: bool) {
        self.shared.announcement.send_if_modified(|announced| match announced {
            Some(Announcement::Workload { ready, .. }) => {
                std::mem::replace(ready, now_ready) != now_ready
            }
            Some(Announcement::Gateway { .. }) | None => false,
        });
    }

    /// The joined networks that only dial out, of which this gateway holds reverse connections now.
    /// Does nothing before [`MeshClient::register`] and for a workload.
    pub fn set_reaches(&self, now_reached: BTreeSet<NetworkName>) {
        self.shared.announcement.send_if_modified(|announced| match announced {
            Some(Announcement::Gateway { reaches, .. }) => {
                let has_changed = *reaches != now_reached;
                *reaches = now_reached;
                has_changed
            }
            Some(Announcement::Workload { .. }) | None => false,
        });
    }

    /// Where other networks reach this gateway now. Does nothing before [`MeshClient::register`] and for a
    /// workload.
    pub fn set_outside(&self, now: Vec<SocketAddr>) {
        self.change_addresses(|outside, _| *outside = now);
    }

    /// Where workloads of its own network reach this gateway now; as [`MeshClient::set_outside`].
    pub fn set_inside(&self, now: Vec<SocketAddr>) {
        self.change_addresses(|_, inside| *inside = now);
    }

    fn change_addresses(&self, change: impl FnOnce(&mut Vec<SocketAddr>, &mut Vec<SocketAddr>)) {
        self.shared.announcement.send_if_modified(|announced| match announced {
            Some(Announcement::Gateway { outside, inside, .. }) => {
                change(outside, inside);
                true
            }
            Some(Announcement::Workload { .. }) | None => false,
        });
    }

    /// Waits until the control plane holds the present announcement.
    pub async fn registered(&self) {
        let mut status = self.status();
        let is_held = |status: &MeshStatus| {
            status.registered.is_some() && status.registered == *self.shared.announcement.borrow()
        };
        // The sender lives as long as the client does.
        let _ = status.wait_for(is_held).await;
    }

    /// Takes the announcement back and waits until the control plane holds it no more, for at
    /// most two seconds: a lost control plane notices by the lease. Returns whether it is certain
    /// that nothing is announced.
    pub async fn deregister(&self) -> bool {
        self.shared.announcement.send_replace(None);
        let mut announced = self.shared.announced.subscribe();
        let gone = announced.wait_for(|announced| !announced);
        matches!(tokio::time::timeout(DEREGISTER_TIMEOUT, gone).await, Ok(Ok(_)))
    }

    /// How it stands with the control plane.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<MeshStatus> {
        self.shared.status.subscribe()
    }
}

impl Shared {
    /// Nothing is asked for or announced yet.
    fn new(
        control: watch::Sender<Targets>,
        control_at: ControlAt,
        credentials: Credentials,
    ) -> Self {
        Self {
            desired: Mutex::new(HashSet::new()),
            subscriptions: Notify::new(),
            control,
            control_at,
            announcement: watch::Sender::new(None),
            announced: watch::Sender::new(false),
            credentials: watch::Sender::new(Arc::new(credentials)),
            refused: Notify::new(),
            status: watch::Sender::new(MeshStatus::default()),
            changes_applied: watch::Sender::new(0),
        }
    }

    fn desired(&self) -> MutexGuard<'_, HashSet<ServiceName>> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_registered(&self, registered: Option<Announcement>) {
        self.status.send_if_modified(|status| {
            let has_changed = status.registered != registered;
            status.registered = registered;
            has_changed
        });
    }
}
