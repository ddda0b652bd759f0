//! What a span is, apart from its attributes.

use std::time::Instant;

use tollway_model::{SpanId, TraceContext};

/// The side of a request that a span records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanKind {
    /// A request that was served.
    Server,
    /// A request that was made.
    Client,
}

/// A span of a request, or of one attempt of it.
#[derive(Clone, Debug)]
pub struct SpanHead<'a> {
    pub context: TraceContext,
    /// The caller's span; `None` begins a trace.
    pub parent: Option<SpanId>,
    pub name: &'a str,
    pub kind: SpanKind,
    pub started: Instant,
    pub ended: Instant,
    /// It failed, from where it was seen.
    pub failed: bool,
}
