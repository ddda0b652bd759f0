//! Ping-pong over plain TCP: one message at a time on each connection, and the same bytes back.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tollway_net::{Flush, Read, Readiness};

use super::links::{LinkEvent, Links};
use crate::arrival::nanos;
use crate::engine::{BoxedError, Client, Io};
use crate::options::LoadOptions;
use crate::recorder::{Call, Failure};

pub(crate) struct PingClient {
    links: Links,
    pings: Vec<Option<Ping>>,
    /// Open connections without a call, longest idle first.
    idle: VecDeque<usize>,
    message: Vec<u8>,
    timeout_ns: u64,
    in_flight: usize,
}

/// A message under way.
struct Ping {
    call: Call,
    /// How much of it has come back.
    returned: usize,
    differs: bool,
}

impl PingClient {
    /// `message` has at least one byte.
    pub(crate) fn new(message: Vec<u8>, options: &LoadOptions, address: SocketAddr) -> Self {
        let count = options.connections;
        Self {
            links: Links::new(options, address, None),
            pings: (0..count).map(|_| None).collect(),
            idle: VecDeque::with_capacity(count),
            message,
            timeout_ns: nanos(options.request_timeout),
            in_flight: 0,
        }
    }

    fn read(&mut self, index: usize, io: &mut Io) {
        loop {
            let Some(conn) = self.links.conn(index) else { return };
            let Io { scratch, recorder, clock, .. } = &mut *io;
            let failure = match conn.read(scratch) {
                Read::Blocked => return,
                Read::Data([]) => continue,
                Read::Data(bytes) => {
                    let now_ns = clock.now_ns();
                    recorder.received(now_ns, bytes.len());
                    match self.take(index, bytes, now_ns) {
                        Taken::Part => continue,
                        Taken::Whole(call) => {
                            recorder.succeeded(&call, now_ns);
                            self.in_flight -= 1;
                            self.idle.push_back(index);
                            continue;
                        }
                        Taken::Wrong(failure) => failure,
                    }
                }
                Read::Closed(_) => Failure::Closed,
                Read::Failed(_) => Failure::Broken,
            };
            return self.lost(index, failure, io);
        }
    }

    fn take(&mut self, index: usize, bytes: &[u8], now_ns: u64) -> Taken {
        // Bytes that no request waits for are no echo.
        let Some(ping) = &mut self.pings[index] else { return Taken::Wrong(Failure::Protocol) };
        if ping.call.answered_ns == 0 {
            ping.call.answered_ns = now_ns;
        }
        let expected = self.message.get(ping.returned..ping.returned + bytes.len());
        ping.differs |= expected != Some(bytes);
        ping.returned += bytes.len();
        if ping.differs {
            return Taken::Wrong(Failure::Body);
        }
        if ping.returned < self.message.len() {
            return Taken::Part;
        }
        self.pings[index].take().map_or(Taken::Part, |ping| Taken::Whole(ping.call))
    }

    /// The connection is of no more use; the message on it, if any, has failed.
    fn lost(&mut self, index: usize, failure: Failure, io: &mut Io) {
        match self.pings[index].take() {
            Some(ping) => {
                self.in_flight -= 1;
                io.recorder.failed(&ping.call, io.clock.now_ns(), failure);
            }
            None => self.idle.retain(|idle| *idle != index),
        }
        self.links.replace(index, io);
    }

    fn write(&mut self, index: usize, io: &mut Io) {
        let Some(conn) = self.links.conn(index) else { return };
        match (conn.flush(), &mut self.pings[index]) {
            (Flush::Failed(_), _) => self.lost(index, Failure::Broken, io),
            (Flush::Done, Some(ping)) if ping.call.written_ns == 0 => {
                ping.call.written_ns = io.clock.now_ns();
            }
            (Flush::Done | Flush::Blocked, _) => {}
        }
    }
}

enum Taken {
    Part,
    Whole(Call),
    Wrong(Failure),
}

impl Client for PingClient {
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

    fn start(&mut self, mut call: Call, io: &mut Io) {
        let now_ns = io.clock.now_ns();
        call.sent_ns = now_ns;
        let idle = self.idle.pop_front();
        let Some((index, conn)) =
            idle.and_then(|index| Some((index, self.links.conn_for_call(index, now_ns)?)))
        else {
            return io.recorder.failed(&call, call.sent_ns, Failure::Connect);
        };
        conn.out().extend_from_slice(&self.message);
        io.recorder.sent(call.sent_ns, self.message.len());
        self.pings[index] = Some(Ping { call, returned: 0, differs: false });
        self.in_flight += 1;
        // At once and not at the end of the loop's pass: the send belongs to its intended start.
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
        for index in 0..self.pings.len() {
            let overdue = self.pings[index]
                .as_ref()
                .is_some_and(|ping| now_ns.saturating_sub(ping.call.sent_ns) >= self.timeout_ns);
            if overdue {
                self.lost(index, Failure::Timeout, io);
            }
        }
        self.links.tick(io, |_| {});
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn abandon(&mut self) -> u64 {
        self.in_flight = 0;
        let calls = self.pings.iter_mut().filter_map(Option::take);
        calls.filter(|ping| ping.call.measured).count() as u64
    }
}
