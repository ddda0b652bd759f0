//! HTTP/1.1: one request at a time on each of N connections.
//!
//! The request's bytes are rendered once. A call goes to the connection that has been idle
//! longest, so that all of them carry the load.

mod answer;
mod request;

use std::collections::VecDeque;
use std::net::SocketAddr;

use tollway_net::{Closed, ConnError, Flush, Read, Readiness};

use self::answer::{Answer, Answered, Expectation};
pub(crate) use self::request::Rendered;
use super::links::{LinkEvent, Links};
use crate::arrival::nanos;
use crate::engine::{Client, Io};
use crate::options::LoadOptions;
use crate::recorder::{Call, Failure};

pub(crate) struct H1Client {
    links: Links,
    exchanges: Vec<Exchange>,
    /// Connections that stand and have nothing to do, longest idle first.
    idle: VecDeque<usize>,
    request: Vec<u8>,
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
    pub(crate) fn new(rendered: Rendered, options: &LoadOptions, address: SocketAddr) -> Self {
        let Rendered { bytes, context, echo } = rendered;
        let count = options.connections;
        Self {
            links: Links::new(address, count, nanos(options.connect_timeout)),
            exchanges: (0..count).map(|_| Exchange::default()).collect(),
            idle: VecDeque::with_capacity(count),
            request: bytes,
            expectation: Expectation::new(context, echo),
            request_timeout_ns: nanos(options.request_timeout),
            in_flight: 0,
        }
    }

    /// Takes all that the connection has to say.
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
                    match exchange.take(bytes, &mut self.expectation) {
                        Taken::Nothing => continue,
                        Taken::Answer(answered) => {
                            self.answered(index, &answered, now_ns, io);
                            if answered.reusable {
                                continue;
                            }
                            return self.links.replace(index, io);
                        }
                        Taken::Fault(failure) => failure,
                    }
                }
                Read::Closed(how) => match exchange.close(how) {
                    Taken::Answer(answered) => {
                        let now_ns = clock.now_ns();
                        self.answered(index, &answered, now_ns, io);
                        return self.links.replace(index, io);
                    }
                    Taken::Fault(failure) => failure,
                    Taken::Nothing => Failure::Closed,
                },
                Read::Failed(ConnError::Connect(_) | ConnError::Socket(_) | ConnError::Tls(_)) => {
                    Failure::Broken
                }
            };
            return self.lost(index, end, io);
        }
    }

    fn answered(&mut self, index: usize, answered: &Answered, now_ns: u64, io: &mut Io) {
        let exchange = &mut self.exchanges[index];
        exchange.answer.reset();
        let Some(call) = exchange.call.take() else { return };
        self.in_flight -= 1;
        match answered.failure {
            None => io.recorder.succeeded(&call, now_ns),
            Some(failure) => io.recorder.failed(&call, now_ns, failure),
        }
        if answered.reusable {
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
        self.links.replace(index, io);
    }

    fn write(&mut self, index: usize, io: &mut Io) {
        let Some(conn) = self.links.conn(index) else { return };
        if let Flush::Failed(_) = conn.flush() {
            // What the peer said before it closed may still be there: a complete answer counts.
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

    fn take_connect_error(&mut self) -> Option<ConnError> {
        self.links.take_error()
    }

    fn has_slot(&self) -> bool {
        !self.idle.is_empty()
    }

    fn start(&mut self, mut call: Call, io: &mut Io) {
        call.sent_ns = io.clock.now_ns();
        let idle = self.idle.pop_front();
        let Some((index, conn)) =
            idle.and_then(|index| self.links.conn(index).map(|conn| (index, conn)))
        else {
            return io.recorder.failed(&call, call.sent_ns, Failure::Connect);
        };
        conn.out().extend_from_slice(&self.request);
        io.recorder.sent(call.sent_ns, self.request.len());
        self.exchanges[index].call = Some(call);
        self.in_flight += 1;
        // At once and not at the turn's end: the send belongs to its intended start.
        self.write(index, io);
    }

    fn flush(&mut self, _io: &mut Io) {}

    fn ready(&mut self, readiness: Readiness, io: &mut Io) {
        let Some((index, event)) = self.links.ready(readiness, io) else { return };
        match event {
            LinkEvent::None => {}
            LinkEvent::Connected => self.idle.push_back(index),
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
            let overdue = self.exchanges[index]
                .call
                .is_some_and(|call| now_ns.saturating_sub(call.sent_ns) >= self.request_timeout_ns);
            if overdue {
                self.lost(index, Failure::Timeout, io);
            }
        }
        self.links.tick(io);
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
    fn take(&mut self, bytes: &[u8], expectation: &mut Expectation) -> Taken {
        if bytes.is_empty() {
            return Taken::Nothing;
        }
        if self.call.is_none() {
            // An answer that nobody asked for; the connection cannot be trusted.
            return Taken::Fault(Failure::Protocol);
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
