//! `tollway load http`.

use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_echo::payload;
use tollway_load::{HttpRequest, Target, Watch, run_http, run_http2};
use tollway_record::RunResult;

use super::request_options::RequestArgs;
use super::result_output::OutputArgs;

/// Largest body that is read from a file: it is held in memory.
const MAX_BODY_BYTES: u64 = 1 << 30;

#[derive(Args)]
pub(super) struct HttpArgs {
    /// Method [default: GET, or POST with a body].
    #[arg(short = 'X', long, value_name = "METHOD")]
    method: Option<String>,
    /// Body; @FILE takes it from a file, @- from standard input.
    #[arg(short = 'd', long, value_name = "TEXT|@FILE", conflicts_with = "payload_size")]
    data: Option<String>,
    /// Speak HTTP/2: agreed on in the TLS handshake, or from the first byte on without TLS.
    #[arg(long)]
    http2: bool,
    /// Requests in flight at once on one connection of HTTP/2.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "http2")]
    streams: usize,
    #[command(flatten)]
    common: RequestArgs,
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
            (Some(text), _) => body(text)?,
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

/// What `-d` means: the text itself, a file's content, or all of standard input.
fn body(text: &str) -> Result<Vec<u8>> {
    let Some(path) = text.strip_prefix('@') else { return Ok(text.as_bytes().to_vec()) };
    let source: Box<dyn Read> = match path {
        "-" => Box::new(std::io::stdin()),
        path => Box::new(File::open(path).with_context(|| format!("cannot read the body {path}"))?),
    };
    let mut body = Vec::new();
    source
        .take(MAX_BODY_BYTES + 1)
        .read_to_end(&mut body)
        .with_context(|| format!("cannot read the body {path}"))?;
    if body.len() as u64 > MAX_BODY_BYTES {
        bail!("the body {path} is larger than {MAX_BODY_BYTES} bytes; give a smaller one");
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_or_a_file() {
        assert_eq!(body("a=b").unwrap(), b"a=b");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(body(&format!("@{path}")).unwrap(), std::fs::read(path).unwrap());
        let error = format!("{:#}", body("@/no/such/file").unwrap_err());
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
