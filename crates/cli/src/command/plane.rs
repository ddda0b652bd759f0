//! The options that sidecar, gateway and front share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tollway_proxy::{Limits, Live, PlaneOptions, Timeouts};

use super::log::LogArgs;
use crate::settings::{ConfigArgs, LimitSetting, limit};

#[derive(Args)]
pub(crate) struct PlaneArgs {
    /// Metrics and health; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9090")]
    admin_listen: SocketAddr,
    /// Data-plane threads.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    threads: usize,
    /// Time for requests under way at the end, in milliseconds.
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
    /// Set a limit by its name in docs/limits.md, such as `head_ms=5000`; may be repeated.
    #[arg(
        long = "limit",
        value_name = "NAME=VALUE",
        value_parser = limit,
        help_heading = "Times and limits"
    )]
    limit: Vec<LimitSetting>,
    /// File that receives the bound addresses as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Settings that every running data plane takes over.
pub(crate) const LIVE: &[&str] = &[
    "drain_timeout_ms",
    "request_timeout_ms",
    "connect_timeout_ms",
    "idle_timeout_ms",
    "max_connections",
    "max_requests",
    "limits",
    "log_level",
];

impl PlaneArgs {
    pub(crate) fn options(self, live: Live) -> PlaneOptions {
        let (limits, timeouts) = self.bounds();
        PlaneOptions {
            limits,
            timeouts,
            admin_listen: Some(self.admin_listen),
            threads: self.threads,
            ports_file: self.ports_file,
            live,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// What it spends on its peers.
    pub(crate) fn bounds(&self) -> (Limits, Timeouts) {
        let mut limits = Limits {
            connections: self.max_connections,
            exchanges: self.max_requests,
            ..Limits::default()
        };
        let mut timeouts = Timeouts {
            drain: Duration::from_millis(self.drain_timeout_ms),
            request: Duration::from_millis(self.request_timeout_ms),
            connect: Duration::from_millis(self.connect_timeout_ms),
            stream_idle: Duration::from_millis(self.idle_timeout_ms),
            ..Timeouts::default()
        };
        for setting in &self.limit {
            setting.apply(&mut limits, &mut timeouts);
        }
        (limits, timeouts)
    }
}
