//! What is going to run: the app's address, the control plane, the sidecar's options.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use thiserror::Error;
use tokio::net::TcpStream;
use tollway_model::{AppId, Label};
use tollway_net::free_port;
use tollway_proxy::mesh::{MeshConfig, Role};
use tollway_proxy::{CommonOptions, Limits, Live, MeshProtocol, PlaneOptions, SidecarOptions};
use tollway_runtime::{MESSAGE_BYTES, StateStores};

use super::RunArgs;
use super::voice::Voice;
use crate::access::Absent;
use crate::command::mesh::made_up_instance;
use tollway_config::AppScheme;
use tollway_dapr::Configuration;

/// Life of a token of the local control plane: it is needed again where the certificate ended
/// while the machine slept.
const TOKEN_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Time to see whether somebody is on the app's port already.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// The app could not listen, and its sidecar would take another's port for it.
#[derive(Debug, Error)]
#[error("another process listens on {address}")]
pub(crate) struct AppPortTaken {
    pub(crate) address: SocketAddr,
}

pub(super) struct Plan {
    pub(super) app_id: AppId,
    pub(super) namespace: Label,
    /// Where the app takes calls, if it does.
    pub(super) app: Option<(SocketAddr, AppScheme)>,
    pub(super) sidecar: SidecarOptions,
    pub(super) stores: StateStores,
    /// What Dapr's files say.
    pub(super) found: Configuration,
    /// The control plane is the local one.
    pub(super) local: bool,
}

impl Plan {
    /// Finds or starts the control plane too.
    pub(super) async fn make(args: RunArgs, live: Live, voice: Voice) -> Result<Self> {
        let app_id =
            args.app_id.clone().context("the app has no name; give it one with --app-id")?;
        let (found, stores) = args.resources.read(&app_id, &args.namespace)?;
        let app = match args.app_port {
            Some(port) => Some((
                app_address(SocketAddr::new(args.app_address, port)).await?,
                args.app_protocol,
            )),
            None => None,
        };
        let linger = Duration::from_millis(args.linger_ms);
        let timeouts = args.timeouts();
        let namespace = args.namespace;
        let access =
            args.access.access(&app_id, &namespace, TOKEN_TTL, Absent::Start { linger }).await?;
        if let Some(local) = &access.local {
            voice.control_plane(local);
        }
        let instance = match args.instance {
            Some(instance) => instance,
            None => made_up_instance()?,
        };
        let role = Role::Sidecar { app: app_id.clone(), namespace: namespace.clone() };
        let common = CommonOptions {
            mesh: MeshConfig::new(access.control, access.token, role, instance),
            plane: PlaneOptions {
                admin_listen: Some(args.admin_listen),
                threads: 1,
                limits: Limits::default(),
                timeouts,
                ports_file: None,
                live,
            },
        };
        let sidecar = SidecarOptions {
            common,
            app: app.map(|(address, speech)| args.app.at(address, speech)),
            http_listen: vec![args.http_listen],
            grpc_listen: vec![args.grpc_listen],
            outbound_listen: Some(args.outbound_listen),
            public_listen: None,
            inbound_listen: args.inbound_listen,
            advertise: args.advertise,
            mesh_protocol: MeshProtocol::default(),
            upstreams: args.upstreams,
            message_bytes: MESSAGE_BYTES,
            api_rules: None,
            access: None,
            resilience: None,
            tokens: args.api_tokens.tokens()?,
            telemetry: args.telemetry.options()?,
            dapr_metrics: None,
            outside: None,
        };
        let sidecar = found.complete(sidecar);
        let local = access.local.is_some();
        Ok(Self { app_id, namespace, app, sidecar, stores, found, local })
    }
}

/// Chooses a port for 0. A port that somebody else serves would be taken for the app's.
async fn app_address(asked: SocketAddr) -> Result<SocketAddr> {
    if asked.port() == 0 {
        return free_port(asked.ip())
            .with_context(|| format!("cannot find a free port at {}", asked.ip()));
    }
    let taken = tokio::time::timeout(LOOK_TIMEOUT, TcpStream::connect(asked)).await;
    if matches!(taken, Ok(Ok(_))) {
        return Err(AppPortTaken { address: asked }.into());
    }
    Ok(asked)
}
