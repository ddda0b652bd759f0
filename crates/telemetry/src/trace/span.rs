//! One finished span.

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

/// A value of an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Text(String),
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// What is told of one request, or of one attempt of it.
#[derive(Clone, Debug)]
pub struct Span {
    pub context: TraceContext,
    /// The caller's span; `None` begins a trace.
    pub parent: Option<SpanId>,
    pub name: String,
    pub kind: SpanKind,
    pub started: Instant,
    pub ended: Instant,
    /// It failed, from where it was seen.
    pub failed: bool,
    /// Names as the semantic conventions of OpenTelemetry have them.
    pub attributes: Vec<(&'static str, Value)>,
}
