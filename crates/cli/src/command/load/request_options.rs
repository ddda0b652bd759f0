//! The options that runs of requests share: target, arrivals, connections, limits.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_load::{
    Arrival, Extent, LoadError, LoadOptions, Plan, Spacing, StreamRequest, Target, Watch, header,
};
use tollway_record::RunResult;

use super::duration::duration;
use super::result_output::OutputArgs;
use super::schedule_options::PlanArgs;
use super::tls::TlsArgs;

const CONNECTIONS: usize = 16;
const DURATION: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct RequestArgs {
    /// Target.
    #[arg(value_name = "URL")]
    pub(super) url: String,
    /// Connect here instead of to the URL's host.
    #[arg(hide_short_help = true, long, value_name = "IP:PORT")]
    pub(super) connect_to: Option<SocketAddr>,
    /// Requests per second in all, in open loop; without it each connection sends its next
    /// request when it has its answer.
    #[arg(long, visible_aliases = ["qps", "rps"], value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Distribution of arrivals: uniform, poisson, jitter:FRACTION, or bursts:NUMBER.
    #[arg(hide_short_help = true, long, default_value = "uniform", value_parser = spacing)]
    spacing: Spacing,
    /// Connections [default: 16, with --stream 1].
    #[arg(short = 'c', long, value_name = "COUNT")]
    connections: Option<usize>,
    /// How long to measure, such as 500ms, 10s, 2m [default: 10s].
    #[arg(short = 'z', long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Send this number of requests instead.
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration")]
    requests: Option<u64>,
    /// Load before the measured time [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warm_up: Option<Duration>,
    /// Body or message of so many bytes.
    #[arg(long, visible_alias = "message-size", value_name = "BYTES")]
    pub(super) payload_size: Option<usize>,
    /// Check that each answer carries exactly what was sent.
    #[arg(hide_short_help = true, long)]
    pub(super) verify_echo: bool,
    /// Header line (gRPC: metadata), such as 'dapr-app-id: stock'.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Time for one answer.
    #[arg(hide_short_help = true, long, default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// Time after the window for answers still due; what is open then counts as unfinished.
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "5s",
        value_parser = duration)]
    drain: Duration,
    /// Most requests released and not answered; more are dropped and counted.
    #[arg(hide_short_help = true, long, value_name = "COUNT", default_value_t = 100_000)]
    max_inflight: usize,
    /// Seed of the arrivals.
    #[arg(hide_short_help = true, long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl RequestArgs {
    pub(super) fn options(&self, target: Target, streams: usize) -> Result<LoadOptions> {
        let spacing = self.spacing;
        let (tls, reuse) = self.tls.options(&target)?;
        Ok(LoadOptions {
            tls,
            reuse,
            connect_to: self.connect_to,
            arrival: match self.rate {
                Some(rate_rps) => Arrival::Open { rate_rps, spacing },
                None => Arrival::Closed,
            },
            extent: match self.requests {
                Some(count) => Extent::Requests(count),
                None => Extent::Lasting(self.duration.unwrap_or(DURATION)),
            },
            warmup: self.warm_up.unwrap_or(WARM_UP),
            seed: self.seed,
            connections: self.connections.unwrap_or(CONNECTIONS),
            streams,
            max_inflight: self.max_inflight,
            request_timeout: self.timeout,
            drain: self.drain,
            keep: self.output.keep(),
            command_line: std::env::args().collect(),
            ..LoadOptions::new(target)
        })
    }

    /// Like [`Self::options`], for streams: few connections. Without another amount, each stream
    /// whose messages `request` counts runs once and without a warm-up.
    pub(super) fn options_of_streams(
        &self,
        target: Target,
        streams: usize,
        request: &StreamRequest,
        messages_are_counted: bool,
    ) -> Result<LoadOptions> {
        let connections = self.connections.unwrap_or(1);
        let options = LoadOptions { connections, ..self.options(target, streams)? };
        let is_open = self.duration.is_none() && self.requests.is_none() && !self.plan.is_given();
        if !(messages_are_counted && is_open) {
            return Ok(options);
        }
        let count = request.calls_of(connections.saturating_mul(streams) as u64);
        Ok(LoadOptions {
            extent: Extent::Requests(count),
            warmup: self.warm_up.unwrap_or_default(),
            ..options
        })
    }

    /// Runs the plan with `once`, which makes a single run.
    pub(super) fn run(
        &self,
        options: LoadOptions,
        watch: &mut Watch<'_>,
        mut once: impl FnMut(&LoadOptions, &mut Watch<'_>) -> Result<RunResult, LoadError>,
    ) -> Result<RunResult> {
        self.output.check(false)?;
        let (plan, options): (Plan, _) = self.plan.apply(options, self.rate, self.spacing)?;
        Ok(plan.run(&options, watch, &mut once)?)
    }

    /// Window and warm-up of a throughput run, which has no requests to plan.
    pub(super) fn throughput_times(&self) -> Result<(Duration, Duration)> {
        if self.rate.is_some() || self.requests.is_some() || self.plan.is_given() {
            bail!(
                "throughput has no rate, count or plan of requests; give --ping-pong for those, or \
                 -z for the time"
            );
        }
        Ok((self.duration.unwrap_or(DURATION), self.warm_up.unwrap_or(WARM_UP)))
    }

    /// Refuses what only requests have: `kind` has no headers, or no single answers to compare.
    pub(super) fn refuse_of_requests(&self, kind: &str, has_headers: bool) -> Result<()> {
        if self.verify_echo {
            bail!("--verify-echo compares the answers of single requests; {kind} has none");
        }
        if !has_headers && !self.headers.is_empty() {
            bail!("--header is of HTTP and gRPC; {kind} has no headers");
        }
        Ok(())
    }

    /// Refuses what ends connections, of what keeps those it has.
    pub(super) fn refuse_reuse(&self, kind: &str) -> Result<()> {
        self.tls.refuse_reuse(kind)
    }

    pub(super) fn header_lines(&self) -> Result<Vec<(String, String)>> {
        self.headers.iter().map(|line| Ok(header(line)?)).collect()
    }
}

fn spacing(text: &str) -> Result<Spacing> {
    match text.split_once(':') {
        None if text == "uniform" => Ok(Spacing::Uniform),
        None if text == "poisson" => Ok(Spacing::Poisson),
        Some(("jitter", fraction)) => {
            let fraction = fraction.parse().context("the fraction is not a number")?;
            Ok(Spacing::Jitter { fraction })
        }
        Some(("bursts", size)) => {
            let size = size.parse().context("the number of requests at once is not a number")?;
            Ok(Spacing::Bursts { size })
        }
        _ => bail!("use uniform, poisson, jitter:FRACTION or bursts:NUMBER"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacings_are_named() {
        assert_eq!(spacing("poisson").unwrap(), Spacing::Poisson);
        assert_eq!(spacing("jitter:0.1").unwrap(), Spacing::Jitter { fraction: 0.1 });
        assert_eq!(spacing("bursts:16").unwrap(), Spacing::Bursts { size: 16 });
        for bad in ["random", "bursts", "bursts:-1", "uniform:1"] {
            assert!(spacing(bad).is_err(), "{bad}");
        }
    }
}
