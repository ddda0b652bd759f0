//! Counts what the API answers with an error code, as Dapr's `recordErrorCodes` has it.

use hyper::Response;
use tollway_model::ErrorCode;
use tollway_proxy::ERROR_FIELD;
use tollway_telemetry::DaprMetrics;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataValue;

/// Among the extensions of an answer: Dapr counts its code among those of state, whatever it is.
#[derive(Clone, Copy)]
pub(crate) struct OfState;

/// What a request is, as far as the count of its error depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Calls {
    /// An app or an endpoint: each failure has one code.
    App,
    /// An app over gRPC, passed on, which Dapr does not count.
    PassedOn,
    /// State over gRPC.
    State,
    /// Any other part of the API.
    Api,
}

impl Calls {
    /// `is_task`: the data loop has handed over a call of an app or an endpoint.
    pub(crate) fn of(is_task: bool, is_grpc: bool, path: &str) -> Self {
        let method = path.strip_prefix("/dapr.proto.runtime.v1.Dapr/").filter(|_| is_grpc);
        match (is_task, method) {
            (true, _) if is_grpc => Self::PassedOn,
            (true, _) | (_, Some("InvokeService")) => Self::App,
            (_, Some(method)) if method.contains("State") && !method.contains("Actor") => {
                Self::State
            }
            _ => Self::Api,
        }
    }
}

/// Adds the code of an error to its status, as answers over HTTP have it.
pub(crate) fn named(mut status: Status, code: ErrorCode) -> Status {
    status.metadata_mut().insert(ERROR_FIELD, MetadataValue::from_static(code.word()));
    status
}

/// Counts an answer that has an error code.
pub(crate) fn count(metrics: &DaprMetrics, calls: Calls, answer: &Response<Body>) {
    if let Some((category, code)) = counted(calls, answer) {
        metrics.failed(category, code.word());
    }
}

/// The category and the code under which an answer counts.
fn counted(calls: Calls, answer: &Response<Body>) -> Option<(&'static str, ErrorCode)> {
    let word = answer.headers().get(ERROR_FIELD)?.to_str().ok()?;
    let is_of_state = calls == Calls::State || answer.extensions().get::<OfState>().is_some();
    let code = match calls {
        Calls::PassedOn => return None,
        Calls::App => ErrorCode::DirectInvoke,
        Calls::State | Calls::Api => ErrorCode::from_word(word)?,
    };
    Some((if is_of_state { ErrorCode::StateGet } else { code }.dapr_category(), code))
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;
    use crate::rest::problem;

    fn over_http(code: ErrorCode) -> Response<Body> {
        problem(StatusCode::BAD_REQUEST, code, "")
    }

    fn over_grpc(code: ErrorCode) -> Response<Body> {
        named(Status::internal(""), code).into_http()
    }

    #[test]
    fn a14_errors_count_under_daprs_categories() {
        let of = |is_task, path: &str, answer: &Response<Body>, is_grpc| {
            let calls = Calls::of(is_task, is_grpc, path);
            counted(calls, answer).map(|(category, code)| (category, code.word()))
        };
        let http = |is_task, path, code| of(is_task, path, &over_http(code), false);
        let grpc = |is_task, method: &str, code| {
            let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
            of(is_task, &path, &over_grpc(code), true)
        };
        let state = "/v1.0/state/store";
        assert_eq!(http(false, state, ErrorCode::StateGet), Some(("state", "ERR_STATE_GET")));
        let malformed = Some(("common", "ERR_MALFORMED_REQUEST"));
        assert_eq!(http(false, state, ErrorCode::MalformedRequest), malformed);
        let mut illegal_key = over_http(ErrorCode::MalformedRequest);
        illegal_key.extensions_mut().insert(OfState);
        let of_state = Some(("state", "ERR_MALFORMED_REQUEST"));
        assert_eq!(of(false, state, &illegal_key, false), of_state);
        assert_eq!(grpc(false, "SaveState", ErrorCode::MalformedRequest), of_state);
        assert_eq!(grpc(false, "GetActorState", ErrorCode::MalformedRequest), malformed);
        let depth = Some(("actor", "ERR_ACTOR_STACK_DEPTH"));
        assert_eq!(http(false, "/v1.0/actors/a/b/method/c", ErrorCode::ActorStackDepth), depth);
        let direct = Some(("service-invocation", "ERR_DIRECT_INVOKE"));
        assert_eq!(http(true, "/a", ErrorCode::Unreachable), direct);
        assert_eq!(grpc(false, "InvokeService", ErrorCode::UnknownService), direct);
        assert_eq!(of(true, "/shop.Orders/Put", &over_grpc(ErrorCode::TimedOut), true), None);
        assert_eq!(of(false, state, &Response::new(Body::empty()), false), None);
    }
}
