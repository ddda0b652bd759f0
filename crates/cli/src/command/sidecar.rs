//! `tollway sidecar`.

use std::sync::Arc;

use anyhow::Result;
use tollway_intercept::{Resolvers, serve_names};
use tollway_proxy::mesh::Role;
use tollway_proxy::{Interception, Live, LiveOptions, RedirectedOrigins, SidecarOptions, live};
use tollway_routing::intercept::LeftAlone;
use tollway_runtime::{MESSAGE_BYTES, SidecarError, run_sidecar};
use tollway_settings::reload::watch;
use tollway_settings::{Flags, Given, Sidecar};

use super::api_tokens::tokens;
use super::log;
use super::mesh::{common_options, end_of, live_options, serve_live};
use super::telemetry::telemetry_options;
use crate::async_runtime::block_on;
use crate::command::resources::read_dapr_files;
use crate::failure::{Misuse, failure_of};

pub(crate) fn run(given: Given<Sidecar>, flags: Flags) -> Result<()> {
    let settings = given.settings.clone();
    let log = log::start(&settings.member.plane.log);
    let (reloads, config) = watch(given, flags);
    let (handle, live) = live(config);
    block_on(async {
        let end = end_of(&reloads)?;
        let (found, stores) =
            read_dapr_files(&settings.dapr_files, &settings.app_id, &settings.namespace)?;
        let names_port = settings.capture_names_port;
        let options = found.complete(options(settings, live)?);
        let captured = options.interception.as_ref().map(|of| Arc::clone(&of.names));
        // They are served until the sidecar ends.
        let _names = captured
            .map(|names| serve_names(names_port, names, Resolvers::of(Vec::new())))
            .transpose()?;
        let apply = async |new: Sidecar| {
            let options = LiveOptions {
                telemetry: found.telemetry(telemetry_options(&new.telemetry)?),
                upstreams: new.upstreams.iter().map(ToString::to_string).collect(),
                ..live_options(&new.member)
            };
            handle.apply(options).await?;
            log.set_filter(&new.member.plane.log.log_level);
            Ok(())
        };
        let sidecar = Box::pin(run_sidecar(options, stores, end));
        let sidecar = async {
            let ended = sidecar.await;
            if let Err(SidecarError::ForcedToEnd) = &ended {
                // Threads may still run, which an end in order would wait for.
                std::process::exit(1);
            }
            ended.map_err(failure_of)
        };
        Box::pin(serve_live(sidecar, reloads, apply)).await
    })?
}

fn options(settings: Sidecar, live: Live) -> Result<SidecarOptions> {
    if settings.app.app_max_concurrency.is_some() && settings.member.plane.threads > 1 {
        let what = "--app-max-concurrency counts in one data-plane thread; leave --threads out";
        return Err(Misuse(what.to_owned()).into());
    }
    let allow_open_files = settings.member.plane.allow_open_files;
    let app = settings.app_port.map(|port| settings.app.at(port));
    let role = Role::Sidecar { app: settings.app_id, namespace: settings.namespace };
    let mut common = common_options(settings.member, role, live)?;
    common.mesh.locality = settings.location.locality();
    Ok(SidecarOptions {
        common,
        app,
        takes_calls_of_services: settings.service_ports,
        http_listen: vec![settings.http_listen],
        grpc_listen: vec![settings.grpc_listen],
        outbound_listen: Some(settings.outbound_listen),
        public_listen: None,
        inbound_listen: settings.inbound_listen,
        advertise: settings.advertise,
        mesh_protocol: settings.mesh_protocol,
        upstreams: settings.upstreams.iter().map(ToString::to_string).collect(),
        message_bytes: MESSAGE_BYTES,
        api_rules: None,
        access: None,
        resilience: None,
        tokens: tokens(&settings.api_tokens, allow_open_files)?,
        web_pages: settings.web_access.pages(),
        telemetry: telemetry_options(&settings.telemetry)?,
        dapr_metrics: None,
        external_endpoints: None,
        interception: settings.capture_port.map(interception),
        as_daprd: None,
    })
}

/// Takes connections of the app that the kernel redirects to a port of loopback.
fn interception(port: u16) -> Interception {
    Interception {
        port,
        origins: Arc::new(RedirectedOrigins),
        names: Arc::default(),
        network: None,
        left_alone: LeftAlone::new(Vec::new(), false),
        is_in_cluster: true,
    }
}
