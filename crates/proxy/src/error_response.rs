//! Faults as responses: JSON over HTTP, trailers-only over gRPC. The only place that does it.

use tollway_http::{Fields, ResponseHead, grpc};
use tollway_model::ErrorCode;

use crate::headers;
use crate::request_error::RequestError;

/// What Dapr's clients know as the answer to a request without the API's token.
const NO_API_TOKEN: &[u8] = b"invalid api token\n";

/// Whether a request is a gRPC call, whose errors travel as gRPC statuses.
pub(crate) fn is_grpc(fields: &Fields) -> bool {
    fields.value(b"content-type").is_some_and(|value| {
        let rest = value.strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
    })
}

/// Status, marks of the mesh, and body `{"errorCode":…,"message":…}`; `hop` says it. A request
/// without the API's token gets a text, as Dapr has it.
pub(crate) fn http_error(error: &RequestError, hop: &str) -> (ResponseHead, Vec<u8>) {
    let (word, message) = (error.code().word(), error.message(hop));
    let mut head = ResponseHead::new(error.status());
    if matches!(error, RequestError::ApiToken) {
        head.fields.push(b"content-type", b"text/plain; charset=utf-8");
        mark(&mut head, error, hop);
        return (head, NO_API_TOKEN.to_vec());
    }
    head.fields.push(b"content-type", b"application/json");
    mark(&mut head, error, hop);
    (head, envelope(word, &message))
}

/// The same as daprd answers any call that fails. The marks of the mesh name the reason.
pub(crate) fn direct_invoke(
    error: &RequestError,
    status: u16,
    message: &str,
    hop: &str,
) -> (ResponseHead, Vec<u8>) {
    let mut head = ResponseHead::new(status);
    head.fields.push(b"content-type", b"application/json");
    mark(&mut head, error, hop);
    (head, envelope(ErrorCode::DirectInvoke.word(), message))
}

fn envelope(word: &str, message: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(64 + message.len());
    body.extend_from_slice(b"{\"errorCode\":\"");
    body.extend_from_slice(word.as_bytes());
    body.extend_from_slice(b"\",\"message\":\"");
    escape_json(&mut body, message);
    body.extend_from_slice(b"\"}");
    body
}

/// A response of only trailers, as gRPC calls a head that ends the stream.
pub(crate) fn grpc_error(error: &RequestError, hop: &str) -> ResponseHead {
    let mut head = ResponseHead::new(200);
    head.fields.push(b"content-type", b"application/grpc");
    head.fields.push(b"grpc-status", error.grpc_status().to_string().as_bytes());
    let mut message = Vec::new();
    grpc::encode_message(&error.message(hop), &mut message);
    head.fields.push(b"grpc-message", &message);
    mark(&mut head, error, hop);
    head
}

/// Says that this comes from the mesh, and from which hop, and not from the app.
fn mark(head: &mut ResponseHead, error: &RequestError, hop: &str) {
    head.fields.push(headers::ERROR, error.code().word().as_bytes());
    head.fields.push(headers::HOP, hop.as_bytes());
    if let RequestError::RateLimited { after_s, .. } = error {
        head.fields.push(b"retry-after", after_s.to_string().as_bytes());
    }
    mark_unprocessed(head, error);
}

fn mark_unprocessed(head: &mut ResponseHead, error: &RequestError) {
    if error.is_unprocessed() {
        head.fields.push(headers::UNPROCESSED, b"1");
    }
}

fn escape_json(out: &mut Vec<u8>, text: &str) {
    for c in text.chars() {
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            c if c.is_control() => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes());
            }
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_recognised_by_its_content_type() {
        let check = |value: &[u8]| {
            let mut fields = Fields::new();
            fields.push(b"content-type", value);
            is_grpc(&fields)
        };
        assert!(check(b"application/grpc"));
        assert!(check(b"application/grpc+proto"));
        assert!(!check(b"application/grpc-web"));
        assert!(!check(b"application/json"));
    }

    #[test]
    fn an_error_states_the_hop_the_cause_and_the_remedy() {
        let error = RequestError::Unsupported { method: "CONNECT", reason: "not here" };
        let (head, body) = http_error(&error, "sidecar web.default.west");
        assert_eq!(head.status, 400);
        assert_eq!(head.fields.value(headers::ERROR), Some(&b"ERR_UNSUPPORTED"[..]));
        assert_eq!(head.fields.value(headers::HOP), Some(&b"sidecar web.default.west"[..]));
        let body = String::from_utf8(body).unwrap();
        let message =
            "sidecar web.default.west: CONNECT is not supported here: not here; use the port";
        assert!(body.contains(message), "{body}");
        let head = grpc_error(&error, "sidecar web.default.west");
        assert_eq!(head.fields.value(b"grpc-status"), Some(&b"3"[..]));
        assert_eq!(head.fields.value(headers::ERROR), Some(&b"ERR_UNSUPPORTED"[..]));
    }

    #[test]
    fn messages_are_escaped() {
        let mut text = Vec::new();
        escape_json(&mut text, "a \"b\" \\ \n");
        assert_eq!(String::from_utf8(text).unwrap(), r#"a \"b\" \\ \u000a"#);
    }
}
