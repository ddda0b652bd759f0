//! The explanation of a call: what was called, how long each part took, and the trace of it.

use std::time::Duration;

use serde::Serialize;
use tollway_model::call_trace::CallTrace;

use crate::command::call::options::CallArgs;

/// The explanation of a call that was answered.
#[derive(Serialize)]
pub(crate) struct Explanation {
    pub(super) method: String,
    /// As it was given.
    pub(super) service: String,
    pub(super) path: String,
    pub(super) status: u16,
    pub(super) body_bytes: u64,
    /// Before the call: a sidecar of its own, with an identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start_us: Option<u64>,
    /// Until the head of the answer.
    pub(super) answered_us: u64,
    /// From there to the end of the body.
    pub(super) body_us: u64,
    pub(super) call_trace: Option<CallTrace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<CallError>,
}

/// The error that the command ends with, as the terminal shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallError {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error_code: Option<&'static str>,
    pub(super) message: String,
    pub(super) hint: String,
}

/// How long each part of a call took.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallTimes {
    pub(crate) start: Option<Duration>,
    pub(crate) answered: Duration,
    pub(crate) body: Duration,
}

impl Explanation {
    pub(crate) fn new(
        args: &CallArgs,
        status: u16,
        body_bytes: u64,
        times: CallTimes,
        call_trace: Option<CallTrace>,
    ) -> Self {
        Self {
            method: args.method().to_string(),
            service: args.target.service.clone(),
            path: args.target.path.to_string(),
            status,
            body_bytes,
            start_us: times.start.map(micros),
            answered_us: micros(times.answered),
            body_us: micros(times.body),
            call_trace,
            error: None,
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
