//! `tollway control`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tollway_control::{EgressMode, Options};
use tollway_model::{NetworkName, TrustDomain};
use tollway_telemetry::{LogFormat, init_log};

use crate::runtime::{block_on, shutdown};

#[derive(Args)]
pub(crate) struct ControlArgs {
    /// Directory of the store and the admin socket; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Name of the network this control plane serves.
    #[arg(long, default_value = "local")]
    network: NetworkName,
    /// Scope of its certificate authority, fixed at the first start [default: NETWORK.tollway].
    #[arg(long)]
    trust_domain: Option<String>,
    /// Where workloads and gateways connect; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:15010")]
    listen: SocketAddr,
    /// Metrics and health; port 0 takes a free one [default: none].
    #[arg(long, value_name = "IP:PORT")]
    admin_listen: Option<SocketAddr>,
    /// Life of a workload's certificate, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600)]
    certificate_ttl_s: u64,
    /// How workloads reach other networks.
    #[arg(long, value_enum, default_value_t = Egress::Direct)]
    egress: Egress,
    /// Receives the bound addresses as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Egress {
    /// They dial the other network's gateway.
    Direct,
    /// They dial their own gateway, which dials the other.
    Gateway,
}

pub(crate) fn run(args: ControlArgs) -> Result<()> {
    init_log(LogFormat::Text);
    let mut options = Options::new(args.store, args.network);
    if let Some(trust_domain) = &args.trust_domain {
        options.trust_domain = TrustDomain::new(trust_domain)?;
    }
    options.listen = args.listen;
    options.admin_listen = args.admin_listen;
    options.certificate_ttl = Duration::from_secs(args.certificate_ttl_s);
    options.egress = match args.egress {
        Egress::Direct => EgressMode::Direct,
        Egress::Gateway => EgressMode::Gateway,
    };
    options.ports_file = args.ports_file;
    block_on(async { tollway_control::serve(options, shutdown()?).await.context("control plane") })?
}
