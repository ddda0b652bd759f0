//! One HTTP/2 connection and the streams of messages on it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tollway_http::RequestHead;
use tollway_http::h2::{Config, Connection, ErrorCode, Event, StreamId};

use super::stream::{Shape, Stream};
use super::tally::Tally;
use crate::clients::h2::{Ended, Session};
use crate::recorder::{Call, Failure};

/// No more is queued on a connection while this much waits to be written.
const OUT_ROOM_BYTES: usize = 256 * 1024;
/// The status with which a deadline ends.
const DEADLINE_EXCEEDED: u32 = 4;

/// What every connection of a run needs to know.
pub(crate) struct Setting {
    pub(crate) head: RequestHead,
    pub(crate) shape: Shape,
    /// Of one stream, from its opening.
    pub(crate) deadline: Option<Duration>,
    /// What this side lets the peer send ahead on one stream; the library's default if absent.
    pub(crate) window_bytes: Option<u32>,
    pub(crate) tally: Rc<RefCell<Tally>>,
}

pub(crate) struct StreamSession {
    h2: Connection,
    /// In the order of their numbers.
    streams: Vec<Stream>,
    max_streams: usize,
    /// Where the search for a stream with a slot goes on.
    next: usize,
    established: bool,
    /// A stream stopped because too much waits to be written.
    wants_room: bool,
    /// Streams with messages that have been queued and may not be with the kernel, each once.
    unwritten: Vec<StreamId>,
}

impl StreamSession {
    fn may_open(&self, setting: &Setting) -> bool {
        self.established
            && self.streams.len() < self.max_streams
            && self.h2.can_open()
            && Self::begins_more(setting)
    }

    /// The next stream, round robin, that takes a message.
    fn with_slot(&mut self, setting: &Setting) -> Option<usize> {
        let count = self.streams.len();
        let mut indexes = (0..count).map(|step| (self.next + step) % count);
        let found = indexes.find(|index| self.streams[*index].has_slot(&setting.shape))?;
        self.next = found + 1;
        Some(found)
    }

    fn open(&mut self, setting: &Setting, call: &Call, out: &mut Vec<u8>) -> Option<usize> {
        if !self.may_open(setting) {
            return None;
        }
        let id = self.h2.send_request(&setting.head, None, false, out).ok()?;
        if call.measured {
            setting.tally.borrow_mut().stream_opened();
        }
        self.streams.push(Stream::new(id, call.sent_ns, call.measured));
        Some(self.streams.len() - 1)
    }

    fn send(&mut self, index: usize, setting: &Setting, out: &mut Vec<u8>) {
        let shape = &setting.shape;
        let stream = &mut self.streams[index];
        let was_unwritten = stream.is_unwritten();
        self.wants_room |= stream.send(&mut self.h2, shape, out, OUT_ROOM_BYTES);
        if stream.is_unwritten() && !was_unwritten {
            self.unwritten.push(stream.id);
        }
    }

    fn send_all(&mut self, setting: &Setting, out: &mut Vec<u8>) {
        self.wants_room = false;
        for index in 0..self.streams.len() {
            if self.streams[index].has_more() {
                self.send(index, setting, out);
            }
        }
    }

    fn position(&self, id: StreamId) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.id).ok()
    }

    /// The peer's half has ended.
    fn end(
        &mut self,
        id: StreamId,
        setting: &Setting,
        now_ns: u64,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    ) {
        let Some(index) = self.position(id) else { return };
        let stream = self.streams.remove(index);
        let failure = stream.verdict(&setting.shape);
        if stream.has_more() {
            self.h2.reset(id, ErrorCode::CANCEL, out);
        }
        forget(setting, stream, failure, now_ns, ended);
    }

    fn cancel(
        &mut self,
        overdue: impl Fn(&Stream) -> bool,
        failure: Failure,
        setting: &Setting,
        now_ns: u64,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    ) {
        let gone: Vec<_> = self.streams.extract_if(.., |stream| overdue(stream)).collect();
        for stream in gone {
            self.h2.reset(stream.id, ErrorCode::CANCEL, out);
            forget(setting, stream, Some(failure), now_ns, ended);
        }
    }
}

impl Session for StreamSession {
    type Plan = Setting;

    fn new(setting: &Setting, streams: usize, out: &mut Vec<u8>) -> Self {
        let mut config = Config::default();
        if let Some(window_bytes) = setting.window_bytes {
            config.initial_stream_window = window_bytes;
            config.connection_window = config.connection_window.max(window_bytes);
        }
        Self {
            h2: Connection::client(config, out),
            streams: Vec::new(),
            max_streams: streams,
            next: 0,
            established: false,
            wants_room: false,
            unwritten: Vec::new(),
        }
    }

    fn h2(&mut self) -> &mut Connection {
        &mut self.h2
    }

    fn is_established(&self) -> bool {
        self.established
    }

    fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    fn begins_more(setting: &Setting) -> bool {
        setting.tally.borrow().takes_streams()
    }

    fn can_open(&self, setting: &Setting) -> bool {
        self.may_open(setting) || self.streams.iter().any(|stream| stream.has_slot(&setting.shape))
    }

    /// New streams come before further messages on old ones, so that all streams carry some.
    fn start(&mut self, call: Call, setting: &mut Setting, out: &mut Vec<u8>) -> bool {
        let index = self.open(setting, &call, out).or_else(|| self.with_slot(setting));
        let Some(index) = index else { return false };
        self.streams[index].give(call, &setting.shape);
        self.send(index, setting, out);
        true
    }

    fn written(&mut self, now_ns: u64, setting: &Setting, out: &mut Vec<u8>) {
        while let Some(id) = self.unwritten.pop() {
            if let Some(index) = self.position(id) {
                self.streams[index].written(now_ns, &setting.shape);
            }
        }
        if self.wants_room {
            self.send_all(setting, out);
        }
    }

    fn take(
        &mut self,
        event: Event,
        input: &[u8],
        now_ns: u64,
        setting: &Setting,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    ) {
        match event {
            Event::Response { stream, head, end, .. } => {
                if let Some(index) = self.position(stream) {
                    self.streams[index].head(&head, now_ns, &setting.shape);
                    if end {
                        self.end(stream, setting, now_ns, out, ended);
                    }
                }
                self.h2.recycle(head.fields);
            }
            Event::Data { stream, range, end, credit } => {
                self.h2.release_connection(credit, out);
                let Some(index) = self.position(stream) else { return };
                self.streams[index].data(&input[range], now_ns, &setting.shape, |call| {
                    ended.push(Ended { call, failure: None });
                });
                if end {
                    self.end(stream, setting, now_ns, out, ended);
                } else {
                    self.h2.release(stream, credit, out);
                }
            }
            Event::Trailers { stream, fields } => {
                if let Some(index) = self.position(stream) {
                    self.streams[index].status.trailers(&fields);
                    self.end(stream, setting, now_ns, out, ended);
                }
                self.h2.recycle(fields);
            }
            Event::Reset { stream, code } => {
                if let Some(index) = self.position(stream) {
                    let stream = self.streams.remove(index);
                    let failure = Some(Failure::Reset(code.0));
                    forget(setting, stream, failure, now_ns, ended);
                }
            }
            Event::WindowOpen { .. } => self.send_all(setting, out),
            Event::SettingsChanged => self.established = true,
            // A client is sent no requests; going away shows in `can_open` and `is_spent`.
            Event::Request { .. }
            | Event::Refused { .. }
            | Event::GoAway { .. }
            | Event::PingAck(_) => {}
        }
    }

    /// Cancels streams whose oldest message was sent before `earliest_ns`, and those beyond
    /// their deadline.
    fn time_out(
        &mut self,
        earliest_ns: u64,
        now_ns: u64,
        setting: &Setting,
        out: &mut Vec<u8>,
        ended: &mut Vec<Ended>,
    ) {
        let silent = |stream: &Stream| stream.oldest_ns().is_some_and(|sent| sent < earliest_ns);
        self.cancel(silent, Failure::Timeout, setting, now_ns, out, ended);
        if let Some(deadline) = setting.deadline {
            let opened_before = now_ns.saturating_sub(crate::arrival::nanos(deadline));
            let late = |stream: &Stream| stream.opened_ns < opened_before;
            self.cancel(late, Failure::Grpc(DEADLINE_EXCEEDED), setting, now_ns, out, ended);
        }
    }

    fn fail_all(
        &mut self,
        failure: Failure,
        now_ns: u64,
        setting: &Setting,
        ended: &mut Vec<Ended>,
    ) {
        for stream in std::mem::take(&mut self.streams) {
            forget(setting, stream, Some(failure), now_ns, ended);
        }
    }

    fn abandon(&mut self) -> u64 {
        let streams = self.streams.drain(..);
        let calls = streams.flat_map(Stream::into_waiting);
        calls.filter(|call| call.measured).count() as u64
    }
}

/// Ends what waited on a stream that is over.
fn forget(
    setting: &Setting,
    stream: Stream,
    failure: Option<Failure>,
    now_ns: u64,
    ended: &mut Vec<Ended>,
) {
    let in_order = failure.is_none();
    if stream.measured {
        let mut tally = setting.tally.borrow_mut();
        tally.stream_ended(stream.opened_ns, stream.first_ns, now_ns, in_order);
    }
    let calls = stream.into_waiting();
    ended.extend(calls.into_iter().map(|call| Ended { call, failure }));
}
