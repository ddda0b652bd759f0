//! One accepted connection: its socket, and the protocol that its first bytes chose.

use std::net::TcpStream;
use std::time::Duration;

use tollway_http::h1::looks_like_http2;
use tollway_net::{Conn, Flush, Read, Readiness, Scratch};

use super::h1::H1Session;
use super::h2::H2Session;
use super::{HIGH_WATER_BYTES, Site, Timers};
use crate::bulk::{HELLO_BYTES, Mode, Wish};

/// Reads of one connection before the others have their turn.
const READS_PER_TURN: u32 = 16;
/// How long a closed connection is read on, so that the last answer is not lost to a reset.
const LINGER: Duration = Duration::from_secs(1);
/// The timer that ends lingering.
const LINGER_TIMER: u32 = u32::MAX;

pub(super) struct Peer {
    conn: Conn,
    protocol: Protocol,
    lingering: bool,
}

enum Protocol {
    /// HTTP, version not known yet.
    Detect(Vec<u8>),
    H1(Box<H1Session>),
    H2(Box<H2Session>),
    /// Plain TCP whose first bytes do not say yet what is wanted.
    TcpFirst(Vec<u8>),
    Tcp,
    /// Bulk is wanted; so many bytes of it have come.
    Bulk(Mode, usize),
    /// Nothing more is read; what is queued is sent.
    Closed,
}

/// What is to become of a connection after its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// An event will tell when to go on.
    Wait,
    /// There is more to read; serve it again after the others.
    Again,
    /// Bulk moves on a thread of its own.
    HandOver,
    Over,
}

impl Peer {
    pub(super) fn http(conn: Conn) -> Self {
        Self { conn, protocol: Protocol::Detect(Vec::new()), lingering: false }
    }

    pub(super) fn tcp(conn: Conn) -> Self {
        Self { conn, protocol: Protocol::TcpFirst(Vec::new()), lingering: false }
    }

    pub(super) fn conn(&self) -> &Conn {
        &self.conn
    }

    pub(super) fn ready(&mut self, readiness: Readiness) {
        self.conn.ready(readiness);
    }

    /// Reads, answers and writes as far as it goes.
    pub(super) fn serve(
        &mut self,
        site: &Site,
        timers: &mut Timers,
        scratch: &mut Scratch,
    ) -> Turn {
        for _ in 0..READS_PER_TURN {
            if let Some(turn) = self.write(site, timers) {
                return turn;
            }
            if !self.lingering && !self.protocol.wants_input() {
                return Turn::Wait;
            }
            match self.conn.read(scratch) {
                Read::Blocked => return Turn::Wait,
                Read::Data(_) if self.lingering => {}
                Read::Data(bytes) => {
                    self.protocol.receive(bytes, site, timers, self.conn.out());
                    if matches!(self.protocol, Protocol::Bulk(..)) {
                        return Turn::HandOver;
                    }
                }
                Read::Closed(_) if self.lingering => return Turn::Over,
                Read::Closed(_) => return self.peer_closed(site, timers),
                Read::Failed(_) => return Turn::Over,
            }
        }
        self.write(site, timers).unwrap_or(Turn::Again)
    }

    /// Writes what there is; `None` when there is room for more and nothing to be written.
    fn write(&mut self, site: &Site, timers: &mut Timers) -> Option<Turn> {
        loop {
            self.protocol.pump(site, timers, self.conn.out());
            if self.protocol.is_closed() && !self.lingering {
                self.conn.finish();
                self.lingering = true;
                timers.set(LINGER, LINGER_TIMER);
            }
            match self.conn.flush() {
                Flush::Failed(_) => return Some(Turn::Over),
                Flush::Blocked if self.conn.pending() >= HIGH_WATER_BYTES => {
                    return Some(Turn::Wait);
                }
                Flush::Blocked => return None,
                Flush::Done if self.lingering && self.conn.read_ended() => return Some(Turn::Over),
                Flush::Done => {}
            }
            if !self.protocol.has_more() {
                return None;
            }
        }
    }

    /// The peer sends no more: what it asked for is still answered.
    fn peer_closed(&mut self, site: &Site, timers: &mut Timers) -> Turn {
        self.protocol.input_ended(self.conn.out());
        self.write(site, timers).unwrap_or(Turn::Wait)
    }

    /// A timer of this connection is due.
    pub(super) fn wake(&mut self, timer: u32, site: &Site, timers: &mut Timers) -> Turn {
        if timer == LINGER_TIMER {
            return Turn::Over;
        }
        self.protocol.wake(timer, site, timers, self.conn.out());
        Turn::Again
    }

    /// The socket of a peer that wants bulk, what it wants, and how many bytes of it have come.
    pub(super) fn into_bulk(self) -> Option<(TcpStream, Mode, usize)> {
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
    pub(super) fn drain(&mut self) {
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

    /// Checks time limits that the protocol has of its own; says whether to serve it now.
    pub(super) fn tick(&mut self, now: Duration) -> bool {
        if let Protocol::H2(session) = &mut self.protocol {
            session.tick(now, self.conn.out());
            return session.is_closed();
        }
        false
    }
}

impl Protocol {
    fn receive(&mut self, input: &[u8], site: &Site, timers: &mut Timers, out: &mut Vec<u8>) {
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
                self.receive(&held, site, timers, out);
            }
            Self::H1(session) => session.receive(input, site, timers, out),
            Self::H2(session) => session.receive(input, site, timers, out),
            Self::TcpFirst(held) => {
                held.extend_from_slice(input);
                match Wish::of(held) {
                    Wish::Unknown => {}
                    Wish::Echo => {
                        out.append(held);
                        *self = Self::Tcp;
                    }
                    Wish::Bulk(mode) => *self = Self::Bulk(mode, held.len() - HELLO_BYTES),
                }
            }
            Self::Tcp => out.extend_from_slice(input),
            Self::Bulk(..) | Self::Closed => {}
        }
    }

    /// Generates what bodies want to be generated, while `out` has room.
    fn pump(&mut self, site: &Site, timers: &mut Timers, out: &mut Vec<u8>) {
        match self {
            Self::H1(session) => session.pump(site, timers, out),
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
            // What looked like the beginning of a wish was all there is.
            Self::TcpFirst(held) => {
                out.append(held);
                *self = Self::Closed;
            }
            Self::H1(session) => session.input_ended(),
            Self::H2(session) => session.input_ended(),
            Self::Closed => {}
        }
    }

    fn wake(&mut self, timer: u32, site: &Site, timers: &mut Timers, out: &mut Vec<u8>) {
        match self {
            Self::H1(session) => session.wake(site, timers, out),
            Self::H2(session) => session.wake(timer, site, out),
            Self::Detect(_) | Self::TcpFirst(_) | Self::Tcp | Self::Bulk(..) | Self::Closed => {}
        }
    }
}
