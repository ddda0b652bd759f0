//! `tollway control`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tollway_control::{EgressMode, Options};
use tollway_model::{NameError, NetworkName, TrustDomain};

use super::log::LogArgs;
use super::mesh::end_of;
use super::store_location::{EtcdArgs, StoreLocation};
use crate::async_runtime::block_on;
use crate::settings::{ConfigArgs, Given, watch};

#[derive(Args)]
pub(crate) struct ControlArgs {
    /// Directory of the store and the admin socket, made if it does not exist; or
    /// etcd://HOST:PORT[,HOST:PORT…]/PREFIX for a store in etcd, of which one control plane is the
    /// master and others stand by.
    #[arg(long, value_name = "DIR|URL")]
    store: StoreLocation,
    /// Directory of the admin socket where the store is in etcd; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    admin_dir: Option<PathBuf>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Name of the network this control plane serves.
    #[arg(long, value_name = "NAME", default_value = "local")]
    network: NetworkName,
    /// Scope of its certificate authority, fixed at the first start [default: NETWORK.tollway].
    #[arg(long, value_name = "NAME", value_parser = trust_domain)]
    trust_domain: Option<TrustDomain>,
    /// Address for workloads and gateways; port 0 takes a free one.
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
    /// File that receives the bound addresses as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Egress {
    /// They dial the other network's gateway.
    Direct,
    /// They dial their own gateway, which dials the other.
    Gateway,
}

/// Settings that a running control plane takes over.
pub(crate) const LIVE: &[&str] = &["log_level"];

pub(crate) fn run(args: ControlArgs, given: Given) -> Result<()> {
    let log = args.log.start();
    let (reloads, config) = watch(given);
    let options = Options { config, ..args.options()? };
    block_on(async {
        let end = end_of(&reloads)?;
        let apply = async |new: ControlArgs| {
            log.set_filter(&new.log.log_level);
            Ok(())
        };
        tokio::select! {
            ended = tollway_control::serve(options, end) => ended.context("control plane"),
            failed = reloads.run(apply) => failed,
        }
    })?
}

impl ControlArgs {
    fn options(self) -> Result<Options> {
        let (directory, etcd) = self.etcd.location(self.store, self.admin_dir)?;
        let mut options = Options::new(directory, self.network);
        options.etcd = etcd;
        if let Some(trust_domain) = self.trust_domain {
            options.trust_domain = trust_domain;
        }
        options.listen = self.listen;
        options.admin_listen = self.admin_listen;
        options.certificate_ttl = Duration::from_secs(self.certificate_ttl_s);
        options.egress = match self.egress {
            Egress::Direct => EgressMode::Direct,
            Egress::Gateway => EgressMode::Gateway,
        };
        options.ports_file = self.ports_file;
        Ok(options)
    }
}

fn trust_domain(text: &str) -> Result<TrustDomain, NameError> {
    TrustDomain::new(text)
}
