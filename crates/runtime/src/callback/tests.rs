//! An app over gRPC as callers over HTTP see it.

use std::io;

use http_body_util::BodyExt;
use tonic::metadata::MetadataMap;
use tonic_types::ErrorDetails;

use super::*;
use crate::testing::{ScriptedLoopback, request};

async fn read(response: Response<Body>) -> (u16, HeaderMap, Value) {
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    (head.status.as_u16(), head.headers, body)
}

#[test]
fn a_request_becomes_a_message_with_verb_query_and_type() {
    let mut request = request(Method::PATCH, "/a%20b/c?x=1", "");
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    request.headers_mut().insert(DATA_TYPE, HeaderValue::from_static("type.x/a.B"));
    let (head, _) = request.into_parts();
    let called = Called::of(&head.uri, &head.headers).unwrap();
    let message = invocation(&head, called, b"hello".to_vec());
    assert_eq!((&*message.method, &*message.content_type), ("a b/c", "text/plain"));
    let data = message.data.unwrap();
    assert_eq!((&*data.type_url, &data.value[..]), ("type.x/a.B", &b"hello"[..]));
    let extension = message.http_extension.unwrap();
    assert_eq!((extension.verb(), &*extension.querystring), (Verb::Patch, "x=1"));
    assert_eq!(verb_of(&Method::from_bytes(b"PURGE").unwrap()), Verb::None);
}

#[test]
fn a16_a_trace_reaches_an_app_of_grpc_in_its_binary_form() {
    let mut fields = HeaderMap::new();
    assert_eq!(binary_trace(&fields), None);
    let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    fields.insert("traceparent", HeaderValue::from_static(text));
    let binary = binary_trace(&fields).unwrap();
    assert_eq!(binary[..4], [0, 0, 0x4b, 0xf9]);
    assert_eq!(binary[17..21], [0x36, 1, 0x00, 0xf0]);
    assert_eq!(binary[26..], [0xb7, 2, 1]);
    fields.insert("traceparent", HeaderValue::from_static("what"));
    assert_eq!(binary_trace(&fields), None);
}

#[tokio::test]
async fn an_answer_has_type_fields_and_the_status_of_the_app() {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-own", "1".parse().unwrap());
    let data = prost_types::Any { type_url: "type.x/a.B".to_owned(), value: b"7".to_vec() };
    let message = InvokeResponse { data: Some(data), content_type: "application/json".to_owned() };
    let answer = tonic::Response::from_parts(metadata, message, Extensions::new());
    let (status, fields, body) = read(answered(answer)).await;
    assert_eq!((status, body), (200, json!(7)));
    assert_eq!(fields[CONTENT_TYPE], "application/json");
    assert_eq!(fields[DATA_TYPE], "type.x/a.B");
    assert_eq!(fields["x-own"], "1");
    assert_eq!(fields[APP_STATUS], "0");
    let empty = tonic::Response::new(InvokeResponse::default());
    let (_, fields, _) = read(answered(empty)).await;
    assert!(!fields.contains_key(CONTENT_TYPE) && !fields.contains_key(DATA_TYPE));
}

#[tokio::test]
async fn a_status_becomes_that_of_http_with_its_details() {
    let facts = [("key".to_owned(), "value".to_owned())];
    let details = ErrorDetails::with_error_info("REASON", "app", facts);
    let status = Status::with_error_details(tonic::Code::NotFound, "no such thing", details);
    let (http, fields, body) = read(refused(&status)).await;
    assert_eq!(http, 404);
    let detail = json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "REASON",
        "domain": "app",
        "metadata": { "key": "value" },
    });
    let document = json!({ "code": 5, "message": "no such thing", "details": [detail] });
    assert_eq!(body, document);
    assert_eq!(fields[APP_STATUS], "5");
    let carried = STANDARD.decode(fields[APP_DETAILS].as_bytes()).unwrap();
    assert_eq!(carried, status.details());
}

#[tokio::test]
async fn a_status_without_message_or_details_has_neither_in_its_document() {
    let (http, fields, body) = read(refused(&Status::unavailable(""))).await;
    assert_eq!((http, body), (503, json!({ "code": 14 })));
    assert!(!fields.contains_key(APP_DETAILS));
}

#[tokio::test]
async fn details_that_are_too_long_are_left_out() {
    let long = vec![7; DETAILS_BYTES];
    let status = Status::with_details(tonic::Code::Internal, "why", long.into());
    let (http, fields, _) = read(refused(&status)).await;
    assert_eq!(http, 500);
    assert!(!fields.contains_key(APP_DETAILS));
}

#[tokio::test]
async fn an_app_that_speaks_no_grpc_is_not_called() {
    let bodies = BodyCollector::new(100, 100);
    let loopback = ScriptedLoopback::new(|_| Err(io::ErrorKind::NotConnected.into()));
    let callback = AppCallback::of(None, Arc::new(loopback), bodies);
    let (status, _, body) = read(callback.call(request(Method::GET, "/a", "")).await).await;
    assert_eq!((status, &body["errorCode"]), (502, &ErrorCode::AppUnreachable.word().into()));
}
