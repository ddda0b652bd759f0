//! One HTTP/2 connection of the echo server, without its socket.
//!
//! A stream's window is given back only as its bytes are sent back, so a stream holds at most one
//! window of a peer that sends without reading. The connection's window is given back at once: a
//! stream without a reader must not stop the others.

mod stream;

use std::collections::HashMap;
use std::time::Duration;

use tollway_http::h2::{Config, Connection, ConnectionError, ErrorCode, Event, StreamId};
use tollway_http::{RequestHead, ResponseHead};

use self::stream::{Body, Stream};
use crate::delays::Delays;
use crate::routes::{Action, Plan, actor_types, describe};
use crate::shared::Shared;

/// Streams of one connection at once; bounds what it can make the server hold.
const MAX_STREAMS: u32 = 256;

pub(crate) struct H2Session {
    h2: Connection,
    streams: HashMap<StreamId, Stream>,
    events: Vec<Event>,
    /// No requests are taken any more.
    draining: bool,
    closed: bool,
}

impl H2Session {
    pub(crate) fn new(out: &mut Vec<u8>) -> Self {
        let config = Config { max_concurrent_streams: MAX_STREAMS, ..Config::default() };
        Self {
            h2: Connection::server(config, out),
            streams: HashMap::new(),
            events: Vec::new(),
            draining: false,
            closed: false,
        }
    }

    /// Whether the connection is to be closed behind what `out` holds.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        shared: &Shared,
        delays: &mut Delays,
        out: &mut Vec<u8>,
    ) {
        let mut events = std::mem::take(&mut self.events);
        let received = self.h2.receive(input, delays.now(), &mut events, out);
        for event in events.drain(..) {
            self.take(event, input, shared, delays, out);
        }
        self.events = events;
        self.judge(received);
        self.close_when_spent();
    }

    /// Checks the connection's own time limits.
    pub(crate) fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        let ticked = self.h2.tick(now, out);
        self.judge(ticked);
    }

    fn judge(&mut self, result: Result<(), ConnectionError>) {
        if result.is_err() {
            self.streams.clear();
            self.closed = true;
        }
    }

    fn take(
        &mut self,
        event: Event,
        input: &[u8],
        shared: &Shared,
        delays: &mut Delays,
        out: &mut Vec<u8>,
    ) {
        match event {
            Event::Request { stream, head, content_length, end } => {
                self.begin(stream, &head, content_length, shared, delays, out);
                if end {
                    self.request_ended(stream, shared, out);
                }
            }
            Event::Refused { stream } => {
                let mut head = ResponseHead::new(431);
                shared.sign(&mut head.fields);
                // A stream that is gone needs no answer.
                let _ = self.h2.send_response(stream, &head, None, true, out);
            }
            Event::Data { stream, range, end, credit } => {
                self.h2.release_connection(credit, out);
                if let Some(state) = self.streams.get_mut(&stream) {
                    state.data(&mut self.h2, stream, &input[range], credit, out);
                }
                if end {
                    self.request_ended(stream, shared, out);
                }
            }
            Event::Trailers { stream, fields } => {
                if let Some(state) = self.streams.get_mut(&stream) {
                    state.trailers = Some(fields);
                }
                self.request_ended(stream, shared, out);
            }
            Event::Reset { stream, .. } => {
                self.streams.remove(&stream);
            }
            Event::WindowOpen { stream: Some(stream) } => self.advance(stream, out),
            Event::WindowOpen { stream: None } => self.pump(out),
            // A server gets no responses and opens no streams.
            Event::Response { .. }
            | Event::GoAway { .. }
            | Event::PingAck(_)
            | Event::SettingsChanged => {}
        }
    }

    fn begin(
        &mut self,
        stream: StreamId,
        head: &RequestHead,
        content_length: Option<u64>,
        shared: &Shared,
        delays: &mut Delays,
        out: &mut Vec<u8>,
    ) {
        let Plan { action, delay } = shared.plan(head);
        if action == Action::Close {
            self.streams.clear();
            self.closed = true;
            return;
        }
        let mut state = Stream::new(action);
        match action {
            Action::Echo => {
                let mut answer = ResponseHead::new(200);
                if let Some(kind) = head.fields.value(b"content-type") {
                    answer.fields.push(b"content-type", kind);
                }
                state.head = Some((answer, content_length));
            }
            Action::Grpc(_) => {
                let mut answer = ResponseHead::new(200);
                answer.fields.push(b"content-type", b"application/grpc");
                state.head = Some((answer, None));
            }
            Action::Headers => state.description = describe(head),
            Action::ActorTypes => state.description = actor_types(shared.actor_types),
            Action::TimerFires => state.description = shared.timer_fires.take(),
            // State is written for calls over HTTP/1.1 alone.
            Action::TimerFired(timer) => shared.timer_fires.record(&timer),
            Action::Size(_) | Action::Status(_) | Action::Close | Action::Text(..) => {}
        }
        state.is_head = head.method.as_bytes() == b"HEAD";
        match delay {
            Some(delay) => {
                state.is_waiting = true;
                delays.set(delay, stream.0);
            }
            None => state.begin(&mut self.h2, stream, shared, out),
        }
        self.streams.insert(stream, state);
    }

    fn request_ended(&mut self, stream: StreamId, shared: &Shared, out: &mut Vec<u8>) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        state.request_ended = true;
        if state.is_waiting {
            return;
        }
        match state.action {
            Action::Echo => {}
            Action::Grpc(rpc) => state.end_of_call(rpc),
            Action::Size(bytes) => {
                state.body = Body::generated(shared.pattern.clone(), bytes);
                self.answer(stream, 200, bytes, shared, out);
            }
            Action::Status(status) => self.answer(stream, status, 0, shared, out),
            Action::TimerFired(_) => self.answer(stream, 200, 0, shared, out),
            Action::Headers | Action::ActorTypes | Action::TimerFires => {
                let text = std::mem::take(&mut state.description);
                let length = text.len() as u64;
                state.body = Body::Queued { bytes: text, at: 0 };
                self.answer(stream, 200, length, shared, out);
            }
            Action::Text(status, why) => {
                let bytes = why.as_bytes().to_vec();
                let length = bytes.len() as u64;
                state.body = Body::Queued { bytes, at: 0 };
                self.answer(stream, status, length, shared, out);
            }
            Action::Close => {}
        }
        self.advance(stream, out);
    }

    /// Writes the head of an answer whose body is ready.
    fn answer(
        &mut self,
        stream: StreamId,
        status: u16,
        length: u64,
        shared: &Shared,
        out: &mut Vec<u8>,
    ) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let mut head = ResponseHead::new(status);
        shared.sign(&mut head.fields);
        let may_have_body = !state.is_head && status != 204 && status != 304;
        if !may_have_body {
            state.body = Body::default();
        }
        let content_length = (status != 204 && status != 304).then_some(length);
        let ends = !may_have_body || length == 0;
        let sent = self.h2.send_response(stream, &head, content_length, ends, out);
        if ends || sent.is_err() {
            self.streams.remove(&stream);
        }
    }

    /// Sends what one stream can send.
    fn advance(&mut self, stream: StreamId, out: &mut Vec<u8>) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        if state.advance(&mut self.h2, stream, out) {
            self.streams.remove(&stream);
        }
    }

    /// Sends what all streams can send.
    pub(crate) fn pump(&mut self, out: &mut Vec<u8>) {
        let Self { h2, streams, .. } = self;
        streams.retain(|stream, state| !state.advance(h2, *stream, out));
        self.close_when_spent();
    }

    /// Whether a stream has data to send as soon as `out` has room.
    pub(crate) fn has_more(&self) -> bool {
        self.streams.iter().any(|(stream, state)| state.has_more() && self.h2.capacity(*stream) > 0)
    }

    /// The timer of a delayed answer.
    pub(crate) fn wake(&mut self, stream: u32, shared: &Shared, out: &mut Vec<u8>) {
        let stream = StreamId(stream);
        if let Some(state) = self.streams.get_mut(&stream) {
            state.is_waiting = false;
            state.begin(&mut self.h2, stream, shared, out);
            match state.request_ended {
                true => self.request_ended(stream, shared, out),
                false => self.advance(stream, out),
            }
        }
        self.close_when_spent();
    }

    /// Takes no further requests and closes when the last one is answered.
    pub(crate) fn drain(&mut self, out: &mut Vec<u8>) {
        self.h2.goaway(ErrorCode::NO_ERROR, out);
        self.h2.goaway_final(out);
        self.draining = true;
        self.close_when_spent();
    }

    /// The peer sends no more.
    pub(crate) fn input_ended(&mut self) {
        self.draining = true;
        // Requests that have not ended never will.
        self.streams.retain(|_, state| state.request_ended);
        self.close_when_spent();
    }

    fn close_when_spent(&mut self) {
        let ending = self.draining || self.h2.is_going_away();
        self.closed |= ending && self.streams.is_empty();
    }
}
