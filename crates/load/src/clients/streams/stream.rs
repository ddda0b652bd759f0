//! One gRPC stream of messages: what is still to be sent, what waits for an answer, how it went.
//!
//! All messages are the same bytes, so what is to be sent is a number of messages and a place
//! within the one under way. Answers come in the order of the messages.

use std::collections::VecDeque;

use tollway_http::h2::{Connection, StreamId};

use super::StreamKind;
use crate::clients::h2::AnswerStatus;
use crate::frames::FrameCounter;
use crate::recorder::{Call, Failure};

/// What all streams of a run have in common.
pub(crate) struct Shape {
    pub(crate) kind: StreamKind,
    /// One message behind its prefix.
    pub(crate) framed: Vec<u8>,
    /// Messages of a stream, in the direction of its kind.
    pub(crate) messages: u64,
    /// Messages that may wait for their acknowledgement.
    pub(crate) in_flight: usize,
}

impl Shape {
    /// Messages that one stream sends.
    fn to_send(&self) -> u64 {
        match self.kind {
            StreamKind::Push | StreamKind::Bidi | StreamKind::Client => self.messages,
            StreamKind::Server => 1,
        }
    }

    /// Messages that come back on one stream.
    fn to_receive(&self) -> u64 {
        match self.kind {
            StreamKind::Push | StreamKind::Bidi | StreamKind::Server => self.messages,
            StreamKind::Client => 1,
        }
    }
}

pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) opened_ns: u64,
    /// Opened by a message of the window.
    pub(super) measured: bool,
    /// When the first message came back.
    pub(super) first_ns: Option<u64>,
    /// Each message that waits for its answer; of a whole stream, the stream.
    waiting: VecDeque<Call>,
    /// Messages given to this stream so far.
    taken: u64,
    /// Of those, sent completely; and how much of the next one.
    sent: u64,
    at: usize,
    answers: FrameCounter,
    /// Answers that have been matched with their messages.
    matched: u64,
    pub(super) status: AnswerStatus,
}

impl Stream {
    pub(super) fn new(id: StreamId, opened_ns: u64, measured: bool) -> Self {
        Self {
            id,
            opened_ns,
            measured,
            first_ns: None,
            waiting: VecDeque::new(),
            taken: 0,
            sent: 0,
            at: 0,
            answers: FrameCounter::default(),
            matched: 0,
            status: AnswerStatus::default(),
        }
    }

    /// Whether a message could be given to it.
    pub(super) fn has_slot(&self, shape: &Shape) -> bool {
        shape.kind.is_by_message()
            && self.taken < shape.messages
            && self.waiting.len() < shape.in_flight
    }

    /// Takes a message, or, where a call is a whole stream, all of them.
    pub(super) fn give(&mut self, call: Call, shape: &Shape) {
        self.waiting.push_back(call);
        self.taken += if shape.kind.is_by_message() { 1 } else { shape.to_send() };
    }

    /// Sends what the windows and `room` allow; says whether it stopped for want of room.
    pub(super) fn send(
        &mut self,
        h2: &mut Connection,
        shape: &Shape,
        out: &mut Vec<u8>,
        room: usize,
    ) -> bool {
        while self.sent < self.taken {
            if out.len() >= room {
                return true;
            }
            let rest = &shape.framed[self.at..];
            let ends = self.sent + 1 == shape.to_send();
            let count = h2.send_data(self.id, rest, ends, out);
            self.at += count;
            if count < rest.len() {
                return false;
            }
            self.at = 0;
            self.sent += 1;
        }
        false
    }

    /// Whether part of a message, or a whole one, is still to be sent.
    pub(super) fn has_more(&self) -> bool {
        self.sent < self.taken
    }

    /// Takes a piece of the answer; `answered` is told each message whose answer is complete. The
    /// last one waits for the end of the stream, which says whether all went well.
    pub(super) fn data(
        &mut self,
        data: &[u8],
        now_ns: u64,
        shape: &Shape,
        mut answered: impl FnMut(Call),
    ) {
        self.answers.feed(data);
        if self.answers.messages > 0 && self.first_ns.is_none() {
            self.first_ns = Some(now_ns);
        }
        if !shape.kind.is_by_message() {
            return;
        }
        while self.matched < self.answers.messages && self.matched + 1 < shape.messages {
            self.matched += 1;
            if let Some(call) = self.waiting.pop_front() {
                answered(call);
            }
        }
    }

    /// The peer has ended the stream: `None` if all of it went as it should.
    pub(super) fn verdict(&self, shape: &Shape) -> Option<Failure> {
        if let Some(failure) = self.status.grpc_failure() {
            return Some(failure);
        }
        let whole = self.answers.is_at_border() && !self.answers.malformed;
        let all = self.answers.messages == shape.to_receive() && self.sent == shape.to_send();
        (!whole || !all).then_some(Failure::Protocol)
    }

    /// What still waits: messages without an answer, or the stream as a call.
    pub(super) fn into_waiting(self) -> VecDeque<Call> {
        self.waiting
    }

    /// When the message that has waited longest was sent.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.waiting.front().map(|call| call.sent_ns)
    }
}
