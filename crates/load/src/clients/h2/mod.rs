//! HTTP/2, gRPC included: N connections, M calls at once on each.
//!
//! Calls go round the connections that have a stream to spare. What a turn queues is written at
//! its end, so calls that start together share a segment.

mod answer;
mod request;
mod session;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tollway_http::h2::{ConnectionError, Event};
use tollway_net::{Flush, Read, Readiness};

pub(crate) use self::request::Prepared;
use self::session::{Ended, Session};
use super::links::{LinkEvent, Links};
use crate::arrival::nanos;
use crate::engine::{BoxedError, Client, Io};
use crate::options::LoadOptions;
use crate::recorder::{Call, Failure};

/// Requests of one turn on one connection that need no new memory.
const OUTPUT_ROOM_BYTES: usize = 512 * 1024;

pub(crate) struct H2Client {
    links: Links,
    sessions: Vec<Option<Session>>,
    /// Sessions with a stream to spare, each once, least recently used first.
    open: VecDeque<usize>,
    /// Sessions with something to write.
    dirty: Vec<usize>,
    request: Prepared,
    streams: usize,
    request_timeout_ns: u64,
    in_flight: usize,
    events: Vec<Event>,
    ended: Vec<Ended>,
    /// What the last connection that broke the protocol did.
    refusal: Option<ConnectionError>,
}

impl H2Client {
    pub(crate) fn new(request: Prepared, options: &LoadOptions, address: SocketAddr) -> Self {
        let count = options.connections;
        Self {
            links: Links::new(address, count, nanos(options.connect_timeout)),
            sessions: (0..count).map(|_| None).collect(),
            open: VecDeque::with_capacity(count),
            dirty: Vec::with_capacity(count),
            request,
            streams: options.streams,
            request_timeout_ns: nanos(options.request_timeout),
            in_flight: 0,
            events: Vec::new(),
            ended: Vec::new(),
            refusal: None,
        }
    }

    fn connected(&mut self, index: usize) {
        let Some(conn) = self.links.conn(index) else { return };
        conn.keep_output_room(OUTPUT_ROOM_BYTES);
        self.sessions[index] = Some(Session::new(conn.out(), self.streams));
        self.touch(index);
    }

    /// Takes note that a session has something to write, and perhaps a stream to spare.
    fn touch(&mut self, index: usize) {
        let Some(session) = &mut self.sessions[index] else { return };
        if !session.is_dirty {
            session.is_dirty = true;
            self.dirty.push(index);
        }
        if session.can_open() && !session.is_queued {
            session.is_queued = true;
            self.open.push_back(index);
        }
    }

    /// Starts a call on a session that has just left the queue; false if it took none.
    fn start_on(&mut self, index: usize, call: Call) -> bool {
        let (Some(conn), Some(session)) =
            (self.links.conn_for_call(index), &mut self.sessions[index])
        else {
            return false;
        };
        session.is_queued = false;
        let started = session.start(call, &self.request, conn.out());
        self.in_flight += usize::from(started);
        self.touch(index);
        started
    }

    fn read(&mut self, index: usize, io: &mut Io) {
        loop {
            let (Some(conn), Some(session)) = (self.links.conn(index), &mut self.sessions[index])
            else {
                return;
            };
            let Io { scratch, recorder, clock, .. } = &mut *io;
            let failure = match conn.read(scratch) {
                Read::Blocked => break,
                Read::Data(bytes) => {
                    let now_ns = clock.now_ns();
                    recorder.received(now_ns, bytes.len());
                    let now = Duration::from_nanos(now_ns);
                    self.events.clear();
                    let received = session.receive(bytes, now, &mut self.events, conn.out());
                    for event in self.events.drain(..) {
                        session.take(event, bytes, &self.request, conn.out(), &mut self.ended);
                    }
                    self.settle(now_ns, io);
                    match received {
                        Ok(()) => continue,
                        Err(error) => {
                            self.refusal = Some(error);
                            Failure::Protocol
                        }
                    }
                }
                Read::Closed(_) => Failure::Closed,
                Read::Failed(_) => Failure::Broken,
            };
            return self.lost(index, failure, io);
        }
        self.after_read(index, io);
    }

    /// A session that takes no new calls is replaced when its last call has ended.
    fn after_read(&mut self, index: usize, io: &mut Io) {
        self.touch(index);
        let Some(session) = &mut self.sessions[index] else { return };
        if session.is_queued && !session.can_open() {
            session.is_queued = false;
            self.open.retain(|open| *open != index);
        }
        if session.is_spent() {
            self.write(index, io);
            self.sessions[index] = None;
            self.links.replace(index, io);
        }
    }

    /// Tells the recorder what has ended.
    fn settle(&mut self, now_ns: u64, io: &mut Io) {
        for Ended { call, failure } in self.ended.drain(..) {
            self.in_flight -= 1;
            match failure {
                None => io.recorder.succeeded(&call, now_ns),
                Some(failure) => io.recorder.failed(&call, now_ns, failure),
            }
        }
    }

    /// The connection is over, and every call on it has failed.
    fn lost(&mut self, index: usize, failure: Failure, io: &mut Io) {
        self.write(index, io);
        if let Some(mut session) = self.sessions[index].take() {
            if session.is_queued {
                self.open.retain(|open| *open != index);
            }
            session.fail_all(failure, &mut self.ended);
            self.settle(io.clock.now_ns(), io);
        }
        self.links.replace(index, io);
    }

    /// Writes what is queued; says whether the connection still works.
    fn write(&mut self, index: usize, io: &mut Io) -> bool {
        let Some(conn) = self.links.conn(index) else { return true };
        let before = conn.pending();
        let flushed = conn.flush();
        io.recorder.sent(io.clock.now_ns(), before.saturating_sub(conn.pending()));
        !matches!(flushed, Flush::Failed(_))
    }
}

impl Client for H2Client {
    fn open(&mut self, io: &mut Io) {
        for index in 0..self.links.len() {
            self.links.dial(index, io);
        }
    }

    fn is_settled(&self) -> bool {
        let mut sessions = self.sessions.iter().flatten();
        self.links.is_settled() && sessions.all(Session::is_established)
    }

    fn connected(&self) -> usize {
        self.sessions.iter().flatten().filter(|session| session.is_established()).count()
    }

    fn take_connect_error(&mut self) -> Option<BoxedError> {
        self.refusal.take().map(Into::into).or_else(|| self.links.take_error())
    }

    fn has_slot(&self) -> bool {
        !self.open.is_empty()
    }

    fn start(&mut self, mut call: Call, io: &mut Io) {
        call.sent_ns = io.clock.now_ns();
        let started = self.open.pop_front().is_some_and(|index| self.start_on(index, call));
        if !started {
            io.recorder.failed(&call, call.sent_ns, Failure::Connect);
        }
    }

    fn flush(&mut self, io: &mut Io) {
        while let Some(index) = self.dirty.pop() {
            let Some(session) = &mut self.sessions[index] else { continue };
            session.is_dirty = false;
            if !self.write(index, io) {
                // What the peer said before it closed comes first.
                self.read(index, io);
                if self.links.conn(index).is_some_and(|conn| conn.is_finished()) {
                    self.lost(index, Failure::Broken, io);
                }
            }
        }
    }

    fn ready(&mut self, readiness: Readiness, io: &mut Io) {
        let Some((index, event)) = self.links.ready(readiness, io) else { return };
        match event {
            LinkEvent::None => {}
            LinkEvent::Connected => self.connected(index),
            LinkEvent::Ready => {
                self.touch(index);
                self.read(index, io);
            }
        }
    }

    fn tick(&mut self, io: &mut Io) {
        let now_ns = io.clock.now_ns();
        for index in 0..self.sessions.len() {
            let (Some(conn), Some(session)) = (self.links.conn(index), &mut self.sessions[index])
            else {
                continue;
            };
            let earliest_ns = now_ns.saturating_sub(self.request_timeout_ns);
            session.time_out(earliest_ns, conn.out(), &mut self.ended);
            let alive = session.tick(Duration::from_nanos(now_ns), conn.out()).is_ok();
            self.settle(now_ns, io);
            if alive {
                self.after_read(index, io);
            } else {
                self.lost(index, Failure::Protocol, io);
            }
        }
        self.links.tick(io);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn abandon(&mut self) -> u64 {
        self.in_flight = 0;
        let sessions = self.sessions.iter_mut().flatten();
        sessions.map(Session::abandon).sum()
    }
}
