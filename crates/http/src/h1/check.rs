//! Judging heads that no HTTP/1.1 parser made: from HTTP/2, from an API, from configuration.
//!
//! HTTP/2 carries bytes that would begin another line, field or message in HTTP/1.1 (RFC 9113 section
//! 10.3). What passes here is read back by [`parse_request`](super::parse_request) as it was written.

use super::Refusal;
use super::authority::Authority;
use super::request::METHOD_BYTES_MAX;
use super::syntax::{is_field_value, is_path, is_token, not_target_byte, trim};
use crate::{Fields, Method, RequestHead, ResponseHead};

/// Whether `head` can be written by [`write_request`](super::write_request) and will be accepted.
/// Sizes are not judged: the codec that read the head has bounded them.
pub fn check_request(head: &RequestHead) -> Result<(), Refusal> {
    check_request_line(head)?;
    check_fields(&head.fields)
}

/// Checks the request line of a head that the HTTP/2 codec has read; that has checked the fields.
pub fn check_request_line(head: &RequestHead) -> Result<(), Refusal> {
    let method = head.method.as_bytes();
    if !is_token(method) {
        return Err(Refusal::RequestLine);
    }
    if method.len() > METHOD_BYTES_MAX {
        return Err(Refusal::MethodTooLong { limit: METHOD_BYTES_MAX });
    }
    let authority = Authority::parse(&head.authority);
    if authority.is_none() && !head.authority.is_empty() {
        return Err(Refusal::TargetAuthority);
    }
    if head.method == Method::Connect {
        authority.and_then(|authority| authority.port).ok_or(Refusal::TargetForm)?;
    } else {
        check_path(&head.path, &head.method)?;
    }
    Ok(())
}

/// Whether `head` can be written by [`write_response`](super::write_response) and will be accepted.
/// What the codec of HTTP/2 has read can.
pub fn check_response(head: &ResponseHead) -> Result<(), Refusal> {
    if !(100..=999).contains(&head.status) {
        return Err(Refusal::StatusLine);
    }
    check_fields(&head.fields)
}

/// Whether every line has a token as name and a trimmed field value: the fields of a head that
/// is otherwise known to be good, or trailers. Lines are counted from 1.
pub fn check_fields(fields: &Fields) -> Result<(), Refusal> {
    for (line, field) in (1..).zip(fields.iter()) {
        if !is_token(field.name) {
            return Err(Refusal::FieldName { line });
        }
        if !is_field_value(field.value) || trim(field.value).len() != field.value.len() {
            return Err(Refusal::FieldValue { line });
        }
    }
    Ok(())
}

fn check_path(path: &[u8], method: &Method) -> Result<(), Refusal> {
    if let Some(byte) = not_target_byte(path) {
        return Err(Refusal::TargetByte { byte });
    }
    if !is_path(path) || (path == b"*" && *method != Method::Options) {
        return Err(Refusal::TargetForm);
    }
    Ok(())
}
