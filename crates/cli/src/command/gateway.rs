//! `tollway gateway`.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use tollway_proxy::mesh::Role;
use tollway_proxy::{GatewayOptions, live, run_gateway};

use super::mesh::{CommonArgs, end_of, serve_live};
use crate::async_runtime::block_on;
use crate::settings::{Given, watch};

#[derive(Args)]
pub(crate) struct GatewayArgs {
    /// The one port that other networks connect to.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:15443")]
    listen: SocketAddr,
    /// Address at which other networks reach it, if not the one it listens on.
    #[arg(long, value_name = "IP:PORT")]
    advertise: Option<SocketAddr>,
    /// Address at which its own network reaches it, if not that of other networks.
    #[arg(long, value_name = "IP:PORT")]
    advertise_inside: Option<SocketAddr>,
    #[command(flatten)]
    common: CommonArgs,
}

pub(crate) fn run(args: GatewayArgs, given: Given) -> Result<()> {
    let log = args.common.plane.log.start();
    let (reloads, config) = watch(given);
    let (handle, live) = live(config);
    let options = GatewayOptions {
        common: args.common.options(Role::Gateway, live)?,
        listen: args.listen,
        advertise: args.advertise,
        advertise_inside: args.advertise_inside,
    };
    block_on(async {
        let end = end_of(&reloads)?;
        let apply = async |new: GatewayArgs| {
            handle.apply(new.common.live_options()).await?;
            log.set_filter(&new.common.plane.log.log_level);
            Ok(())
        };
        Box::pin(serve_live(run_gateway(options, end), reloads, apply)).await
    })?
}
