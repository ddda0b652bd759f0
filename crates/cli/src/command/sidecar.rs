//! `tollway sidecar`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use clap::Args;
use tollway_model::{AppId, AppProtocol, Label};
use tollway_proxy::mesh::Role;
use tollway_proxy::{SidecarOptions, run_sidecar};
use tollway_telemetry::{LogFormat, init_log};

use super::mesh::CommonArgs;
use crate::runtime::{block_on, shutdown};

#[derive(Args)]
pub(crate) struct SidecarArgs {
    /// Name of the app.
    #[arg(long, value_name = "ID")]
    app_id: AppId,
    #[arg(long, default_value = "default")]
    namespace: Label,
    /// Port on which the app takes calls; without it the app only makes calls.
    #[arg(long, value_name = "PORT")]
    app_port: Option<u16>,
    /// Address of the app.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    app_address: IpAddr,
    /// What the app speaks: http, h2c, grpc or tcp.
    #[arg(long, value_name = "PROTOCOL", default_value = "http")]
    app_protocol: AppProtocol,
    /// HTTP API.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3500")]
    http_listen: SocketAddr,
    /// gRPC API.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50001")]
    grpc_listen: SocketAddr,
    /// Outbound proxy: absolute targets, CONNECT, hosts that end in `.mesh`.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:15001")]
    outbound_listen: SocketAddr,
    /// Mesh door: other sidecars connect here.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50002")]
    inbound_listen: SocketAddr,
    /// Where others of the network reach the mesh door, if not where it listens.
    #[arg(long, value_name = "IP:PORT")]
    advertise: Option<SocketAddr>,
    /// A loopback port that stands for a TCP service, such as `5432=db.shop.east`.
    #[arg(long = "upstream", value_name = "PORT=SERVICE")]
    upstreams: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
}

pub(crate) fn run(args: SidecarArgs) -> Result<()> {
    init_log(LogFormat::Text);
    let role = Role::Sidecar { app: args.app_id, namespace: args.namespace };
    let options = SidecarOptions {
        common: args.common.options(role)?,
        app: args.app_port.map(|port| (SocketAddr::new(args.app_address, port), args.app_protocol)),
        http_listen: args.http_listen,
        grpc_listen: args.grpc_listen,
        outbound_listen: args.outbound_listen,
        inbound_listen: args.inbound_listen,
        advertise: args.advertise,
        upstreams: args.upstreams,
    };
    block_on(async { Ok(run_sidecar(options, shutdown()?).await?) })?
}
