//! One HTTP/2 connection and the calls on it: what the client needs of any, and requests with
//! one answer each.

use tollway_http::h2::{Config, Connection, ErrorCode, Event, StreamId};

use super::answer::Answer;
use super::request::Prepared;
use crate::recorder::{Call, Failure};

/// A call that has come to its end.
pub(crate) struct Ended {
    pub(crate) call: Call,
    pub(crate) failure: Option<Failure>,
}

/// One HTTP/2 connection and its calls under way.
pub(crate) trait Session: Sized {
    /// What all connections of a run have in common.
    type Plan;

    /// Queues the preface in `out`; at most `streams` are to be open at once.
    fn new(plan: &Self::Plan, streams: usize, out: &mut Vec<u8>) -> Self;
    fn h2(&mut self) -> &mut Connection;
    /// The peer's settings have come: how many streams it takes is known.
    fn is_established(&self) -> bool;
    /// Whether no call is under way.
    fn is_idle(&self) -> bool;
    /// Whether the plan allows any connection to begin another call or stream.
    fn begins_more(_plan: &Self::Plan) -> bool {
        true
    }
    /// Whether a call could start.
    fn can_open(&self, plan: &Self::Plan) -> bool;
    /// Starts a call; false if the connection took none.
    fn start(&mut self, call: Call, plan: &mut Self::Plan, out: &mut Vec<u8>) -> bool;
    /// All that was queued is with the kernel; more may be queued in `out`.
    fn written(&mut self, now_ns: u64, plan: &Self::Plan, out: &mut Vec<u8>);
    /// Acts on one event; `input` is what the event's ranges lie in.
    fn take(
        &mut self,
        event: Event,
        input: &[u8],
        now_ns: u64,
        plan: &Self::Plan,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    );
    /// Cancels the calls that were sent before `earliest_ns`.
    fn time_out(
        &mut self,
        earliest_ns: u64,
        now_ns: u64,
        plan: &Self::Plan,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    );
    /// The connection is over.
    fn fail_all(
        &mut self,
        failure: Failure,
        now_ns: u64,
        plan: &Self::Plan,
        ended: &mut Vec<Ended>,
    );
    /// Forgets every call; returns how many of them were measured.
    fn abandon(&mut self) -> u64;
}

pub(crate) struct Calls {
    h2: Connection,
    /// In the order of their streams' numbers.
    calls: Vec<StreamCall>,
    max_calls: usize,
    /// At least as many as there are calls that are not wholly with the kernel.
    unwritten: usize,
    /// The peer's settings have come: how many streams it takes is known.
    established: bool,
}

struct StreamCall {
    stream: StreamId,
    call: Call,
    /// Bytes of the request that the windows have let through.
    sent: usize,
    answer: Answer,
}

impl Session for Calls {
    type Plan = Prepared;

    fn new(_request: &Prepared, streams: usize, out: &mut Vec<u8>) -> Self {
        Self {
            h2: Connection::client(Config::default(), out),
            calls: Vec::new(),
            max_calls: streams,
            unwritten: 0,
            established: false,
        }
    }

    fn h2(&mut self) -> &mut Connection {
        &mut self.h2
    }

    fn is_established(&self) -> bool {
        self.established
    }

    fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    fn can_open(&self, _request: &Prepared) -> bool {
        self.established && self.calls.len() < self.max_calls && self.h2.can_open()
    }

    fn start(&mut self, call: Call, request: &mut Prepared, out: &mut Vec<u8>) -> bool {
        request.advance();
        let Prepared { head, content_length, body, .. } = request;
        let opened = self.h2.send_request(head, *content_length, body.is_empty(), out);
        let Ok(stream) = opened else { return false };
        let sent = if body.is_empty() { 0 } else { self.h2.send_data(stream, body, true, out) };
        self.calls.push(StreamCall { stream, call, sent, answer: Answer::default() });
        self.unwritten += 1;
        true
    }

    fn written(&mut self, now_ns: u64, request: &Prepared, _out: &mut Vec<u8>) {
        if self.unwritten == 0 {
            return;
        }
        // Stamps the calls that are wholly sent; the newest are last.
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

    fn take(
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

    fn time_out(
        &mut self,
        earliest_ns: u64,
        _now_ns: u64,
        _request: &Prepared,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    ) {
        let overdue = self.calls.extract_if(.., |call| call.call.sent_ns < earliest_ns);
        for StreamCall { stream, call, .. } in overdue {
            self.h2.reset(stream, ErrorCode::CANCEL, out);
            ended.push(Ended { call, failure: Some(Failure::Timeout) });
        }
    }

    fn fail_all(
        &mut self,
        failure: Failure,
        _now_ns: u64,
        _request: &Prepared,
        ended: &mut Vec<Ended>,
    ) {
        let calls = self.calls.drain(..);
        ended.extend(calls.map(|call| Ended { call: call.call, failure: Some(failure) }));
    }

    fn abandon(&mut self) -> u64 {
        self.calls.drain(..).filter(|call| call.call.measured).count() as u64
    }
}

impl Calls {
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
