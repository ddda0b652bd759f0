//! What `tollway sidecar` and `tollway gateway` have in common.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_model::Instance;
use tollway_proxy::mesh::{MeshConfig, Role, TokenSource};
use tollway_proxy::{
    CommonOptions, DataPlaneError, Limits, Live, LiveOptions, TelemetryOptions, Timeouts,
};

use super::log::LogArgs;
use crate::args::Command;
use crate::runtime::{shutdown, shutdown_or_hangup};
use crate::settings::{ConfigArgs, Reloads};

#[derive(Args)]
pub(crate) struct CommonArgs {
    /// The control plane.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15010")]
    control: String,
    /// File with the join token; without it the variable `TOLLWAY_TOKEN` is read.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Tells this instance from others of the service [default: made up].
    #[arg(long, value_name = "NAME")]
    instance: Option<Instance>,
    /// Metrics and health; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9090")]
    admin_listen: SocketAddr,
    /// Data-plane threads.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    threads: usize,
    /// Time for requests under way when told to end, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000, help_heading = "Times and limits")]
    drain_timeout_ms: u64,
    /// Time from the end of a request to the head of its response, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 60_000, help_heading = "Times and limits")]
    request_timeout_ms: u64,
    /// Time to connect and authenticate, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5_000, help_heading = "Times and limits")]
    connect_timeout_ms: u64,
    /// Time an exchange may be silent in both directions, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 300_000, help_heading = "Times and limits")]
    idle_timeout_ms: u64,
    /// Time a mesh connection with requests under way may give no sign of life before it is given
    /// up, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20_000, help_heading = "Times and limits")]
    silence_timeout_ms: u64,
    /// Most connections held at once, by each data-plane thread.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 100_000,
        help_heading = "Times and limits"
    )]
    max_connections: usize,
    /// Most requests under way at once, in each data-plane thread.
    #[arg(long, value_name = "COUNT", default_value_t = 50_000, help_heading = "Times and limits")]
    max_requests: usize,
    /// Time for the control plane to give a first identity, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 30_000, help_heading = "Times and limits")]
    start_timeout_ms: u64,
    /// Receives the bound addresses as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Settings that a running gateway takes over.
pub(crate) const LIVE_IN_GATEWAY: &[&str] = &[
    "drain_timeout_ms",
    "request_timeout_ms",
    "connect_timeout_ms",
    "idle_timeout_ms",
    "max_connections",
    "max_requests",
    "log_level",
];

/// Settings that a running sidecar takes over.
pub(crate) const LIVE_IN_SIDECAR: &[&str] = &[
    "drain_timeout_ms",
    "request_timeout_ms",
    "connect_timeout_ms",
    "idle_timeout_ms",
    "silence_timeout_ms",
    "max_connections",
    "max_requests",
    "log_level",
    "upstreams",
    "trace_endpoint",
    "trace_protocol",
    "trace_ratio",
    "trace_ca",
    "access_log",
];

impl CommonArgs {
    pub(crate) fn options(self, role: Role, live: Live) -> Result<CommonOptions> {
        let (limits, timeouts) = (self.limits(), self.timeouts());
        let token = self.token_file.map_or(TokenSource::Environment, TokenSource::File);
        let instance = match self.instance {
            Some(instance) => instance,
            None => made_up_instance()?,
        };
        let mut mesh = MeshConfig::new(self.control, token, role, instance);
        mesh.start_timeout = Duration::from_millis(self.start_timeout_ms);
        Ok(CommonOptions {
            mesh,
            admin_listen: self.admin_listen,
            threads: self.threads,
            limits,
            timeouts,
            ports_file: self.ports_file,
            live,
        })
    }

    /// What a running data plane takes over.
    pub(crate) fn live_options(&self) -> LiveOptions {
        LiveOptions {
            limits: self.limits(),
            timeouts: self.timeouts(),
            telemetry: TelemetryOptions::default(),
            upstreams: Vec::new(),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            connections: self.max_connections,
            exchanges: self.max_requests,
            ..Limits::default()
        }
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts {
            drain: Duration::from_millis(self.drain_timeout_ms),
            request: Duration::from_millis(self.request_timeout_ms),
            connect: Duration::from_millis(self.connect_timeout_ms),
            stream_idle: Duration::from_millis(self.idle_timeout_ms),
            silence: Duration::from_millis(self.silence_timeout_ms),
            ..Timeouts::default()
        }
    }
}

/// Runs `part` until it ends, and puts changes of its settings file to work meanwhile.
pub(crate) async fn serve_live(
    part: impl Future<Output = Result<(), DataPlaneError>>,
    reloads: Reloads,
    apply: impl AsyncFnMut(Command) -> Result<()>,
) -> Result<()> {
    tokio::select! {
        ended = part => Ok(ended?),
        failed = reloads.run(apply) => failed,
    }
}

/// SIGHUP reads the settings file again; without one it ends the part.
pub(crate) fn end_of(reloads: &Reloads) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>> {
    Ok(if reloads.follow_a_file() {
        Box::pin(shutdown()?)
    } else {
        Box::pin(shutdown_or_hangup()?)
    })
}

/// A name no other instance has: sixteen random hexadecimal digits.
pub(crate) fn made_up_instance() -> Result<Instance> {
    use std::hash::{BuildHasher, RandomState};
    let number = RandomState::new().hash_one(std::process::id());
    Ok(Instance::new(&format!("i-{number:016x}"))?)
}
