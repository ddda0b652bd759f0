//! Spans as OTLP writes them.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::common::v1::{self as common, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use super::span::{self, SpanKind, Value};

/// Set in a span whose parent is of another process: the data plane's always are.
const HAS_REMOTE_PARENT: u32 = 0x300;
/// The low bits of a span's flags are those of the trace context.
const SAMPLED: u32 = 1;

/// The time of day of an instant, as of now: both clocks run on alike since.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    instant: Instant,
    unix_ns: u128,
}

impl Clock {
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_ns: since.as_nanos() }
    }

    fn unix_ns(self, instant: Instant) -> u64 {
        let ago = self.instant.saturating_duration_since(instant).as_nanos();
        u64::try_from(self.unix_ns.saturating_sub(ago)).unwrap_or(u64::MAX)
    }
}

/// One span.
pub(super) fn span(span: span::Span, clock: Clock) -> Span {
    let kind = match span.kind {
        SpanKind::Server => Kind::Server,
        SpanKind::Client => Kind::Client,
    };
    let code = if span.failed { StatusCode::Error } else { StatusCode::Unset };
    Span {
        trace_id: span.context.trace.0.get().to_be_bytes().to_vec(),
        span_id: span.context.span.0.get().to_be_bytes().to_vec(),
        parent_span_id: span.parent.map_or_else(Vec::new, |id| id.0.get().to_be_bytes().to_vec()),
        flags: SAMPLED | if span.parent.is_some() { HAS_REMOTE_PARENT } else { 0 },
        name: span.name,
        kind: kind.into(),
        start_time_unix_nano: clock.unix_ns(span.started),
        end_time_unix_nano: clock.unix_ns(span.ended),
        attributes: span.attributes.into_iter().map(|(key, value)| pair(key, value)).collect(),
        status: Some(Status { message: String::new(), code: code.into() }),
        ..Span::default()
    }
}

/// What is the same for every span of this process: who it is.
pub(super) fn envelope(resource: &[(&'static str, String)]) -> ResourceSpans {
    let attributes = resource.iter().map(|(key, value)| pair(key, Value::Text(value.clone())));
    let scope = InstrumentationScope {
        name: "tollway".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    ResourceSpans {
        resource: Some(Resource { attributes: attributes.collect(), ..Resource::default() }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    }
}

fn pair(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => AnyValue::StringValue(text),
        Value::Number(number) => AnyValue::IntValue(number),
    };
    let value = Some(common::AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_model::TraceContext;

    use super::*;

    #[test]
    fn a_span_keeps_its_numbers_and_its_times() {
        let clock = Clock::now();
        let context =
            TraceContext::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let finished = span::Span {
            context: context.unwrap(),
            parent: None,
            name: "GET".to_owned(),
            kind: SpanKind::Client,
            started: clock.instant - Duration::from_micros(1500),
            ended: clock.instant - Duration::from_micros(500),
            failed: true,
            attributes: vec![("http.response.status_code", Value::Number(503))],
        };
        let written = span(finished, clock);
        assert_eq!(written.trace_id[..2], [0x0a, 0xf7]);
        assert_eq!(written.span_id[7], 0x31);
        assert!(written.parent_span_id.is_empty());
        assert_eq!(written.end_time_unix_nano - written.start_time_unix_nano, 1_000_000);
        assert_eq!(written.status.unwrap().code, 2);
    }
}
