//! A front: ends TLS for an app that speaks plain HTTP, with ordinary certificates and outside any
//! mesh. `tollway front` runs it.
//!
//! Its data threads serve requests with the parts that a sidecar has too; `event_loop/front.rs` says what
//! differs. Here are the files with the certificates (`files.rs`), how they are followed while it runs
//! (`follow.rs`), the app's address (`target.rs`), and what its admin port shows (`facts.rs`).

mod client;
mod facts;
mod files;
mod follow;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tollway_model::{Label, Locality, ServiceName};

use crate::actor_paths::ActorApp;
use crate::bind::BoundListeners;
use crate::conn::ListenerKind;
use crate::dataplane::DataPlaneError;
use crate::event_loop::{LOOPBACK, LoopConfig, MeshProtocol};
use crate::fanout::Fanout;
use crate::observe::{Telemetry, TelemetryOptions};
use crate::plane::{Parts, Plane, PlaneKind, PlaneOptions};
use crate::tokens::Tokens;
use crate::web_pages::WebPages;

pub(crate) use client::Client;
pub(crate) use files::Served;
pub use files::{CheckedPair, FrontFiles, FrontFilesError};
pub use target::{FrontTarget, FrontTargetError};

use facts::FrontFacts;
use follow::Follower;

/// Most addresses a front listens on.
pub const FRONT_LISTEN_LIMIT: usize = 64;

/// What a front is and does.
#[derive(Clone, Debug)]
pub struct FrontOptions {
    pub plane: PlaneOptions,
    pub listen: Vec<SocketAddr>,
    pub files: FrontFiles,
    /// The app.
    pub to: FrontTarget,
    /// Spans and access-log lines of single requests.
    pub telemetry: TelemetryOptions,
    /// Notified when the files must be read again even if they look unchanged.
    pub reread: Arc<Notify>,
}

/// Runs a front until `shutdown`, then drains it.
///
/// # Errors
/// [`DataPlaneError`].
pub async fn run_front(
    options: FrontOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DataPlaneError> {
    let FrontOptions { plane: settings, listen, files, to, telemetry, reread } = options;
    let mut listeners = BoundListeners::for_threads(settings.threads);
    for (index, address) in listen.iter().take(FRONT_LISTEN_LIMIT).enumerate() {
        listeners.bind("front", *address, ListenerKind::Front)?;
        if let (Some((name, ..)), 1..) = (listeners.open.last_mut(), index) {
            *name = format!("front-{}", index + 1);
        }
    }
    let follower = Follower::start(files, to, reread).await?;
    let served = follower.served();
    let fanout = Arc::new(Fanout::default());
    let config = LoopConfig {
        home: placeholder_name(),
        locality: Locality::default(),
        hop: "front".to_owned(),
        app: Some(follower.app()),
        app_ip: LOOPBACK,
        app_tls: None,
        app_concurrency: None,
        mesh_protocol: MeshProtocol::default(),
        api_rules: None,
        access: None,
        resilience: None,
        tokens: Tokens::default(),
        web_pages: WebPages::default(),
        actor_app: Arc::new(ActorApp::new(false)),
        dapr_metrics: None,
        as_daprd: None,
        external_endpoints: None,
        egress: Arc::default(),
        interception: None,
        limits: settings.limits.clone(),
        timeouts: settings.timeouts,
    };
    let telemetry = Telemetry::start_unnamed(telemetry)?;
    let live = settings.live.config.clone();
    let parts = Parts {
        config,
        kind: PlaneKind::Front(served.clone()),
        listeners,
        telemetry,
        fanout: Arc::clone(&fanout),
    };
    let mut plane = Plane::start(settings, parts).await?;
    let (status, shown) = watch::channel(follower.status());
    plane.show(Arc::new(FrontFacts {
        metrics: plane.metrics.clone(),
        records: plane.record_metrics(),
        status: shown,
        config: live,
    }));
    plane.spawn(follower.run(fanout, status));
    plane.open()?;
    plane.serve(shutdown, async {}).await.map(drop)
}

/// The name of a front, which is no member of the mesh, where members have theirs.
fn placeholder_name() -> ServiceName {
    let label = |text| Label::new(text).expect("it is made of letters");
    ServiceName { app: label("front"), namespace: label("default"), network: label("none") }
}
