//! `tollway load tcp`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_echo::Stop;
use tollway_load::{Target, TcpOptions, Watch, interval_line, run_ping, run_tcp};
use tollway_record::RunResult;
use tollway_record::throughput::{Direction, Interval};

use super::duration::duration;
use super::request_options::RequestArgs;
use super::result_output::OutputArgs;

/// Default bytes of one write of throughput, and of a message of ping-pong.
const WRITE_BYTES: usize = 128 * 1024;
const PING_BYTES: usize = 64;

#[derive(Args)]
pub(super) struct TcpArgs {
    /// Send messages and wait for each to come back, instead of as many bytes as possible.
    #[arg(long)]
    ping_pong: bool,
    /// Connections for throughput, in each direction.
    #[arg(short = 'P', long, value_name = "COUNT", default_value_t = 1)]
    parallel: usize,
    /// The target sends.
    #[arg(short = 'R', long, conflicts_with_all = ["bidir", "ping_pong"])]
    reverse: bool,
    /// Both send, each on connections of its own.
    #[arg(long, conflicts_with = "ping_pong")]
    bidir: bool,
    /// Between two lines of throughput.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    interval: Duration,
    #[command(flatten)]
    common: RequestArgs,
}

impl TcpArgs {
    pub(super) fn output(&self) -> &OutputArgs {
        &self.common.output
    }

    pub(super) fn run(&self, watch: &mut Watch<'_>) -> Result<RunResult> {
        self.common.refuse_of_requests("raw TCP", false)?;
        self.common.refuse_reuse("raw TCP")?;
        if self.ping_pong {
            let options = self.common.options(Target::tcp(&self.common.url)?, 1)?;
            let bytes = self.common.payload_size.unwrap_or(PING_BYTES);
            return self
                .common
                .run(options, watch, |options, watch| run_ping(options, bytes, watch));
        }
        self.throughput(&watch.stop)
    }

    fn throughput(&self, stop: &Stop) -> Result<RunResult> {
        self.common.output.check(true)?;
        let (lasting, warmup) = self.common.throughput_times()?;
        let direction = match (self.reverse, self.bidir) {
            (true, _) => Direction::Receive,
            (_, true) => Direction::Both,
            (false, false) => Direction::Send,
        };
        let options = TcpOptions {
            connect_to: self.common.connect_to,
            direction,
            streams: self.parallel,
            lasting,
            warmup,
            interval: self.interval,
            write_bytes: self.common.payload_size.unwrap_or(WRITE_BYTES),
            command_line: std::env::args().collect(),
            ..TcpOptions::new(Target::tcp(&self.common.url)?)
        };
        let quiet = self.common.output.quiet;
        let mut report = |interval: &Interval| {
            if !quiet {
                eprintln!("{}", interval_line(interval));
            }
        };
        Ok(run_tcp(&options, &mut report, stop)?)
    }
}
