//! `tollway gateway`.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use tollway_proxy::mesh::Role;
use tollway_proxy::{GatewayOptions, live, run_gateway};

use super::mesh::{CommonArgs, end_of, serve_live};
use crate::args::Command;
use crate::runtime::block_on;
use crate::settings::{Given, watch};

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
        let apply = async |command| {
            let Command::Gateway(new) = command else { return Ok(()) };
            handle.apply(new.common.live_options()).await?;
            log.set_filter(&new.common.plane.log.log_level);
            Ok(())
        };
        Box::pin(serve_live(run_gateway(options, end), reloads, apply)).await
    })?
}
