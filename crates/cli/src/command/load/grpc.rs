//! `tollway load grpc`.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tollway_load::{GrpcRequest, StreamKind, StreamRequest, Target, Watch, run_grpc, run_stream};
use tollway_record::RunResult;

use super::duration::duration;
use super::request_options::RequestArgs;
use super::result_output::OutputArgs;

#[derive(Args)]
pub(super) struct GrpcArgs {
    /// Calls in flight at once on one connection [default: 100, with --stream 1].
    #[arg(long, value_name = "COUNT")]
    streams: Option<usize>,
    /// Streams of messages instead: push (each is acknowledged), bidi (each comes back), client
    /// or server (to or from the target). Latencies of push and bidi are of messages.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    stream: Option<StreamKind>,
    /// Messages of one stream [default: 100]. When given without -n and -z, the run ends when
    /// each of the --streams has had them, and has no warm-up unless that is given too.
    #[arg(long, value_name = "COUNT", requires = "stream")]
    messages: Option<u32>,
    /// Messages of one stream that may wait for their answer.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "stream")]
    in_flight: usize,
    /// What the target may send ahead on one stream [default: 256 KiB].
    #[arg(long, value_name = "BYTES", requires = "stream")]
    window: Option<u32>,
    /// Time for one stream.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "stream")]
    deadline: Option<Duration>,
    #[command(flatten)]
    common: RequestArgs,
}

impl GrpcArgs {
    pub(super) fn run(&self, watch: &mut Watch<'_>) -> Result<RunResult> {
        let target = Target::grpc(&self.common.url)?;
        let Some(kind) = self.stream else {
            let options = self.common.options(target, self.streams.unwrap_or(100))?;
            let request = self.request()?;
            return self
                .common
                .run(options, watch, |options, watch| run_grpc(options, &request, watch));
        };
        self.common.refuse_of_requests("a stream", true)?;
        let default = StreamRequest::new(kind);
        let request = StreamRequest {
            metadata: self.common.header_lines()?,
            payload_bytes: self.common.payload_size.unwrap_or(default.payload_bytes),
            messages: self.messages.unwrap_or(default.messages),
            in_flight: self.in_flight,
            window_bytes: self.window,
            deadline: self.deadline,
            ..default
        };
        let (streams, counted) = (self.streams.unwrap_or(1), self.messages.is_some());
        let options = self.common.options_of_streams(target, streams, &request, counted)?;
        self.common.run(options, watch, |options, watch| run_stream(options, &request, watch))
    }

    pub(super) fn output(&self) -> &OutputArgs {
        &self.common.output
    }

    fn request(&self) -> Result<GrpcRequest> {
        let echo = GrpcRequest::echo(self.common.payload_size.unwrap_or(0));
        Ok(GrpcRequest {
            metadata: self.common.header_lines()?,
            verify_echo: self.common.verify_echo,
            ..echo
        })
    }
}

fn kind(text: &str) -> Result<StreamKind> {
    let known = StreamKind::ALL.into_iter().find(|kind| kind.as_str() == text);
    known.with_context(|| {
        format!("`{text}` is no kind of stream: give push, bidi, client or server")
    })
}
