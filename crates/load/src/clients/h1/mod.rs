//! HTTP/1.1: one request at a time on each of N connections.
//!
//! The request's bytes are rendered once. A call goes to the connection that has been idle longest,
//! so that all of them carry the load. If connections are dialled on demand, a call without one
//! waits in its slot until the connection is open.

mod answer;
mod request;

use std::collections::VecDeque;
use std::net::SocketAddr;

use tollway_net::{Closed, Flush, Read, Readiness};

use self::answer::{Answer, Answered, Expectation};
pub(crate) use self::request::Rendered;
use super::links::{LinkEvent, Links};
use crate::arrival::nanos;
use crate::engine::{BoxedError, Client, Io};
use crate::options::LoadOptions;
use crate::recorder::{Call, Failure};
use crate::tls::TlsDialler;

pub(crate) struct H1Client {
    links: Links,
    exchanges: Vec<Exchange>,
    /// Idle slots, longest idle first: connections that are open or, if they are dialled on demand,
    /// may be dialled.
    idle: VecDeque<usize>,
    request: Rendered,
    expectation: Expectation,
    request_timeout_ns: u64,
    in_flight: usize,
}

/// What a connection is doing.
#[derive(Default)]
struct Exchange {
    call: Option<Call>,
    answer: Answer,
}

impl H1Client {
    pub(crate) fn new(
        mut request: Rendered,
        options: &LoadOptions,
        address: SocketAddr,
        tls: Option<TlsDialler>,
    ) -> Self {
        let expectation = Expectation::new(request.context, request.echo.take());
        let count = options.connections;
        Self {
            links: Links::new(options, address, tls),
            exchanges: (0..count).map(|_| Exchange::default()).collect(),
            idle: VecDeque::with_capacity(count),
            request,
            expectation,
            request_timeout_ns: nanos(options.request_timeout),
            in_flight: 0,
        }
    }

    /// Reads all that the connection has received.
    fn read(&mut self, index: usize, io: &mut Io) {
        loop {
            let Some(conn) = self.links.conn(index) else { return };
            let Io { scratch, recorder, clock, .. } = &mut *io;
            let exchange = &mut self.exchanges[index];
            let end = match conn.read(scratch) {
                Read::Blocked => return,
                Read::Data(bytes) => {
                    let now_ns = clock.now_ns();
                    recorder.received(now_ns, bytes.len());
                    match exchange.take(bytes, now_ns, &mut self.expectation) {
                        Taken::Nothing => continue,
                        Taken::Answer(answered) => {
                            if self.answered(index, &answered, now_ns, io) {
                                continue;
                            }
                            return;
                        }
                        Taken::Fault(failure) => failure,
                    }
                }
                Read::Closed(how) => match exchange.close(how) {
                    Taken::Answer(answered) => {
                        let now_ns = clock.now_ns();
                        self.answered(index, &answered, now_ns, io);
                        return;
                    }
                    Taken::Fault(failure) => failure,
                    Taken::Nothing => Failure::Closed,
                },
                Read::Failed(_) => Failure::Broken,
            };
            return self.lost(index, end, io);
        }
    }

    /// The call has its answer; returns whether its connection stays open.
    fn answered(&mut self, index: usize, answered: &Answered, now_ns: u64, io: &mut Io) -> bool {
        let exchange = &mut self.exchanges[index];
        exchange.answer.reset();
        if let Some(call) = exchange.call.take() {
            self.in_flight -= 1;
            match answered.failure {
                None => io.recorder.succeeded(&call, now_ns),
                Some(failure) => io.recorder.failed(&call, now_ns, failure),
            }
        }
        let stays_open = answered.reusable && !self.links.is_used_up(index);
        if stays_open {
            self.links.answered(index, now_ns);
            self.idle.push_back(index);
        } else {
            self.renew(index, io);
        }
        stays_open
    }

    /// Closes the connection; another one takes its place, or may take it.
    fn renew(&mut self, index: usize, io: &mut Io) {
        self.links.replace(index, io);
        if self.links.dials_on_demand() {
            self.idle.push_back(index);
        }
    }

    /// The connection is of no more use; the call on it, if any, has failed.
    fn lost(&mut self, index: usize, failure: Failure, io: &mut Io) {
        let exchange = &mut self.exchanges[index];
        exchange.answer.reset();
        match exchange.call.take() {
            Some(call) => {
                self.in_flight -= 1;
                io.recorder.failed(&call, io.clock.now_ns(), failure);
            }
            None => self.idle.retain(|idle| *idle != index),
        }
        self.renew(index, io);
    }

    /// Sends the call that waits at `index`, if one does. At once and not at the end of the
    /// loop's pass: the send belongs to its intended start.
    fn send(&mut self, index: usize, io: &mut Io) {
        let now_ns = io.clock.now_ns();
        let Some(call) = &mut self.exchanges[index].call else { return };
        if self.links.conn_for_call(index, now_ns).is_none() {
            return self.links.dial(index, io);
        }
        call.sent_ns = now_ns;
        let request = self.request.next(self.links.is_used_up(index));
        let Some(conn) = self.links.conn(index) else { return };
        conn.out().extend_from_slice(request);
        io.recorder.sent(now_ns, request.len());
        self.write(index, io);
    }

    /// Fails the calls that waited for connections which could not be made.
    fn settle_failed(&mut self, io: &mut Io) {
        while let Some((index, failure)) = self.links.take_failed() {
            self.idle.retain(|idle| *idle != index);
            if let Some(mut call) = self.exchanges[index].call.take() {
                self.in_flight -= 1;
                call.sent_ns = io.clock.now_ns();
                io.recorder.failed(&call, call.sent_ns, failure);
            }
        }
    }

    fn write(&mut self, index: usize, io: &mut Io) {
        let Some(conn) = self.links.conn(index) else { return };
        let flushed = conn.flush();
        if let Flush::Done = flushed
            && let Some(call) = &mut self.exchanges[index].call
            && call.written_ns == 0
        {
            call.written_ns = io.clock.now_ns();
        }
        if let Flush::Failed(_) = flushed {
            // Bytes that the peer sent before it closed may still be unread: a complete answer
            // counts.
            self.read(index, io);
            if self.exchanges[index].call.is_some() {
                self.lost(index, Failure::Broken, io);
            }
        }
    }
}

impl Client for H1Client {
    fn open(&mut self, io: &mut Io) {
        for index in 0..self.links.len() {
            self.links.dial(index, io);
        }
    }

    fn is_settled(&self) -> bool {
        self.links.is_settled()
    }

    fn connected(&self) -> usize {
        self.links.connected()
    }

    fn take_connect_error(&mut self) -> Option<BoxedError> {
        self.links.take_error()
    }

    fn has_slot(&self) -> bool {
        !self.idle.is_empty()
    }

    fn start(&mut self, call: Call, io: &mut Io) {
        let Some(index) = self.idle.pop_front() else {
            return io.recorder.failed(&call, io.clock.now_ns(), Failure::Connect);
        };
        self.exchanges[index].call = Some(call);
        self.in_flight += 1;
        self.send(index, io);
        self.settle_failed(io);
    }

    fn flush(&mut self, _io: &mut Io) {}

    fn ready(&mut self, readiness: Readiness, io: &mut Io) {
        let Some((index, event)) = self.links.ready(readiness, io) else { return };
        match event {
            LinkEvent::None => self.settle_failed(io),
            LinkEvent::Connected => {
                if !self.links.take_early(index).is_empty() {
                    // An answer without a request.
                    return self.lost(index, Failure::Protocol, io);
                }
                match self.exchanges[index].call {
                    Some(_) => self.send(index, io),
                    None => self.idle.push_back(index),
                }
            }
            LinkEvent::Ready => {
                if self.links.conn(index).is_some_and(|conn| conn.wants_flush()) {
                    self.write(index, io);
                }
                self.read(index, io);
            }
        }
    }

    fn tick(&mut self, io: &mut Io) {
        let now_ns = io.clock.now_ns();
        for index in 0..self.exchanges.len() {
            // One that waits for its connection is the connection's to time out.
            let overdue = self.exchanges[index].call.is_some_and(|call| {
                call.sent_ns > 0 && now_ns.saturating_sub(call.sent_ns) >= self.request_timeout_ns
            });
            if overdue {
                self.lost(index, Failure::Timeout, io);
            }
        }
        let idle = &mut self.idle;
        self.links.tick(io, |index| idle.push_back(index));
        self.settle_failed(io);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn abandon(&mut self) -> u64 {
        self.in_flight = 0;
        let calls = self.exchanges.iter_mut().filter_map(|exchange| exchange.call.take());
        calls.filter(|call| call.measured).count() as u64
    }
}

enum Taken {
    Nothing,
    Answer(Answered),
    Fault(Failure),
}

impl Exchange {
    fn take(&mut self, bytes: &[u8], now_ns: u64, expectation: &mut Expectation) -> Taken {
        if bytes.is_empty() {
            return Taken::Nothing;
        }
        let Some(call) = &mut self.call else {
            // An answer without a request; the connection cannot be trusted.
            return Taken::Fault(Failure::Protocol);
        };
        if call.answered_ns == 0 {
            call.answered_ns = now_ns;
        }
        match self.answer.feed(bytes, expectation) {
            Ok(None) => Taken::Nothing,
            Ok(Some(answered)) => Taken::Answer(answered),
            Err(_) => Taken::Fault(Failure::Protocol),
        }
    }

    fn close(&mut self, how: Closed) -> Taken {
        if self.call.is_none() {
            return Taken::Fault(Failure::Closed);
        }
        match (how, self.answer.close()) {
            (Closed::Clean, Some(answered)) => Taken::Answer(answered),
            (Closed::Clean | Closed::Truncated, _) => Taken::Fault(Failure::Closed),
        }
    }
}
