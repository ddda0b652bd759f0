//! What a part does with the settings of spans and of the access log.

use anyhow::{Context, Result};
use tollway_proxy::{TelemetryOptions, TracingOptions};
use tollway_routing::SamplingRatio;
use tollway_settings::{Telemetry, TraceUrl};
use tollway_telemetry::trace::{TraceEndpoint, TraceHeaders, TraceOptions};

use crate::failure::Misuse;

/// Header fields for the collector, under the name that every OpenTelemetry exporter reads.
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// One trace of a hundred: enough to see what is usual, and too few to be felt.
const USUAL_SHARE: f64 = 0.01;

/// The options of a data plane.
///
/// # Errors
/// [`Misuse`] where the endpoint and the protocol do not fit each other, and what is wrong with
/// the header fields in the environment.
pub(crate) fn telemetry_options(settings: &Telemetry) -> Result<TelemetryOptions> {
    let tracing = match &settings.trace_endpoint {
        Some(url) => Some(tracing(settings, url)?),
        None => None,
    };
    Ok(TelemetryOptions { tracing, access_log: settings.access_log.clone() })
}

fn tracing(settings: &Telemetry, url: &TraceUrl) -> Result<TracingOptions> {
    let endpoint = TraceEndpoint::parse(&url.0, settings.trace_protocol)
        .map_err(|error| Misuse(format!("--trace-endpoint: {error}")))?;
    let headers = std::env::var(HEADERS_VARIABLE).unwrap_or_default();
    let headers = TraceHeaders::parse(&headers).context(HEADERS_VARIABLE)?;
    let collector =
        TraceOptions { endpoint, ca: settings.trace_ca.clone(), headers, resource: Vec::new() };
    let usual = || SamplingRatio::new(USUAL_SHARE).expect("it is between 0 and 1");
    let ratio = settings.trace_ratio.map_or_else(usual, |share| share.ratio());
    Ok(TracingOptions { ratio, collector })
}
