//! `tollway load http`.

use anyhow::Result;
use clap::Args;
use tollway_load::{HttpRequest, Target, Watch, payload, run_http, run_http2};
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
    /// Speak HTTP/2: agreed on in the TLS handshake, or from the first byte on without TLS.
    #[arg(long)]
    http2: bool,
    /// Requests in flight at once on one connection of HTTP/2.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "http2")]
    streams: usize,
    #[command(flatten)]
    common: CommonArgs,
}

impl HttpArgs {
    pub(super) fn run(&self, watch: &mut Watch<'_>) -> Result<RunResult> {
        let options = self.common.options(Target::http(&self.common.url)?, self.streams)?;
        let request = self.request()?;
        self.common.run(options, watch, |options, watch| match self.http2 {
            true => run_http2(options, &request, watch),
            false => run_http(options, &request, watch),
        })
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
