//! `tollway load`: one run against one target, told on the terminal or as JSON.

mod common;
mod grpc;
mod http;
mod output;

use std::io::IsTerminal;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollway_load::{Stop, Watch};

use self::grpc::GrpcArgs;
use self::http::HttpArgs;

#[derive(Args)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    protocol: LoadCommand,
}

#[derive(Subcommand)]
enum LoadCommand {
    /// HTTP/1.1 and HTTP/2.
    Http(HttpArgs),
    /// gRPC unary calls to the echo service, over HTTP/2 without TLS.
    Grpc(GrpcArgs),
}

pub(crate) fn run(args: &LoadArgs) -> Result<()> {
    let stop = Stop::new();
    stop_on_signals(&stop)?;
    let live = std::io::stderr().is_terminal();
    let mut report = |progress: &tollway_load::Progress| {
        if live {
            eprint!("\r\x1b[2K{progress}");
        }
    };
    let mut watch = Watch { report: &mut report, stop };
    let (result, output) = match &args.protocol {
        LoadCommand::Http(args) => (args.run(&mut watch)?, args.output()),
        LoadCommand::Grpc(args) => (args.run(&mut watch)?, args.output()),
    };
    if live {
        eprint!("\r\x1b[2K");
    }
    output.tell(&result)
}

/// SIGINT and SIGTERM end a run or a server in order; a second one ends the process.
pub(crate) fn stop_on_signals(stop: &Stop) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot wait for signals")?;
    let stop = stop.clone();
    std::thread::spawn(move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 {
                std::process::exit(128 + signal);
            }
            stop.request();
        }
    });
    Ok(())
}
