//! Errors of the state API in Dapr's words: one value for both protocols.

use std::collections::HashMap;

use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tollway_model::{ErrorCode, chain};
use tollway_proxy::ERROR_FIELD;
use tollway_state::{IllegalKey, StateError};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::error_counts::{self, OfState};
use crate::rest::json_answer;

const DOMAIN: &str = "dapr.io";

/// The operation that failed.
#[derive(Clone, Copy)]
pub(crate) enum Doing<'a> {
    /// To read this key.
    Get(&'a str),
    BulkGet,
    Save,
    /// To delete this key.
    Delete(&'a str),
    BulkDelete,
    Transact,
}

/// An error with all that the response of either protocol has.
#[derive(Debug)]
pub(crate) struct Problem {
    http: StatusCode,
    grpc: Code,
    code: ErrorCode,
    message: String,
    /// Details for both protocols. Without them only gRPC has details: the error code.
    details: Option<Box<Details>>,
}

#[derive(Debug)]
struct Details {
    /// The reason in `google.rpc.ErrorInfo`, and its metadata.
    reason: &'static str,
    facts: HashMap<String, String>,
    /// The name of the store.
    resource: Option<String>,
    /// The key that is not valid.
    field: Option<String>,
}

impl Problem {
    fn new(http: StatusCode, grpc: Code, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { http, grpc, code, message: message.into(), details: None }
    }

    /// The app has no state store.
    pub(super) fn not_configured(store: &str, app: &str) -> Self {
        let (http, code) = (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::StateStoreNotConfigured);
        let text = format!("state store {store} is not configured");
        Self::new(http, Code::FailedPrecondition, code, text)
            .with_reason("DAPR_STATE_NOT_CONFIGURED", &[("appID", app)])
    }

    /// The app has other state stores.
    pub(super) fn not_found(store: &str, app: &str) -> Self {
        let (http, code) = (StatusCode::BAD_REQUEST, ErrorCode::StateStoreNotFound);
        let text = format!("state store {store} is not found");
        Self::new(http, Code::InvalidArgument, code, text)
            .with_reason("DAPR_STATE_NOT_FOUND", &[("appID", app)])
    }

    /// The store is described, but cannot be used.
    pub(super) fn unusable(store: &str, why: &str, app: &str) -> Self {
        let (http, code) = (StatusCode::BAD_REQUEST, ErrorCode::StateStoreNotFound);
        let text = format!("state store {store} is not found: {why}");
        Self::new(http, Code::InvalidArgument, code, text)
            .with_reason("DAPR_STATE_NOT_FOUND", &[("appID", app)])
    }

    pub(super) fn illegal_key(store: &str, key: &str, error: &IllegalKey) -> Self {
        let (http, code) = (StatusCode::BAD_REQUEST, ErrorCode::MalformedRequest);
        let problem = Self::new(http, Code::InvalidArgument, code, error.to_string());
        problem.with_reason("DAPR_STATE_ILLEGAL_KEY", &[]).about(store, Some(key))
    }

    pub(super) fn no_queries(store: &str) -> Self {
        let (http, code) = (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::StateStoreNotSupported);
        Self::new(http, Code::Internal, code, "state store does not support querying")
            .with_reason("DAPR_STATE_QUERYING_NOT_SUPPORTED", &[])
            .about(store, None)
    }

    fn too_many_ops(store: &str, count: usize, limit: usize) -> Self {
        let text = format!(
            "the transaction contains {count} operations, which is more than what the state store \
             supports: {limit}"
        );
        let (count, limit) = (count.to_string(), limit.to_string());
        let facts = [("currentOpsTransaction", &*count), ("maxOpsPerTransaction", &*limit)];
        let (http, code) = (StatusCode::BAD_REQUEST, ErrorCode::StateTooManyOps);
        Self::new(http, Code::InvalidArgument, code, text)
            .with_reason("DAPR_STATE_TOO_MANY_TRANSACTIONS", &facts)
            .about(store, None)
    }

    /// The request itself cannot be read.
    pub(super) fn malformed(message: impl Into<String>) -> Self {
        let code = ErrorCode::MalformedRequest;
        Self::new(StatusCode::BAD_REQUEST, Code::InvalidArgument, code, message)
    }

    /// An operation of a transaction is unknown. The two protocols have different statuses.
    pub(super) fn unknown_operation(operation: &str) -> Self {
        let text = format!("operation type {operation} not supported");
        let code = ErrorCode::StateOperationNotSupported;
        Self::new(StatusCode::BAD_REQUEST, Code::Unimplemented, code, text)
    }

    /// A request that is refused before the store is called.
    pub(super) fn refused(store: &str, doing: Doing<'_>, why: &str) -> Self {
        let (code, text) = code_and_text(store, doing, why);
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, code, text)
    }

    /// The store failed. The message has all failures. Mismatched etags decide the status only if
    /// there is no other failure.
    pub(super) fn of_failures(store: &str, doing: Doing<'_>, failures: &[StateError]) -> Self {
        if let [StateError::TooManyOps { count, limit }] = failures {
            return Self::too_many_ops(store, *count, *limit);
        }
        let why = failures.iter().map(|error| chain(error)).collect::<Vec<_>>().join("\n");
        let (code, text) = code_and_text(store, doing, &why);
        let (http, grpc) = match doing {
            // All failures within these operations have the same status.
            Doing::Transact | Doing::Get(_) | Doing::BulkGet => {
                (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal)
            }
            Doing::Save | Doing::Delete(_) | Doing::BulkDelete => status(failures),
        };
        tracing::debug!(%store, error = text, "a state store failed");
        Self::new(http, grpc, code, text)
    }

    fn with_reason(mut self, reason: &'static str, facts: &[(&str, &str)]) -> Self {
        let facts = facts.iter().map(|&(name, fact)| (name.to_owned(), fact.to_owned())).collect();
        self.details = Some(Box::new(Details { reason, facts, resource: None, field: None }));
        self
    }

    /// Adds the store and the key to the details.
    fn about(mut self, store: &str, key: Option<&str>) -> Self {
        if let Some(details) = &mut self.details {
            details.resource = Some(store.to_owned());
            details.field = key.map(str::to_owned);
        }
        self
    }

    /// The response over HTTP.
    pub(crate) fn response(&self) -> Response<Body> {
        let word = self.code.word();
        let mut envelope = json!({ "errorCode": word, "message": self.message });
        if let (Some(details), Some(fields)) = (&self.details, envelope.as_object_mut()) {
            fields.insert("details".to_owned(), details.document(&self.message));
        }
        let mut answer = json_answer(self.http, &envelope);
        answer.headers_mut().insert(ERROR_FIELD, HeaderValue::from_static(word));
        if self.details.is_some() {
            answer.extensions_mut().insert(OfState);
        }
        answer
    }

    /// The response over gRPC.
    pub(crate) fn status(self) -> Status {
        let code = self.code;
        error_counts::named(self.unnamed_status(), code)
    }

    fn unnamed_status(self) -> Status {
        let Some(own) = self.details else {
            let details = ErrorDetails::with_error_info(self.code.word(), DOMAIN, HashMap::new());
            return Status::with_error_details(self.grpc, self.message, details);
        };
        let mut details = ErrorDetails::with_error_info(own.reason, DOMAIN, own.facts);
        if let Some(field) = own.field {
            details.add_bad_request_violation(field, self.message.clone());
        }
        if let Some(resource) = own.resource {
            details.set_resource_info("state", resource, "", "");
        }
        Status::with_error_details(self.grpc, self.message, details)
    }
}

impl Details {
    /// The details in the envelope over HTTP.
    fn document(&self, message: &str) -> Value {
        let name = |kind: &str| format!("type.googleapis.com/google.rpc.{kind}");
        let mut details = Vec::new();
        if let Some(field) = &self.field {
            let violations = json!([{ "field": field, "description": message }]);
            details.push(json!({ "@type": name("BadRequest"), "field_violations": violations }));
        }
        if let Some(resource) = &self.resource {
            details.push(json!({
                "@type": name("ResourceInfo"),
                "resource_type": "state",
                "resource_name": resource,
                "owner": "",
                "description": "",
            }));
        }
        details.push(json!({
            "@type": name("ErrorInfo"),
            "domain": DOMAIN,
            "metadata": if self.facts.is_empty() { Value::Null } else { json!(self.facts) },
            "reason": self.reason,
        }));
        details.into()
    }
}

/// Error code and message of a failed operation.
fn code_and_text(store: &str, doing: Doing<'_>, why: &str) -> (ErrorCode, String) {
    match doing {
        Doing::Get(key) => {
            (ErrorCode::StateGet, format!("fail to get {key} from state store {store}: {why}"))
        }
        Doing::BulkGet => (ErrorCode::StateBulkGet, why.to_owned()),
        Doing::Save => {
            (ErrorCode::StateSave, format!("failed saving state in state store {store}: {why}"))
        }
        Doing::Delete(key) => {
            (ErrorCode::StateDelete, format!("failed deleting state with key {key}: {why}"))
        }
        Doing::BulkDelete => {
            let text = format!("failed deleting state in state store {store}: {why}");
            (ErrorCode::StateBulkDelete, text)
        }
        Doing::Transact => {
            let text = format!("error while executing state transaction: {why}");
            (ErrorCode::StateTransaction, text)
        }
    }
}

fn status(failures: &[StateError]) -> (StatusCode, Code) {
    let is_of_caller = |error: &StateError| error.is_mismatch() || error.is_callers_fault();
    if !failures.iter().all(is_of_caller) {
        (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal)
    } else if failures.iter().any(StateError::is_callers_fault) {
        (StatusCode::BAD_REQUEST, Code::InvalidArgument)
    } else {
        (StatusCode::CONFLICT, Code::Aborted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mismatch() -> StateError {
        StateError::EtagMismatch { key: "a".to_owned(), found: None }
    }

    fn invalid() -> StateError {
        let (key, etag) = ("a".to_owned(), "never".to_owned());
        StateError::EtagInvalid { key, etag, expected: "a whole number" }
    }

    fn of(doing: Doing<'_>, failures: &[StateError]) -> (u16, Code, String) {
        let problem = Problem::of_failures("store", doing, failures);
        (problem.http.as_u16(), problem.grpc, problem.message)
    }

    #[test]
    fn mismatches_are_conflicts_and_mistakes_of_the_caller_are_bad_requests() {
        for doing in [Doing::Save, Doing::Delete("a"), Doing::BulkDelete] {
            let status = |failures: &[StateError]| {
                let (http, grpc, _) = of(doing, failures);
                (http, grpc)
            };
            assert_eq!(status(&[mismatch(), mismatch()]), (409, Code::Aborted));
            assert_eq!(status(&[mismatch(), invalid()]), (400, Code::InvalidArgument));
            let among = [mismatch(), invalid(), StateError::Closed];
            assert_eq!(status(&among), (500, Code::Internal), "the store's own failure wins");
        }
    }

    #[test]
    fn failures_of_reads_and_transactions_are_internal() {
        for doing in [Doing::Transact, Doing::Get("a"), Doing::BulkGet] {
            let (http, grpc, _) = of(doing, &[mismatch()]);
            assert_eq!((http, grpc), (500, Code::Internal));
        }
    }

    #[test]
    fn each_failure_is_in_the_message_on_a_line_of_its_own() {
        let (_, _, text) = of(Doing::Save, &[mismatch(), StateError::Closed]);
        assert_eq!(
            text,
            "failed saving state in state store store: possible etag mismatch. error from state \
             store: a is not as expected\nthe store is closed"
        );
        let begins = |doing, text: &str| {
            let message = of(doing, &[StateError::Closed]).2;
            assert_eq!(message, format!("{text}the store is closed"));
        };
        begins(Doing::Get("k"), "fail to get k from state store store: ");
        begins(Doing::BulkGet, "");
        begins(Doing::Delete("k"), "failed deleting state with key k: ");
        begins(Doing::BulkDelete, "failed deleting state in state store store: ");
        begins(Doing::Transact, "error while executing state transaction: ");
    }
}
