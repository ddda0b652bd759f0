//! `tollway gateway`.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use tollway_proxy::mesh::Role;
use tollway_proxy::{GatewayOptions, run_gateway};
use tollway_telemetry::{LogFormat, init_log};

use super::mesh::CommonArgs;
use crate::runtime::{block_on, shutdown};

#[derive(Args)]
pub(crate) struct GatewayArgs {
    /// The one port that other networks connect to.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:15443")]
    listen: SocketAddr,
    /// Where other networks reach it, if not where it listens.
    #[arg(long, value_name = "IP:PORT")]
    advertise: Option<SocketAddr>,
    /// Where its own network reaches it, if not where others do.
    #[arg(long, value_name = "IP:PORT")]
    advertise_inside: Option<SocketAddr>,
    #[command(flatten)]
    common: CommonArgs,
}

pub(crate) fn run(args: GatewayArgs) -> Result<()> {
    init_log(LogFormat::Text);
    let options = GatewayOptions {
        common: args.common.options(Role::Gateway)?,
        listen: args.listen,
        advertise: args.advertise,
        advertise_inside: args.advertise_inside,
    };
    block_on(async { Ok(run_gateway(options, shutdown()?).await?) })?
}
