//! `InvokeService`: a call by message as a request over HTTP, and its response as a message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, StatusCode};
use serde_json::Value;
use tollway_model::ErrorCode;
use tollway_proxy::{ERROR_FIELD, daprd_text};
use tollway_routing::clean_method;
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tollway_wire::dapr::proto::common::v1::{InvokeRequest, InvokeResponse};
use tonic::{Code, Extensions, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::called::{Called, EXACT_METHOD};
use crate::codes::grpc_of;
use crate::error_counts;
use crate::fields::{APP_DETAILS, APP_STATUS, DATA_TYPE, metadata_of, text_of};

/// Longest part of an app's response in the details of an error, in bytes.
const DETAIL_BYTES: usize = 63;

/// Names the target for the HTTP API.
const APP_ID: HeaderName = HeaderName::from_static("dapr-app-id");
/// Metadata with the status of an app over HTTP.
const HTTP_STATUS: &str = "dapr-http-status";

/// Metadata of an app over gRPC that HTTP between the sidecars has added.
const OF_HTTP: [&str; 3] = ["dapr-content-length", "dapr-content-type", "dapr-date"];

/// Makes the HTTP request of a call by message.
///
/// # Errors
/// `INVALID_ARGUMENT` when a part of the message cannot be sent over HTTP.
pub(crate) fn http_request(
    id: &str,
    message: InvokeRequest,
    mut fields: HeaderMap,
) -> Result<hyper::Request<Full<Bytes>>, Status> {
    let data = message.data.unwrap_or_default();
    let extension = message.http_extension.unwrap_or_default();
    let method = match extension.verb() {
        // An app over gRPC needs no verb.
        Verb::None => "POST",
        Verb::Connect => return Err(Status::invalid_argument("a call by message cannot CONNECT")),
        verb @ (Verb::Get
        | Verb::Head
        | Verb::Post
        | Verb::Put
        | Verb::Delete
        | Verb::Options
        | Verb::Trace
        | Verb::Patch) => verb.as_str_name(),
    };
    let clean = clean_method(&message.method);
    let clean = clean.map_err(|why| Status::invalid_argument(why.to_string()))?;
    let called = Called { method: clean.into_owned(), query: extension.querystring };
    let target = called.target();
    if let Some(exact) = called.exact() {
        fields.insert(EXACT_METHOD, exact);
    }
    let value = |what: &str, text: &str| {
        let unreadable = |_| Status::invalid_argument(format!("{what} cannot be sent: {text:?}"));
        HeaderValue::try_from(text).map_err(unreadable)
    };
    fields.insert(APP_ID, value("the id", id)?);
    if !message.content_type.is_empty() {
        fields.insert(CONTENT_TYPE, value("the content type", &message.content_type)?);
    }
    if !data.type_url.is_empty() {
        fields.insert(DATA_TYPE, value("the type of the data", &data.type_url)?);
    }
    let mut request = hyper::Request::builder()
        .method(method)
        .uri(format!("http://localhost{target}"))
        .body(Full::from(data.value))
        .map_err(|error| Status::invalid_argument(format!("the method cannot be sent: {error}")))?;
    *request.headers_mut() = fields;
    Ok(request)
}

/// Makes the gRPC response of an HTTP response.
///
/// # Errors
/// The status of a failed call.
pub(crate) fn answer_of(
    id: &str,
    head: &Parts,
    body: &Bytes,
    as_daprd: bool,
) -> Result<Response<InvokeResponse>, Status> {
    if let Some(word) = head.headers.get(ERROR_FIELD) {
        let text = daprd_text(id, &reason_of(head, body));
        let status = Status::new(failure_code(code_of_failure(head.status), as_daprd), text);
        let code = word.to_str().ok().and_then(ErrorCode::from_word);
        return Err(error_counts::named(status, code.unwrap_or(ErrorCode::DirectInvoke)));
    }
    let mut metadata = metadata_of(&head.headers);
    for own in [APP_STATUS, APP_DETAILS] {
        metadata.remove(own.as_str());
    }
    let app_code = app_code(&head.headers);
    if let Some(code) = app_code.filter(|code| *code != Code::Ok) {
        let details = head.headers.get(APP_DETAILS).map(|value| STANDARD.decode(value.as_bytes()));
        let details = details.and_then(Result::ok).unwrap_or_default();
        let text = message_of(body);
        return Err(Status::with_details_and_metadata(code, text, details.into(), metadata));
    }
    let code = grpc_of(head.status);
    if app_code.is_some() {
        for of_http in OF_HTTP {
            metadata.remove(of_http);
        }
    } else {
        metadata.insert(HTTP_STATUS, head.status.as_u16().into());
    }
    if code != Code::Ok {
        let reason = head.status.canonical_reason().unwrap_or_default();
        let facts = [
            ("http.code".to_owned(), head.status.as_u16().to_string()),
            ("http.error_message".to_owned(), beginning(body)),
        ];
        let details = ErrorDetails::with_error_info(reason, "dapr.io", facts);
        return Err(Status::with_error_details_and_metadata(code, reason, details, metadata));
    }
    let type_url = text_of(&head.headers, DATA_TYPE);
    let data = prost_types::Any { type_url, value: body.to_vec() };
    let content_type = text_of(&head.headers, CONTENT_TYPE);
    let answer = InvokeResponse { data: Some(data), content_type };
    Ok(Response::from_parts(metadata, answer, Extensions::new()))
}

/// Why a call failed: the message of its envelope. The answer to a HEAD has none, so it is what its code
/// means.
fn reason_of(head: &Parts, body: &Bytes) -> String {
    if !body.is_empty() {
        return message_of(body);
    }
    let word = text_of(&head.headers, HeaderName::from_static(ERROR_FIELD));
    let entry = ErrorCode::from_word(&word).map(ErrorCode::entry);
    entry.map_or(word, |entry| format!("{}; {}", entry.meaning.trim_end_matches('.'), entry.remedy))
}

fn app_code(fields: &HeaderMap) -> Option<Code> {
    let code = fields.get(APP_STATUS)?.to_str().ok()?.parse().ok()?;
    Some(Code::from_i32(code))
}

/// The message of an error envelope or of a status; the text itself if it is neither.
fn message_of(body: &Bytes) -> String {
    let envelope = serde_json::from_slice::<Value>(body).ok();
    let message = envelope.as_ref().and_then(|envelope| envelope.get("message")?.as_str());
    message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

/// The code for a call that failed: daprd has one for all reasons.
pub(crate) fn failure_code(code: Code, as_daprd: bool) -> Code {
    if as_daprd { Code::Internal } else { code }
}

/// The code for a failure of a data plane. Callers decide by it whether to try again.
fn code_of_failure(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::InvalidArgument,
        500 | 502 => Code::Internal,
        _ => grpc_of(status),
    }
}

/// The first [`DETAIL_BYTES`] of a text, in whole characters.
fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let end = (0..=DETAIL_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests;
