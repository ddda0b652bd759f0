//! What is going to run: the app's address, the control plane, the sidecar's options.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tollway_config::AppScheme;
use tollway_model::{AppId, Label};
use tollway_net::{AppNetwork, free_port};
use tollway_proxy::mesh::{MeshConfig, Role, StateDirectory};
use tollway_proxy::{AppOptions, CommonOptions, MeshProtocol, SidecarOptions};
use tollway_runtime::{MESSAGE_BYTES, StateStores};

use super::intercept::InterceptPlan;
use super::options::RunOptions;
use crate::access::{Access, WhenAbsent, local_access};
use crate::console::Console;
use crate::error::{AppPortTaken, LaunchError};
use crate::instance::random_instance;

/// Life of a token of the local control plane: it is needed again where the certificate ended
/// while the machine slept.
const TOKEN_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Time to find out whether another process listens on the app's port.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The option that names a control plane in place of the local one.
const CONTROL_OPTION: &str = "--control";

/// What runs: the app and its sidecar.
pub(crate) struct Plan {
    pub(crate) app_id: AppId,
    pub(crate) namespace: Label,
    /// Where the app takes calls, if it does.
    pub(crate) app: Option<(SocketAddr, AppScheme)>,
    pub(super) sidecar: SidecarOptions,
    pub(super) stores: StateStores,
    pub(super) intercept: Option<InterceptPlan>,
    /// The control plane is the local one.
    pub(super) local: bool,
}

impl Plan {
    /// Decides what runs; finds or starts the control plane.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub(super) async fn make(options: RunOptions, console: Console) -> Result<Self, LaunchError> {
        let RunOptions { app_id, namespace, listen, .. } = options;
        let app = match options.app {
            Some(app) => {
                let address = app_address(app.address).await?;
                Some(AppOptions { address, host: address.to_string(), ..app })
            }
            None => None,
        };
        let access = match options.control {
            Some(control) => Access::named(control, options.token),
            None => {
                let absent = WhenAbsent::Start { linger: options.linger };
                local_access(&app_id, &namespace, TOKEN_TTL, absent, CONTROL_OPTION).await?
            }
        };
        if let Some(local) = &access.local {
            console.control_plane(local);
        }
        let has_name = options.instance.is_none();
        let instance = options.instance.map_or_else(random_instance, Ok)?;
        let role = Role::Sidecar { app: app_id.clone(), namespace: namespace.clone() };
        let mut mesh = MeshConfig::new(access.control, access.token, role, instance);
        mesh.locality = options.locality;
        mesh.state = options.state_dir.map(|path| StateDirectory { path, has_name });
        let scheme = |app: &AppOptions| {
            (app.address, AppScheme { protocol: app.protocol, is_tls: app.is_tls })
        };
        let intercept = options.intercept.map(InterceptPlan::new).transpose()?;
        let plan = Self {
            app_id,
            namespace,
            app: app.as_ref().map(scheme),
            stores: options.stores,
            local: access.local.is_some(),
            sidecar: options.configuration.complete(SidecarOptions {
                takes_calls_of_services: false,
                common: CommonOptions { mesh, plane: options.plane },
                app,
                http_listen: vec![listen.http],
                grpc_listen: vec![listen.grpc],
                outbound_listen: Some(listen.outbound),
                public_listen: None,
                inbound_listen: listen.inbound,
                advertise: listen.advertise,
                mesh_protocol: MeshProtocol::default(),
                upstreams: options.upstreams,
                message_bytes: MESSAGE_BYTES,
                api_rules: None,
                access: None,
                resilience: None,
                tokens: options.tokens,
                web_pages: options.web_pages,
                telemetry: options.telemetry,
                dapr_metrics: None,
                external_endpoints: None,
                interception: intercept.as_ref().and_then(InterceptPlan::for_sidecar),
                as_daprd: None,
            }),
            intercept,
        };
        Ok(plan)
    }

    /// The network namespace of the app, if it has one of its own.
    pub(super) fn app_network(&self) -> Option<&Arc<AppNetwork>> {
        self.intercept.as_ref().and_then(InterceptPlan::network)
    }
}

/// Chooses a port for 0. Refuses a port on which another process listens: the sidecar would take
/// that process for the app.
async fn app_address(asked: SocketAddr) -> Result<SocketAddr, LaunchError> {
    if asked.port() == 0 {
        let what = format!("cannot find a free port at {}", asked.ip());
        return free_port(asked.ip()).map_err(LaunchError::system(what));
    }
    let taken = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(asked)).await;
    if matches!(taken, Ok(Ok(_))) {
        return Err(AppPortTaken { address: asked }.into());
    }
    Ok(asked)
}
