//! The settings of `tollway run`.

use std::net::SocketAddr;
use std::path::PathBuf;

use tollway_model::{AppId, Instance, Label};
use tollway_proxy::mesh::Targets;
use tollway_routing::intercept::{Alias, Spared};

use super::{ApiTokens, App, DaprFiles, Location, Telemetry, WebAccess};
use crate::serial::part;
use crate::{Millis, Settings, Upstream};

/// An app that is started with its sidecar.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Run {
    /// Name of the app, which is needed without --run-file.
    #[setting(form = "ID")]
    pub app_id: Option<AppId>,
    /// Namespace of the app.
    #[setting(form = "NAME", default = "default")]
    pub namespace: Label,
    /// Port on which the app takes calls; 0 finds a free one and passes it to the app in APP_PORT.
    /// Without it the app only makes calls.
    #[setting(form = "PORT")]
    pub app_port: Option<u16>,
    #[setting(flatten)]
    pub app: App,
    /// HTTP API; port 0 takes a free one, as for the other listeners.
    #[setting(form = "IP:PORT", default = "127.0.0.1:0")]
    pub http_listen: SocketAddr,
    /// gRPC API.
    #[setting(form = "IP:PORT", default = "127.0.0.1:0")]
    pub grpc_listen: SocketAddr,
    /// Outbound proxy: absolute targets, CONNECT, hosts that end in `.mesh`.
    #[setting(form = "IP:PORT", default = "127.0.0.1:0")]
    pub outbound_listen: SocketAddr,
    /// Inbound listener: other sidecars connect here.
    #[setting(form = "IP:PORT", default = "127.0.0.1:0")]
    pub inbound_listen: SocketAddr,
    /// Address at which the network reaches the inbound listener, if not the one it listens on.
    #[setting(form = "IP:PORT")]
    pub advertise: Option<SocketAddr>,
    #[setting(flatten)]
    pub location: Location,
    /// Metrics and health.
    #[setting(form = "IP:PORT", default = "127.0.0.1:0")]
    pub admin_listen: SocketAddr,
    /// A loopback port that stands for a TCP service, such as `5432=db.shop.east`.
    #[setting(form = "PORT=SERVICE", flag = "upstream", live)]
    pub upstreams: Vec<Upstream>,
    #[setting(flatten)]
    pub intercept: Intercept,
    #[setting(flatten)]
    pub api_tokens: ApiTokens,
    #[setting(flatten)]
    pub web_access: WebAccess,
    #[setting(flatten)]
    pub dapr_files: DaprFiles,
    #[setting(flatten)]
    pub telemetry: Telemetry,
    /// Name of this instance of the service [default: random].
    #[setting(form = "NAME")]
    pub instance: Option<Instance>,
    /// Folder in which the identity is kept, so that a restart needs no new token; of this user and
    /// closed to others, made if it does not exist [default: none].
    #[setting(form = "DIR", needs(&["control"]))]
    pub state_dir: Option<PathBuf>,
    /// Time for requests under way when the app has ended, in milliseconds.
    #[setting(form = "MS", default = "10000", live)]
    pub drain_timeout_ms: Millis,
    /// Print errors and warnings only.
    #[setting(short = 'q')]
    pub quiet: bool,
    #[setting(flatten)]
    pub access: Access,
}

part!(Run, "run");

/// How the connections of an app are led to its sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterceptMode {
    Auto,
    Bpf,
    Nftables,
}

/// Interception, for an app that knows nothing of its sidecar.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Intercept {
    /// Lead the app's connections to its sidecar: it calls services by their names, such as
    /// `stock.mesh`, without a proxy or a library.
    #[setting(form = "MODE", bare = "auto")]
    pub intercept: Option<InterceptMode>,
    /// A port, an address or a range of addresses that the app connects to past the sidecar; loopback
    /// is always left alone. May be repeated.
    #[setting(form = "PORT|RANGE", flag = "intercept-exclude", needs(&["intercept"]))]
    pub intercept_excludes: Vec<Spared>,
    /// Lead only connections to services of the mesh to the sidecar.
    #[setting(needs(&["intercept"]))]
    pub intercept_mesh_only: bool,
    /// A host name that stands for a service, such as `postgres=db.shop.east`. May be repeated.
    #[setting(form = "NAME=SERVICE", flag = "intercept-host", needs(&["intercept"]))]
    pub intercept_hosts: Vec<Alias>,
    /// A server for names out of the mesh [default: those of /etc/resolv.conf]. May be repeated.
    #[setting(form = "IP:PORT", flag = "intercept-resolver", needs(&["intercept"]))]
    pub intercept_resolvers: Vec<SocketAddr>,
    /// Open the app's port on loopback alone, so that only this machine and the mesh reach it.
    #[setting(needs(&["intercept", "app_port"]))]
    pub intercept_inbound: bool,
}

/// The control plane that is joined, if not this user's local one.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Access {
    /// The control plane: its address, or several with commas between them, of which the first that
    /// answers is used; `srv:_SERVICE._tcp.DOMAIN` stands for the SRV records of that name
    /// [default: this user's local one].
    #[setting(form = "HOST:PORT")]
    pub control: Option<Targets>,
    /// File with the join token; without it the variable `TOLLWAY_TOKEN` is read.
    #[setting(form = "FILE", needs(&["control"]))]
    pub token_file: Option<PathBuf>,
    /// Read files with tokens and private keys although others than their owner can use them.
    #[setting()]
    pub allow_open_files: bool,
}
