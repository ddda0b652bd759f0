//! `tollway load http`.

use anyhow::Result;
use clap::Args;
use tollway_load::{HttpRequest, Target, Watch, payload, run_http};
use tollway_record::RunResult;

use super::common::CommonArgs;
use super::output::OutputArgs;

#[derive(Args)]
pub(super) struct HttpArgs {
    /// Method [default: GET, or POST with a body].
    #[arg(short = 'X', long, value_name = "METHOD")]
    method: Option<String>,
    /// Body.
    #[arg(short = 'd', long, value_name = "TEXT", conflicts_with = "payload_size")]
    data: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
}

impl HttpArgs {
    pub(super) fn run(&self, watch: &mut Watch<'_>) -> Result<RunResult> {
        let options = self.common.options(Target::http(&self.common.url)?, 1);
        Ok(run_http(&options, &self.request()?, watch)?)
    }

    pub(super) fn output(&self) -> &OutputArgs {
        &self.common.output
    }

    fn request(&self) -> Result<HttpRequest> {
        let body = match (&self.data, self.common.payload_size) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(bytes)) => payload(bytes),
            (None, None) => Vec::new(),
        };
        let default = if body.is_empty() { "GET" } else { "POST" };
        Ok(HttpRequest {
            method: self.method.as_deref().unwrap_or(default).to_owned(),
            headers: self.common.header_lines()?,
            body,
            verify_echo: self.common.verify_echo,
        })
    }
}
