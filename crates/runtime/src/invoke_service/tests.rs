//! Calls by message: what goes out over HTTP, and what each response becomes.

use tollway_proxy::{GRPC_DETAILS_FIELD, GRPC_STATUS_FIELD};
use tollway_wire::dapr::proto::common::v1::HttpExtension;

use super::*;
use crate::testing::response;

fn message(method: &str, verb: Verb, query: &str) -> InvokeRequest {
    let data = prost_types::Any { type_url: "type.x/a.B".to_owned(), value: b"hello".to_vec() };
    InvokeRequest {
        method: method.to_owned(),
        data: Some(data),
        content_type: "text/plain".to_owned(),
        http_extension: Some(HttpExtension { verb: verb.into(), querystring: query.to_owned() }),
    }
}

fn answer(
    status: u16,
    fields: &[(&'static str, &str)],
    body: &str,
) -> Result<Response<InvokeResponse>, Status> {
    let (head, _) = response(status, fields, "").into_parts();
    answer_of("stock", &head, &Bytes::from(body.to_owned()), false)
}

#[test]
fn a_message_becomes_a_request_for_its_app() {
    let mut fields = HeaderMap::new();
    fields.insert("x-mine", HeaderValue::from(1));
    let request = http_request("stock", message("/a b/c", Verb::Put, "x=1&y= 2"), fields).unwrap();
    assert_eq!(request.method(), "PUT");
    assert_eq!(request.uri(), "http://localhost/a%20b/c?x=1&y=%202");
    let field = |name: &str| request.headers()[name].to_str().unwrap();
    assert_eq!((field("dapr-app-id"), field("content-type")), ("stock", "text/plain"));
    assert_eq!((field("dapr-data-type-url"), field("x-mine")), ("type.x/a.B", "1"));
}

#[test]
fn an_empty_message_is_a_post_without_content_type() {
    let bare = InvokeRequest { method: "m".to_owned(), ..InvokeRequest::default() };
    let request = http_request("stock", bare, HeaderMap::new()).unwrap();
    assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/m"));
    let names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["dapr-app-id"]);
}

#[test]
fn a_message_that_cannot_be_sent_is_an_invalid_argument() {
    let refused = |id: &str, message| {
        let status = http_request(id, message, HeaderMap::new()).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        status.message().to_owned()
    };
    assert!(refused("a\nb", message("m", Verb::Get, "")).contains("the id cannot be sent"));
    assert!(refused("stock", message("m", Verb::Connect, "")).contains("CONNECT"));
    let kind = InvokeRequest { content_type: "a\0".to_owned(), ..message("m", Verb::Get, "") };
    assert!(refused("stock", kind).contains("the content type cannot be sent"));
}

#[test]
fn a_response_of_an_app_over_http_carries_its_status_and_body() {
    let answer = answer(201, &[("content-type", "text/plain"), ("x-own", "1")], "done").unwrap();
    assert_eq!(answer.metadata().get("dapr-http-status").unwrap(), "201");
    assert_eq!(answer.metadata().get("x-own").unwrap(), "1");
    let message = answer.into_inner();
    assert_eq!(message.content_type, "text/plain");
    assert_eq!(message.data.unwrap().value, b"done");
}

#[test]
fn a_failed_response_over_http_is_a_status_with_the_start_of_its_body() {
    let long = format!("{}é and more", "x".repeat(DETAIL_BYTES - 1));
    let status = answer(404, &[], &long).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "Not Found"));
    let details = status.get_details_error_info().unwrap();
    assert_eq!(details.metadata["http.code"], "404");
    let start = &details.metadata["http.error_message"];
    assert_eq!(*start, "x".repeat(DETAIL_BYTES - 1), "whole characters only");
    assert_eq!(status.metadata().get("dapr-http-status").unwrap(), "404");
}

#[test]
fn a_status_of_an_app_over_grpc_passes_as_it_is() {
    let details = STANDARD.encode(b"details");
    let fields = [(GRPC_STATUS_FIELD, "5"), (GRPC_DETAILS_FIELD, &*details), ("x-own", "1")];
    let status = answer(404, &fields, r#"{"message":"no such thing"}"#).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no such thing"));
    assert_eq!(status.details(), b"details");
    assert_eq!(status.metadata().get("x-own").unwrap(), "1");
    assert!(!status.metadata().contains_key(APP_STATUS.as_str()));
}

#[test]
fn a_good_answer_of_an_app_over_grpc_has_nothing_of_http() {
    let fields = [(GRPC_STATUS_FIELD, "0"), ("content-type", "text/plain"), ("x-own", "1")];
    let answer = answer(200, &fields, "done").unwrap();
    for of_http in ["dapr-http-status", "dapr-content-type", "dapr-date"] {
        assert!(!answer.metadata().contains_key(of_http), "{of_http}");
    }
    assert_eq!(answer.metadata().get("x-own").unwrap(), "1");
}

#[test]
fn the_status_of_a_mesh_failure_gives_its_grpc_code() {
    for (status, code) in [
        (400, Code::InvalidArgument),
        (403, Code::PermissionDenied),
        (500, Code::Internal),
        (502, Code::Internal),
        (503, Code::Unavailable),
        (504, Code::DeadlineExceeded),
    ] {
        let failed = answer(status, &[(ERROR_FIELD, "ERR_X")], r#"{"message":"why"}"#).unwrap_err();
        assert_eq!(failed.code(), code, "{status}");
        assert_eq!(failed.message(), "failed to invoke, id: stock, err: why");
    }
    let text = answer(503, &[(ERROR_FIELD, "ERR_X")], "no envelope").unwrap_err();
    assert!(text.message().ends_with("err: no envelope"));
}
