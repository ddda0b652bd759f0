//! `tollway echo`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tollway_load::{EchoOptions, HttpsOptions, Stop, serve_echo};

use super::load::stop_on_signals;

#[derive(Args)]
pub(crate) struct EchoArgs {
    /// HTTP/1.1 and HTTP/2 with prior knowledge, gRPC included; port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// Another port for the same.
    #[arg(long, value_name = "IP:PORT")]
    grpc: Option<SocketAddr>,
    /// The same behind TLS.
    #[arg(long, value_name = "IP:PORT", requires = "cert", requires = "key")]
    https: Option<SocketAddr>,
    /// Certificate of --https and what it chains to (PEM).
    #[arg(long, value_name = "FILE", requires = "https")]
    cert: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long, value_name = "FILE", requires = "https")]
    key: Option<PathBuf>,
    /// Mutual TLS: clients must show a certificate of one of these authorities (PEM).
    #[arg(long, value_name = "FILE", requires = "https")]
    client_ca: Option<PathBuf>,
    /// Plain TCP: bytes come back; the other end of `tollway load tcp`.
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
    let https = match (args.https, args.cert, args.key) {
        (Some(address), Some(certificate), Some(key)) => {
            Some(HttpsOptions { address, certificate, key, client_authorities: args.client_ca })
        }
        _ => None,
    };
    let options = EchoOptions {
        https,
        grpc: args.grpc,
        tcp: args.tcp,
        name: args.name,
        ports_file: args.ports_file,
        ..EchoOptions::new(args.http)
    };
    Ok(serve_echo(&options, &stop)?)
}
