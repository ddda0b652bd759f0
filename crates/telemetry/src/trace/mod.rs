//! Spans of requests, and their export to an OpenTelemetry collector by OTLP over gRPC or HTTP.
//!
//! `routing` decides which requests are recorded; this module sends them. Everything runs beside
//! the data path and is bounded: while the collector is unavailable, a few thousand spans are lost.

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
