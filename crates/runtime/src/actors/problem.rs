//! Errors of actors in Dapr's words: one value for both APIs.

use std::collections::HashMap;

use hyper::{Response, StatusCode};
use tollway_model::ErrorCode;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::error_counts;
use crate::rest;

/// A refusal or a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    pub(crate) code: ErrorCode,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn instance_missing() -> Self {
        Self::new(ErrorCode::ActorInstanceMissing, "actor instance is missing")
    }

    /// The method was called and failed.
    pub(crate) fn invoke(why: &str) -> Self {
        Self::new(ErrorCode::ActorInvoke, format!("error invoke actor method: {why}"))
    }

    pub(crate) fn malformed(why: &str) -> Self {
        Self::new(ErrorCode::MalformedRequest, format!("failed deserializing HTTP body: {why}"))
    }

    /// The HTTP status of the response.
    pub(crate) fn http_status(&self) -> u16 {
        self.code.entry().answer.map_or(500, |answer| answer.http)
    }

    /// The response over HTTP.
    pub(crate) fn response(&self) -> Response<Body> {
        let status = StatusCode::from_u16(self.http_status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        rest::problem(status, self.code, &self.text)
    }

    /// The response over gRPC.
    pub(crate) fn status(&self) -> Status {
        status(self.code, &self.text)
    }
}

/// The gRPC status for a code of the catalogue.
pub(crate) fn status(code: ErrorCode, text: &str) -> Status {
    let number = code.entry().answer.map_or(Code::Internal as i32, |a| a.grpc.number().into());
    let details = ErrorDetails::with_error_info(code.word(), "dapr.io", HashMap::new());
    let status = Status::with_error_details(Code::from_i32(number), text, details);
    error_counts::named(status, code)
}
