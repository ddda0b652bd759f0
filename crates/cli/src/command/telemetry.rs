//! The options of spans and of the access log.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tollway_proxy::{TelemetryOptions, TracingOptions};
use tollway_routing::SamplingRatio;
use tollway_telemetry::LogTarget;
use tollway_telemetry::trace::{
    EndpointError, TraceEndpoint, TraceHeaders, TraceOptions, TraceProtocol,
};

use crate::failure::Misuse;

/// Header fields for the collector, under the name that every OpenTelemetry exporter reads.
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// One trace of a hundred: enough to see what is usual, and too few to be felt.
const USUAL_SHARE: f64 = 0.01;

#[derive(Args)]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct TelemetryArgs {
    /// OpenTelemetry collector that takes spans, such as http://127.0.0.1:4317.
    #[arg(long, value_name = "URL", value_parser = url)]
    trace_endpoint: Option<String>,
    /// Form of OTLP [default: http for port 4318 or a URL with a path, else grpc].
    #[arg(long, value_enum, requires = "trace_endpoint")]
    trace_protocol: Option<Protocol>,
    /// Share of the traces begun here that is recorded, 0 to 1; a caller's decision holds
    /// [default: 0.01].
    #[arg(long, value_name = "SHARE", value_parser = ratio, requires = "trace_endpoint")]
    trace_ratio: Option<SamplingRatio>,
    /// PEM file of the authorities of an https collector [default: the system's].
    #[arg(long, value_name = "FILE", requires = "trace_endpoint")]
    trace_ca: Option<PathBuf>,
    /// File that receives a line of JSON for each request; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    access_log: Option<LogTarget>,
}

/// Settings that a running part with telemetry takes over: all of them.
pub(crate) const LIVE: &[&str] =
    &["trace_endpoint", "trace_protocol", "trace_ratio", "trace_ca", "access_log"];

#[derive(Clone, Copy, ValueEnum)]
enum Protocol {
    Grpc,
    Http,
}

impl TelemetryArgs {
    /// # Errors
    /// [`Misuse`] where the endpoint and the protocol do not fit each other, and what is wrong with
    /// the header fields in the environment.
    pub(crate) fn options(self) -> Result<TelemetryOptions> {
        let tracing = match &self.trace_endpoint {
            Some(url) => Some(self.tracing(url)?),
            None => None,
        };
        Ok(TelemetryOptions { tracing, access_log: self.access_log })
    }

    fn tracing(&self, url: &str) -> Result<TracingOptions> {
        let protocol = self.trace_protocol.map(|protocol| match protocol {
            Protocol::Grpc => TraceProtocol::Grpc,
            Protocol::Http => TraceProtocol::Http,
        });
        let endpoint = TraceEndpoint::parse(url, protocol)
            .map_err(|error| Misuse(format!("--trace-endpoint: {error}")))?;
        let headers = std::env::var(HEADERS_VARIABLE).unwrap_or_default();
        let headers = TraceHeaders::parse(&headers).context(HEADERS_VARIABLE)?;
        let collector = TraceOptions { endpoint, ca: self.trace_ca.clone(), headers };
        let usual = || SamplingRatio::new(USUAL_SHARE).expect("it is between 0 and 1");
        Ok(TracingOptions { ratio: self.trace_ratio.unwrap_or_else(usual), collector })
    }
}

/// Checks it as far as that is possible without the protocol.
fn url(text: &str) -> Result<String, EndpointError> {
    TraceEndpoint::parse(text, None).map(|_| text.to_owned())
}

fn ratio(text: &str) -> Result<SamplingRatio, String> {
    let share = text.parse().ok().and_then(SamplingRatio::new);
    share.ok_or_else(|| "it must be a number from 0 to 1, such as 0.01".to_owned())
}
