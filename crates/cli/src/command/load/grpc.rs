//! `tollway load grpc`.

use anyhow::Result;
use clap::Args;
use tollway_load::{GrpcRequest, Target, Watch, run_grpc};
use tollway_record::RunResult;

use super::common::CommonArgs;
use super::output::OutputArgs;

#[derive(Args)]
pub(super) struct GrpcArgs {
    /// Calls in flight at once on one connection.
    #[arg(long, default_value_t = 100)]
    streams: usize,
    #[command(flatten)]
    common: CommonArgs,
}

impl GrpcArgs {
    pub(super) fn run(&self, watch: &mut Watch<'_>) -> Result<RunResult> {
        let options = self.common.options(Target::grpc(&self.common.url)?, self.streams)?;
        let request = self.request()?;
        self.common.run(options, watch, |options, watch| run_grpc(options, &request, watch))
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
