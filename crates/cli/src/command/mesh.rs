//! What `tollway sidecar` and `tollway gateway` have in common.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_model::Instance;
use tollway_proxy::mesh::{MeshConfig, Role, TokenSource};
use tollway_proxy::{CommonOptions, Limits, Timeouts};

#[derive(Args)]
pub(crate) struct CommonArgs {
    /// The control plane.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15010")]
    control: String,
    /// File with the join token; without it the variable `TOLLWAY_TOKEN` is read.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Tells this instance from others of the service [default: made up].
    #[arg(long)]
    instance: Option<Instance>,
    /// Metrics and health; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9090")]
    admin_listen: SocketAddr,
    /// Data-plane threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Time for requests under way when told to end, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    drain_timeout_ms: u64,
    /// Time from the end of a request to the head of its response, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    request_timeout_ms: u64,
    /// Time to connect and authenticate, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    connect_timeout_ms: u64,
    /// Time an exchange may be silent in both directions, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 300_000)]
    idle_timeout_ms: u64,
    /// Receives the bound addresses as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
}

impl CommonArgs {
    pub(crate) fn options(self, role: Role) -> Result<CommonOptions> {
        let token = self.token_file.map_or(TokenSource::Environment, TokenSource::File);
        let instance = match self.instance {
            Some(instance) => instance,
            None => made_up_instance()?,
        };
        let timeouts = Timeouts {
            drain: Duration::from_millis(self.drain_timeout_ms),
            request: Duration::from_millis(self.request_timeout_ms),
            connect: Duration::from_millis(self.connect_timeout_ms),
            stream_idle: Duration::from_millis(self.idle_timeout_ms),
            ..Timeouts::default()
        };
        Ok(CommonOptions {
            mesh: MeshConfig::new(self.control, token, role, instance),
            admin_listen: self.admin_listen,
            threads: self.threads,
            limits: Limits::default(),
            timeouts,
            ports_file: self.ports_file,
        })
    }
}

/// A name no other instance has: sixteen random hexadecimal digits.
fn made_up_instance() -> Result<Instance> {
    use std::hash::{BuildHasher, RandomState};
    let number = RandomState::new().hash_one(std::process::id());
    Ok(Instance::new(&format!("i-{number:016x}"))?)
}
