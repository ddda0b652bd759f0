//! What a sidecar or a front records of single requests.

use thiserror::Error;
use tollway_model::ErrorCode;
use tollway_routing::SamplingRatio;
use tollway_telemetry::trace::{ExportError, TraceOptions};
use tollway_telemetry::{AccessLogError, LogTarget};

/// What is recorded of single requests; nothing by default.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TelemetryOptions {
    pub tracing: Option<TracingOptions>,
    pub access_log: Option<LogTarget>,
}

/// Which requests become spans, and where they go.
#[derive(Clone, PartialEq, Debug)]
pub struct TracingOptions {
    /// The share of the traces begun here that is recorded.
    pub ratio: SamplingRatio,
    pub collector: TraceOptions,
}

/// Why what was asked for cannot be recorded.
#[derive(Debug, Error)]
pub enum TelemetryError {
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
}

impl TelemetryError {
    /// Its entry in the catalogue of failures.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Export(_) => Some(ErrorCode::BadConfiguration),
            Self::AccessLog(AccessLogError::Open { source, .. }) => {
                Some(ErrorCode::of_file(source, ErrorCode::FileUnusable))
            }
            Self::AccessLog(AccessLogError::Thread(source)) => ErrorCode::of_io(source),
        }
    }
}
