//! One gRPC stream of messages: what is still to be sent, what waits for an answer, how it went.
//!
//! All messages have the same bytes, so what remains to be sent is a number of messages and an
//! offset within the one under way. Answers come in the order of the messages.

use std::collections::VecDeque;
use std::ops::Range;

use tollway_http::ResponseHead;
use tollway_http::h2::{Connection, StreamId};

use super::StreamKind;
use crate::clients::h2::AnswerStatus;
use crate::recorder::{Call, Failure};
use tollway_echo::frames::FrameCounter;

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
    /// Of those, queued completely; and how much of the next one.
    sent: u64,
    at: usize,
    /// Of those, with the kernel.
    written: u64,
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
            written: 0,
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

    /// Sends what the windows and `room` allow; returns whether it stopped for lack of room.
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

    /// All that was queued is with the kernel.
    pub(super) fn written(&mut self, now_ns: u64, shape: &Shape) {
        let from = std::mem::replace(&mut self.written, self.sent);
        if !shape.kind.is_by_message() {
            if self.sent == shape.to_send() {
                self.stamp(0..1, |call| call.written_ns = now_ns);
            }
            return;
        }
        // An answer may have overtaken the note that its message was written.
        let waits = |message: u64| usize::try_from(message.saturating_sub(self.matched));
        if let (Ok(from), Ok(to)) = (waits(from), waits(self.sent)) {
            self.stamp(from..to, |call| call.written_ns = now_ns);
        }
    }

    /// Whether something was queued that the kernel has not taken yet.
    pub(super) fn is_unwritten(&self) -> bool {
        self.written < self.sent
    }

    fn stamp(&mut self, waiting: Range<usize>, stamp: impl FnMut(&mut Call)) {
        let waiting = waiting.start..waiting.end.min(self.waiting.len());
        if !waiting.is_empty() {
            self.waiting.range_mut(waiting).for_each(stamp);
        }
    }

    pub(super) fn head(&mut self, head: &ResponseHead, now_ns: u64, shape: &Shape) {
        self.status.head(head);
        if !shape.kind.is_by_message() {
            self.answer_begins(now_ns);
        }
    }

    /// The first bytes of the oldest call's answer are here.
    fn answer_begins(&mut self, now_ns: u64) {
        if let Some(call) = self.waiting.front_mut()
            && call.answered_ns == 0
        {
            call.answered_ns = now_ns;
        }
    }

    /// Takes a piece of the answer; `answered` gets each message whose answer is complete. The last
    /// one waits for the end of the stream, which has its status.
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
            self.answer_begins(now_ns);
            self.matched += 1;
            if let Some(call) = self.waiting.pop_front() {
                answered(call);
            }
        }
        if self.matched < self.answers.messages || !self.answers.is_at_border() {
            self.answer_begins(now_ns);
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

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_echo::frames::frame;
    use tollway_http::h2::Config;
    use tollway_http::{Fields, Method, RequestHead, Scheme};

    #[test]
    fn each_message_has_its_own_phases() {
        let (mut h2, mut stream, shape) = stream_of(StreamKind::Push, 3);
        let mut out = Vec::new();
        for _ in 0..3 {
            stream.give(Call::new(1, 0, true), &shape);
        }
        assert!(!stream.send(&mut h2, &shape, &mut out, 1 << 20) && stream.is_unwritten());
        stream.written(20, &shape);
        assert!(!stream.is_unwritten());
        let mut ended = Vec::new();
        let answers = [frame(b"one"), frame(b"two"), frame(b"three")].concat();
        for (piece, now_ns) in [(&answers[..1], 30), (&answers[1..9], 40), (&answers[9..], 50)] {
            stream.data(piece, now_ns, &shape, |call| ended.push(call));
        }
        let begun: Vec<_> = ended.iter().map(|call| call.answered_ns).collect();
        assert_eq!(begun, [30, 40], "the last waits for the end of the stream");
        assert!(ended.iter().all(|call| call.written_ns == 20));
        let last = stream.into_waiting();
        assert_eq!((last.len(), last[0].written_ns, last[0].answered_ns), (1, 20, 50));
    }

    #[test]
    fn a_message_that_was_answered_before_takes_no_stamp_of_another() {
        let (mut h2, mut stream, shape) = stream_of(StreamKind::Bidi, 5);
        let mut out = Vec::new();
        for written_ns in [10, 20] {
            stream.give(Call::new(1, 0, true), &shape);
            stream.send(&mut h2, &shape, &mut out, 1 << 20);
            stream.written(written_ns, &shape);
            stream.data(&frame(b"x"), written_ns + 1, &shape, |call| {
                assert_eq!((call.written_ns, call.answered_ns), (written_ns, written_ns + 1));
            });
        }
        assert!(stream.into_waiting().is_empty());
    }

    #[test]
    fn a_whole_stream_is_sent_with_its_last_message_and_answered_with_its_head() {
        let (mut h2, mut stream, shape) = stream_of(StreamKind::Client, 2);
        let mut out = Vec::new();
        stream.give(Call::new(1, 0, true), &shape);
        // No room for the second message.
        assert!(stream.send(&mut h2, &shape, &mut out, 1));
        stream.written(10, &shape);
        assert_eq!(stream.waiting[0].written_ns, 0);
        out.clear();
        stream.send(&mut h2, &shape, &mut out, 1 << 20);
        stream.written(20, &shape);
        stream.head(&ResponseHead::new(200), 30, &shape);
        stream.data(&frame(b"x"), 40, &shape, |_| panic!("the stream is the call"));
        assert_eq!((stream.waiting[0].written_ns, stream.waiting[0].answered_ns), (20, 30));
    }

    fn stream_of(kind: StreamKind, messages: u64) -> (Connection, Stream, Shape) {
        let mut h2 = Connection::client(Config::default(), &mut Vec::new());
        let head = RequestHead {
            method: Method::Post,
            scheme: Scheme::Borrowed(b"http"),
            authority: b"h".to_vec(),
            path: b"/".to_vec(),
            fields: Fields::new(),
            protocol: None,
        };
        let id = h2.send_request(&head, None, false, &mut Vec::new()).unwrap();
        let shape = Shape { kind, framed: frame(b"x"), messages, in_flight: 10 };
        (h2, Stream::new(id, 0, true), shape)
    }
}
