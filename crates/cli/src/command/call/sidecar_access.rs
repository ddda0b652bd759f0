//! The sidecar through which a call goes: one that runs, or one of this call alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use tollway_launch::{Access, LocalControl, random_instance};
use tollway_model::{AppId, Label};
use tollway_proxy::mesh::{MeshConfig, Role};
use tollway_proxy::{
    CommonOptions, Limits, Live, MeshProtocol, PlaneOptions, Sidecar, SidecarOptions,
    TelemetryOptions, Timeouts, Tokens, WebPages,
};
use tollway_runtime::MESSAGE_BYTES;

use super::options::CallArgs;
use super::sidecar_url::SidecarUrl;
use crate::command::access;

/// Lifetime of the identity, and of the token for it. It is renewed while a longer call lasts.
const IDENTITY_TTL: Duration = Duration::from_secs(60);
/// Time to be given an identity.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Where to connect.
pub(super) struct SidecarAccess {
    /// As `host:port`.
    pub(super) address: String,
    /// It serves as long as this exists. `None` where the sidecar is another process.
    own: Option<Sidecar>,
}

impl SidecarAccess {
    /// A sidecar that runs.
    pub(super) fn at(url: SidecarUrl) -> Self {
        Self { address: url.0, own: None }
    }

    /// A sidecar of this call alone. It has no app, so it is not registered and not called.
    pub(super) async fn open(args: &CallArgs, timeout: Option<Duration>) -> Result<Self> {
        let (app, namespace) = (args.app_id.clone(), args.namespace.clone());
        let access = args.access.0.clone();
        let access = access::access(access, &app, &namespace, IDENTITY_TTL).await?;
        if let Some(skew) = access.local.as_ref().and_then(LocalControl::version_skew) {
            eprintln!("{skew}");
        }
        let own = Box::pin(Sidecar::start(options(access, app, namespace, timeout)?, None)).await?;
        let address = own.port("http").context("the sidecar has no HTTP API")?.to_string();
        Ok(Self { address, own: Some(own) })
    }

    /// Whether it was opened for this call.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }
}

fn options(
    access: Access,
    app: AppId,
    namespace: Label,
    timeout: Option<Duration>,
) -> Result<SidecarOptions> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let role = Role::Sidecar { app, namespace };
    let mut mesh = MeshConfig::new(access.control, access.token, role, random_instance()?);
    mesh.certificate_ttl = Some(IDENTITY_TTL);
    mesh.start_timeout = timeout.unwrap_or(START_TIMEOUT);
    let mut timeouts = Timeouts::default();
    timeouts.request = timeout.unwrap_or(timeouts.request);
    let common = CommonOptions {
        mesh,
        plane: PlaneOptions {
            admin_listen: Some(any),
            threads: 1,
            limits: Limits::default(),
            timeouts,
            ports_file: None,
            live: Live::fixed(),
        },
    };
    Ok(SidecarOptions {
        takes_calls_of_services: false,
        common,
        app: None,
        http_listen: vec![any],
        grpc_listen: vec![any],
        outbound_listen: Some(any),
        public_listen: None,
        inbound_listen: any,
        advertise: None,
        mesh_protocol: MeshProtocol::default(),
        upstreams: Vec::new(),
        message_bytes: MESSAGE_BYTES,
        api_rules: None,
        access: None,
        resilience: None,
        tokens: Tokens::default(),
        web_pages: WebPages::default(),
        telemetry: TelemetryOptions::default(),
        dapr_metrics: None,
        external_endpoints: None,
        interception: None,
        as_daprd: None,
    })
}
