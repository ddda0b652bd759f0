//! Faults as responses: JSON over HTTP, trailers-only over gRPC. The only place that does it.

use tollway_http::{Fields, ResponseHead, grpc};

use crate::edit;
use crate::fault::Fault;

/// Whether a request is a gRPC call, whose errors travel as gRPC statuses.
pub(crate) fn is_grpc(fields: &Fields) -> bool {
    fields.value(b"content-type").is_some_and(|value| {
        let rest = value.strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
    })
}

/// Status and body `{"errorCode":…,"message":…}`.
pub(crate) fn http_fault(fault: &Fault) -> (ResponseHead, Vec<u8>) {
    let (mut head, body) = problem(fault.status(), fault.code().word(), &fault.to_string());
    mark_unprocessed(&mut head, fault);
    (head, body)
}

/// A problem with any status.
pub(crate) fn problem(status: u16, code: &str, message: &str) -> (ResponseHead, Vec<u8>) {
    let mut head = ResponseHead::new(status);
    head.fields.push(b"content-type", b"application/json");
    let mut body = Vec::with_capacity(64 + message.len());
    body.extend_from_slice(b"{\"errorCode\":\"");
    body.extend_from_slice(code.as_bytes());
    body.extend_from_slice(b"\",\"message\":\"");
    escape_json(&mut body, message);
    body.extend_from_slice(b"\"}");
    (head, body)
}

/// A response of only trailers, as gRPC calls a head that ends the stream.
pub(crate) fn grpc_fault(fault: &Fault) -> ResponseHead {
    let mut head = ResponseHead::new(200);
    head.fields.push(b"content-type", b"application/grpc");
    head.fields.push(b"grpc-status", fault.grpc_status().to_string().as_bytes());
    let mut message = Vec::new();
    grpc::encode_message(&fault.to_string(), &mut message);
    head.fields.push(b"grpc-message", &message);
    mark_unprocessed(&mut head, fault);
    head
}

fn mark_unprocessed(head: &mut ResponseHead, fault: &Fault) {
    if fault.is_unprocessed() {
        head.fields.push(edit::UNPROCESSED, b"1");
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
    fn grpc_is_told_by_its_content_type() {
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
    fn messages_are_escaped() {
        let (_, body) = problem(400, "ERR", "a \"b\" \\ \n");
        assert_eq!(
            String::from_utf8(body).unwrap(),
            r#"{"errorCode":"ERR","message":"a \"b\" \\ \u000a"}"#
        );
    }
}
