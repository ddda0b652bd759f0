//! Calls over HTTP to an app over gRPC: each becomes one `AppCallback/OnInvoke`.

use std::error::Error as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tollway_model::{AppProtocol, ErrorCode};
use tollway_proxy::ERROR_FIELD;
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tollway_wire::dapr::proto::common::v1::{HttpExtension, InvokeRequest, InvokeResponse};
use tollway_wire::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Extensions, Status};
use tonic_types::StatusExt;

use crate::app::App;
use crate::body_collector::BodyCollector;
use crate::called::Called;
use crate::codes::http_of;
use crate::fields::{APP_DETAILS, APP_STATUS, DATA_TYPE, fields_of, metadata_of, text_of};
use crate::loopback::{AppService, Loopback};
use crate::rest::{json_answer, not_collected, problem};

/// The identity of the caller, as the data loop has it from its certificate.
const CALLER: HeaderName = HeaderName::from_static("x-tollway-caller");

const BINARY_TRACE: &str = "grpc-trace-bin";

/// Longest details of a status that are forwarded, in bytes of base64.
const DETAILS_BYTES: usize = 8 * 1024;

/// The client of this sidecar's app, if that is a gRPC server.
pub(crate) struct AppCallback {
    app: Option<AppCallbackClient<AppService>>,
    bodies: BodyCollector,
}

impl AppCallback {
    /// The client of an app with a gRPC server, which the data loop connects to by `loopback`: it has
    /// as many connections as the app's limit of streams asks for. `bodies` bounds the bodies of
    /// calls, and messages too; each caller has its share.
    pub(crate) fn of(
        app: Option<&App>,
        loopback: Arc<dyn Loopback>,
        bodies: BodyCollector,
    ) -> Self {
        let message_bytes = bodies.message_bytes();
        let grpc = app.filter(|app| app.protocol == AppProtocol::Grpc);
        let client = |app: &App| {
            AppCallbackClient::with_origin(AppService::new(Arc::clone(&loopback)), app.origin())
                .max_decoding_message_size(message_bytes)
                .max_encoding_message_size(message_bytes)
        };
        Self { app: grpc.map(client), bodies }
    }

    /// Makes a call over HTTP as a message, and returns the app's response.
    pub(crate) async fn call(&self, request: Request<Body>) -> Response<Body> {
        let Some(mut app) = self.app.clone() else {
            let text = "the app speaks no gRPC";
            return problem(StatusCode::BAD_GATEWAY, ErrorCode::AppUnreachable, text);
        };
        let (head, body) = request.into_parts();
        let bodies = self.bodies.of(&text_of(&head.headers, CALLER));
        let mut held = match bodies.collect(body).await {
            Ok(held) => held,
            Err(why) => return not_collected(why, "a call of an app that speaks gRPC", &bodies),
        };
        let called = match Called::of(&head.uri, &head.headers) {
            Ok(called) => called,
            Err(why) => {
                let code = ErrorCode::MalformedRequest;
                return problem(StatusCode::BAD_REQUEST, code, &why.to_string());
            }
        };
        let message = invocation(&head, called, std::mem::take(&mut held.bytes));
        let mut metadata = metadata_of(&head.headers);
        if let Some(trace) = binary_trace(&head.headers) {
            metadata.insert_bin(BINARY_TRACE, MetadataValue::from_bytes(&trace));
        }
        match app.on_invoke(tonic::Request::from_parts(metadata, Extensions::new(), message)).await
        {
            Ok(answer) => answered(answer),
            Err(status) => refused(&status),
        }
    }
}

/// The field `traceparent` in the form of the metadata `grpc-trace-bin`, which libraries of gRPC read.
fn binary_trace(fields: &HeaderMap) -> Option<[u8; 29]> {
    let text = fields.get("traceparent")?.to_str().ok()?;
    let mut parts = text.split('-').skip(1);
    let trace = u128::from_str_radix(parts.next()?, 16).ok()?;
    let span = u64::from_str_radix(parts.next()?, 16).ok()?;
    let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
    // The version, and before each part its number.
    let mut binary = [0; 29];
    binary[2..18].copy_from_slice(&trace.to_be_bytes());
    binary[18] = 1;
    binary[19..27].copy_from_slice(&span.to_be_bytes());
    binary[27] = 2;
    binary[28] = flags;
    Some(binary)
}

fn invocation(head: &Parts, called: Called, body: Vec<u8>) -> InvokeRequest {
    let type_url = text_of(&head.headers, DATA_TYPE);
    InvokeRequest {
        method: called.method,
        data: Some(prost_types::Any { type_url, value: body }),
        content_type: text_of(&head.headers, CONTENT_TYPE),
        http_extension: Some(HttpExtension {
            verb: verb_of(&head.method).into(),
            querystring: called.query,
        }),
    }
}

fn verb_of(method: &Method) -> Verb {
    Verb::from_str_name(method.as_str()).unwrap_or(Verb::None)
}

fn answered(answer: tonic::Response<InvokeResponse>) -> Response<Body> {
    let (metadata, message, _) = answer.into_parts();
    let data = message.data.unwrap_or_default();
    let mut response = Response::new(Body::new(Full::from(data.value)));
    *response.headers_mut() = fields_of(&metadata);
    response.headers_mut().insert(APP_STATUS, HeaderValue::from(0));
    for (name, value) in [(CONTENT_TYPE, message.content_type), (DATA_TYPE, data.type_url)] {
        if let Ok(value) = HeaderValue::try_from(value)
            && !value.is_empty()
        {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn refused(status: &Status) -> Response<Body> {
    if let Some(code) = failure_of(status) {
        let http = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::BAD_GATEWAY);
        return problem(http, code, status.message());
    }
    let mut response = json_answer(http_of(status.code()), &status_document(status));
    let carried = fields_of(status.metadata());
    response.headers_mut().extend(carried);
    response.headers_mut().insert(APP_STATUS, HeaderValue::from(i32::from(status.code())));
    let details = STANDARD.encode(status.details());
    if let Ok(details) = HeaderValue::try_from(details)
        && !details.is_empty()
        && details.len() <= DETAILS_BYTES
    {
        response.headers_mut().insert(APP_DETAILS, details);
    }
    response
}

/// Why the call did not reach the app or its answer did not come back; `None` for a status of the app.
fn failure_of(status: &Status) -> Option<ErrorCode> {
    if let Some(word) = status.metadata().get(ERROR_FIELD) {
        return word.to_str().ok().and_then(ErrorCode::from_word);
    }
    // The data loop has ended.
    status.source().is_some().then_some(ErrorCode::AppUnreachable)
}

/// A status in protobuf's JSON format. Empty fields are left out.
fn status_document(status: &Status) -> Value {
    let mut document = json!({ "code": i32::from(status.code()) });
    if !status.message().is_empty() {
        document["message"] = status.message().into();
    }
    if let Some(info) = status.get_details_error_info() {
        let mut detail = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": info.reason,
            "domain": info.domain,
        });
        if !info.metadata.is_empty() {
            detail["metadata"] = json!(info.metadata);
        }
        document["details"] = json!([detail]);
    }
    document
}

#[cfg(test)]
mod tests;
