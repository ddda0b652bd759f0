//! The settings of `tollway sidecar`.

use std::net::SocketAddr;

use tollway_model::{AppId, Label};
use tollway_proxy::MeshProtocol;

use super::{ApiTokens, App, DaprFiles, Location, Member, Telemetry, WebAccess};
use crate::serial::part;
use crate::{Settings, Upstream};

/// The sidecar of an app.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Sidecar {
    /// Name of the app.
    #[setting(form = "ID")]
    pub app_id: AppId,
    /// Namespace of the app.
    #[setting(form = "NAME", default = "default")]
    pub namespace: Label,
    /// Port on which the app takes calls; without it the app only makes calls.
    #[setting(form = "PORT")]
    pub app_port: Option<u16>,
    /// An app without `app_port` takes calls at the ports of its pod to which Services of the Kubernetes
    /// cluster lead.
    pub service_ports: bool,
    #[setting(flatten)]
    pub app: App,
    /// HTTP API.
    #[setting(form = "IP:PORT", default = "127.0.0.1:3500")]
    pub http_listen: SocketAddr,
    /// gRPC API.
    #[setting(form = "IP:PORT", default = "127.0.0.1:50001")]
    pub grpc_listen: SocketAddr,
    /// Outbound proxy: absolute targets, CONNECT, hosts that end in `.mesh`.
    #[setting(form = "IP:PORT", default = "127.0.0.1:15001")]
    pub outbound_listen: SocketAddr,
    /// Inbound listener: other sidecars connect here.
    #[setting(form = "IP:PORT", default = "127.0.0.1:50002")]
    pub inbound_listen: SocketAddr,
    /// Address at which the network reaches the inbound listener, if not the one it listens on.
    #[setting(form = "IP:PORT")]
    pub advertise: Option<SocketAddr>,
    #[setting(flatten)]
    pub location: Location,
    /// What carries requests to services of HTTP/1.1: http2 (many at once on a connection) or http1
    /// (a pool of connections, one at a time on each).
    #[setting(form = "PROTOCOL", default = "http2")]
    pub mesh_protocol: MeshProtocol,
    /// Port of loopback to which the kernel leads connections of the app, where app and sidecar share a
    /// network, such as that of a pod, and `tollway kube capture` has set that up.
    #[setting(form = "PORT")]
    pub capture_port: Option<u16>,
    /// Port of loopback to which the kernel leads the app's questions for names.
    #[setting(form = "PORT", default = "15053")]
    pub capture_names_port: u16,
    /// A loopback port that stands for a TCP service, such as `5432=db.shop.east`.
    #[setting(form = "PORT=SERVICE", flag = "upstream", live)]
    pub upstreams: Vec<Upstream>,
    #[setting(flatten)]
    pub api_tokens: ApiTokens,
    #[setting(flatten)]
    pub web_access: WebAccess,
    #[setting(flatten)]
    pub dapr_files: DaprFiles,
    #[setting(flatten)]
    pub telemetry: Telemetry,
    #[setting(flatten)]
    pub member: Member,
}

part!(Sidecar, "sidecar");
