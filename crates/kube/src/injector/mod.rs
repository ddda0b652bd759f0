//! The injector of a cluster: a webhook that adds sidecars to pods as they are made.
//!
//! `server` takes reviews and `admission` answers them; what is added is decided in the crate `inject`.
//! `reconcile` has the API server trust the certificate, which [`crate::secret_certificate`] keeps.

mod admission;
mod dapr;
mod reconcile;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tollway_identity::RootPin;
use tollway_inject::{Settings, TokenFrom};
use tollway_model::{KubeName, RunningConfig};
use tollway_telemetry::metrics::{Part, add_build, add_process, names};
use tollway_telemetry::{AdminFacts, Page, serve_admin};
use tracing::{info, warn};

use self::admission::Outcome;
use self::dapr::DaprReader;
use crate::events::{Events, Source};
use crate::follow::{Seen, follow};
use crate::{Cluster, ROOT_PIN_KEY};

/// What its events are.
const EVENTS: Source = Source { component: "tollway-injector", reason: "SidecarNote" };

/// What an injector is for.
#[derive(Clone, Debug)]
pub struct InjectorOptions {
    /// Where the API server sends pods.
    pub listen: SocketAddr,
    /// Metrics and health over plain HTTP. Default none.
    pub admin_listen: Option<SocketAddr>,
    /// The Service by which the API server reaches it.
    pub service: KubeName,
    /// The Secret that keeps its certificate.
    pub secret: KubeName,
    /// The MutatingWebhookConfiguration that names it.
    pub webhook: String,
    /// The ConfigMap that has the root pin of the network, if pods prove themselves by their service
    /// accounts and `settings` have no pin.
    pub root: Option<KubeName>,
    /// What holds for all pods.
    pub settings: Settings,
}

/// Why an injector ends, or does not start.
#[derive(Debug, Error)]
pub enum InjectorError {
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// Which pods a question is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    /// Of a namespace whose label asks for sidecars.
    MarkedNamespace,
    /// Of one whose label asks for capture, too.
    CapturedNamespace,
    /// That ask for one themselves.
    MarkedPod,
}

/// What the tasks of an injector share.
struct Shared {
    settings: Settings,
    needs_root: bool,
    root: watch::Sender<Seen<ConfigMap>>,
    tls: watch::Sender<Option<Arc<rustls::ServerConfig>>>,
    /// When the certificate ends, in seconds of Unix time; 0 without one.
    certificate_ends: AtomicU64,
    events: Events,
    dapr: DaprReader,
    /// The first part of every path that is served, once it is known.
    path_secret: watch::Sender<Option<String>>,
    /// Reviews by [`Outcome`].
    reviews: [AtomicU64; 3],
}

const OUTCOMES: [(Outcome, &str); 3] =
    [(Outcome::Injected, "injected"), (Outcome::Left, "left"), (Outcome::Refused, "refused")];

impl Shared {
    fn count(&self, outcome: Outcome) {
        for ((each, _), count) in OUTCOMES.iter().zip(&self.reviews) {
            if *each == outcome {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The settings of sidecars; `None` while the root of the network is not known.
    fn settings(&self) -> Option<Settings> {
        if !self.needs_root {
            return Some(self.settings.clone());
        }
        let pin = self.root_pin()?;
        let mut settings = self.settings.clone();
        if let TokenFrom::ServiceAccount { root_pin, .. } = &mut settings.token {
            *root_pin = Some(pin.to_string());
        }
        Some(settings)
    }

    fn root_pin(&self) -> Option<RootPin> {
        self.root.borrow().there()?.data.as_ref()?.get(ROOT_PIN_KEY)?.parse().ok()
    }
}

impl AdminFacts for Shared {
    fn add_metrics(&self, page: &mut Page) {
        let mut reviews = page.family(&names::INJECTOR_REVIEWS);
        for ((_, word), count) in OUTCOMES.iter().zip(&self.reviews) {
            reviews.sample(&[("outcome", word)], count.load(Ordering::Relaxed));
        }
        page.single(&names::CERTIFICATE_EXPIRY, self.certificate_ends.load(Ordering::Relaxed));
        add_build(page, Part::Injector);
        add_process(page);
    }

    /// Its settings are its arguments.
    fn config(&self) -> RunningConfig {
        RunningConfig::default()
    }

    fn ready(&self) -> Result<(), String> {
        if self.tls.borrow().is_none() {
            return Err("it has no certificate that the API server trusts yet".to_owned());
        }
        if self.needs_root && self.root_pin().is_none() {
            return Err("the control plane has not written the root of the network yet".to_owned());
        }
        Ok(())
    }
}

/// Answers for pods until `end`.
///
/// # Errors
/// [`InjectorError`]: a port cannot be had.
pub async fn serve_injector(
    cluster: Cluster,
    options: InjectorOptions,
    end: impl Future<Output = ()>,
) -> Result<(), InjectorError> {
    let client = cluster.client;
    let InjectorOptions { listen, admin_listen, service, secret, webhook, root, settings } =
        options;
    let listener = bind(listen).await?;
    let admin = match admin_listen {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let (events, writing) = Events::new(client.clone(), EVENTS);
    let shared = Arc::new(Shared {
        settings,
        needs_root: root.is_some(),
        root: watch::Sender::default(),
        tls: watch::Sender::default(),
        certificate_ends: AtomicU64::new(0),
        events,
        dapr: DaprReader::of(Some(client.clone())),
        path_secret: watch::Sender::default(),
        reviews: Default::default(),
    });
    info!(%listen, webhook, service = %service, "the injector starts");
    let keeping = reconcile::run(client.clone(), (secret, webhook), &service, &shared);
    let serving = server::serve(listener, Arc::clone(&shared));
    let following = async {
        let Some(root) = root else { return std::future::pending().await };
        follow_root(client, &root, &shared).await;
    };
    let showing = async {
        let Some(admin) = admin else { return std::future::pending().await };
        serve_admin(Arc::<Shared>::clone(&shared), admin).await;
    };
    tokio::select! {
        () = end => {}
        () = keeping => {}
        () = serving => {}
        () = following => {}
        () = showing => {}
        () = writing => {}
    }
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, InjectorError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| InjectorError::Listen { address, source })
}

async fn follow_root(client: Client, at: &KubeName, shared: &Shared) {
    let maps: Api<ConfigMap> = Api::namespaced(client, &at.namespace);
    let mut changed = shared.root.subscribe();
    let reporting = async {
        let mut known = None;
        while changed.changed().await.is_ok() {
            let pin = shared.root_pin();
            match &pin {
                Some(pin) if known.as_ref() != Some(pin) => info!(root = %pin, "the root is known"),
                None => warn!(configmap = %at, "the control plane has not written the root yet"),
                Some(_) => {}
            }
            known = pin;
        }
    };
    tokio::join!(follow(maps, &at.name, &shared.root), reporting);
}

/// Seconds of Unix time.
fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
