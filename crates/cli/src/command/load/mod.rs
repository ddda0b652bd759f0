//! `tollway load`: one run against one target, told on the terminal or as JSON.

mod common;
mod grpc;
mod http;
mod output;
mod plan;
mod tcp;
mod tls;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollway_load::{Progress, Stop, Watch};

pub(crate) use self::common::duration;
use self::grpc::GrpcArgs;
use self::http::HttpArgs;
use self::tcp::TcpArgs;

#[derive(Args)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    protocol: LoadCommand,
}

#[derive(Subcommand)]
enum LoadCommand {
    /// HTTP/1.1 and HTTP/2.
    Http(HttpArgs),
    /// gRPC calls to the echo service: unary, or streams of messages.
    Grpc(GrpcArgs),
    /// Raw TCP to `tollway echo --tcp`: throughput, or ping-pong.
    Tcp(TcpArgs),
}

/// Between two lines of progress where the error stream is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &LoadArgs) -> Result<ExitCode> {
    let stop = Stop::new();
    stop_on_signals(&stop)?;
    let output = match &args.protocol {
        LoadCommand::Http(args) => args.output(),
        LoadCommand::Grpc(args) => args.output(),
        LoadCommand::Tcp(args) => args.output(),
    };
    let mut live = Live::new(output.quiet);
    let mut report = |progress: &Progress| live.tell(progress);
    let mut watch = Watch { report: &mut report, stop };
    let result = match &args.protocol {
        LoadCommand::Http(args) => args.run(&mut watch),
        LoadCommand::Grpc(args) => args.run(&mut watch),
        LoadCommand::Tcp(args) => args.run(&mut watch),
    };
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
