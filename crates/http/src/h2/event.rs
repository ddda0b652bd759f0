//! What a connection reports to its driver.

use std::ops::Range;

use super::ErrorCode;
use crate::{Fields, RequestHead, ResponseHead};

/// A stream's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// One thing that happened, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request's head (server). `content-length` is not among the fields; `cookie` crumbs are
    /// joined; `authority` comes from `:authority`, or from `host` where that is alone.
    Request { stream: StreamId, head: Box<RequestHead>, content_length: Option<u64>, end: bool },
    /// A request came whose head is over the limits (server); no `Request` follows and its body
    /// is dropped. Answer it (431), then reset it with NO_ERROR so that the body stops.
    Refused { stream: StreamId },
    /// A response's head (client); a status below 200 is informational, with `end` false, and
    /// another follows. `content-length` is not among the fields.
    Response { stream: StreamId, head: ResponseHead, content_length: Option<u64>, end: bool },
    /// Bytes of a body: `range` of the `input` of this call, possibly empty.
    Data {
        stream: StreamId,
        range: Range<usize>,
        end: bool,
        /// Flow-controlled bytes of this event (data and padding). Pass it to `release` when the
        /// stream may send that much again, and, once and in any case, to `release_connection`.
        credit: usize,
    },
    /// The trailers; the peer's half of the stream has ended.
    Trailers { stream: StreamId, fields: Fields },
    /// The stream ended early: reset by the peer, by this side because the peer broke a rule on it,
    /// or (REFUSED_STREAM) provably not processed after a GOAWAY. No event of this stream follows.
    /// A server may end an answer early and then reset with NO_ERROR: the answer is valid.
    Reset { stream: StreamId, code: ErrorCode },
    /// A stream (or, with `None`, the connection) whose window was shut has some again. What
    /// `send_data` left over was stopped by one of the two.
    WindowOpen { stream: Option<StreamId> },
    /// The peer takes no streams after `last`; those above it were reported as `Reset`.
    GoAway { last: StreamId, code: ErrorCode },
    /// The answer to `ping`.
    PingAck([u8; 8]),
    /// The peer's settings changed (streams allowed, frame size, extended CONNECT).
    SettingsChanged,
}
