//! HTTP/2, gRPC included: N connections, M calls at once on each.
//!
//! Calls go round the connections that have a stream to spare. What a pass of the loop queues is
//! written at its end, so calls that start together share a segment.

mod answer;
mod request;
mod session;
mod status;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tollway_http::h2::Event;
use tollway_net::{Flush, Read, Readiness};

pub(crate) use self::request::Prepared;
pub(crate) use self::session::{Calls, Ended, Session};
pub(crate) use self::status::AnswerStatus;
use super::links::{LinkEvent, Links};
use crate::arrival::nanos;
use crate::engine::{BoxedError, Client, Io};
use crate::options::LoadOptions;
use crate::recorder::{Call, Failure, Recorder};
use crate::tls::TlsDialler;

/// Requests of one pass on one connection that need no new memory.
const OUTPUT_ROOM_BYTES: usize = 512 * 1024;

/// The server chose something else, or nothing.
#[derive(Debug, thiserror::Error)]
#[error("the server did not agree to HTTP/2 in the TLS handshake (ALPN); does it speak it?")]
struct NoHttp2;

pub(crate) struct H2Client<S: Session> {
    links: Links,
    sessions: Vec<Option<Held<S>>>,
    /// Calls that wait for the connection of their place, where those are dialled on demand.
    pending: Vec<Option<Call>>,
    /// Places with a stream to spare, each once, least recently used first: sessions or, where
    /// connections are dialled on demand, those that may be dialled.
    open: VecDeque<usize>,
    /// Sessions with something to write.
    dirty: Vec<usize>,
    /// What every call of the run is.
    plan: S::Plan,
    streams: usize,
    request_timeout_ns: u64,
    in_flight: usize,
    events: Vec<Event>,
    ended: Vec<Ended>,
    /// What the last connection that broke the protocol did.
    refusal: Option<BoxedError>,
}

/// A session, and where the client has noted it.
struct Held<S> {
    session: S,
    /// In the list of those to be written.
    is_dirty: bool,
    /// In the queue of those with a stream to spare.
    is_queued: bool,
}

impl<S> Held<S> {
    fn new(session: S) -> Self {
        Self { session, is_dirty: false, is_queued: false }
    }
}

impl<S: Session> H2Client<S> {
    pub(crate) fn new(
        plan: S::Plan,
        options: &LoadOptions,
        address: SocketAddr,
        tls: Option<TlsDialler>,
    ) -> Self {
        let count = options.connections;
        Self {
            links: Links::new(options, address, tls),
            sessions: (0..count).map(|_| None).collect(),
            pending: vec![None; count],
            open: VecDeque::with_capacity(count),
            dirty: Vec::with_capacity(count),
            plan,
            streams: options.streams,
            request_timeout_ns: nanos(options.request_timeout),
            in_flight: 0,
            events: Vec::new(),
            ended: Vec::new(),
            refusal: None,
        }
    }

    fn connected(&mut self, index: usize, io: &mut Io) {
        let Some(conn) = self.links.conn(index) else { return };
        if let Some(tls) = conn.tls()
            && tls.alpn_protocol() != Some(b"h2")
        {
            self.refusal = Some(NoHttp2.into());
            return self.lost(index, Failure::Protocol, io);
        }
        conn.keep_output_room(OUTPUT_ROOM_BYTES);
        self.sessions[index] = Some(Held::new(S::new(&self.plan, self.streams, conn.out())));
        self.touch(index);
        let early = self.links.take_early(index);
        if !early.is_empty()
            && let Some(failure) = self.receive(index, &early, &mut io.recorder, io.clock.now_ns())
        {
            return self.lost(index, failure, io);
        }
        self.read(index, io);
    }

    /// Takes note that a session has something to write, and perhaps a stream to spare.
    fn touch(&mut self, index: usize) {
        let Some(held) = &mut self.sessions[index] else { return };
        if !held.is_dirty {
            held.is_dirty = true;
            self.dirty.push(index);
        }
        if !held.is_queued && held.session.can_open(&self.plan) && !self.links.is_used_up(index) {
            held.is_queued = true;
            self.open.push_back(index);
        }
    }

    /// Starts a call on a session that has just left the queue; false if it took none.
    fn start_on(&mut self, index: usize, mut call: Call, io: &mut Io) -> bool {
        call.sent_ns = io.clock.now_ns();
        let idle = self.sessions[index].as_ref().is_none_or(|held| held.session.is_idle());
        // An idle connection may be too old to be used.
        let conn = if idle {
            self.links.conn_for_call(index, call.sent_ns)
        } else {
            self.links.conn_for_another_call(index, call.sent_ns)
        };
        let (Some(conn), Some(held)) = (conn, &mut self.sessions[index]) else {
            self.sessions[index] = None;
            return self.wait_for_connection(index, call, io);
        };
        held.is_queued = false;
        let began_more = S::begins_more(&self.plan);
        let started = held.session.start(call, &mut self.plan, conn.out());
        self.in_flight += usize::from(started);
        self.touch(index);
        if began_more && !S::begins_more(&self.plan) {
            self.forget_full();
        }
        started
    }

    /// Takes the sessions out of the queue that have nothing to spare any more.
    fn forget_full(&mut self) {
        let Self { open, sessions, plan, .. } = self;
        open.retain(|index| match &mut sessions[*index] {
            Some(held) if !held.session.can_open(plan) => {
                held.is_queued = false;
                false
            }
            Some(_) | None => true,
        });
    }

    /// Holds the call until its connection is open.
    fn wait_for_connection(&mut self, index: usize, call: Call, io: &mut Io) -> bool {
        if !self.links.dials_on_demand() {
            return false;
        }
        self.in_flight += 1;
        self.pending[index] = Some(call);
        self.links.dial(index, io);
        self.settle_failed(io);
        true
    }

    /// Fails the calls that waited for connections which could not be made.
    fn settle_failed(&mut self, io: &mut Io) {
        while let Some((index, failure)) = self.links.take_failed() {
            self.fail_pending(index, failure, io);
        }
    }

    fn fail_pending(&mut self, index: usize, failure: Failure, io: &mut Io) {
        if let Some(call) = self.pending[index].take() {
            self.in_flight -= 1;
            io.recorder.failed(&call, io.clock.now_ns(), failure);
        }
    }

    fn read(&mut self, index: usize, io: &mut Io) {
        loop {
            let Some(conn) = self.links.conn(index) else { return };
            let Io { scratch, recorder, clock, .. } = &mut *io;
            let failure = match conn.read(scratch) {
                Read::Blocked => break,
                Read::Data(bytes) => self.receive(index, bytes, recorder, clock.now_ns()),
                Read::Closed(_) => Some(Failure::Closed),
                Read::Failed(_) => Some(Failure::Broken),
            };
            if let Some(failure) = failure {
                return self.lost(index, failure, io);
            }
        }
        self.after_read(index, io);
    }

    /// Reads what a connection sends; returns its failure, if that ends it.
    fn receive(
        &mut self,
        index: usize,
        bytes: &[u8],
        recorder: &mut Recorder,
        now_ns: u64,
    ) -> Option<Failure> {
        let (Some(conn), Some(Held { session, .. })) =
            (self.links.conn(index), &mut self.sessions[index])
        else {
            return None;
        };
        recorder.received(now_ns, bytes.len());
        let now = Duration::from_nanos(now_ns);
        self.events.clear();
        let received = session.h2().receive(bytes, now, &mut self.events, conn.out());
        for event in self.events.drain(..) {
            session.take(event, bytes, now_ns, &self.plan, conn.out(), &mut self.ended);
        }
        if !self.ended.is_empty() {
            self.links.answered(index, now_ns);
            self.settle(now_ns, recorder);
        }
        received.err().map(|error| {
            self.refusal = Some(error.into());
            Failure::Protocol
        })
    }

    /// A session that takes no new calls is replaced when its last call has ended.
    fn after_read(&mut self, index: usize, io: &mut Io) {
        self.touch(index);
        let Some(Held { session, is_queued, .. }) = &mut self.sessions[index] else { return };
        if *is_queued && !session.can_open(&self.plan) {
            *is_queued = false;
            self.open.retain(|open| *open != index);
        }
        if session.is_idle() && (session.h2().is_going_away() || self.links.is_used_up(index)) {
            self.write(index, io);
            self.renew(index, io);
        } else if session.is_established()
            && let Some(call) = self.pending[index].take()
        {
            self.in_flight -= 1;
            self.start_pending(index, call, io);
        }
    }

    /// The connection of a waiting call is open.
    fn start_pending(&mut self, index: usize, call: Call, io: &mut Io) {
        if let Some(held) = &mut self.sessions[index]
            && held.is_queued
        {
            held.is_queued = false;
            self.open.retain(|open| *open != index);
        }
        if !self.start_on(index, call, io) {
            io.recorder.failed(&call, io.clock.now_ns(), Failure::Connect);
        }
    }

    /// Closes the connection; another one takes its place, or may take it.
    fn renew(&mut self, index: usize, io: &mut Io) {
        self.sessions[index] = None;
        self.links.replace(index, io);
        if self.links.dials_on_demand() {
            self.open.retain(|open| *open != index);
            self.open.push_back(index);
        }
    }

    /// Records the calls that have ended.
    fn settle(&mut self, now_ns: u64, recorder: &mut Recorder) {
        for Ended { call, failure } in self.ended.drain(..) {
            self.in_flight -= 1;
            match failure {
                None => recorder.succeeded(&call, now_ns),
                Some(failure) => recorder.failed(&call, now_ns, failure),
            }
        }
    }

    /// The connection is over, and every call on it has failed.
    fn lost(&mut self, index: usize, failure: Failure, io: &mut Io) {
        self.write(index, io);
        if let Some(Held { mut session, is_queued, .. }) = self.sessions[index].take() {
            if is_queued {
                self.open.retain(|open| *open != index);
            }
            let now_ns = io.clock.now_ns();
            session.fail_all(failure, now_ns, &self.plan, &mut self.ended);
            self.settle(now_ns, &mut io.recorder);
        }
        self.fail_pending(index, failure, io);
        self.renew(index, io);
    }

    /// Writes what is queued, and what a session queues as room comes; returns whether the
    /// connection still works.
    fn write(&mut self, index: usize, io: &mut Io) -> bool {
        loop {
            let Some(conn) = self.links.conn(index) else { return true };
            let before = conn.pending();
            let flushed = conn.flush();
            let now_ns = io.clock.now_ns();
            io.recorder.sent(now_ns, before.saturating_sub(conn.pending()));
            match (flushed, &mut self.sessions[index]) {
                (Flush::Failed(_), _) => return false,
                (Flush::Done, Some(Held { session, .. })) => {
                    session.written(now_ns, &self.plan, conn.out());
                    if conn.out().is_empty() {
                        return true;
                    }
                }
                (Flush::Done | Flush::Blocked, _) => return true,
            }
        }
    }
}

impl<S: Session> Client for H2Client<S> {
    fn open(&mut self, io: &mut Io) {
        for index in 0..self.links.len() {
            self.links.dial(index, io);
        }
    }

    fn is_settled(&self) -> bool {
        let mut sessions = self.sessions.iter().flatten();
        self.links.is_settled() && sessions.all(|held| held.session.is_established())
    }

    fn connected(&self) -> usize {
        self.sessions.iter().flatten().filter(|held| held.session.is_established()).count()
    }

    fn take_connect_error(&mut self) -> Option<BoxedError> {
        self.refusal.take().or_else(|| self.links.take_error())
    }

    fn has_slot(&self) -> bool {
        !self.open.is_empty()
    }

    fn start(&mut self, call: Call, io: &mut Io) {
        let started = self.open.pop_front().is_some_and(|index| self.start_on(index, call, io));
        if !started {
            io.recorder.failed(&call, io.clock.now_ns(), Failure::Connect);
        }
    }

    fn flush(&mut self, io: &mut Io) {
        while let Some(index) = self.dirty.pop() {
            let Some(held) = &mut self.sessions[index] else { continue };
            held.is_dirty = false;
            if !self.write(index, io) {
                // Bytes that the peer sent before it closed come first.
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
            LinkEvent::None => self.settle_failed(io),
            LinkEvent::Connected => self.connected(index, io),
            LinkEvent::Ready => {
                self.touch(index);
                self.read(index, io);
            }
        }
    }

    fn tick(&mut self, io: &mut Io) {
        let now_ns = io.clock.now_ns();
        for index in 0..self.sessions.len() {
            let (Some(conn), Some(Held { session, .. })) =
                (self.links.conn(index), &mut self.sessions[index])
            else {
                continue;
            };
            let earliest_ns = now_ns.saturating_sub(self.request_timeout_ns);
            session.time_out(earliest_ns, now_ns, &self.plan, conn.out(), &mut self.ended);
            let alive = session.h2().tick(Duration::from_nanos(now_ns), conn.out()).is_ok();
            self.settle(now_ns, &mut io.recorder);
            if alive {
                self.after_read(index, io);
            } else {
                self.lost(index, Failure::Protocol, io);
            }
        }
        let open = &mut self.open;
        self.links.tick(io, |index| open.push_back(index));
        self.settle_failed(io);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn abandon(&mut self) -> u64 {
        self.in_flight = 0;
        let pending = self.pending.iter_mut().filter_map(Option::take);
        let waiting = pending.filter(|call| call.measured).count() as u64;
        let sessions = self.sessions.iter_mut().flatten();
        waiting + sessions.map(|held| held.session.abandon()).sum::<u64>()
    }
}
