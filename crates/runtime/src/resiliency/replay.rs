//! Bodies of calls under rules. A body is read whole for further attempts if its length is known or
//! it is one gRPC message. Every other body streams through a single attempt.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use tollway_routing::Rules;
use tonic::Status;
use tonic::body::Body;

use crate::actors::Problem;
use crate::body_collector::{BodyCollector, CollectError, CollectedBody, Pace};

/// Marks a gRPC call as a stream.
const STREAM: HeaderName = HeaderName::from_static("dapr-stream");
/// Bytes of the flag and the length before a gRPC message.
const PREFIX: usize = 5;
/// A gRPC call that does not end this long after its first message counts as a stream.
const END_WITHIN: Duration = Duration::from_millis(20);

/// What is held for further attempts, in words.
const REPEATED: &str = "a call that may be repeated";

/// A body to be sent.
pub(crate) enum CallBody {
    Whole(CollectedBody),
    Stream(Rest),
}

/// Reads the body of a call under rules: whole, if rules and body allow to send it again.
///
/// # Errors
/// When the body breaks off, or all bodies together exceed their limit.
pub(crate) async fn call_body(
    bodies: &BodyCollector,
    rules: &Rules,
    head: &Parts,
    mut body: Body,
    is_grpc: bool,
) -> Result<CallBody, Problem> {
    if rules.retry.is_none() {
        return Ok(CallBody::Stream(Rest { first: bodies.nothing(), rest: body }));
    }
    let is_marked = head.headers.get(STREAM).is_some_and(|value| value == "true");
    let most = bodies.message_bytes() as u64;
    let is_known = body.size_hint().exact().is_some_and(|length| length <= most);
    if is_known {
        return match bodies.collect(body).await {
            Ok(held) => Ok(CallBody::Whole(held)),
            Err(why) => Err(why.problem(REPEATED, bodies.message_bytes())),
        };
    }
    let not_held = |why: CollectError| why.problem(REPEATED, bodies.message_bytes());
    let (mut first, mut pace) = (bodies.nothing(), Pace::new());
    while is_grpc && !is_marked && (first.bytes.len() as u64) < most {
        let frame = match is_message(&first.bytes) {
            false => pace.wait(body.frame()).await,
            true => tokio::time::timeout(END_WITHIN, body.frame()).await.ok(),
        };
        // What comes slowly is not held: it is a stream.
        let Some(frame) = frame else { break };
        let Some(frame) = frame else { return Ok(CallBody::Whole(first)) };
        let frame = frame.map_err(|_| not_held(CollectError::CutOff))?;
        let Ok(data) = frame.into_data() else { break };
        first.add(&data).map_err(not_held)?;
        pace.received(data.len());
        if is_more(&first.bytes) {
            break;
        }
    }
    Ok(CallBody::Stream(Rest { first, rest: body }))
}

/// Bytes of the first message with its prefix; `None` before the prefix is complete.
fn length(bytes: &[u8]) -> Option<usize> {
    let (prefix, _) = bytes.split_first_chunk::<PREFIX>()?;
    let [_, length @ ..] = prefix;
    usize::try_from(u32::from_be_bytes(*length)).ok()?.checked_add(PREFIX)
}

/// Whether the first gRPC message is complete.
fn is_message(bytes: &[u8]) -> bool {
    length(bytes).is_some_and(|length| bytes.len() >= length)
}

/// Whether a second message has begun.
fn is_more(bytes: &[u8]) -> bool {
    length(bytes).is_some_and(|length| bytes.len() > length)
}

/// A body whose beginning has been read. The beginning counts towards the limit until it is sent
/// on.
pub(crate) struct Rest {
    first: CollectedBody,
    rest: Body,
}

impl hyper::body::Body for Rest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.first.bytes.is_empty() {
            let first = self.first.take();
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from(first)))));
        }
        Pin::new(&mut self.rest).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.first.bytes.is_empty() && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_grpc_are_separated_by_their_lengths() {
        let two = [0, 0, 0, 0, 1, 7, 0];
        for (bytes, whole, more) in [
            (0, false, false),
            (4, false, false),
            (5, false, false),
            (6, true, false),
            (7, true, true),
        ] {
            assert_eq!(
                (is_message(&two[..bytes]), is_more(&two[..bytes])),
                (whole, more),
                "{bytes}"
            );
        }
        assert!(is_message(&[0; PREFIX]) && !is_more(&[0; PREFIX]));
        assert!(!is_message(&[0, 255, 255, 255, 255, 1]));
    }
}
