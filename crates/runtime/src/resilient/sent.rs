//! Bodies of calls under rules. One is held whole for the next attempt where its length is known or
//! it is one message of gRPC; any other streams through the one attempt that is made.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use tollway_model::ErrorCode;
use tollway_routing::Rules;

use crate::actors::Problem;
use crate::held::{Held, NotWhole, Room};

/// By it a caller of gRPC says that a call is a stream.
const STREAM: HeaderName = HeaderName::from_static("dapr-stream");
/// The flag and the length in front of a message of gRPC, in bytes.
const PREFIX: usize = 5;
/// How long after its first message a call of gRPC has an end that belongs to it; one that has none
/// then is a stream.
const END_WITHIN: Duration = Duration::from_millis(20);

/// A body on its way out.
pub(crate) enum Sent {
    Whole(Held),
    Stream(Rest),
}

/// The body of a call under rules, held whole where it may be sent again and can be.
///
/// # Errors
/// When it breaks off, or others hold too much.
pub(crate) async fn sent(
    room: &Room,
    rules: &Rules,
    head: &Parts,
    mut body: Incoming,
    is_grpc: bool,
) -> Result<Sent, Problem> {
    if rules.retry.is_none() {
        return Ok(Sent::Stream(Rest { first: room.nothing(), rest: body }));
    }
    let is_marked = head.headers.get(STREAM).is_some_and(|value| value == "true");
    let most = room.message_bytes() as u64;
    let is_known = body.size_hint().exact().is_some_and(|length| length <= most);
    if is_known {
        return match room.whole(body).await {
            Ok(held) => Ok(Sent::Whole(held)),
            Err(why) => Err(not_held(why)),
        };
    }
    let mut first = room.nothing();
    while is_grpc && !is_marked && (first.bytes.len() as u64) < most {
        let frame = match is_message(&first.bytes) {
            false => Some(body.frame().await),
            true => tokio::time::timeout(END_WITHIN, body.frame()).await.ok(),
        };
        let Some(frame) = frame else { break };
        let Some(frame) = frame else { return Ok(Sent::Whole(first)) };
        let frame = frame.map_err(|_| not_held(NotWhole::CutOff))?;
        let Ok(data) = frame.into_data() else { break };
        first.add(&data).map_err(not_held)?;
        if is_more(&first.bytes) {
            break;
        }
    }
    Ok(Sent::Stream(Rest { first, rest: body }))
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

fn not_held(why: NotWhole) -> Problem {
    let (code, text) = match why {
        NotWhole::TooLarge => (ErrorCode::MalformedRequest, "the body is longer than announced"),
        NotWhole::CutOff => (ErrorCode::MalformedRequest, "the body ended early"),
        NotWhole::NoRoom => {
            (ErrorCode::Overloaded, "too many bodies are held: 64 MiB of them already; try again")
        }
    };
    Problem::new(code, text)
}

/// A body of which the beginning has been read; that takes room until it is sent on.
pub(crate) struct Rest {
    first: Held,
    rest: Incoming,
}

impl hyper::body::Body for Rest {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if !self.first.bytes.is_empty() {
            let first = self.first.send_on();
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
