//! The options of an app and its sidecar.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tollway_dapr::Configuration;
use tollway_model::{AppId, Instance, Label, Locality};
use tollway_proxy::mesh::{Targets, TokenSource};
use tollway_proxy::{AppOptions, PlaneOptions, TelemetryOptions, Tokens, WebPages};
use tollway_routing::intercept::{Alias, Spared};
use tollway_runtime::StateStores;

/// An app and its sidecar.
pub struct RunOptions {
    pub app_id: AppId,
    pub namespace: Label,
    /// A random name without one.
    pub instance: Option<Instance>,
    /// Where it runs.
    pub locality: Locality,
    /// The app, if it takes calls. Port 0 chooses a free one.
    pub app: Option<AppOptions>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The control plane; without it this user's local one.
    pub control: Option<Targets>,
    /// The join token of `control`.
    pub token: TokenSource,
    /// Where the identity is kept, for a control plane that is named.
    pub state_dir: Option<PathBuf>,
    /// How long a local control plane that is started here stays after its last workload.
    pub linger: Duration,
    pub listen: Listen,
    pub plane: PlaneOptions,
    /// Loopback ports for TCP services, as `PORT=SERVICE`.
    pub upstreams: Vec<String>,
    /// Set where the connections of the app are led to its sidecar.
    pub intercept: Option<InterceptOptions>,
    pub tokens: Tokens,
    pub web_pages: WebPages,
    pub telemetry: TelemetryOptions,
    /// From Dapr's files.
    pub configuration: Arc<Configuration>,
    pub stores: StateStores,
}

/// By what the kernel leads connections of an app to its sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interceptor {
    /// Programs of a cgroup.
    Bpf,
    /// nftables in a network namespace.
    Nftables,
}

/// How the connections of an app are led to its sidecar.
#[derive(Debug)]
pub struct InterceptOptions {
    /// The way; the app is not started where that cannot be had. Without one it is the way that this
    /// machine has, and the app runs as it is where there is none.
    pub by: Option<Interceptor>,
    /// Left alone, beside loopback.
    pub spared: Vec<Spared>,
    /// Connections out of the mesh are not led to the sidecar.
    pub mesh_only: bool,
    /// Host names that stand for services.
    pub aliases: Vec<Alias>,
    /// Servers for names out of the mesh; without any those of this machine.
    pub resolvers: Vec<SocketAddr>,
    /// The port of the app is opened on loopback alone.
    pub closes_port: bool,
}

/// The listeners of the sidecar. Port 0 takes a free one.
pub struct Listen {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub outbound: SocketAddr,
    pub inbound: SocketAddr,
    /// Where other sidecars reach the inbound listener, if not at `inbound`.
    pub advertise: Option<SocketAddr>,
}
