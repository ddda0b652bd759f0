//! One accepted connection: its socket, and the protocol that its first bytes chose.

use std::net::TcpStream;
use std::time::Duration;

use tollway_http::h1::looks_like_http2;
use tollway_net::{Conn, Flush, Read, Readiness, Scratch};

use crate::bulk::{Mode, OPENING_BYTES, Opening};
use crate::delays::Delays;
use crate::h1::H1Session;
use crate::h2::H2Session;
use crate::shared::Shared;

/// A connection is not read, and nothing is generated for it, while this much waits to be sent.
pub(crate) const HIGH_WATER_BYTES: usize = 256 * 1024;

/// Reads of one connection in a pass, before the others are read.
const READS_PER_PASS: u32 = 16;
/// How long a closed connection is read on, so that the last answer is not lost to a reset.
const LINGER: Duration = Duration::from_secs(1);
/// The timer that ends lingering.
const LINGER_TIMER: u32 = u32::MAX;

pub(crate) struct Peer {
    conn: Conn,
    protocol: Protocol,
    lingering: bool,
}

enum Protocol {
    /// HTTP, version not known yet.
    Detect(Vec<u8>),
    H1(Box<H1Session>),
    H2(Box<H2Session>),
    /// Plain TCP whose first bytes do not show the mode yet.
    TcpFirst(Vec<u8>),
    Tcp,
    /// Bulk is wanted; so many bytes of it have come.
    Bulk(Mode, usize),
    /// Nothing more is read; what is queued is sent.
    Closed,
}

/// What is to become of a connection once it has been served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// An event continues it.
    Wait,
    /// There is more to read; serve it again after the others.
    Again,
    /// Bulk moves on a thread of its own.
    HandOver,
    Over,
}

impl Peer {
    pub(crate) fn http(conn: Conn) -> Self {
        Self { conn, protocol: Protocol::Detect(Vec::new()), lingering: false }
    }

    pub(crate) fn tcp(conn: Conn) -> Self {
        Self { conn, protocol: Protocol::TcpFirst(Vec::new()), lingering: false }
    }

    pub(crate) fn conn(&self) -> &Conn {
        &self.conn
    }

    pub(crate) fn ready(&mut self, readiness: Readiness) {
        self.conn.ready(readiness);
    }

    /// Reads, answers and writes as far as it goes.
    pub(crate) fn serve(
        &mut self,
        shared: &Shared,
        delays: &mut Delays,
        scratch: &mut Scratch,
    ) -> Next {
        for _ in 0..READS_PER_PASS {
            if let Some(next) = self.write(shared, delays) {
                return next;
            }
            if !self.lingering && !self.protocol.wants_input() {
                return Next::Wait;
            }
            match self.conn.read(scratch) {
                Read::Blocked => return Next::Wait,
                Read::Data(_) if self.lingering => {}
                Read::Data(bytes) => {
                    self.protocol.receive(bytes, shared, delays, self.conn.out());
                    if matches!(self.protocol, Protocol::Bulk(..)) {
                        return Next::HandOver;
                    }
                }
                Read::Closed(_) if self.lingering => return Next::Over,
                Read::Closed(_) => return self.peer_closed(shared, delays),
                Read::Failed(_) => return Next::Over,
            }
        }
        self.write(shared, delays).unwrap_or(Next::Again)
    }

    /// Writes pending output; `None` if there is room for more and nothing to be written.
    fn write(&mut self, shared: &Shared, delays: &mut Delays) -> Option<Next> {
        loop {
            self.protocol.pump(shared, delays, self.conn.out());
            if self.protocol.is_closed() && !self.lingering {
                self.conn.finish();
                self.lingering = true;
                delays.set(LINGER, LINGER_TIMER);
            }
            match self.conn.flush() {
                Flush::Failed(_) => return Some(Next::Over),
                Flush::Blocked if self.conn.pending() >= HIGH_WATER_BYTES => {
                    return Some(Next::Wait);
                }
                Flush::Blocked => return None,
                Flush::Done if self.lingering && self.conn.read_ended() => return Some(Next::Over),
                Flush::Done => {}
            }
            if !self.protocol.has_more() {
                return None;
            }
        }
    }

    /// The peer has closed its sending side: its requests are still answered.
    fn peer_closed(&mut self, shared: &Shared, delays: &mut Delays) -> Next {
        self.protocol.input_ended(self.conn.out());
        self.write(shared, delays).unwrap_or(Next::Wait)
    }

    /// A timer of this connection is due.
    pub(crate) fn wake(&mut self, timer: u32, shared: &Shared, delays: &mut Delays) -> Next {
        if timer == LINGER_TIMER {
            return Next::Over;
        }
        self.protocol.wake(timer, shared, delays, self.conn.out());
        Next::Again
    }

    /// The socket of a peer in bulk mode, the mode, and how many bytes of it have come.
    pub(crate) fn into_bulk(self) -> Option<(TcpStream, Mode, usize)> {
        match self.protocol {
            Protocol::Bulk(mode, early) => Some((self.conn.into_stream()?, mode, early)),
            Protocol::Detect(_)
            | Protocol::H1(_)
            | Protocol::H2(_)
            | Protocol::TcpFirst(_)
            | Protocol::Tcp
            | Protocol::Closed => None,
        }
    }

    /// Takes no new requests.
    pub(crate) fn drain(&mut self) {
        let out = self.conn.out();
        match &mut self.protocol {
            Protocol::Detect(_) | Protocol::TcpFirst(_) | Protocol::Tcp | Protocol::Bulk(..) => {
                self.protocol = Protocol::Closed;
            }
            Protocol::H1(session) => session.drain(),
            Protocol::H2(session) => session.drain(out),
            Protocol::Closed => {}
        }
    }

    /// Checks the protocol's own time limits; returns whether to serve it now.
    pub(crate) fn tick(&mut self, now: Duration) -> bool {
        if let Protocol::H2(session) = &mut self.protocol {
            session.tick(now, self.conn.out());
            return session.is_closed();
        }
        false
    }
}

impl Protocol {
    fn receive(&mut self, input: &[u8], shared: &Shared, delays: &mut Delays, out: &mut Vec<u8>) {
        match self {
            Self::Detect(held) => {
                held.extend_from_slice(input);
                let Some(is_http2) = looks_like_http2(held) else { return };
                let held = std::mem::take(held);
                *self = if is_http2 {
                    Self::H2(Box::new(H2Session::new(out)))
                } else {
                    Self::H1(Box::new(H1Session::new()))
                };
                self.receive(&held, shared, delays, out);
            }
            Self::H1(session) => session.receive(input, shared, delays, out),
            Self::H2(session) => session.receive(input, shared, delays, out),
            Self::TcpFirst(held) => {
                held.extend_from_slice(input);
                match Opening::of(held) {
                    Opening::Unknown => {}
                    Opening::Echo => {
                        out.append(held);
                        *self = Self::Tcp;
                    }
                    Opening::Bulk(mode) => *self = Self::Bulk(mode, held.len() - OPENING_BYTES),
                }
            }
            Self::Tcp => out.extend_from_slice(input),
            Self::Bulk(..) | Self::Closed => {}
        }
    }

    /// Generates bodies while `out` has room.
    fn pump(&mut self, shared: &Shared, delays: &mut Delays, out: &mut Vec<u8>) {
        match self {
            Self::H1(session) => session.pump(shared, delays, out),
            Self::H2(session) if session.has_more() => session.pump(out),
            Self::H2(_)
            | Self::Detect(_)
            | Self::TcpFirst(_)
            | Self::Tcp
            | Self::Bulk(..)
            | Self::Closed => {}
        }
    }

    fn has_more(&self) -> bool {
        match self {
            Self::H1(session) => session.has_more(),
            Self::H2(session) => session.has_more(),
            Self::Detect(_) | Self::TcpFirst(_) | Self::Tcp | Self::Bulk(..) | Self::Closed => {
                false
            }
        }
    }

    fn wants_input(&self) -> bool {
        match self {
            Self::H1(session) => session.wants_input(),
            Self::H2(session) => !session.is_closed(),
            Self::Detect(_) | Self::TcpFirst(_) | Self::Tcp => true,
            Self::Bulk(..) | Self::Closed => false,
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::H1(session) => session.is_closed(),
            Self::H2(session) => session.is_closed(),
            Self::Detect(_) | Self::TcpFirst(_) | Self::Tcp | Self::Bulk(..) => false,
            Self::Closed => true,
        }
    }

    fn input_ended(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Detect(_) | Self::Tcp | Self::Bulk(..) => *self = Self::Closed,
            // The input ended within the bytes of a mode.
            Self::TcpFirst(held) => {
                out.append(held);
                *self = Self::Closed;
            }
            Self::H1(session) => session.input_ended(),
            Self::H2(session) => session.input_ended(),
            Self::Closed => {}
        }
    }

    fn wake(&mut self, timer: u32, shared: &Shared, delays: &mut Delays, out: &mut Vec<u8>) {
        match self {
            Self::H1(session) => session.wake(shared, delays, out),
            Self::H2(session) => session.wake(timer, shared, out),
            Self::Detect(_) | Self::TcpFirst(_) | Self::Tcp | Self::Bulk(..) | Self::Closed => {}
        }
    }
}
