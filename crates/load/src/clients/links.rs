//! The connections of a client: dialled, watched, dialled again when they are lost.

use std::net::SocketAddr;

use tollway_net::{Conn, ConnError, Flush, Readiness, Token};

use crate::engine::Io;

/// Pause before another attempt after one that failed.
const REDIAL_PAUSE_NS: u64 = 100_000_000;

/// A fixed number of connections to one address, known by their index.
pub(super) struct Links {
    address: SocketAddr,
    connect_timeout_ns: u64,
    links: Vec<Link>,
    last_error: Option<ConnError>,
}

struct Link {
    state: State,
    /// Told apart from events of the connections that were here before.
    generation: u32,
    /// Whether the first attempt has come to an end.
    settled: bool,
}

enum State {
    Down { redial_ns: u64 },
    Connecting { conn: Conn, since_ns: u64 },
    Up(Conn),
}

/// What an event means for a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkEvent {
    /// Nothing for the owner to do.
    None,
    /// The connection stands from now on.
    Connected,
    /// The connection stands; it may have something to read or room to write.
    Ready,
}

impl Links {
    pub(super) fn new(address: SocketAddr, count: usize, connect_timeout_ns: u64) -> Self {
        let down = || Link { state: State::Down { redial_ns: 0 }, generation: 0, settled: false };
        let links = (0..count).map(|_| down()).collect();
        Self { address, connect_timeout_ns, links, last_error: None }
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

    pub(super) fn take_error(&mut self) -> Option<ConnError> {
        self.last_error.take()
    }

    /// The connection, if it stands.
    pub(super) fn conn(&mut self, index: usize) -> Option<&mut Conn> {
        match &mut self.links[index].state {
            State::Up(conn) => Some(conn),
            State::Down { .. } | State::Connecting { .. } => None,
        }
    }

    /// Starts to connect.
    pub(super) fn dial(&mut self, index: usize, io: &mut Io) {
        let since_ns = io.clock.now_ns();
        let link = &mut self.links[index];
        link.generation = link.generation.wrapping_add(1) & 0x7fff_ffff;
        let token = token(index, link.generation);
        let dialled = Conn::connect(self.address, None).and_then(|conn| {
            io.poller.add(&conn, token).map_err(ConnError::Connect).map(|()| conn)
        });
        match dialled {
            Ok(conn) => link.state = State::Connecting { conn, since_ns },
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
            State::Connecting { conn, .. } => {
                conn.ready(readiness);
                match conn.flush() {
                    Flush::Done => Some((index, self.established(index, io))),
                    Flush::Blocked => Some((index, LinkEvent::None)),
                    Flush::Failed(error) => {
                        self.refused(index, error, io);
                        Some((index, LinkEvent::None))
                    }
                }
            }
        }
    }

    fn established(&mut self, index: usize, io: &mut Io) -> LinkEvent {
        let link = &mut self.links[index];
        let state = std::mem::replace(&mut link.state, State::Down { redial_ns: 0 });
        let State::Connecting { conn, since_ns } = state else { return LinkEvent::None };
        link.state = State::Up(conn);
        link.settled = true;
        io.recorder.connected(io.clock.now_ns().saturating_sub(since_ns));
        LinkEvent::Connected
    }

    fn refused(&mut self, index: usize, error: ConnError, io: &mut Io) {
        let redial_ns = io.clock.now_ns() + REDIAL_PAUSE_NS;
        self.links[index].state = State::Down { redial_ns };
        self.links[index].settled = true;
        self.last_error = Some(error);
        io.failed_connects += 1;
    }

    /// Closes a connection and dials another at once.
    pub(super) fn replace(&mut self, index: usize, io: &mut Io) {
        self.links[index].state = State::Down { redial_ns: 0 };
        self.dial(index, io);
    }

    /// Ends attempts that take too long and begins those that are due.
    pub(super) fn tick(&mut self, io: &mut Io) {
        let now_ns = io.clock.now_ns();
        for index in 0..self.links.len() {
            match self.links[index].state {
                State::Down { redial_ns } if now_ns >= redial_ns => self.dial(index, io),
                State::Connecting { since_ns, .. }
                    if now_ns.saturating_sub(since_ns) >= self.connect_timeout_ns =>
                {
                    let timed_out = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    self.refused(index, ConnError::Connect(timed_out), io);
                }
                State::Down { .. } | State::Connecting { .. } | State::Up(_) => {}
            }
        }
    }
}

fn token(index: usize, generation: u32) -> Token {
    Token(u64::from(generation) << 32 | index as u64)
}
