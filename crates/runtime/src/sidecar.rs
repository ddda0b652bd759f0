//! A sidecar: its data plane and its runtime.

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::watch;
use tollway_proxy::mesh::MeshClient;
use tollway_proxy::{AppOptions, DataPlaneError, Drained, SidecarOptions};
use tollway_state::{Component, StateStore, UnusableStore};
use tollway_wire::ActorHost;

use crate::actors::{ActorStore, Actors, ActorsConfig, Clock};
use crate::app::App;
use crate::body_collector::{BodyCollector, COLLECTED_BODY_BYTES, INBOUND_BODY_BYTES};
use crate::end_request::EndRequest;
use crate::external_endpoints::{EndpointTlsError, ExternalCalls, HttpEndpoint};
use crate::health::watch_health;
use crate::loopback::{Loopback, LoopbackConnection};
use crate::metadata::Metadata;
use crate::readiness::Readiness;
use crate::resiliency::{AppCalls, ResiliencyState};
use crate::server::{Api, serve};
use crate::state::{AllOpened, EmbeddedStore, OpenStoreError, Stores, open_all};

/// The state stores of an app.
#[derive(Clone, Debug)]
pub enum StateStores {
    /// The store `statestore` in the control plane of its network.
    Network,
    /// Those of components.
    Components {
        stores: Vec<Component>,
        /// Requests for these are refused with the reason.
        unusable: Vec<UnusableStore>,
    },
}

/// The state store of an app in the control plane of its network.
#[must_use]
pub fn network_store(mesh: Arc<MeshClient>) -> Arc<dyn StateStore> {
    Arc::new(EmbeddedStore::new(mesh))
}

/// Why a sidecar did not start or had to end.
#[derive(Debug, Error)]
pub enum SidecarError {
    #[error(transparent)]
    Plane(#[from] DataPlaneError),
    #[error(transparent)]
    Store(#[from] OpenStoreError),
    #[error(transparent)]
    Endpoint(#[from] EndpointTlsError),
    /// The process is to exit.
    #[error("the app requested the end of its sidecar by force")]
    ForcedToEnd,
}

/// Runs a sidecar with its state stores until `shutdown`, or until its app requests the end, then
/// drains it.
///
/// # Errors
/// [`SidecarError`].
pub async fn run_sidecar(
    options: SidecarOptions,
    stores: StateStores,
    shutdown: impl Future<Output = ()>,
) -> Result<(), SidecarError> {
    let sidecar = Box::pin(Sidecar::start(options, stores, None)).await?;
    match sidecar.serve(shutdown).await? {
        Ended::InOrder(_) => Ok(()),
        Ended::ByForce => Err(SidecarError::ForcedToEnd),
    }
}

/// How a sidecar ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// After a drain.
    InOrder(Drained),
    /// At once, as its app requested. Its threads may still run: the process is to exit.
    ByForce,
}

/// A sidecar that serves calls. [`Sidecar::serve`] ends it in order.
pub struct Sidecar {
    plane: tollway_proxy::Sidecar,
    api: Option<tokio::task::JoinHandle<()>>,
    health: Option<tokio::task::JoinHandle<()>>,
    asked_to_end: Arc<EndRequest>,
    actors: Arc<Actors>,
    readiness: Arc<Readiness>,
}

impl Sidecar {
    /// Opens the state stores and the listeners, obtains the identity and starts to serve. Calls
    /// are accepted when this returns. Tasks of the current tokio runtime do the rest. `endpoints`
    /// and all URLs may be called outside of the network; with `None` none may.
    ///
    /// # Errors
    /// [`SidecarError`].
    pub async fn start(
        mut options: SidecarOptions,
        stores: StateStores,
        endpoints: Option<Vec<HttpEndpoint>>,
    ) -> Result<Self, SidecarError> {
        options.external_endpoints = endpoints
            .as_ref()
            .map(|endpoints| endpoints.iter().map(|endpoint| endpoint.name.clone()).collect());
        let opened = match stores {
            StateStores::Network => None,
            StateStores::Components { stores, unusable } => Some(open_all(stores, unusable).await?),
        };
        let app = match &options.app {
            Some(app) => {
                Some(App::new(app, options.tokens.app.clone()).map_err(DataPlaneError::AppTls)?)
            }
            None => None,
        };
        // Only there endpoints outside of the network are allowed.
        let in_daprds_place = endpoints.is_some();
        let message_bytes = options.message_bytes.min(COLLECTED_BODY_BYTES);
        let resilience = options.resilience.clone();
        let metrics = options.dapr_metrics.clone();
        let as_daprd = options.as_daprd.clone();
        let calls_app = options.app.as_ref().is_some_and(AppOptions::has_actor_paths);
        let check = options.app.as_ref().and_then(|app| app.health_check.clone());
        // Unhealthy until the first success.
        let asked = check.map(|check| (check, watch::channel(false)));
        let well = asked.as_ref().map(|(_, (_, well))| well.clone());
        let mut plane = Box::pin(tollway_proxy::Sidecar::start(options, well)).await?;
        let health = match (app.clone(), asked) {
            (Some(app), Some((check, (well, _)))) => {
                Some(tokio::spawn(watch_health(app, check, well, metrics.clone())))
            }
            _ => None,
        };
        let asked_to_end = Arc::<EndRequest>::default();
        let stands_in = as_daprd.is_some();
        let network = || AllOpened::by_default(network_store(plane.mesh()), stands_in);
        let opened = opened.unwrap_or_else(network);
        let resiliency = resilience.map(|rules| ResiliencyState::new(rules, metrics.clone()));
        let stores = Stores::new(opened, plane.facts().service().clone(), resiliency.as_ref());
        let loopback: Arc<dyn Loopback> =
            Arc::new(LoopbackConnection::new(plane.loopback_client()));
        let bodies = BodyCollector::new(COLLECTED_BODY_BYTES, message_bytes)
            .in_daprds_place(in_daprds_place);
        let app_calls = resiliency.clone().map(|resiliency| {
            let home = plane.facts().service().clone();
            let own = Arc::new(LoopbackConnection::new(plane.loopback_client()));
            AppCalls::new(resiliency, home, own, bodies.clone())
        });
        let external = ExternalCalls::new(
            endpoints.unwrap_or_default(),
            resiliency.clone(),
            plane.facts().service().clone(),
            bodies.clone(),
            plane.egress(),
        )?;
        let store = stores
            .of_actors()
            .map(|store| ActorStore::new(store, plane.facts().service().app.as_str().to_owned()));
        let mesh = plane.mesh();
        let actors = Actors::new(ActorsConfig {
            me: ActorHost { service: mesh.service().clone(), instance: mesh.instance().clone() },
            control: mesh,
            loopback: Arc::clone(&loopback),
            clock: Clock::system(),
            store,
            resiliency,
            message_bytes: calls_app.then_some(message_bytes),
            actor_app: plane.actor_app(),
            announcer: plane.announcer(),
            metrics: metrics.clone(),
            in_daprds_place,
            has_placement: as_daprd.as_ref().is_some_and(|as_daprd| as_daprd.has_placement),
        });
        let begins_only = as_daprd.is_some();
        let readiness = Arc::new(Readiness::new(plane.facts(), Arc::clone(&actors), begins_only));
        let api = plane.take_api().map(|streams| {
            actors.start(plane.app_ready());
            let api = Api {
                metadata: Metadata::new(plane.facts()),
                readiness: Arc::clone(&readiness),
                loopback,
                app_loopback: Arc::new(LoopbackConnection::new(plane.loopback_client())),
                app_calls,
                external,
                as_daprd,
                errors: metrics.filter(|metrics| metrics.counts_errors()),
                asked_to_end: Arc::clone(&asked_to_end),
                message_bytes,
                app,
                stores,
                actors: Arc::clone(&actors),
                bodies,
                inbound_bodies: BodyCollector::shared(INBOUND_BODY_BYTES, message_bytes),
            };
            tokio::spawn(serve(api, streams))
        });
        Ok(Self { plane, api, health, asked_to_end, actors, readiness })
    }

    /// The address of a listener, by its name in the ports file.
    #[must_use]
    pub fn port(&self, listener: &str) -> Option<SocketAddr> {
        self.plane.port(listener)
    }

    /// Where a listener and those beside it listen, as [`tollway_proxy::Sidecar::ports`] has it.
    pub fn ports<'a>(&'a self, listener: &'a str) -> impl Iterator<Item = SocketAddr> + 'a {
        self.plane.ports(listener)
    }

    /// The ports of loopback at which its app reaches it.
    #[must_use]
    pub fn loopback_ports(&self) -> Vec<u16> {
        self.plane.loopback_ports()
    }

    /// The client of the control plane.
    #[must_use]
    pub fn mesh(&self) -> Arc<MeshClient> {
        self.plane.mesh()
    }

    /// Whether the app accepts connections; true without an app.
    #[must_use]
    pub fn app_ready(&self) -> watch::Receiver<bool> {
        self.plane.app_ready()
    }

    /// Completes once the app can be called and others by it, which is when `/v1.0/healthz` is 204.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let readiness = Arc::clone(&self.readiness);
        async move { readiness.reached().await }
    }

    /// Serves until `shutdown`, or until the app requests the end. Then it withdraws its
    /// registration, finishes the requests under way, and ends.
    ///
    /// # Errors
    /// [`DataPlaneError::Thread`] or [`DataPlaneError::Panicked`].
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<Ended, DataPlaneError> {
        let (asked_to_end, actors) = (self.asked_to_end, self.actors);
        let forced = Arc::clone(&asked_to_end);
        let end = async move {
            tokio::select! {
                () = shutdown => {}
                () = asked_to_end.in_order() => tracing::info!("Shutdown requested via API"),
            }
            // Before the data plane ends, so that turns can end and other hosts take the actors
            // over.
            actors.end().await;
        };
        let result = tokio::select! {
            drained = self.plane.serve(end) => drained.map(Ended::InOrder),
            () = forced.by_force() => {
                tracing::warn!(
                    "Force shutdown requested, exiting immediately without graceful shutdown"
                );
                Ok(Ended::ByForce)
            }
        };
        for task in self.api.into_iter().chain(self.health) {
            task.abort();
        }
        result
    }
}
