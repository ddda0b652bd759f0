//! The settings of spans and of the access log.

use std::path::PathBuf;

use tollway_telemetry::LogTarget;
use tollway_telemetry::trace::TraceProtocol;

use crate::{Settings, Share, TraceUrl};

const HEADING: &str = "Telemetry";

/// Where spans and the access log go.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Telemetry {
    /// OpenTelemetry collector that takes spans, such as http://127.0.0.1:4317.
    #[setting(form = "URL", live, heading = HEADING)]
    pub trace_endpoint: Option<TraceUrl>,
    /// Form of OTLP [default: http for port 4318 or a URL with a path, else grpc].
    #[setting(live, heading = HEADING, needs(&["trace_endpoint"]))]
    pub trace_protocol: Option<TraceProtocol>,
    /// Share of the traces begun here that is recorded, 0 to 1; a caller's decision holds
    /// [default: 0.01].
    #[setting(form = "SHARE", live, heading = HEADING, needs(&["trace_endpoint"]))]
    pub trace_ratio: Option<Share>,
    /// PEM file of the authorities of an https collector [default: the system's].
    #[setting(form = "FILE", live, heading = HEADING, needs(&["trace_endpoint"]))]
    pub trace_ca: Option<PathBuf>,
    /// File that receives a line of JSON for each request; `-` is standard output.
    #[setting(form = "FILE", live, heading = HEADING)]
    pub access_log: Option<LogTarget>,
}
