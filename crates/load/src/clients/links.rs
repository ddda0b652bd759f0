//! The connections of a client: dialled, secured, watched, dialled again when they are lost.
//!
//! Connections that stay open are dialled before the run, and again as soon as they are lost, so
//! that a request finds one. If the run measures connecting (`Reuse`), they are dialled when a
//! request needs one; its time then includes the dial.

use std::net::SocketAddr;

use tollway_net::{Conn, ConnError, Flush, Read, Readiness, Token};

use crate::arrival::nanos;
use crate::cost::thread_cpu_ns;
use crate::engine::{BoxedError, Io};
use crate::options::{LoadOptions, Reuse};
use crate::recorder::Failure;
use crate::tls::{Handshake, TlsDialler};

/// Backoff after an attempt that failed.
const BACKOFF_NS: u64 = 100_000_000;
/// Bytes that a server may send in the same read that ends the handshake; more is refused.
const MAX_EARLY_BYTES: usize = 64 * 1024;

/// A fixed number of connections to one address, known by their index.
pub(super) struct Links {
    address: SocketAddr,
    tls: Option<TlsDialler>,
    reuse: Reuse,
    connect_timeout_ns: u64,
    links: Vec<Link>,
    /// Links whose attempt has failed, to be reported to the client (only with a limited reuse).
    failed: Vec<(usize, Failure)>,
    last_error: Option<BoxedError>,
}

struct Link {
    state: State,
    /// Distinguishes its events from those of earlier connections in the same place.
    generation: u32,
    /// Whether the first attempt has come to an end.
    settled: bool,
    /// Calls that the connection has carried or carries.
    calls: u64,
    /// When the last of them was sent or answered.
    last_used_ns: u64,
    /// Bytes of the peer in the read that ended the handshake.
    early: Vec<u8>,
}

enum State {
    /// Not connected. `redial_ns`: when the next attempt may begin after one that failed.
    Down {
        redial_ns: Option<u64>,
    },
    Connecting(Attempt),
    Up(Conn),
}

/// A connection that is being made.
struct Attempt {
    conn: Conn,
    since_ns: u64,
    /// When TCP was connected.
    connected_ns: Option<u64>,
    /// Processor time spent on it so far.
    cpu_ns: u64,
    /// In the measured window, or of a connection that stays open.
    counted: bool,
}

/// What an event means for a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkEvent {
    /// Nothing for the owner to do, but see [`Links::take_failed`].
    None,
    /// The connection is open from now on; there may be [`Links::take_early`] and more to read.
    Connected,
    /// The connection is open; it may have something to read or room to write.
    Ready,
}

impl Links {
    pub(super) fn new(options: &LoadOptions, address: SocketAddr, tls: Option<TlsDialler>) -> Self {
        let down = || Link {
            state: State::Down { redial_ns: None },
            generation: 0,
            settled: false,
            calls: 0,
            last_used_ns: 0,
            early: Vec::new(),
        };
        Self {
            address,
            tls,
            reuse: options.reuse,
            connect_timeout_ns: nanos(options.connect_timeout),
            links: (0..options.connections).map(|_| down()).collect(),
            failed: Vec::new(),
            last_error: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    pub(super) fn connected(&self) -> usize {
        self.links.iter().filter(|link| matches!(link.state, State::Up(_))).count()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.links.iter().all(|link| link.settled)
    }

    pub(super) fn take_error(&mut self) -> Option<BoxedError> {
        self.last_error.take()
    }

    /// Whether connections are dialled only when a request needs one.
    pub(super) fn dials_on_demand(&self) -> bool {
        self.reuse.is_limited()
    }

    /// The connection, if it is open.
    pub(super) fn conn(&mut self, index: usize) -> Option<&mut Conn> {
        match &mut self.links[index].state {
            State::Up(conn) => Some(conn),
            State::Down { .. } | State::Connecting(_) => None,
        }
    }

    /// The connection, if it is open and may carry another call, to send one on it at `now_ns`.
    pub(super) fn conn_for_call(&mut self, index: usize, now_ns: u64) -> Option<&mut Conn> {
        let reuse = self.reuse;
        if reuse.is_limited() && self.links[index].is_stale(reuse, now_ns) {
            self.close(index);
        }
        self.conn_for_another_call(index, now_ns)
    }

    /// As [`Links::conn_for_call`], of a connection that is carrying calls.
    pub(super) fn conn_for_another_call(&mut self, index: usize, now_ns: u64) -> Option<&mut Conn> {
        let link = &mut self.links[index];
        let State::Up(conn) = &mut link.state else { return None };
        link.calls += 1;
        link.last_used_ns = now_ns;
        Some(conn)
    }

    /// The peer has answered a call at `now_ns`: from here on the connection may be idle.
    pub(super) fn answered(&mut self, index: usize, now_ns: u64) {
        self.links[index].last_used_ns = now_ns;
    }

    /// Whether the connection carries no call beyond those it has.
    pub(super) fn is_used_up(&self, index: usize) -> bool {
        self.reuse.requests.is_some_and(|most| self.links[index].calls >= most)
    }

    /// What the peer sent with the end of its handshake; empty most of the time.
    pub(super) fn take_early(&mut self, index: usize) -> Vec<u8> {
        std::mem::take(&mut self.links[index].early)
    }

    /// A link whose attempt has failed and that is wanted by a request: the next one.
    pub(super) fn take_failed(&mut self) -> Option<(usize, Failure)> {
        self.failed.pop()
    }

    /// Starts to connect, unless a connection is open or being made.
    pub(super) fn dial(&mut self, index: usize, io: &mut Io) {
        let since_ns = io.clock.now_ns();
        let link = &mut self.links[index];
        if !matches!(link.state, State::Down { .. }) {
            return;
        }
        link.calls = 0;
        link.generation = link.generation.wrapping_add(1) & 0x7fff_ffff;
        let token = token(index, link.generation);
        let cpu_ns = self.tls.as_ref().map(|_| thread_cpu_ns());
        let tls = match self.tls.as_ref().map(TlsDialler::connection).transpose() {
            Ok(tls) => tls,
            Err(error) => return self.refused(index, ConnError::Tls(error), io),
        };
        let cpu_ns = cpu_ns.map_or(0, |begun| thread_cpu_ns() - begun);
        let dialled = Conn::connect(self.address, tls).and_then(|conn| {
            io.poller.add(&conn, token).map_err(ConnError::Connect).map(|()| conn)
        });
        let counted = !self.reuse.is_limited() || io.recorder.is_measuring(since_ns);
        match dialled {
            Ok(conn) => {
                self.links[index].state = State::Connecting(Attempt {
                    conn,
                    since_ns,
                    connected_ns: None,
                    cpu_ns,
                    counted,
                });
            }
            Err(error) => self.refused(index, error, io),
        }
    }

    /// Takes an event; `None` if it is of a connection that is gone.
    pub(super) fn ready(
        &mut self,
        readiness: Readiness,
        io: &mut Io,
    ) -> Option<(usize, LinkEvent)> {
        let index = usize::try_from(readiness.token.0 & u64::from(u32::MAX)).ok()?;
        let link = self.links.get_mut(index)?;
        if token(index, link.generation) != readiness.token {
            return None;
        }
        match &mut link.state {
            State::Down { .. } => Some((index, LinkEvent::None)),
            State::Up(conn) => {
                conn.ready(readiness);
                Some((index, LinkEvent::Ready))
            }
            State::Connecting(attempt) => {
                attempt.conn.ready(readiness);
                let event = match attempt.advance(&mut link.early, io) {
                    Ok(false) => LinkEvent::None,
                    Ok(true) => self.established(index, io),
                    Err(error) => {
                        self.refused(index, error, io);
                        LinkEvent::None
                    }
                };
                Some((index, event))
            }
        }
    }

    fn established(&mut self, index: usize, io: &mut Io) -> LinkEvent {
        let shown = self.tls.as_ref().is_some_and(TlsDialler::certificate_was_shown);
        let link = &mut self.links[index];
        let down = State::Down { redial_ns: None };
        let State::Connecting(attempt) = std::mem::replace(&mut link.state, down) else {
            return LinkEvent::None;
        };
        if let (Some(tls), Some(connected_ns)) = (attempt.conn.tls(), attempt.connected_ns) {
            let took_ns = io.clock.now_ns().saturating_sub(connected_ns);
            let handshake = Handshake {
                took_ns,
                cpu_ns: attempt.cpu_ns,
                certificate_was_shown: shown,
                counted: attempt.counted,
            };
            io.recorder.secured(tls, &handshake);
        }
        link.state = State::Up(attempt.conn);
        link.settled = true;
        link.last_used_ns = io.clock.now_ns();
        LinkEvent::Connected
    }

    fn refused(&mut self, index: usize, error: ConnError, io: &mut Io) {
        let is_secured = match &self.links[index].state {
            State::Connecting(attempt) => attempt.connected_ns.is_some(),
            State::Down { .. } | State::Up(_) => false,
        };
        let failure = match &error {
            ConnError::Tls(_) => Failure::Tls,
            ConnError::Connect(_) | ConnError::Socket(_) if is_secured => Failure::Tls,
            ConnError::Connect(_) | ConnError::Socket(_) => Failure::Connect,
        };
        self.last_error = Some(error.into());
        self.back_off(index, failure, io);
    }

    /// Stops dialling for a while, and fails the requests that wait.
    fn back_off(&mut self, index: usize, failure: Failure, io: &mut Io) {
        let redial_ns = io.clock.now_ns() + BACKOFF_NS;
        self.links[index].state = State::Down { redial_ns: Some(redial_ns) };
        self.links[index].settled = true;
        if self.dials_on_demand() {
            self.failed.push((index, failure));
        } else {
            io.failed_connects += 1;
            io.connect_failure = failure;
        }
    }

    /// Closes a connection in order, as far as that goes without waiting.
    pub(super) fn close(&mut self, index: usize) {
        if let Some(conn) = self.conn(index) {
            conn.finish();
            // Whether the peer learns the reason does not matter any more.
            let _ = conn.flush();
        }
        self.links[index].state = State::Down { redial_ns: None };
        self.links[index].early = Vec::new();
    }

    /// Closes a connection and, if connections stay open, dials another: at once if it was of use.
    /// A target that closes what it has just accepted is not dialled in a tight loop.
    pub(super) fn replace(&mut self, index: usize, io: &mut Io) {
        let was_used = self.links[index].calls > 0;
        self.close(index);
        if self.dials_on_demand() {
            return;
        }
        if was_used { self.dial(index, io) } else { self.back_off(index, Failure::Connect, io) }
    }

    /// Ends attempts that take too long and begins those that are due. With a limited reuse
    /// nothing is dialled here: `may_dial` gets the links that may be dialled again.
    pub(super) fn tick(&mut self, io: &mut Io, mut may_dial: impl FnMut(usize)) {
        let now_ns = io.clock.now_ns();
        for index in 0..self.links.len() {
            match &self.links[index].state {
                State::Down { redial_ns: Some(redial_ns) } if now_ns >= *redial_ns => {
                    self.links[index].state = State::Down { redial_ns: None };
                    if self.dials_on_demand() {
                        may_dial(index);
                    } else {
                        self.dial(index, io);
                    }
                }
                State::Connecting(attempt)
                    if now_ns.saturating_sub(attempt.since_ns) >= self.connect_timeout_ns =>
                {
                    let timed_out = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    self.refused(index, ConnError::Connect(timed_out), io);
                }
                State::Down { .. } | State::Connecting(_) | State::Up(_) => {}
            }
        }
    }
}

impl Link {
    /// Whether the connection has carried enough or has been idle for too long.
    fn is_stale(&self, reuse: Reuse, now_ns: u64) -> bool {
        let idle_ns = now_ns.saturating_sub(self.last_used_ns);
        reuse.requests.is_some_and(|most| self.calls >= most)
            || reuse.idle.is_some_and(|longest| idle_ns > nanos(longest))
    }
}

impl Attempt {
    /// Continues the handshake; true when the connection is open. What the peer sends after its
    /// handshake goes to `early`.
    fn advance(&mut self, early: &mut Vec<u8>, io: &mut Io) -> Result<bool, ConnError> {
        if self.connected_ns.is_none() && !self.finish_connect(io)? {
            return Ok(false);
        }
        if !self.conn.is_handshaking() {
            return Ok(true);
        }
        let begun_ns = thread_cpu_ns();
        let done = self.shake_hands(early, io);
        self.cpu_ns += thread_cpu_ns() - begun_ns;
        done
    }

    /// Whether TCP is connected; the first bytes of TLS are sent with that.
    fn finish_connect(&mut self, io: &mut Io) -> Result<bool, ConnError> {
        let flushed = self.conn.flush();
        if self.conn.is_connecting() {
            return match flushed {
                Flush::Failed(error) => Err(error),
                Flush::Done | Flush::Blocked => Ok(false),
            };
        }
        let now_ns = io.clock.now_ns();
        self.connected_ns = Some(now_ns);
        if self.counted {
            io.recorder.connected(now_ns.saturating_sub(self.since_ns));
        }
        match flushed {
            Flush::Failed(error) => Err(error),
            Flush::Done | Flush::Blocked => Ok(true),
        }
    }

    fn shake_hands(&mut self, early: &mut Vec<u8>, io: &mut Io) -> Result<bool, ConnError> {
        while self.conn.is_handshaking() {
            match self.conn.read(&mut io.scratch) {
                Read::Blocked => break,
                Read::Data(bytes) if early.len() + bytes.len() > MAX_EARLY_BYTES => {
                    return Err(ConnError::Connect(std::io::ErrorKind::InvalidData.into()));
                }
                Read::Data(bytes) => early.extend_from_slice(bytes),
                Read::Closed(_) => {
                    return Err(ConnError::Socket(std::io::Error::new(
                        std::io::ErrorKind::UnexpectedEof,
                        "closed by the server during the TLS handshake",
                    )));
                }
                Read::Failed(error) => return Err(error),
            }
            if let Flush::Failed(error) = self.conn.flush() {
                return Err(error);
            }
        }
        Ok(!self.conn.is_handshaking())
    }
}

fn token(index: usize, generation: u32) -> Token {
    Token(u64::from(generation) << 32 | index as u64)
}
