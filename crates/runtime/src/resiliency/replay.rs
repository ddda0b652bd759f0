//! Bodies of calls under rules. One is held whole for the next attempt where its length is known or
//! it is one message of gRPC; any other streams through the one attempt that is made.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use tollway_model::ErrorCode;
use tollway_routing::Rules;
use tonic::Status;
use tonic::body::Body;

use crate::actors::Problem;
use crate::body_collector::{BodyCollector, CollectError, CollectedBody};

/// By it a caller of gRPC says that a call is a stream.
const STREAM: HeaderName = HeaderName::from_static("dapr-stream");
/// The flag and the length in front of a message of gRPC, in bytes.
const PREFIX: usize = 5;
/// How long after its first message a call of gRPC has an end that belongs to it; one that has none
/// then is a stream.
const END_WITHIN: Duration = Duration::from_millis(20);

/// A body on its way out.
pub(crate) enum CallBody {
    Whole(CollectedBody),
    Stream(Rest),
}

/// The body of a call under rules, held whole where it may be sent again and can be.
///
/// # Errors
/// When it breaks off, or others hold too much.
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
            Err(why) => Err(not_held(why)),
        };
    }
    let mut first = bodies.nothing();
    while is_grpc && !is_marked && (first.bytes.len() as u64) < most {
        let frame = match is_message(&first.bytes) {
            false => Some(body.frame().await),
            true => tokio::time::timeout(END_WITHIN, body.frame()).await.ok(),
        };
        let Some(frame) = frame else { break };
        let Some(frame) = frame else { return Ok(CallBody::Whole(first)) };
        let frame = frame.map_err(|_| not_held(CollectError::CutOff))?;
        let Ok(data) = frame.into_data() else { break };
        first.add(&data).map_err(not_held)?;
        if is_more(&first.bytes) {
            break;
        }
    }
    Ok(CallBody::Stream(Rest { first, rest: body }))
}

/// Length of the first message with what stands in front of it, once that is there.
fn length(bytes: &[u8]) -> Option<usize> {
    let (prefix, _) = bytes.split_first_chunk::<PREFIX>()?;
    let [_, length @ ..] = prefix;
    usize::try_from(u32::from_be_bytes(*length)).ok()?.checked_add(PREFIX)
}

/// Whether bytes are one whole message of gRPC.
fn is_message(bytes: &[u8]) -> bool {
    length(bytes).is_some_and(|length| bytes.len() >= length)
}

/// Whether a second message has begun.
fn is_more(bytes: &[u8]) -> bool {
    length(bytes).is_some_and(|length| bytes.len() > length)
}

fn not_held(why: CollectError) -> Problem {
    let (code, text) = match why {
        CollectError::TooLarge => {
            (ErrorCode::MalformedRequest, "the body is longer than announced")
        }
        CollectError::CutOff => (ErrorCode::MalformedRequest, "the body ended early"),
        CollectError::LimitReached => {
            (ErrorCode::Overloaded, "too many bodies are held: 64 MiB of them already; try again")
        }
    };
    Problem::new(code, text)
}

/// A body of which the beginning has been read; that takes bodies until it is sent on.
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
    fn messages_of_grpc_are_told_by_their_lengths() {
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
