//! `--explain`: the way that a call took, for people on standard error or, with `--json`, for
//! programs on standard output.

mod text;

use std::time::Duration;

use anyhow::{Context, Error, Result};
use hyper::Response;
use hyper::header::{HeaderName, HeaderValue};
use serde::Serialize;
use tollway_model::way::{WAY_BYTES_LIMIT, Way};

use super::CallArgs;
use crate::failure::Report;

/// Asks the sidecar for the way.
pub(super) const ASK: HeaderName = HeaderName::from_static("x-tollway-explain");
pub(super) const YES: HeaderValue = HeaderValue::from_static("1");
/// The field in which it answers.
const WAY: HeaderName = HeaderName::from_static("x-tollway-way");

/// What is told of a call that was answered.
#[derive(Serialize)]
pub(super) struct Explanation {
    method: String,
    /// As it was given.
    service: String,
    path: String,
    status: u16,
    body_bytes: u64,
    /// Before the call: a sidecar of its own, with an identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_us: Option<u64>,
    /// Until the head of the answer.
    answered_us: u64,
    /// From there to the end of the body.
    body_us: u64,
    way: Option<Way>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CallError>,
}

/// The error that the command ends with, as it is told on the terminal.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallError {
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'static str>,
    message: String,
    hint: String,
}

/// How long each part of a call took.
#[derive(Clone, Copy, Default)]
pub(super) struct CallTimes {
    pub(super) start: Option<Duration>,
    pub(super) answered: Duration,
    pub(super) body: Duration,
}

/// Takes the way out of an answer's head; `None` if the sidecar tells none.
pub(super) fn take_way<B>(answer: &mut Response<B>) -> Option<Way> {
    let told = answer.headers_mut().remove(WAY)?;
    let told = told.as_bytes();
    if told.len() > WAY_BYTES_LIMIT { None } else { serde_json::from_slice(told).ok() }
}

impl Explanation {
    pub(super) fn new(
        args: &CallArgs,
        status: u16,
        body_bytes: u64,
        times: CallTimes,
        way: Option<Way>,
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
            way,
            error: None,
        }
    }

    /// Prints it, before the error that the call ends with.
    pub(super) fn print(mut self, as_json: bool, error: Option<&Error>) -> Result<()> {
        if !as_json {
            eprint!("{}", text::write(&self));
            return Ok(());
        }
        self.error = error.map(|error| {
            let (message, code, hint) = Report::of(error).into_parts();
            CallError { error_code: code.map(|code| code.word()), message, hint }
        });
        println!("{}", serde_json::to_string(&self).context("the way cannot be written")?);
        Ok(())
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_taken_out_of_the_head_or_is_none() {
        let take = |value: &[u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            let mut answer = Response::builder().header(WAY, value).body(()).unwrap();
            let way = take_way(&mut answer);
            assert!(answer.headers().is_empty(), "it is not the app's");
            way
        };
        let told = serde_json::to_string(&Way::default()).unwrap();
        assert_eq!(take(told.as_bytes()), Some(Way::default()));
        assert_eq!(take(b"{"), None);
        assert_eq!(take(b"\xff"), None);
        let long = format!("{}{told}", " ".repeat(WAY_BYTES_LIMIT));
        assert_eq!(take(long.as_bytes()), None);
        assert_eq!(take_way(&mut Response::new(())), None);
    }
}
