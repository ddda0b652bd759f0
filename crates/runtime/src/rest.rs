//! The HTTP API except invocation: `/v1.0/healthz`, `/v1.0/metadata`, `/v1.0/shutdown`. The module
//! `state` serves `/v1.0/state`, and `actors` serves `/v1.0/actors`.

use std::time::Duration;

use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tollway_model::ErrorCode;
use tollway_proxy::ERROR_FIELD;
use tonic::body::Body;

use crate::actors::Problem;
use crate::body_collector::{BodyCollector, CollectError};
use crate::metadata::{METADATA_VALUE_BYTES, Metadata, MetadataError};
use crate::routes::{self, Endpoint, From};
use crate::server::Api;
use crate::state;

/// Daprd's words for a body that is larger than its limit.
pub(crate) const STREAM_TOO_LARGE: &str = "stream too large";

pub(crate) async fn answer(api: &Api, request: Request<Body>) -> Response<Body> {
    let request = match state::http::answer(&api.stores, &api.bodies, request).await {
        Ok(answer) => return answer,
        Err(request) => request,
    };
    let request = match api.actors.answer(&api.bodies, request).await {
        Ok(answer) => return answer,
        Err(request) => request,
    };
    let path = request.uri().path().to_owned();
    let found = routes::find(From::App, request.method(), &path);
    match found.as_ref().map(|(endpoint, parts)| (endpoint, parts.as_slice())) {
        Some((Endpoint::Health, _)) => health(api, request.uri().query()),
        Some((Endpoint::OutboundHealth, _)) => outbound_health(&api.metadata),
        Some((Endpoint::Metadata, _)) => metadata(api),
        Some((Endpoint::SetMetadata, [key])) => {
            set_metadata(&api.metadata, &api.bodies, key, request).await
        }
        Some((Endpoint::Shutdown, _)) => {
            api.asked_to_end.make(request.headers());
            empty(StatusCode::NO_CONTENT)
        }
        _ => problem(
            StatusCode::NOT_FOUND,
            ErrorCode::NotServed,
            &format!("{} {path} is not part of the API served here", request.method()),
        ),
    }
}

fn health(api: &Api, query: Option<&str>) -> Response<Body> {
    let own = api.metadata.facts().service().app.as_str();
    let asked = query.and_then(|q| q.split('&').find_map(|pair| pair.strip_prefix("appid=")));
    if asked.is_some_and(|asked| !asked.eq_ignore_ascii_case(own)) {
        return problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::HealthAppIdMismatch,
            "dapr app-id does not match",
        );
    }
    let missing = api.readiness.missing();
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

fn metadata(api: &Api) -> Response<Body> {
    let of = &api.metadata;
    let facts = of.facts();
    let components = api.stores.components().into_iter().map(|component| {
        json!({
            "name": component.name,
            "type": component.component_type,
            "version": component.version,
            "capabilities": component.capabilities,
        })
    });
    let names = api.external.names();
    let endpoints: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
    let actors = api.actors.status(facts.is_connected());
    let counted = |(kind, count): &(String, usize)| json!({ "type": kind, "count": count });
    let counts = actors.counts.iter().map(counted).collect::<Vec<_>>();
    let refused = actors.refused.iter().map(|(kind, problem)| {
        json!({ "type": kind, "errorCode": problem.code.word(), "message": problem.text })
    });
    let mut answer = json!({
        "id": facts.service().app.as_str(),
        "namespace": facts.service().namespace.as_str(),
        "network": facts.service().network.as_str(),
        "runtimeVersion": env!("CARGO_PKG_VERSION"),
        "enabledFeatures": [],
        "actors": counts,
        "components": components.collect::<Vec<_>>(),
        "subscriptions": [],
        "httpEndpoints": endpoints,
        "extended": of.shown(),
        "actorRuntime": {
            "runtimeStatus": actors.status_word(),
            "hostReady": actors.is_ready(),
            "activeActors": counts,
            "placement": actors.placement(),
        },
    });
    let refused: Vec<Value> = refused.collect();
    // Dapr has no such field.
    if !refused.is_empty() {
        answer["actorRuntime"]["refusedTypes"] = refused.into();
    }
    if let (Some(options), Some(fields)) = (facts.app(), answer.as_object_mut()) {
        let mut app = json!({
            "port": options.address.port(),
            "protocol": options.speech(),
            "channelAddress": options.address.ip().to_string(),
        });
        if let Some(most) = options.max_concurrency {
            app["maxConcurrency"] = most.into();
        }
        if let Some(check) = &options.health_check {
            app["health"] = json!({
                "healthCheckPath": check.path,
                "healthProbeInterval": in_words(check.interval),
                "healthProbeTimeout": in_words(check.timeout),
                "healthThreshold": check.threshold,
            });
        }
        fields.insert("appConnectionProperties".to_owned(), app);
    }
    if api.as_daprd.is_some() {
        leave_out_empty(&mut answer);
    }
    json_answer(StatusCode::OK, &answer)
}

/// Leaves out lists and texts without content, here and in the actors' part, as daprd does.
fn leave_out_empty(answer: &mut Value) {
    let is_filled = |value: &Value| match value {
        Value::Array(list) => !list.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => true,
    };
    let Some(fields) = answer.as_object_mut() else { return };
    if let Some(actors) = fields.get_mut("actorRuntime").and_then(Value::as_object_mut) {
        actors.retain(|_, value| is_filled(value));
    }
    fields.retain(|_, value| is_filled(value));
}

/// A duration in Go's format, such as `1h0m0.5s` or `250ms`.
pub(crate) fn in_words(time: Duration) -> String {
    let whole_and_part = |nanoseconds: u128, unit: u128| {
        let (whole, part) = (nanoseconds / unit, nanoseconds % unit);
        let digits = unit.ilog10() as usize;
        let part = format!(".{part:0digits$}");
        format!("{whole}{}", part.trim_end_matches('0').trim_end_matches('.'))
    };
    let nanoseconds = time.as_nanos();
    match nanoseconds {
        0 => return "0s".to_owned(),
        1..=999 => return format!("{nanoseconds}ns"),
        1_000..=999_999 => return format!("{}µs", whole_and_part(nanoseconds, 1_000)),
        1_000_000..=999_999_999 => return format!("{}ms", whole_and_part(nanoseconds, 1_000_000)),
        _ => {}
    }
    let seconds = whole_and_part(nanoseconds % 60_000_000_000, 1_000_000_000);
    let minutes = time.as_secs() / 60;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

async fn set_metadata(
    of: &Metadata,
    bodies: &BodyCollector,
    key: &str,
    request: Request<Body>,
) -> Response<Body> {
    let bodies = bodies.limited(METADATA_VALUE_BYTES);
    let body = match bodies.collect(request.into_body()).await {
        Ok(mut body) => Some(body.take()),
        Err(CollectError::TooLarge | CollectError::CutOff) => None,
        Err(why @ (CollectError::LimitReached | CollectError::TooSlow)) => {
            return not_collected(why, "a text among the metadata", &bodies);
        }
    };
    let text = body.and_then(|body| String::from_utf8(body).ok());
    let stored = text.ok_or(MetadataError::Malformed).and_then(|text| of.set(key.to_owned(), text));
    match stored {
        Ok(()) => empty(StatusCode::NO_CONTENT),
        Err(why) => {
            let (status, code) = match why {
                MetadataError::Malformed => (StatusCode::BAD_REQUEST, ErrorCode::MalformedRequest),
                MetadataError::Full => (StatusCode::INSUFFICIENT_STORAGE, ErrorCode::Overloaded),
            };
            problem(status, code, why.words())
        }
    }
}

/// The response to a body of `what` that `bodies` could not read whole.
pub(crate) fn not_collected(
    why: CollectError,
    what: &str,
    bodies: &BodyCollector,
) -> Response<Body> {
    let status = match why {
        CollectError::TooLarge if bodies.is_in_daprds_place() => {
            let text = format!("failed deserializing HTTP body: {STREAM_TOO_LARGE}");
            return problem(StatusCode::BAD_REQUEST, ErrorCode::MalformedRequest, &text);
        }
        CollectError::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        CollectError::CutOff => StatusCode::BAD_REQUEST,
        CollectError::LimitReached => StatusCode::SERVICE_UNAVAILABLE,
        CollectError::TooSlow => StatusCode::REQUEST_TIMEOUT,
    };
    let Problem { code, text, .. } = why.problem(what, bodies.message_bytes());
    problem(status, code, &text)
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    answer
}

/// The response to a request that failed here: Dapr's envelope, and the error code in Tollway's
/// field.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (nanoseconds, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (250_000_000, "250ms"),
            (100_000, "100µs"),
            (1_000_000_000, "1s"),
            (1_050_000_000, "1.05s"),
            (90_000_000_000, "1m30s"),
            (3_600_500_000_000, "1h0m0.5s"),
            (86_400_000_000_000, "24h0m0s"),
        ] {
            assert_eq!(in_words(Duration::from_nanos(nanoseconds)), expected);
        }
    }
}
