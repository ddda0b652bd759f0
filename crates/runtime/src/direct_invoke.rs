//! Calls that the runtime makes and that fail, answered as daprd answers them.

use http_body_util::{BodyExt, Limited};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tollway_model::ErrorCode;
use tollway_proxy::{DIRECT_INVOKE, ERROR_FIELD, daprd_status, daprd_text};
use tonic::body::Body;

use crate::rest::json_answer;

/// Longest envelope of a failure that is read, in bytes.
const ENVELOPE_BYTES: usize = 64 * 1024;

/// The answer to a call of `id`: that of the app, or daprd's if a data plane or the runtime has failed.
pub(crate) async fn answer(id: &str, answer: Response<Body>) -> Response<Body> {
    let word = answer.headers().get(ERROR_FIELD).and_then(|word| word.to_str().ok());
    let Some(code) = word.and_then(ErrorCode::from_word) else { return answer };
    let (mut head, body) = answer.into_parts();
    let body = Limited::new(body, ENVELOPE_BYTES).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let envelope = serde_json::from_slice::<Value>(&body).unwrap_or_default();
    let reason = envelope["message"].as_str().unwrap_or_else(|| code.entry().meaning);
    let is_in_its_words = reason.starts_with("failed to invoke, id: ");
    let text = if is_in_its_words { reason.to_owned() } else { daprd_text(id, reason) };
    let status = StatusCode::from_u16(daprd_status(code));
    let body = json!({ "errorCode": DIRECT_INVOKE.1.word(), "message": text });
    let made = json_answer(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body);
    for name in [hyper::header::CONTENT_TYPE, hyper::header::CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    let (new, body) = made.into_parts();
    head.status = new.status;
    head.headers.extend(new.headers);
    Response::from_parts(head, body)
}
