//! Spans of requests, and their export to an OpenTelemetry collector by OTLP over gRPC or HTTP.
//!
//! Which requests are recorded is decided elsewhere; here they are only carried. Everything runs
//! beside the data path and is bounded: a collector that is away costs a few thousand spans.

mod connect;
mod endpoint;
mod export;
mod otlp;
mod send;
mod span;

pub use endpoint::{EndpointError, TraceEndpoint, TraceHeaders, TraceProtocol};
pub use export::{ExportError, Exporter, SpanMetrics, TraceOptions};
pub use otlp::{Attributes, Spans};
pub use span::{SpanHead, SpanKind};
