//! `tollway sidecar`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tollway_model::{AppId, Label, ServiceName};
use tollway_proxy::mesh::Role;
use tollway_proxy::{Live, LiveOptions, MeshProtocol, SidecarOptions, live};
use tollway_runtime::{MESSAGE_BYTES, run_sidecar};

use super::api_tokens::ApiTokenArgs;
use super::app::AppArgs;
use super::mesh::{CommonArgs, end_of, serve_live};
use super::telemetry::TelemetryArgs;
use crate::async_runtime::block_on;
use crate::command::resources::ResourcesArgs;
use crate::failure::{Misuse, failure_of};
use crate::settings::{Given, watch};
use tollway_config::AppScheme;

#[derive(Args)]
#[command(
    after_help = "tollway sidecar --dapr takes the flags and the environment of daprd in place of these, as does \
                  this program under the name `daprd`: see tollway sidecar --dapr --help."
)]
pub(crate) struct SidecarArgs {
    /// Name of the app.
    #[arg(long, value_name = "ID")]
    app_id: AppId,
    /// Namespace of the app.
    #[arg(long, value_name = "NAME", default_value = "default")]
    namespace: Label,
    /// Port on which the app takes calls; without it the app only makes calls.
    #[arg(long, value_name = "PORT")]
    app_port: Option<u16>,
    /// Address of the app.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    app_address: IpAddr,
    /// Protocol of the app: http, https, h2c, grpc, grpcs or tcp.
    #[arg(long, value_name = "PROTOCOL", default_value = "http")]
    app_protocol: AppScheme,
    #[command(flatten)]
    app: AppArgs,
    /// HTTP API.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3500")]
    http_listen: SocketAddr,
    /// gRPC API.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50001")]
    grpc_listen: SocketAddr,
    /// Outbound proxy: absolute targets, CONNECT, hosts that end in `.mesh`.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:15001")]
    outbound_listen: SocketAddr,
    /// Inbound listener: other sidecars connect here.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50002")]
    inbound_listen: SocketAddr,
    /// Address at which the network reaches the inbound listener, if not the one it listens on.
    #[arg(long, value_name = "IP:PORT")]
    advertise: Option<SocketAddr>,
    /// What carries requests to services of HTTP/1.1: http2 (many at once on a connection) or http1
    /// (a pool of connections, one at a time on each).
    #[arg(long, value_name = "PROTOCOL", default_value = "http2")]
    mesh_protocol: MeshProtocolArg,
    /// A loopback port that stands for a TCP service, such as `5432=db.shop.east`.
    #[arg(long = "upstream", value_name = "PORT=SERVICE", value_parser = upstream)]
    upstreams: Vec<String>,
    #[command(flatten)]
    api_tokens: ApiTokenArgs,
    #[command(flatten)]
    resources: ResourcesArgs,
    #[command(flatten)]
    telemetry: Box<TelemetryArgs>,
    #[command(flatten)]
    common: CommonArgs,
}

/// Settings of its own that a running sidecar takes over.
pub(crate) const LIVE: &[&str] = &["silence_timeout_ms", "upstreams"];

#[derive(Clone, Copy, ValueEnum)]
enum MeshProtocolArg {
    Http1,
    Http2,
}

impl From<MeshProtocolArg> for MeshProtocol {
    fn from(arg: MeshProtocolArg) -> Self {
        match arg {
            MeshProtocolArg::Http1 => Self::Http1,
            MeshProtocolArg::Http2 => Self::Http2,
        }
    }
}

pub(crate) fn run(args: SidecarArgs, given: Given) -> Result<()> {
    let log = args.common.plane.log.start();
    let (reloads, config) = watch(given);
    let (handle, live) = live(config);
    block_on(async {
        let end = end_of(&reloads)?;
        let (found, stores) = args.resources.read(&args.app_id, &args.namespace)?;
        let options = found.complete(args.options(live)?);
        let apply = async |new: SidecarArgs| {
            let options = LiveOptions {
                telemetry: found.telemetry(new.telemetry.options()?),
                upstreams: new.upstreams,
                ..new.common.live_options()
            };
            handle.apply(options).await?;
            log.set_filter(&new.common.plane.log.log_level);
            Ok(())
        };
        let sidecar = Box::pin(run_sidecar(options, stores, end));
        let sidecar = async { sidecar.await.map_err(failure_of) };
        Box::pin(serve_live(sidecar, reloads, apply)).await
    })?
}

impl SidecarArgs {
    fn options(self, live: Live) -> Result<SidecarOptions> {
        let role = Role::Sidecar { app: self.app_id, namespace: self.namespace };
        if self.app.app_max_concurrency.is_some() && self.common.plane.threads() > 1 {
            let what = "--app-max-concurrency counts in one data-plane thread; leave --threads out";
            return Err(Misuse(what.to_owned()).into());
        }
        let address = |port| SocketAddr::new(self.app_address, port);
        let app = self.app_port.map(|port| self.app.at(address(port), self.app_protocol));
        Ok(SidecarOptions {
            common: self.common.options(role, live)?,
            app,
            http_listen: vec![self.http_listen],
            grpc_listen: vec![self.grpc_listen],
            outbound_listen: Some(self.outbound_listen),
            public_listen: None,
            inbound_listen: self.inbound_listen,
            advertise: self.advertise,
            mesh_protocol: self.mesh_protocol.into(),
            upstreams: self.upstreams,
            message_bytes: MESSAGE_BYTES,
            api_rules: None,
            access: None,
            resilience: None,
            tokens: self.api_tokens.tokens()?,
            telemetry: self.telemetry.options()?,
            dapr_metrics: None,
            outside: None,
        })
    }
}

/// Checks the form; the network that completes a short name is known later.
fn upstream(text: &str) -> Result<String> {
    let label = |text| Label::new(text).context("not a label");
    let home = ServiceName { app: label("a")?, namespace: label("b")?, network: label("c")? };
    let (port, name) = text.split_once('=').context("use PORT=SERVICE, as 5432=db.shop.east")?;
    port.parse::<u16>().context("the port is not a number up to 65535")?;
    ServiceName::parse(name, &home)?;
    Ok(text.to_owned())
}
