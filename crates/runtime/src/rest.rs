//! The HTTP API, but for invocation: `/v1.0/healthz`, `/v1.0/metadata`, `/v1.0/shutdown`.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tollway_model::ErrorCode;
use tollway_proxy::ERROR_FIELD;
use tonic::body::Body;

use crate::metadata::{Metadata, NotKept, VALUE_BYTES};
use crate::server::Api;

pub(crate) async fn answer(api: &Api, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/v1.0/healthz") => health(&api.metadata, request.uri().query()),
        (&Method::GET, "/v1.0/healthz/outbound") => outbound_health(&api.metadata),
        (&Method::GET, "/v1.0/metadata") => metadata(&api.metadata),
        (&Method::PUT, path) if path.starts_with("/v1.0/metadata/") => {
            set_metadata(&api.metadata, request).await
        }
        (&Method::POST, "/v1.0/shutdown") => {
            api.asked_to_end.notify_one();
            empty(StatusCode::NO_CONTENT)
        }
        _ => problem(
            StatusCode::NOT_FOUND,
            ErrorCode::NotServed,
            &format!("{} {path} is not part of the API served here", request.method()),
        ),
    }
}

fn health(of: &Metadata, query: Option<&str>) -> Response<Body> {
    let own = of.facts().service().app.as_str();
    let asked = query.and_then(|q| q.split('&').find_map(|pair| pair.strip_prefix("appid=")));
    if asked.is_some_and(|asked| !asked.eq_ignore_ascii_case(own)) {
        return problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::HealthAppIdMismatch,
            "dapr app-id does not match",
        );
    }
    let missing = of.missing();
    if missing.is_empty() {
        return empty(StatusCode::NO_CONTENT);
    }
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        ErrorCode::HealthNotReady,
        &format!("dapr is not ready: [{}]", missing.join(" ")),
    )
}

fn outbound_health(of: &Metadata) -> Response<Body> {
    if of.facts().is_connected() {
        return empty(StatusCode::NO_CONTENT);
    }
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        ErrorCode::OutboundHealthNotReady,
        "dapr outbound is not ready: the control plane has not answered yet",
    )
}

fn metadata(of: &Metadata) -> Response<Body> {
    let facts = of.facts();
    let mut answer = json!({
        "id": facts.service().app.as_str(),
        "namespace": facts.service().namespace.as_str(),
        "network": facts.service().network.as_str(),
        "runtimeVersion": env!("CARGO_PKG_VERSION"),
        "enabledFeatures": [],
        "actors": [],
        "components": [],
        "subscriptions": [],
        "httpEndpoints": [],
        "extended": of.extended(),
        "actorRuntime": { "runtimeStatus": "DISABLED", "hostReady": false, "activeActors": [] },
    });
    if let (Some((address, protocol)), Some(fields)) = (facts.app(), answer.as_object_mut()) {
        let app = json!({
            "port": address.port(),
            "protocol": protocol.as_str(),
            "channelAddress": address.ip().to_string(),
        });
        fields.insert("appConnectionProperties".to_owned(), app);
    }
    json_answer(StatusCode::OK, &answer)
}

async fn set_metadata(of: &Metadata, request: Request<Incoming>) -> Response<Body> {
    let key = request.uri().path().trim_start_matches("/v1.0/metadata/").to_owned();
    let body = Limited::new(request.into_body(), VALUE_BYTES).collect().await;
    let text = body.ok().and_then(|body| String::from_utf8(body.to_bytes().to_vec()).ok());
    let kept = text.ok_or(NotKept::Malformed).and_then(|text| of.set(key, text));
    match kept {
        Ok(()) => empty(StatusCode::NO_CONTENT),
        Err(why) => {
            let (status, code) = match why {
                NotKept::Malformed => (StatusCode::BAD_REQUEST, ErrorCode::MalformedRequest),
                NotKept::Full => (StatusCode::INSUFFICIENT_STORAGE, ErrorCode::Overloaded),
            };
            problem(status, code, why.words())
        }
    }
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    answer
}

/// The answer to what failed here: Dapr's envelope, and the code as the mesh tells its own.
pub(crate) fn problem(status: StatusCode, code: ErrorCode, message: &str) -> Response<Body> {
    let word = code.word();
    let mut answer = json_answer(status, &json!({ "errorCode": word, "message": message }));
    answer.headers_mut().insert(ERROR_FIELD, HeaderValue::from_static(word));
    answer
}

pub(crate) fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut answer = Response::new(Body::new(Full::from(value.to_string())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
