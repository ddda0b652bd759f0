//! Connections in the memory of one process, for tests that drive event loops with a clock of their
//! own. There is no network and no thread, and no time passes by itself.
//!
//! An [`End`] behaves as a non-blocking TCP socket does. What was sent waits up to a capacity. Each
//! direction has an end of its own. To close over unread bytes is a reset, and so is the answer to bytes
//! that come after a close; what arrived before a reset can still be read. The descriptor (an eventfd)
//! reports changes to a [`Poller`](crate::Poller), each as readable and writable: an end is found by the
//! next read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// What the poller takes for a full counter: the descriptor is not writable.
const FULL: u64 = u64::MAX - 1;

/// One end of a connection. Dropping it closes the connection.
pub struct End {
    line: Arc<Mutex<Line>>,
    side: usize,
    descriptor: Arc<OwnedFd>,
}

/// A connection, between two sides.
struct Line {
    sides: [Side; 2],
    /// Most bytes that wait in one direction.
    capacity: usize,
    state: State,
    /// Nothing that is sent arrives for now.
    is_held: bool,
    /// The round trip that is reported to both ends. Bytes are not delayed.
    round_trip: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Connected,
    Refused,
}

struct Side {
    descriptor: Arc<OwnedFd>,
    /// Bytes that it has not received yet.
    arrived: VecDeque<u8>,
    /// Nothing follows what has arrived.
    is_ended: bool,
    /// The other side has reset the connection.
    is_reset: bool,
    /// That was reported.
    has_failed: bool,
    /// It sends no more.
    has_finished: bool,
    /// The other side is closed.
    is_alone: bool,
    /// It resets the connection where it closes.
    resets_on_close: bool,
    waker: Option<Waker>,
}

impl Side {
    fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            descriptor: Arc::new(descriptor),
            arrived: VecDeque::new(),
            is_ended: false,
            is_reset: false,
            has_failed: false,
            has_finished: false,
            is_alone: false,
            resets_on_close: false,
            waker: None,
        })
    }

    /// Reports a change of this side to its owner.
    fn report(&mut self) {
        // Each addition is an edge for the poller; the counter does not fill up in the life of a test.
        let _ = rustix::io::write(&*self.descriptor, &1_u64.to_ne_bytes());
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A connection that begins as connecting on the side of the first end: [`End::accept`] or
/// [`End::refuse`] of the second end decides what becomes of it. `capacity` is the most bytes that wait
/// in one direction.
///
/// # Errors
/// When no descriptor is left.
pub fn dial(capacity: usize) -> io::Result<(End, End)> {
    let sides = [Side::new()?, Side::new()?];
    rustix::io::write(&*sides[0].descriptor, &FULL.to_ne_bytes())?;
    let descriptors = [0, 1].map(|side: usize| Arc::clone(&sides[side].descriptor));
    let line = Line {
        sides,
        capacity,
        state: State::Connecting,
        is_held: false,
        round_trip: Duration::ZERO,
    };
    let line = Arc::new(Mutex::new(line));
    let [near, far] = descriptors;
    let near = End { line: Arc::clone(&line), side: 0, descriptor: near };
    Ok((near, End { line, side: 1, descriptor: far }))
}

/// An established connection. `capacity` is the most bytes that wait in one direction.
///
/// # Errors
/// When no descriptor is left.
pub fn pair(capacity: usize) -> io::Result<(End, End)> {
    let (near, far) = dial(capacity)?;
    far.accept();
    Ok((near, far))
}

impl End {
    fn line(&self) -> MutexGuard<'_, Line> {
        locked(&self.line)
    }

    /// Lets the other end, which is connecting, be connected.
    pub fn accept(&self) {
        self.decide(State::Connected);
    }

    /// Lets the other end, which is connecting, fail as refused.
    pub fn refuse(self) {
        self.decide(State::Refused);
    }

    fn decide(&self, state: State) {
        let mut line = self.line();
        if line.state == State::Connecting {
            line.state = state;
            // Empties the counter, which makes the descriptor writable.
            let _ = rustix::io::read(&*line.sides[1 - self.side].descriptor, &mut [0; 8]);
        }
    }

    /// Reports this as the round trip to both ends. Bytes are not delayed.
    pub fn set_round_trip(&self, round_trip: Duration) {
        self.line().round_trip = round_trip;
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.line().round_trip
    }

    /// By which this connection can be held up apart from its ends.
    #[must_use]
    pub fn to_hold(&self) -> Hold {
        Hold(Arc::clone(&self.line))
    }

    /// How connecting has ended, once the descriptor can be written to.
    ///
    /// # Errors
    /// `ECONNREFUSED`.
    pub(crate) fn dialled(&self) -> Result<(), Errno> {
        match self.line().state {
            State::Refused => Err(Errno::CONNREFUSED),
            State::Connecting | State::Connected => Ok(()),
        }
    }

    /// Whether this end, which was connecting, was refused.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.line().state == State::Refused
    }

    /// Sends as much of `bytes` as there is room for, and says how much.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. Others: nothing can be sent any more.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes)?)
    }

    /// Reads what has arrived, and says how much; 0 at the end.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is there. `ConnectionReset`: the other end has closed over unread bytes.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut bytes = Vec::with_capacity(buffer.len());
        let count = self.receive(&mut bytes)?;
        buffer[..count].copy_from_slice(&bytes);
        Ok(count)
    }

    /// Sends as much of `bytes` as there is room for, and says how much.
    ///
    /// # Errors
    /// `EAGAIN`: there is no room. `ECONNRESET`, once, and `EPIPE`: nothing can be sent any more.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut line = self.line();
        let (capacity, is_held) = (line.capacity, line.is_held);
        let own = &mut line.sides[self.side];
        if own.has_finished || own.has_failed {
            return Err(Errno::PIPE);
        }
        if own.is_reset && !is_held {
            own.has_failed = true;
            return Err(Errno::CONNRESET);
        }
        if own.is_alone {
            // The first bytes after the other end has closed are answered by a reset.
            own.is_reset = true;
            own.report();
            return Ok(bytes.len());
        }
        let other = &mut line.sides[1 - self.side];
        let count = bytes.len().min(capacity.saturating_sub(other.arrived.len()));
        if count == 0 && !bytes.is_empty() {
            return Err(Errno::AGAIN);
        }
        other.arrived.extend(&bytes[..count]);
        other.report();
        Ok(count)
    }

    /// Appends what has arrived, as far as `buffer` has spare capacity, and says how much; 0 at the
    /// end.
    ///
    /// # Errors
    /// `EAGAIN`: nothing is there. `ECONNRESET`, once: the other end has closed over unread bytes, or
    /// before what was sent last.
    pub(crate) fn receive(&self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        let mut line = self.line();
        if line.is_held {
            return Err(Errno::AGAIN);
        }
        if line.state == State::Refused {
            return Err(Errno::CONNREFUSED);
        }
        let capacity = line.capacity;
        let own = &mut line.sides[self.side];
        let was_full = own.arrived.len() == capacity;
        let count = own.arrived.len().min(buffer.capacity() - buffer.len());
        if count == 0 {
            // A reset is reported once, after what arrived before it; then there is an end.
            return match (own.is_reset && !own.has_failed, own.is_ended || own.has_failed) {
                (true, _) => {
                    own.has_failed = true;
                    Err(Errno::CONNRESET)
                }
                (false, true) => Ok(0),
                (false, false) => Err(Errno::AGAIN),
            };
        }
        buffer.extend(own.arrived.drain(..count));
        // What is left, be it an end, is a new edge.
        if !own.arrived.is_empty() || own.is_ended || own.is_reset {
            own.report();
        }
        if was_full {
            line.sides[1 - self.side].report();
        }
        Ok(count)
    }

    /// Ends this side: what has been sent arrives, and an end after it.
    pub fn finish(&self) {
        let mut line = self.line();
        line.sides[self.side].has_finished = true;
        let other = &mut line.sides[1 - self.side];
        other.is_ended = true;
        other.report();
    }

    /// Lets the close of this end be a reset.
    pub fn reset_on_close(&self) {
        self.line().sides[self.side].resets_on_close = true;
    }

    /// Wakes this waker, once, when something has changed.
    pub fn wake(&self, waker: &Waker) {
        self.line().sides[self.side].waker = Some(waker.clone());
    }
}

/// By which a connection is held up.
pub struct Hold(Arc<Mutex<Line>>);

impl Hold {
    /// Has nothing that is sent arrive, in either direction, while `is_held`.
    pub fn hold(&self, is_held: bool) {
        let mut line = locked(&self.0);
        line.is_held = is_held;
        line.sides.iter_mut().for_each(Side::report);
    }

    /// Whether neither end is closed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        locked(&self.0).sides.iter().all(|side| !side.is_alone)
    }
}

fn locked(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for End {
    fn drop(&mut self) {
        let mut line = self.line();
        let own = &line.sides[self.side];
        let is_reset = own.resets_on_close || !own.arrived.is_empty();
        let other = &mut line.sides[1 - self.side];
        other.is_ended = true;
        other.is_alone = true;
        other.is_reset |= is_reset;
        other.report();
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Poller, Readiness, Token};

    fn text(end: &End) -> io::Result<String> {
        let mut buffer = [0; 64];
        let count = end.read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
    }

    fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn bytes_wait_up_to_the_capacity_and_an_end_comes_after_them() {
        let (near, far) = pair(5).unwrap();
        assert_eq!(near.write(b"hello").unwrap(), 5);
        assert_eq!(kind(near.write(b"!")), Some(io::ErrorKind::WouldBlock));
        assert_eq!(kind(text(&near)), Some(io::ErrorKind::WouldBlock));
        near.finish();
        assert_eq!(text(&far).unwrap(), "hello");
        assert_eq!(text(&far).unwrap(), "");
        assert_eq!(far.write(b"and back").unwrap(), 5, "the other direction goes on");
        assert_eq!(text(&near).unwrap(), "and b");
    }

    #[test]
    fn a_close_over_unread_bytes_is_a_reset_and_another_is_an_end() {
        let (near, far) = pair(64).unwrap();
        far.write(b"last").unwrap();
        drop(far);
        assert_eq!(text(&near).unwrap(), "last");
        assert_eq!(text(&near).unwrap(), "");
        let (near, far) = pair(64).unwrap();
        near.write(b"unread").unwrap();
        far.write(b"answer").unwrap();
        drop(far);
        assert_eq!(text(&near).unwrap(), "answer", "what came before it is read first");
        assert_eq!(kind(text(&near)), Some(io::ErrorKind::ConnectionReset));
        assert_eq!(text(&near).unwrap(), "", "it is reported once");
        let (near, far) = pair(64).unwrap();
        far.reset_on_close();
        drop(far);
        assert_eq!(kind(near.write(b"x")), Some(io::ErrorKind::ConnectionReset));
        assert_eq!(kind(near.write(b"x")), Some(io::ErrorKind::BrokenPipe));
    }

    #[test]
    fn the_first_bytes_after_a_close_are_lost_and_answered_by_a_reset() {
        let (near, far) = pair(64).unwrap();
        drop(far);
        assert_eq!(near.write(b"lost").unwrap(), 4);
        assert_eq!(kind(text(&near)), Some(io::ErrorKind::ConnectionReset));
        let (near, _far) = pair(64).unwrap();
        near.finish();
        assert_eq!(kind(near.write(b"x")), Some(io::ErrorKind::BrokenPipe));
    }

    #[test]
    fn what_is_held_arrives_later() {
        let (near, far) = pair(64).unwrap();
        let hold = near.to_hold();
        hold.hold(true);
        near.write(b"later").unwrap();
        assert_eq!(kind(text(&far)), Some(io::ErrorKind::WouldBlock));
        hold.hold(false);
        assert_eq!(text(&far).unwrap(), "later");
        assert!(hold.is_open());
        drop(near);
        assert!(!hold.is_open());
    }

    #[test]
    fn a_poller_sees_each_change() {
        let (near, far) = dial(4).unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&near, Token(7)).unwrap();
        let mut look = move || {
            let mut ready: Vec<Readiness> = Vec::new();
            poller.wait(Some(Duration::ZERO), &mut ready).unwrap();
            ready.first().copied()
        };
        assert!(!look().unwrap().writable, "it is connecting");
        assert_eq!(look(), None);
        far.accept();
        assert!(look().unwrap().writable);
        assert_eq!(look(), None);
        far.write(b"x").unwrap();
        assert!(look().unwrap().readable);
        text(&near).unwrap();
        near.write(b"part").unwrap();
        assert_eq!(far.read(&mut [0; 1]).unwrap(), 1);
        assert!(look().unwrap().writable, "there is room again");
        text(&far).unwrap();
        assert_eq!(look(), None, "there was room already");
        drop(far);
        assert!(look().unwrap().readable, "the end is there to be read");
    }

    #[test]
    fn a_refused_dial_reports_it() {
        let (near, far) = dial(4).unwrap();
        assert!(near.dialled().is_ok() && !near.is_refused());
        far.refuse();
        assert_eq!(near.dialled(), Err(Errno::CONNREFUSED));
        assert_eq!(kind(text(&near)), Some(io::ErrorKind::ConnectionRefused));
        assert!(near.is_refused());
    }
}
