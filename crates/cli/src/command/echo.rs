//! `tollway echo`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tollway_load::{EchoOptions, Stop, serve_echo};

use super::load::stop_on_signals;

#[derive(Args)]
pub(crate) struct EchoArgs {
    /// HTTP/1.1 and HTTP/2 with prior knowledge, gRPC included; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// Another port for the same.
    #[arg(long, value_name = "IP:PORT")]
    grpc: Option<SocketAddr>,
    /// Plain TCP: bytes come back.
    #[arg(long, value_name = "IP:PORT")]
    tcp: Option<SocketAddr>,
    /// Sent with every answer as `x-echo-name`: tells replicas apart.
    #[arg(long)]
    name: Option<String>,
    /// Receives the bound addresses as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
}

pub(crate) fn run(args: EchoArgs) -> Result<()> {
    let stop = Stop::new();
    stop_on_signals(&stop)?;
    let options = EchoOptions {
        grpc: args.grpc,
        tcp: args.tcp,
        name: args.name,
        ports_file: args.ports_file,
        ..EchoOptions::new(args.http)
    };
    Ok(serve_echo(&options, &stop)?)
}
