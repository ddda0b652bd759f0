//! `tollway load`: one run against one target, told on the terminal or as JSON.

mod common;
mod grpc;
mod http;
mod neighbours;
mod output;
mod packets;
mod plan;
mod tcp;
mod timers;
mod tls;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollway_echo::Stop;
use tollway_load::{Progress, Watch};
use tollway_record::RunResult;

pub(crate) use self::common::duration;
use self::grpc::GrpcArgs;
use self::http::HttpArgs;
use self::neighbours::NeighboursLoadArgs;
use self::output::OutputArgs;
use self::packets::PacketsArgs;
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
    /// A control plane's table of neighbours: write to it, or list it and look things up
    /// as agents do.
    Neighbours(Box<NeighboursLoadArgs>),
    /// A forwarder of VXLAN: packets as fast as they go, counted where they come out; needs
    /// root.
    Packets(Box<PacketsArgs>),
}

/// What has a target that answers.
#[derive(Subcommand)]
enum RequestsCommand {
    /// HTTP/1.1 and HTTP/2.
    Http(HttpArgs),
    /// gRPC calls to the echo service: unary, or streams of messages.
    Grpc(GrpcArgs),
    /// Raw TCP to `tollway echo --tcp`: throughput, or ping-pong.
    Tcp(TcpArgs),
    /// Timers or reminders that wake the actors of `tollway echo --actors`: how late they come.
    Timers(TimersArgs),
}

/// Between two lines of progress where the error stream is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(10);

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
    tell(output, stop, |watch| match &**command {
        RequestsCommand::Http(args) => args.run(watch),
        RequestsCommand::Grpc(args) => args.run(watch),
        RequestsCommand::Tcp(args) => args.run(watch),
        RequestsCommand::Timers(args) => args.run(watch),
    })
}

/// Makes a run, tells of it while it lasts, and what it gave.
fn tell(
    output: &OutputArgs,
    stop: Stop,
    run: impl FnOnce(&mut Watch<'_>) -> Result<RunResult>,
) -> Result<ExitCode> {
    let mut live = Live::new(output.quiet);
    let mut report = |progress: &Progress| live.tell(progress);
    let result = run(&mut Watch { report: &mut report, stop });
    live.clear();
    output.tell(result?)
}

/// Progress on the error stream: on a terminal one line that is written over, else a line now and
/// then.
struct Live {
    is_quiet: bool,
    is_terminal: bool,
    next: Duration,
}

impl Live {
    fn new(is_quiet: bool) -> Self {
        Self { is_quiet, is_terminal: std::io::stderr().is_terminal(), next: LINES_EVERY }
    }

    fn tell(&mut self, progress: &Progress) {
        if self.is_quiet {
            return;
        }
        // A part of a plan begins at 0 again.
        if progress.elapsed + LINES_EVERY < self.next {
            self.next = LINES_EVERY;
        }
        if self.is_terminal {
            eprint!("\r\x1b[2K{progress}");
        } else if progress.elapsed >= self.next {
            self.next = progress.elapsed + LINES_EVERY;
            eprintln!("{progress}");
        }
    }

    fn clear(&self) {
        if self.is_terminal && !self.is_quiet {
            eprint!("\r\x1b[2K");
        }
    }
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
