//! `tollway gateway`.

use anyhow::Result;
use tollway_proxy::mesh::Role;
use tollway_proxy::{GatewayOptions, live, run_gateway};
use tollway_settings::reload::watch;
use tollway_settings::{Flags, Gateway, Given};

use super::log;
use super::mesh::{common_options, end_of, live_options, serve_live};
use crate::async_runtime::block_on;

pub(crate) fn run(given: Given<Gateway>, flags: Flags) -> Result<()> {
    let settings = given.settings.clone();
    let log = log::start(&settings.member.plane.log);
    let (reloads, config) = watch(given, flags);
    let (handle, live) = live(config);
    let options = GatewayOptions {
        common: common_options(settings.member, Role::Gateway, live)?,
        listen: settings.listen,
        advertise: settings.advertise,
        inside_listen: settings.inside_listen,
        inside_allow: settings.inside_allow,
        advertise_inside: settings.advertise_inside,
        dial_out: settings.dial_out,
    };
    block_on(async {
        let end = end_of(&reloads)?;
        let apply = async |new: Gateway| {
            handle.apply(live_options(&new.member)).await?;
            log.set_filter(&new.member.plane.log.log_level);
            Ok(())
        };
        Box::pin(serve_live(run_gateway(options, end), reloads, apply)).await
    })?
}
