//! The options of a sidecar's app: concurrency limit and health checks.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use tollway_config::{AppScheme, request_path};
use tollway_proxy::{AppOptions, HealthCheck};

#[derive(Args, Clone, Debug)]
pub(crate) struct AppArgs {
    /// Concurrency limit of the app; further requests wait [default: none].
    #[arg(long, value_name = "COUNT", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub(crate) app_max_concurrency: Option<usize>,
    /// Check the health of the app, and call it only while it is healthy.
    #[arg(long)]
    enable_app_health_check: bool,
    /// Path of the health check over HTTP; 2xx means healthy.
    #[arg(long, value_name = "PATH", default_value = "/healthz", value_parser = request_path)]
    app_health_check_path: String,
    /// Time between two health checks, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    app_health_probe_interval_ms: u64,
    /// Time for the answer to a health check, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    app_health_probe_timeout_ms: u64,
    /// Failed health checks in a row that make the app unhealthy; one that succeeds makes it healthy.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    app_health_threshold: u32,
}

impl AppArgs {
    /// An app at an address.
    pub(crate) fn at(&self, address: SocketAddr, scheme: AppScheme) -> AppOptions {
        let health_check = self.enable_app_health_check.then(|| HealthCheck {
            path: self.app_health_check_path.clone(),
            interval: Duration::from_millis(self.app_health_probe_interval_ms),
            timeout: Duration::from_millis(self.app_health_probe_timeout_ms),
            threshold: self.app_health_threshold,
        });
        AppOptions {
            address,
            protocol: scheme.protocol,
            is_tls: scheme.is_tls,
            max_concurrency: self.app_max_concurrency,
            health_check,
            asks_actors: true,
        }
    }
}
