//! What a span is, apart from its attributes.

use std::time::Instant;

use tollway_model::{SpanId, TraceContext};

/// Which side of a request it tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanKind {
    /// A request that was served.
    Server,
    /// A request that was made.
    Client,
}

/// What is told of each request, or of each attempt of one.
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
