//! Readiness of sockets by epoll, with nanosecond timeouts (`epoll_pwait2`, Linux 5.11) and a
//! waker for other threads.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Events taken from the kernel in one wait.
const EVENTS_PER_WAIT: usize = 256;

/// What a registration is known by; the owner chooses the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// The token of the waker; owners must not use it.
const WAKE: u64 = u64::MAX;

/// The readiness of one registration. Edge-triggered: each change is reported once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readiness {
    pub token: Token,
    pub readable: bool,
    pub writable: bool,
    /// The peer closed its side, or the socket failed: a read reports which.
    pub closed: bool,
}

/// An epoll instance.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    wake: Arc<OwnedFd>,
}

// SAFETY: the events hold plain numbers (tokens); the pointer variant of their data, for which
// the type is not `Send`, is never written or read.
#[expect(unsafe_code, reason = "the event type is not `Send` for a variant that is not used")]
unsafe impl Send for Poller {}

impl Poller {
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_PER_WAIT), wake })
    }

    /// Registers a connection for both directions, edge-triggered.
    ///
    /// # Errors
    /// When the kernel refuses the descriptor.
    pub fn add(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token.0), flags)?)
    }

    /// Registers a listener, level-triggered: connections that are not accepted are reported again.
    ///
    /// # Errors
    /// When the kernel refuses the descriptor.
    pub fn add_listener(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token.0), EventFlags::IN)?)
    }

    /// Takes a registration out. Closing the last descriptor of a socket does it as well.
    ///
    /// # Errors
    /// When it was not registered.
    pub fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits until something is ready, the waker is used or `timeout` is over (`None`: for
    /// ever), and appends what is ready to `ready`. Says whether the waker was used.
    ///
    /// # Errors
    /// When the kernel fails; an interrupting signal is not an error.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        ready: &mut Vec<Readiness>,
    ) -> io::Result<bool> {
        let timeout = timeout.map(timespec);
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let mut woken = false;
        for event in &self.events {
            let (token, flags) = ({ event.data }.u64(), event.flags);
            if token == WAKE {
                woken = true;
                drain_eventfd(&self.wake);
                continue;
            }
            let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            ready.push(Readiness {
                token: Token(token),
                readable: failed || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                writable: failed || flags.contains(EventFlags::OUT),
                closed: failed || flags.contains(EventFlags::RDHUP),
            });
        }
        Ok(woken)
    }

    /// A handle by which other threads end a `wait`.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { wake: Arc::clone(&self.wake) }
    }
}

fn drain_eventfd(fd: &OwnedFd) {
    let mut count = [0_u8; 8];
    // A failing read means that nothing is left to take; the edge was seen.
    let _ = rustix::io::read(fd, &mut count);
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Ends a [`Poller::wait`] from another thread.
#[derive(Clone)]
pub struct Waker {
    wake: Arc<OwnedFd>,
}

impl Waker {
    /// Never blocks; several wakes before a wait count as one.
    pub fn wake(&self) {
        // The counter is full only when a wake is already pending.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    #[test]
    fn a_wake_ends_the_wait() {
        let mut poller = Poller::new().unwrap();
        let waker = poller.waker();
        let thread = std::thread::spawn(move || waker.wake());
        let mut ready = Vec::new();
        let woken = poller.wait(Some(Duration::from_secs(10)), &mut ready).unwrap();
        thread.join().unwrap();
        assert!(woken);
        assert!(ready.is_empty());
        assert!(!poller.wait(Some(Duration::ZERO), &mut ready).unwrap(), "one wake ends one wait");
    }

    #[test]
    fn timeouts_are_finer_than_a_millisecond() {
        let mut poller = Poller::new().unwrap();
        let finer = (0..1000).any(|_| {
            let begin = Instant::now();
            poller.wait(Some(Duration::from_micros(100)), &mut Vec::new()).unwrap();
            let waited = begin.elapsed();
            assert!(waited >= Duration::from_micros(100), "{waited:?}");
            waited < Duration::from_millis(1)
        });
        assert!(finer, "1,000 waits of 100 µs took a millisecond each");
    }

    #[test]
    fn edges_report_data_and_close() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&server, Token(7)).unwrap();
        let mut ready = Vec::new();
        poller.wait(Some(Duration::from_secs(1)), &mut ready).unwrap();
        assert!(ready[0].writable && !ready[0].readable);
        client.write_all(b"x").unwrap();
        ready.clear();
        poller.wait(Some(Duration::from_secs(1)), &mut ready).unwrap();
        assert!(ready[0].readable && !ready[0].closed);
        drop(client);
        ready.clear();
        poller.wait(Some(Duration::from_secs(1)), &mut ready).unwrap();
        assert!(ready[0].closed);
    }
}
