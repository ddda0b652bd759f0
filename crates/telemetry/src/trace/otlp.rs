//! Spans as OTLP has them on the wire (`opentelemetry/proto/trace/v1/trace.proto`).
//!
//! They are written where they are sent from, and not made as a library's messages first: those own
//! each key and value, some forty pieces of memory a span, and measure what is nested again and
//! again.

use std::fmt::{Display, Write};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::span::{SpanHead, SpanKind};

/// Set in a span whose parent is of another process: the data plane's always are.
const HAS_REMOTE_PARENT: u32 = 0x300;
/// The low bits of a span's flags are those of the trace context.
const SAMPLED: u32 = 1;
/// `Status.StatusCode`.
const STATUS_ERROR: u64 = 2;
/// `Span.SpanKind`.
const KIND_SERVER: u64 = 2;
const KIND_CLIENT: u64 = 3;

/// Numbers of fields.
mod field {
    /// `ExportTraceServiceRequest`.
    pub(super) const RESOURCE_SPANS: u32 = 1;
    /// `ResourceSpans`.
    pub(super) const RESOURCE: u32 = 1;
    pub(super) const SCOPE_SPANS: u32 = 2;
    /// `Resource`.
    pub(super) const RESOURCE_ATTRIBUTES: u32 = 1;
    /// `ScopeSpans`.
    pub(super) const SCOPE: u32 = 1;
    pub(super) const SPANS: u32 = 2;
    /// `InstrumentationScope`.
    pub(super) const SCOPE_NAME: u32 = 1;
    pub(super) const SCOPE_VERSION: u32 = 2;
    /// `Span`.
    pub(super) const TRACE_ID: u32 = 1;
    pub(super) const SPAN_ID: u32 = 2;
    pub(super) const PARENT_SPAN_ID: u32 = 4;
    pub(super) const NAME: u32 = 5;
    pub(super) const KIND: u32 = 6;
    pub(super) const START_TIME: u32 = 7;
    pub(super) const END_TIME: u32 = 8;
    pub(super) const ATTRIBUTES: u32 = 9;
    pub(super) const STATUS: u32 = 15;
    pub(super) const FLAGS: u32 = 16;
    /// `Status`.
    pub(super) const CODE: u32 = 3;
    /// `KeyValue`.
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
    /// `AnyValue`.
    pub(super) const STRING: u32 = 1;
    pub(super) const INT: u32 = 3;
}

/// The time of day of an instant, as of now: both clocks run on alike since.
#[derive(Clone, Copy, Debug)]
struct Clock {
    instant: Instant,
    unix_ns: u128,
}

impl Clock {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_ns: since.as_nanos() }
    }

    fn unix_ns(self, instant: Instant) -> u64 {
        let ago = self.instant.saturating_duration_since(instant).as_nanos();
        u64::try_from(self.unix_ns.saturating_sub(ago)).unwrap_or(u64::MAX)
    }
}

/// Written spans, one after the other.
#[derive(Debug)]
pub struct Spans {
    clock: Clock,
    count: u64,
    bytes: Vec<u8>,
    /// The span that is being written.
    span: Vec<u8>,
    /// The value that is being written.
    value: String,
}

impl Spans {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            clock: Clock::now(),
            count: 0,
            bytes: Vec::new(),
            span: Vec::new(),
            value: String::new(),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The spans as a message `ScopeSpans`, without the resource.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes one; `describe` adds its attributes.
    pub fn add(&mut self, head: &SpanHead<'_>, describe: impl FnOnce(&mut Attributes<'_>)) {
        let span = &mut self.span;
        span.clear();
        put_bytes(span, field::TRACE_ID, &head.context.trace.0.get().to_be_bytes());
        put_bytes(span, field::SPAN_ID, &head.context.span.0.get().to_be_bytes());
        if let Some(parent) = head.parent {
            put_bytes(span, field::PARENT_SPAN_ID, &parent.0.get().to_be_bytes());
        }
        put_bytes(span, field::NAME, head.name.as_bytes());
        let kind = match head.kind {
            SpanKind::Server => KIND_SERVER,
            SpanKind::Client => KIND_CLIENT,
        };
        put_number(span, field::KIND, kind);
        put_fixed64(span, field::START_TIME, self.clock.unix_ns(head.started));
        put_fixed64(span, field::END_TIME, self.clock.unix_ns(head.ended));
        describe(&mut Attributes {
            field: field::ATTRIBUTES,
            message: span,
            value: &mut self.value,
        });
        if head.failed {
            put_length(span, field::STATUS, number_length(field::CODE, STATUS_ERROR));
            put_number(span, field::CODE, STATUS_ERROR);
        }
        let of_parent = if head.parent.is_some() { HAS_REMOTE_PARENT } else { 0 };
        put_fixed32(span, field::FLAGS, SAMPLED | of_parent);
        put_bytes(&mut self.bytes, field::SPANS, span);
        self.count += 1;
    }

    /// Reads the system time again, from which the times of further spans are computed.
    pub(super) fn read_clock(&mut self) {
        self.clock = Clock::now();
    }
}

impl Default for Spans {
    fn default() -> Self {
        Self::new()
    }
}

/// Where attributes are written. Names of those of a span are as the semantic conventions of
/// OpenTelemetry have them.
#[derive(Debug)]
pub struct Attributes<'a> {
    /// Number of the field that they are in its message.
    field: u32,
    message: &'a mut Vec<u8>,
    value: &'a mut String,
}

impl Attributes<'_> {
    /// Adds a text.
    pub fn text(&mut self, key: &str, value: &str) {
        let length = bytes_length(field::STRING, value.len());
        self.key(key, length);
        put_bytes(self.message, field::STRING, value.as_bytes());
    }

    /// Adds what is a text once it is written.
    pub fn display(&mut self, key: &str, value: &dyn Display) {
        let mut text = std::mem::take(self.value);
        text.clear();
        // Writing into memory does not fail.
        let _ = write!(text, "{value}");
        self.text(key, &text);
        *self.value = text;
    }

    /// Adds a number.
    pub fn number(&mut self, key: &str, value: i64) {
        // Two's complement, as protobuf has negative numbers of this type.
        let value = value.cast_unsigned();
        self.key(key, number_length(field::INT, value));
        put_number(self.message, field::INT, value);
    }

    /// All of a `KeyValue` but the inside of its `AnyValue`, which is so long.
    fn key(&mut self, key: &str, value_length: usize) {
        let length = bytes_length(field::KEY, key.len()) + bytes_length(field::VALUE, value_length);
        put_length(self.message, self.field, length);
        put_bytes(self.message, field::KEY, key.as_bytes());
        put_length(self.message, field::VALUE, value_length);
    }
}

/// The resource of this process as encoded fields; all spans share it.
#[derive(Debug)]
pub(super) struct Envelope {
    /// Of `ResourceSpans`.
    resource: Vec<u8>,
    /// Of `ScopeSpans`.
    scope: Vec<u8>,
}

impl Envelope {
    pub(super) fn new(of_resource: &[(String, String)]) -> Self {
        let (mut attributes, mut value) = (Vec::new(), String::new());
        let mut writer = Attributes {
            field: field::RESOURCE_ATTRIBUTES,
            message: &mut attributes,
            value: &mut value,
        };
        for (key, value) in of_resource {
            writer.text(key, value);
        }
        let mut scope_inside = Vec::new();
        put_bytes(&mut scope_inside, field::SCOPE_NAME, b"tollway");
        put_bytes(&mut scope_inside, field::SCOPE_VERSION, env!("CARGO_PKG_VERSION").as_bytes());
        let (mut resource, mut scope) = (Vec::new(), Vec::new());
        put_bytes(&mut resource, field::RESOURCE, &attributes);
        put_bytes(&mut scope, field::SCOPE, &scope_inside);
        Self { resource, scope }
    }

    /// A whole `ExportTraceServiceRequest`.
    pub(super) fn request(&self, spans: &Spans) -> Bytes {
        let of_scope = self.scope.len() + spans.bytes.len();
        let of_resource = self.resource.len() + bytes_length(field::SCOPE_SPANS, of_scope);
        let mut request = Vec::with_capacity(bytes_length(field::RESOURCE_SPANS, of_resource));
        put_length(&mut request, field::RESOURCE_SPANS, of_resource);
        request.extend_from_slice(&self.resource);
        put_length(&mut request, field::SCOPE_SPANS, of_scope);
        request.extend_from_slice(&self.scope);
        request.extend_from_slice(&spans.bytes);
        request.into()
    }
}

/// How a field's value is written.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Length = 2,
    Fixed32 = 5,
}

fn tag(field: u32, wire_type: WireType) -> u64 {
    u64::from(field << 3 | wire_type as u32)
}

fn put_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// How many bytes `value` takes as a varint.
fn varint_length(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

fn put_number(message: &mut Vec<u8>, field: u32, value: u64) {
    put_varint(message, tag(field, WireType::Varint));
    put_varint(message, value);
}

/// How many bytes [`put_number`] writes.
fn number_length(field: u32, value: u64) -> usize {
    varint_length(tag(field, WireType::Varint)) + varint_length(value)
}

/// The prefix of a text or a message of this many bytes.
fn put_length(message: &mut Vec<u8>, field: u32, length: usize) {
    put_varint(message, tag(field, WireType::Length));
    put_varint(message, length as u64);
}

fn put_bytes(message: &mut Vec<u8>, field: u32, value: &[u8]) {
    put_length(message, field, value.len());
    message.extend_from_slice(value);
}

/// How many bytes [`put_bytes`] writes of a value of `length`.
fn bytes_length(field: u32, length: usize) -> usize {
    varint_length(tag(field, WireType::Length)) + varint_length(length as u64) + length
}

fn put_fixed64(message: &mut Vec<u8>, field: u32, value: u64) {
    put_varint(message, tag(field, WireType::Fixed64));
    message.extend_from_slice(&value.to_le_bytes());
}

fn put_fixed32(message: &mut Vec<u8>, field: u32, value: u32) {
    put_varint(message, tag(field, WireType::Fixed32));
    message.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
    use prost::Message;
    use tollway_model::TraceContext;

    use super::*;

    const CONTEXT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const PARENT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";

    fn head(clock: Clock) -> SpanHead<'static> {
        SpanHead {
            context: TraceContext::parse(CONTEXT).unwrap(),
            parent: None,
            name: "GET",
            kind: SpanKind::Client,
            started: clock.instant - Duration::from_micros(1500),
            ended: clock.instant - Duration::from_micros(500),
            failed: false,
        }
    }

    fn pair(key: &str, value: Value) -> KeyValue {
        let value = Some(AnyValue { value: Some(value) });
        KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
    }

    fn text(key: &str, value: &str) -> KeyValue {
        pair(key, Value::StringValue(value.to_owned()))
    }

    /// What another implementation reads is what was meant, and nothing else is there.
    #[test]
    fn a_request_is_what_a_library_reads_and_writes() {
        let mut spans = Spans::new();
        let clock = spans.clock;
        let numbers = [0, 1, 127, 128, 16_383, 16_384, i64::MAX, -1, i64::MIN];
        let long = "ü".repeat(10_000);
        spans.add(&head(clock), |attributes| {
            for number in numbers {
                attributes.number("number", number);
            }
            attributes.text("empty", "");
            attributes.text("of-127", &long[..126]);
            attributes.text("long", &long);
            attributes.display("shown", &format_args!("{}://{}", "https", "stock"));
            attributes.display("shown-again", &1);
        });
        let parent = TraceContext::parse(PARENT).unwrap().span;
        let failed = SpanHead { kind: SpanKind::Server, failed: true, ..head(clock) };
        spans.add(&SpanHead { parent: Some(parent), ..failed }, |_| {});
        assert_eq!(spans.count(), 2);

        let unix_ns = |ago_us: u64| clock.unix_ns(clock.instant) - ago_us * 1000;
        let mut attributes = numbers.map(|n| pair("number", Value::IntValue(n))).to_vec();
        attributes.extend([
            text("empty", ""),
            text("of-127", &long[..126]),
            text("long", &long),
            text("shown", "https://stock"),
            text("shown-again", "1"),
        ]);
        let made = Span {
            trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes().to_vec(),
            span_id: 0xb7ad_6b71_6920_3331_u64.to_be_bytes().to_vec(),
            flags: 1,
            name: "GET".to_owned(),
            kind: Kind::Client.into(),
            start_time_unix_nano: unix_ns(1500),
            end_time_unix_nano: unix_ns(500),
            ..Span::default()
        };
        let served = Span {
            parent_span_id: 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes().to_vec(),
            flags: 0x301,
            kind: Kind::Server.into(),
            status: Some(Status { code: StatusCode::Error.into(), ..Status::default() }),
            ..made.clone()
        };
        let resource = vec![text("service.name", "web"), text("service.namespace", "shop")];
        let scope = InstrumentationScope {
            name: "tollway".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let meant = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource { attributes: resource, ..Resource::default() }),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans: vec![Span { attributes, ..made }, served],
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        let who = [("service.name", "web"), ("service.namespace", "shop")];
        let who = who.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let request = Envelope::new(&who).request(&spans);
        assert_eq!(ExportTraceServiceRequest::decode(request.clone()).unwrap(), meant);
        assert_eq!(request.len(), meant.encoded_len());
    }

    #[test]
    fn a_request_without_attributes_of_a_resource_is_one() {
        let request = Envelope::new(&[]).request(&Spans::new());
        let read = ExportTraceServiceRequest::decode(request).unwrap();
        assert_eq!(read.resource_spans[0].resource, Some(Resource::default()));
        assert!(read.resource_spans[0].scope_spans[0].spans.is_empty());
    }
}
