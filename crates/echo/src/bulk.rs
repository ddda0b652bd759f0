//! The protocol of bulk data over plain TCP.
//!
//! A client that wants bulk data begins with 24 bytes ([`Mode`]); the server answers [`READY`].
//! Then bytes flow in one direction only. The client ends by closing its sending side; the server,
//! when it has read that, adds its own totals ([`Account`]) and closes. A client that begins with
//! other bytes gets them back: `tollway echo --tcp` is an echo server first.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use rustix::time::{ClockId, clock_gettime};

/// Length of what a client begins with, and of the server's answer.
pub const OPENING_BYTES: usize = 24;
/// The server's answer to a client's beginning.
pub const READY: &[u8; OPENING_BYTES] = b"\0tollway-tcp/1 ready   \n";
const DISCARD: &[u8; OPENING_BYTES] = b"\0tollway-tcp/1 discard \n";
const SOURCE: &[u8; OPENING_BYTES] = b"\0tollway-tcp/1 source  \n";

/// Length of the server's account.
pub const ACCOUNT_BYTES: usize = 32;
const ACCOUNT_MARK: &[u8; 8] = b"tollway\n";

/// Bytes that the server reads or writes at a time.
const PIECE_BYTES: usize = 128 * 1024;
/// Interval at which a waiting server checks whether to stop.
const STOP_CHECK_EVERY: Duration = Duration::from_millis(250);
/// A connection on which nothing moves for so long is given up.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// What the server is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read and count.
    Discard,
    /// Write as fast as it goes.
    Source,
}

impl Mode {
    pub fn opening(self) -> &'static [u8; OPENING_BYTES] {
        match self {
            Self::Discard => DISCARD,
            Self::Source => SOURCE,
        }
    }
}

/// What the first bytes of a connection ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Too few bytes to decide.
    Unknown,
    Echo,
    Bulk(Mode),
}

impl Opening {
    pub fn of(first: &[u8]) -> Self {
        for mode in [Mode::Discard, Mode::Source] {
            let hello = &mode.opening()[..];
            if first.starts_with(hello) {
                return Self::Bulk(mode);
            }
            if hello.starts_with(first) {
                return Self::Unknown;
            }
        }
        Self::Echo
    }
}

/// What the server counted, from its first byte to its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub bytes: u64,
    pub ns: u64,
    /// Processor time of the thread.
    pub cpu_ns: u64,
}

impl Account {
    pub fn encode(self) -> [u8; ACCOUNT_BYTES] {
        let mut encoded = [0; ACCOUNT_BYTES];
        let numbers = [self.bytes, self.ns, self.cpu_ns].map(u64::to_be_bytes);
        let (mark, rest) = encoded.split_at_mut(ACCOUNT_MARK.len());
        mark.copy_from_slice(ACCOUNT_MARK);
        for (field, number) in rest.chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number);
        }
        encoded
    }

    /// `None` if these are not the bytes of an account.
    pub fn decode(encoded: &[u8]) -> Option<Self> {
        let rest = encoded.strip_prefix(ACCOUNT_MARK)?;
        let mut numbers = rest
            .chunks_exact(8)
            .map(|eight| u64::from_be_bytes(eight.try_into().unwrap_or_default()));
        let account = Self { bytes: numbers.next()?, ns: numbers.next()?, cpu_ns: numbers.next()? };
        (encoded.len() == ACCOUNT_BYTES).then_some(account)
    }
}

/// Processor time of the calling thread.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Serves one connection whose mode has been read, on a thread of its own, until the client ends it
/// or `stopped` is set. `early` has the bytes that came with the mode.
pub fn serve(
    mut stream: TcpStream,
    mode: Mode,
    early: usize,
    stopped: impl Fn() -> bool,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STOP_CHECK_EVERY))?;
    stream.set_write_timeout(Some(STOP_CHECK_EVERY))?;
    stream.write_all(READY)?;
    let begun = Instant::now();
    let cpu = thread_cpu();
    let bytes = match mode {
        Mode::Discard => discard(&mut stream, early, stopped)?,
        Mode::Source => source(&mut stream, stopped)?,
    };
    let account = Account {
        bytes,
        ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
        cpu_ns: u64::try_from(thread_cpu().saturating_sub(cpu).as_nanos()).unwrap_or(u64::MAX),
    };
    stream.write_all(&account.encode())?;
    stream.shutdown(Shutdown::Write)
}

fn discard(stream: &mut TcpStream, early: usize, stopped: impl Fn() -> bool) -> io::Result<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = early as u64;
    let mut idle = Idle::new();
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) => {
                bytes += count as u64;
                idle.moved();
            }
            Err(error) => idle.wait(error, &stopped)?,
        }
    }
}

fn source(stream: &mut TcpStream, stopped: impl Fn() -> bool) -> io::Result<u64> {
    let piece = crate::payload::payload(PIECE_BYTES);
    let mut bytes = 0;
    let mut idle = Idle::new();
    while !client_has_ended(stream)? {
        match stream.write(&piece) {
            Ok(count) => {
                bytes += count as u64;
                idle.moved();
            }
            Err(error) => idle.wait(error, &stopped)?,
        }
    }
    Ok(bytes)
}

/// Whether the client has closed its sending side; it sends nothing before that.
fn client_has_ended(stream: &TcpStream) -> io::Result<bool> {
    match recv(stream, &mut [0_u8; 1], RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Ok(true),
        Ok(_) => Err(io::Error::other("the client sends where it was to receive")),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How long nothing has moved.
struct Idle {
    waits: u32,
}

impl Idle {
    fn new() -> Self {
        Self { waits: 0 }
    }

    fn moved(&mut self) {
        self.waits = 0;
    }

    /// Goes on after a timeout; any other error, a stop and a long silence end the connection.
    fn wait(&mut self, error: io::Error, stopped: &impl Fn() -> bool) -> io::Result<()> {
        if error.kind() == io::ErrorKind::Interrupted {
            return Ok(());
        }
        if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return Err(error);
        }
        self.waits += 1;
        if stopped() || STOP_CHECK_EVERY * self.waits >= IDLE_LIMIT {
            return Err(error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_select_the_mode() {
        for (first, wish) in [
            (&b""[..], Opening::Unknown),
            (b"hello", Opening::Echo),
            (b"\0tollway", Opening::Unknown),
            (b"\0tollway-tcp/1 d", Opening::Unknown),
            (b"\0tollway-tcp/1 x", Opening::Echo),
            (&DISCARD[..], Opening::Bulk(Mode::Discard)),
            (&SOURCE[..], Opening::Bulk(Mode::Source)),
            (b"\0other", Opening::Echo),
        ] {
            assert_eq!(Opening::of(first), wish, "{first:?}");
        }
        assert_eq!(Opening::of(&[&DISCARD[..], b"more"].concat()), Opening::Bulk(Mode::Discard));
    }

    #[test]
    fn an_account_comes_back_and_nothing_else_is_one() {
        let account = Account { bytes: 1 << 40, ns: 7, cpu_ns: u64::MAX };
        assert_eq!(Account::decode(&account.encode()), Some(account));
        for wrong in [&b""[..], b"tollway\n", &[0; ACCOUNT_BYTES]] {
            assert_eq!(Account::decode(wrong), None);
        }
    }
}
