//! `--explain`: the trace of a call, for people on standard error or, with `--json`, for programs
//! on standard output.

mod explanation;
mod trace_text;

use anyhow::{Context, Error, Result};
use hyper::Response;
use hyper::header::{HeaderName, HeaderValue};
use tollway_model::call_trace::{CALL_TRACE_BYTES_LIMIT, CallTrace};

use self::explanation::CallError;
pub(super) use self::explanation::{CallTimes, Explanation};
use crate::failure::Report;

/// The field that asks the sidecar for the call trace.
pub(super) const ASK: HeaderName = HeaderName::from_static("x-tollway-explain");
pub(super) const YES: HeaderValue = HeaderValue::from_static("1");
/// The field in which it answers.
const CALL_TRACE: HeaderName = HeaderName::from_static("x-tollway-call-trace");

/// Takes the trace out of an answer's head; `None` if the sidecar sent none.
pub(super) fn take_trace<B>(answer: &mut Response<B>) -> Option<CallTrace> {
    let explanation = answer.headers_mut().remove(CALL_TRACE)?;
    let explanation = explanation.as_bytes();
    if explanation.len() > CALL_TRACE_BYTES_LIMIT {
        None
    } else {
        serde_json::from_slice(explanation).ok()
    }
}

impl Explanation {
    /// Prints it, before the error that the call ends with.
    pub(super) fn print(mut self, as_json: bool, error: Option<&Error>) -> Result<()> {
        if !as_json {
            eprint!("{}", trace_text::write(&self));
            return Ok(());
        }
        self.error = error.map(|error| {
            let (message, code, hint) = Report::of(error).into_parts();
            CallError { error_code: code.map(|code| code.word()), message, hint }
        });
        println!("{}", serde_json::to_string(&self).context("the call trace cannot be written")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_taken_out_of_the_head_or_is_none() {
        let take = |value: &[u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            let mut answer = Response::builder().header(CALL_TRACE, value).body(()).unwrap();
            let trace = take_trace(&mut answer);
            assert!(answer.headers().is_empty(), "it is not the app's");
            trace
        };
        let explanation = serde_json::to_string(&CallTrace::default()).unwrap();
        assert_eq!(take(explanation.as_bytes()), Some(CallTrace::default()));
        assert_eq!(take(b"{"), None);
        assert_eq!(take(b"\xff"), None);
        let long = format!("{}{explanation}", " ".repeat(CALL_TRACE_BYTES_LIMIT));
        assert_eq!(take(long.as_bytes()), None);
        assert_eq!(take_trace(&mut Response::new(())), None);
    }
}
