//! One HTTP/2 connection and the calls on it.

use std::time::Duration;

use tollway_http::h2::{Config, Connection, ConnectionError, ErrorCode, Event, StreamId};

use super::answer::Answer;
use super::request::Prepared;
use crate::recorder::{Call, Failure};

/// A call that has come to its end.
pub(super) struct Ended {
    pub(super) call: Call,
    pub(super) failure: Option<Failure>,
}

pub(super) struct Session {
    h2: Connection,
    /// In the order of their streams' numbers.
    calls: Vec<StreamCall>,
    max_calls: usize,
    /// At least as many as there are calls that are not wholly with the kernel.
    unwritten: usize,
    /// The peer's settings have come: how many streams it takes is known.
    established: bool,
    /// Whether the client's list of sessions to be written has this one.
    pub(super) is_dirty: bool,
    /// Whether the client's queue of sessions with a stream to spare has this one.
    pub(super) is_queued: bool,
}

struct StreamCall {
    stream: StreamId,
    call: Call,
    /// Bytes of the request that the windows have let through.
    sent: usize,
    answer: Answer,
}

impl Session {
    /// Queues the preface in `out`.
    pub(super) fn new(out: &mut Vec<u8>, max_calls: usize) -> Self {
        Self {
            h2: Connection::client(Config::default(), out),
            calls: Vec::new(),
            max_calls,
            unwritten: 0,
            established: false,
            is_dirty: false,
            is_queued: false,
        }
    }

    pub(super) fn is_established(&self) -> bool {
        self.established
    }

    /// Whether no call is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn can_open(&self) -> bool {
        self.established && self.calls.len() < self.max_calls && self.h2.can_open()
    }

    /// Whether it takes no calls any more and has none left.
    pub(super) fn is_spent(&self) -> bool {
        self.calls.is_empty() && self.h2.is_going_away()
    }

    /// Starts a call; false if the connection took none.
    pub(super) fn start(&mut self, call: Call, request: &Prepared, out: &mut Vec<u8>) -> bool {
        let Prepared { head, content_length, body, .. } = request;
        let opened = self.h2.send_request(head, *content_length, body.is_empty(), out);
        let Ok(stream) = opened else { return false };
        let sent = if body.is_empty() { 0 } else { self.h2.send_data(stream, body, true, out) };
        self.calls.push(StreamCall { stream, call, sent, answer: Answer::default() });
        self.unwritten += 1;
        true
    }

    /// All that was queued is with the kernel: stamps the calls that are wholly sent.
    pub(super) fn written(&mut self, now_ns: u64, request: &Prepared) {
        if self.unwritten == 0 {
            return;
        }
        // The newest are last.
        for call in self.calls.iter_mut().rev() {
            if call.call.written_ns == 0 && call.sent == request.body.len() {
                call.call.written_ns = now_ns;
                self.unwritten -= 1;
                if self.unwritten == 0 {
                    return;
                }
            }
        }
        // Those that have gone meanwhile.
        self.unwritten = self.calls.iter().filter(|call| call.call.written_ns == 0).count();
    }

    pub(super) fn receive(
        &mut self,
        input: &[u8],
        now: Duration,
        events: &mut Vec<Event>,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        self.h2.receive(input, now, events, out)
    }

    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<u8>) -> Result<(), ConnectionError> {
        self.h2.tick(now, out)
    }

    /// Acts on one event; `input` is what the event's ranges lie in.
    pub(super) fn take(
        &mut self,
        event: Event,
        input: &[u8],
        now_ns: u64,
        request: &Prepared,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    ) {
        match event {
            Event::Response { stream, head, end, .. } => {
                if let Some(call) = self.call(stream) {
                    if call.call.answered_ns == 0 {
                        call.call.answered_ns = now_ns;
                    }
                    call.answer.head(&head);
                    if end {
                        self.end(stream, request, out, ended);
                    }
                }
                self.h2.recycle(head.fields);
            }
            Event::Data { stream, range, end, credit } => {
                self.h2.release_connection(credit, out);
                let Some(call) = self.call(stream) else { return };
                call.answer.data(&input[range], request);
                if end {
                    self.end(stream, request, out, ended);
                } else {
                    self.h2.release(stream, credit, out);
                }
            }
            Event::Trailers { stream, fields } => {
                if let Some(call) = self.call(stream) {
                    call.answer.trailers(&fields);
                    self.end(stream, request, out, ended);
                }
                self.h2.recycle(fields);
            }
            Event::Reset { stream, code } => {
                if let Some(StreamCall { call, .. }) = self.remove(stream) {
                    ended.push(Ended { call, failure: Some(Failure::Reset(code.0)) });
                }
            }
            Event::WindowOpen { stream: Some(stream) } => self.send_rest(stream, request, out),
            Event::WindowOpen { stream: None } => {
                for index in 0..self.calls.len() {
                    self.send_rest(self.calls[index].stream, request, out);
                }
            }
            Event::SettingsChanged => self.established = true,
            // A client is sent no requests; going away shows in `can_open` and `is_spent`.
            Event::Request { .. }
            | Event::Refused { .. }
            | Event::GoAway { .. }
            | Event::PingAck(_) => {}
        }
    }

    fn send_rest(&mut self, stream: StreamId, request: &Prepared, out: &mut Vec<u8>) {
        let Ok(index) = self.position(stream) else { return };
        let call = &mut self.calls[index];
        let rest = &request.body[call.sent..];
        if !rest.is_empty() {
            call.sent += self.h2.send_data(stream, rest, true, out);
        }
    }

    /// The peer's half has ended; an answer before the whole request was sent ends the call too.
    fn end(
        &mut self,
        stream: StreamId,
        request: &Prepared,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    ) {
        let Some(StreamCall { call, sent, answer, .. }) = self.remove(stream) else { return };
        if sent < request.body.len() {
            self.h2.reset(stream, ErrorCode::CANCEL, out);
        }
        ended.push(Ended { call, failure: answer.verdict(request) });
    }

    /// Cancels the calls that were sent before `earliest_ns`.
    pub(super) fn time_out(&mut self, earliest_ns: u64, out: &mut Vec<u8>, ended: &mut Vec<Ended>) {
        let overdue = self.calls.extract_if(.., |call| call.call.sent_ns < earliest_ns);
        for StreamCall { stream, call, .. } in overdue {
            self.h2.reset(stream, ErrorCode::CANCEL, out);
            ended.push(Ended { call, failure: Some(Failure::Timeout) });
        }
    }

    pub(super) fn fail_all(&mut self, failure: Failure, ended: &mut Vec<Ended>) {
        let calls = self.calls.drain(..);
        ended.extend(calls.map(|call| Ended { call: call.call, failure: Some(failure) }));
    }

    /// Forgets every call; says how many of them were measured.
    pub(super) fn abandon(&mut self) -> u64 {
        self.calls.drain(..).filter(|call| call.call.measured).count() as u64
    }

    fn position(&self, stream: StreamId) -> Result<usize, usize> {
        self.calls.binary_search_by_key(&stream, |call| call.stream)
    }

    fn call(&mut self, stream: StreamId) -> Option<&mut StreamCall> {
        let index = self.position(stream).ok()?;
        self.calls.get_mut(index)
    }

    fn remove(&mut self, stream: StreamId) -> Option<StreamCall> {
        let index = self.position(stream).ok()?;
        Some(self.calls.remove(index))
    }
}
