//! What a sidecar in daprd's place does as daprd, where Tollway's own differs: the statuses of calls that
//! fail, and fields about traces.

mod cors;

use tollway_http::{Fields, RequestHead, ResponseHead};
use tollway_model::{ErrorCode, ServiceName};
use tollway_routing::TargetError;
use tollway_telemetry::DaprMetrics;

use crate::conn::ListenerKind;
use crate::error_response;
use crate::exchange::{BodySize, Exchange};
use crate::headers;
use crate::request_error::RequestError;

pub use cors::Cors;
pub(crate) use cors::matches as matches_origin;

/// Set in daprd's place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AsDaprd {
    /// Whether a placement service is named: without one Dapr runs no actors.
    pub has_placement: bool,
    /// Which web pages read answers of the HTTP API.
    pub cors: Option<Cors>,
    /// The largest body that the HTTP API takes, in bytes; `None` for any.
    pub body_bytes: Option<u64>,
}

/// The status and the code by which daprd answers calls of apps that fail, whatever the reason; those
/// that are not allowed have a status of their own.
pub const DIRECT_INVOKE: (u16, ErrorCode) = (500, ErrorCode::DirectInvoke);

/// The status by which daprd answers a call that failed with `code`.
#[must_use]
pub fn status_of(code: ErrorCode) -> u16 {
    if code == ErrorCode::PolicyDenied { code.http_status() } else { DIRECT_INVOKE.0 }
}

/// The text by which daprd answers a call of `id` that failed.
#[must_use]
pub fn text_of(id: &str, reason: &str) -> String {
    format!("failed to invoke, id: {id}, err: {reason}")
}

impl AsDaprd {
    /// Whether a call is answered as daprd does: one over HTTP of the own app.
    pub(crate) fn answers(exchange: &Exchange) -> bool {
        exchange.via == ListenerKind::HttpApi && !exchange.is_grpc
    }

    /// The answer to a request that failed, if it was the call of another app or asked for a web page.
    pub(crate) fn failure(
        exchange: &Exchange,
        error: &RequestError,
        home: &ServiceName,
        hop: &str,
    ) -> Option<(ResponseHead, Vec<u8>)> {
        if !Self::answers(exchange) {
            return None;
        }
        if matches!(error, RequestError::CrossSite) && cors::is_preflight(&exchange.head) {
            let (mut head, body) = error_response::http_error(error, hop);
            head.status = NO_PREFLIGHT;
            return Some((head, body));
        }
        let id = called(exchange, error, home)?;
        let text = text_of(&id, &error.message(hop));
        let status = if let RequestError::FaultInjected { status, .. } = error {
            *status
        } else {
            status_of(error.code())
        };
        Some(error_response::direct_invoke(error, status, &text, hop))
    }

    /// What another hop of the mesh reports in place of the app of a call.
    pub(crate) fn failure_of_callee(
        exchange: &Exchange,
        head: &ResponseHead,
    ) -> Option<RequestError> {
        let is_call = exchange.destination.is_of_mesh();
        if head.status < 400 || !is_call || !Self::answers(exchange) {
            return None;
        }
        let word = std::str::from_utf8(head.fields.value(headers::ERROR)?).ok()?;
        let code = ErrorCode::from_word(word)?;
        let hop = head.fields.value(headers::HOP).unwrap_or_default();
        Some(RequestError::OfCallee { code, hop: String::from_utf8_lossy(hop).into_owned() })
    }
}

/// The status by which daprd answers a browser's question about a web page where it serves none.
const NO_PREFLIGHT: u16 = 404;
const BAGGAGE: &[u8] = b"baggage";
const TRACEPARENT: &[u8] = b"traceparent";
/// What an app sees of a call that belongs to no trace, which it reads as no trace.
const NO_TRACE: &[u8] = b"00-00000000000000000000000000000000-0000000000000000-00";
/// Most bytes of a field `baggage`, of one member of it, and most members, as Dapr's reader has them.
const BAGGAGE_BYTES: usize = 8192;
const BAGGAGE_MEMBER_BYTES: usize = 4096;
const BAGGAGE_MEMBERS_LIMIT: usize = 180;

/// Begins a request as daprd does: labels its path for the metrics, and answers a browser that asks
/// what a web page may do at the HTTP API.
pub(crate) fn begin(
    of: &AsDaprd,
    metrics: Option<&DaprMetrics>,
    exchange: &mut Exchange,
) -> Option<ResponseHead> {
    if let Some(metrics) = metrics.filter(|_| is_of_app(exchange) && !exchange.is_grpc) {
        let target = String::from_utf8_lossy(&exchange.head.path);
        exchange.path_label = metrics.path_label(&target);
    }
    let cors = of.cors.as_ref().filter(|_| exchange.via == ListenerKind::HttpApi)?;
    cors.preflight(&exchange.head)
}

/// Completes the answer to a request of the own app: with its baggage, and whether a web page may read it.
pub(crate) fn complete(of: &AsDaprd, exchange: &Exchange, head: &mut ResponseHead) {
    if let Some(cors) = of.cors.as_ref().filter(|_| exchange.via == ListenerKind::HttpApi) {
        cors.complete(&exchange.head, head);
    }
    echo_baggage(exchange, head);
}

/// The largest body of a call whose head does not state its length.
pub(crate) struct BodyLimit {
    /// The app that is called.
    id: String,
    most: u64,
}

impl BodyLimit {
    /// Whether a body may have so many bytes.
    ///
    /// # Errors
    /// [`RequestError::BodyTooLarge`].
    pub(crate) fn admit(&self, bytes: u64) -> Result<(), RequestError> {
        match bytes > self.most {
            true => Err(RequestError::BodyTooLarge { id: self.id.clone(), most: self.most }),
            false => Ok(()),
        }
    }
}

/// Bounds the body of a call to the HTTP API: now if its head states its length, while it comes if not.
///
/// # Errors
/// [`RequestError::BodyTooLarge`].
pub(crate) fn limit_body(
    of: &AsDaprd,
    exchange: &mut Exchange,
    id: &str,
) -> Result<(), RequestError> {
    let Some(most) = of.body_bytes else { return Ok(()) };
    let limit = BodyLimit { id: id.to_owned(), most };
    match exchange.request_size {
        BodySize::None => Ok(()),
        BodySize::Fixed(length) => limit.admit(length),
        BodySize::Unknown => {
            exchange.body_limit = Some(Box::new(limit));
            Ok(())
        }
    }
}

/// Counts a request of the own app that is refused or has failed, by the code that it is answered with.
pub(crate) fn count_failure(
    metrics: &DaprMetrics,
    exchange: &Exchange,
    error: &RequestError,
    home: &ServiceName,
) {
    // Dapr counts neither calls of gRPC that are passed on, nor a missing token.
    if !AsDaprd::answers(exchange) || matches!(error, RequestError::ApiToken) {
        return;
    }
    let is_call = called(exchange, error, home).is_some();
    let code = if is_call { DIRECT_INVOKE.1 } else { error.code() };
    metrics.failed(code.dapr_category(), code.word());
}

/// Whether a request comes from the own app.
fn is_of_app(exchange: &Exchange) -> bool {
    matches!(exchange.via, ListenerKind::HttpApi | ListenerKind::GrpcApi)
}

/// Whether the baggage of a request of the own app can be read.
///
/// # Errors
/// [`RequestError::Baggage`].
pub(crate) fn check_baggage(exchange: &Exchange) -> Result<(), RequestError> {
    if !is_of_app(exchange) {
        return Ok(());
    }
    match joined(&exchange.head.fields).map(|value| baggage_fault(&value)) {
        Some(Some(why)) => Err(RequestError::Baggage { why }),
        _ => Ok(()),
    }
}

/// Adds the baggage of a request of the own app to its answer, unless the answer has some.
fn echo_baggage(exchange: &Exchange, head: &mut ResponseHead) {
    if !is_of_app(exchange) || head.fields.contains(BAGGAGE) {
        return;
    }
    if let Some(value) = joined(&exchange.head.fields).filter(|value| !value.is_empty()) {
        head.fields.push(BAGGAGE, &value);
    }
}

/// Names no trace in a call over HTTP that belongs to none.
pub(crate) fn name_no_trace(fields: &mut Fields) {
    if !fields.contains(TRACEPARENT) {
        fields.push(TRACEPARENT, NO_TRACE);
    }
}

/// The values of all fields `baggage`; `None` without one.
fn joined(fields: &Fields) -> Option<Vec<u8>> {
    let mut values = fields.values(BAGGAGE);
    let mut joined = values.next()?.to_vec();
    for value in values {
        joined.push(b',');
        joined.extend_from_slice(value);
    }
    Some(joined)
}

/// What is wrong with a baggage (W3C Baggage section 3.3).
fn baggage_fault(value: &[u8]) -> Option<&'static str> {
    if value.is_empty() {
        return None;
    }
    if value.len() > BAGGAGE_BYTES {
        return Some("it has more than 8,192 bytes");
    }
    let mut members = 0;
    for member in value.split(|byte| *byte == b',') {
        members += 1;
        if members > BAGGAGE_MEMBERS_LIMIT || member.len() > BAGGAGE_MEMBER_BYTES {
            return Some("it has more than 180 members, or one of more than 4,096 bytes");
        }
        let mut parts = member.split(|byte| *byte == b';');
        let pair = parts.next().unwrap_or_default();
        if !is_pair(pair) || parts.any(|property| !is_pair(property) && !is_key(property)) {
            return Some("a member is not KEY=VALUE");
        }
    }
    None
}

fn is_pair(text: &[u8]) -> bool {
    let Some(at) = text.iter().position(|byte| *byte == b'=') else { return false };
    let value = text[at + 1..].trim_ascii();
    let is_octet =
        |byte: &u8| matches!(byte, 0x21 | 0x23..=0x2b | 0x2d..=0x3a | 0x3c..=0x5b | 0x5d..=0x7e);
    is_key(&text[..at]) && value.iter().all(is_octet)
}

fn is_key(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_of_token)
}

/// The app that a failed request calls, as the own app names it; `None` if it calls none.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are of routed requests")]
fn called(exchange: &Exchange, error: &RequestError, home: &ServiceName) -> Option<String> {
    match error {
        RequestError::Target(TargetError::NoAppId | TargetError::NoAppIdMetadata) => None,
        RequestError::Target(_) => Some(asked_id(&exchange.head)),
        RequestError::Method { id, .. } | RequestError::BodyTooLarge { id, .. } => Some(id.clone()),
        RequestError::Loop { service, .. } => Some(service.short(home)),
        _ => exchange.destination.service().map(|service| service.short(home)),
    }
}

/// The app id of a request that was not routed.
fn asked_id(head: &RequestHead) -> String {
    let in_path = || {
        let rest = head.path.strip_prefix(b"/v1.0/invoke/")?;
        rest.split(|byte| *byte == b'/').next()
    };
    let id = head.fields.value(b"dapr-app-id").or_else(in_path).unwrap_or_default();
    String::from_utf8_lossy(id).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a16_baggage_is_read_as_dapr_reads_it() {
        for good in
            ["", "key1=value1,key2=value2", "a=b;p=1;q , c=d%20e", " a = b ", "a=", "k~!=v:/?#[]@"]
        {
            assert_eq!(baggage_fault(good.as_bytes()), None, "{good}");
        }
        for bad in
            ["invalid-baggage", "a=b,", "=b", "a b=c", "a=b c", "a=\"b\"", "a=b;;c", "a=\u{e9}"]
        {
            assert!(baggage_fault(bad.as_bytes()).is_some(), "{bad}");
        }
        assert!(baggage_fault(format!("a={}", "b".repeat(BAGGAGE_BYTES)).as_bytes()).is_some());
        let many = vec!["a=b"; BAGGAGE_MEMBERS_LIMIT + 1].join(",");
        assert!(baggage_fault(many.as_bytes()).is_some());
    }

    #[test]
    fn a16_an_app_without_a_trace_gets_the_name_of_none() {
        let mut fields = Fields::new();
        name_no_trace(&mut fields);
        name_no_trace(&mut fields);
        assert_eq!(fields.values(TRACEPARENT).collect::<Vec<_>>(), [NO_TRACE]);
    }
}
