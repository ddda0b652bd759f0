//! `tollway echo`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_echo::{Choices, EchoOptions, Faults, HttpsOptions, Stall, Stop, percent, serve_echo};

use super::load::duration::duration;
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
    #[command(flatten)]
    faults: FaultArgs,
    /// Name of the replica, sent with every answer as `x-echo-name`.
    #[arg(long)]
    name: Option<String>,
    /// Run actors of the type `Echo`, which return each message.
    #[arg(long)]
    actors: bool,
    /// Runs actors of so many types: Echo, Echo1001, Echo1002 and so on.
    #[arg(
        long,
        value_name = "COUNT",
        requires = "actors",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    actor_types: u32,
    /// File that receives the bound addresses as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
}

/// Random faults; requests may name others (`/echo?delay=5ms:10&status=503:1`).
#[derive(Args)]
#[command(next_help_heading = "Faults: a value, or values with their chances in percent")]
struct FaultArgs {
    /// Time before an answer begins, such as 5ms or 1ms:50,10ms:5.
    #[arg(long, value_name = "TIME[:PERCENT],…")]
    delay: Option<Choices<Duration>>,
    /// Status instead, such as 503:10; calls of gRPC fail accordingly.
    #[arg(long, value_name = "STATUS[:PERCENT],…")]
    status: Option<Choices<u16>>,
    /// Body of so many bytes instead, such as 1024 or 100:90,1000000:10.
    #[arg(long, value_name = "BYTES[:PERCENT],…")]
    size: Option<Choices<u64>>,
    /// Requests whose connection is closed instead.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    close: Option<f64>,
    /// Stands still now and then, such as 1s@10s: for 1 s, every 10 s.
    #[arg(long, value_name = "TIME@TIME", value_parser = stall)]
    stall: Option<Stall>,
    /// Seed of the chances.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn stall(text: &str) -> Result<Stall> {
    let (lasting, every) = text.split_once('@').context("write it as 1s@10s")?;
    let (lasting, every) = (duration(lasting)?, duration(every)?);
    if lasting >= every {
        bail!("it would never run: {lasting:?} of every {every:?}");
    }
    Ok(Stall { lasting, every })
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
    let FaultArgs { delay, status, size, close, stall, seed } = args.faults;
    let options = EchoOptions {
        faults: Faults {
            delay: delay.unwrap_or_default(),
            status: status.unwrap_or_default(),
            size: size.unwrap_or_default(),
            close: close.unwrap_or_default(),
        },
        stall,
        seed,
        https,
        grpc: args.grpc,
        tcp: args.tcp,
        name: args.name,
        actor_types: if args.actors { args.actor_types } else { 0 },
        ports_file: args.ports_file,
        ..EchoOptions::new(args.http)
    };
    Ok(serve_echo(&options, &stop)?)
}
