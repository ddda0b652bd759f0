//! `tollway load`: one run against one target, reported on the terminal or as JSON.

pub(super) mod duration;
mod grpc;
mod http;
mod neighbours;
mod packets;
mod progress;
mod request_options;
mod result_output;
mod schedule_options;
mod tcp;
mod timers;
mod tls;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollway_echo::Stop;

use self::grpc::GrpcArgs;
use self::http::HttpArgs;
use self::neighbours::NeighboursLoadArgs;
use self::packets::PacketsArgs;
use self::progress::run_and_report;
use self::tcp::TcpArgs;
use self::timers::TimersArgs;

#[derive(Args)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    command: LoadCommand,
}

#[derive(Subcommand)]
enum LoadCommand {
    #[command(flatten)]
    Requests(Box<RequestsCommand>),
    /// Load a control plane's table of neighbours: write to it, or list it and get neighbours
    /// as agents do.
    Neighbours(Box<NeighboursLoadArgs>),
    /// Load a forwarder of VXLAN: send packets as fast as possible and count what comes out; needs
    /// root.
    Packets(Box<PacketsArgs>),
}

/// What has a target that answers.
#[derive(Subcommand)]
enum RequestsCommand {
    /// Send requests over HTTP/1.1 or HTTP/2.
    Http(HttpArgs),
    /// Send gRPC calls to the echo service: unary, or streams of messages.
    Grpc(GrpcArgs),
    /// Send raw TCP to `tollway echo --tcp`: throughput, or ping-pong.
    Tcp(TcpArgs),
    /// Timers or reminders that wake the actors of `tollway echo --actors`: how late they come.
    Timers(TimersArgs),
}

pub(crate) fn run(args: &LoadArgs) -> Result<ExitCode> {
    let stop = Stop::new();
    stop_on_signals(&stop)?;
    let command = match &args.command {
        LoadCommand::Requests(command) => command,
        LoadCommand::Neighbours(args) => return neighbours::run(args, stop),
        LoadCommand::Packets(args) => return packets::run(args, stop),
    };
    let output = match &**command {
        RequestsCommand::Http(args) => args.output(),
        RequestsCommand::Grpc(args) => args.output(),
        RequestsCommand::Tcp(args) => args.output(),
        RequestsCommand::Timers(args) => args.output(),
    };
    run_and_report(output, stop, |watch| match &**command {
        RequestsCommand::Http(args) => args.run(watch),
        RequestsCommand::Grpc(args) => args.run(watch),
        RequestsCommand::Tcp(args) => args.run(watch),
        RequestsCommand::Timers(args) => args.run(watch),
    })
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
