//! One connection of a throughput run and the thread that moves its bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::LoadError;
use tollway_echo::bulk::{ACCOUNT_BYTES, Account, Mode, OPENING_BYTES, READY, thread_cpu};
use tollway_echo::payload;

/// Time for the connection, and then for the server's answer.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// Interval at which a thread that waits for the socket checks whether the run is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time for bytes in transit when the run is over, and for the server's account.
const END_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Stream {
    socket: TcpStream,
    mode: Mode,
    local: SocketAddr,
    remote: SocketAddr,
    piece_bytes: usize,
    bytes: AtomicU64,
    over: AtomicBool,
}

/// How a connection ended.
#[derive(Clone, Copy, Default)]
pub(super) struct Ended {
    /// It failed before the run was over.
    pub(super) broke: bool,
    pub(super) account: Option<Account>,
    /// Processor time of the thread over its life.
    pub(super) busy_fraction: f64,
}

impl Stream {
    /// Connects and agrees on what is to be done.
    pub(super) fn open(
        address: SocketAddr,
        mode: Mode,
        piece_bytes: usize,
    ) -> Result<Self, LoadError> {
        let connect = |source: io::Error| LoadError::Connect {
            address,
            connections: 1,
            source: Some(source.into()),
        };
        let mut socket = TcpStream::connect_timeout(&address, OPEN_LIMIT).map_err(connect)?;
        let agreed = agree(&mut socket, mode).map_err(connect)?;
        if !agreed {
            return Err(LoadError::NotBulk { address });
        }
        Ok(Self {
            mode,
            local: socket.local_addr().map_err(connect)?,
            remote: socket.peer_addr().map_err(connect)?,
            socket,
            piece_bytes,
            bytes: AtomicU64::new(0),
            over: AtomicBool::new(false),
        })
    }

    /// The thread that moves the bytes until [`Self::end`].
    pub(super) fn start(self: &Arc<Self>) -> JoinHandle<Ended> {
        let stream = Arc::clone(self);
        std::thread::spawn(move || stream.run())
    }

    /// Asks the thread to end.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Moved so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn sends(&self) -> bool {
        self.mode == Mode::Discard
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Empty if the kernel reports none.
    pub(super) fn congestion_control(&self) -> String {
        rustix::net::sockopt::tcp_congestion(&self.socket).unwrap_or_default()
    }

    fn run(&self) -> Ended {
        let (begun, cpu) = (Instant::now(), thread_cpu());
        let mut piece = payload(self.piece_bytes);
        let moved = match self.mode {
            Mode::Discard => self.send(&piece),
            Mode::Source => self.receive(&mut piece),
        };
        let busy = thread_cpu().saturating_sub(cpu).as_secs_f64();
        let busy_fraction = busy / begun.elapsed().as_secs_f64().max(1e-9);
        let account = moved.is_ok().then(|| self.close(&mut piece).ok().flatten()).flatten();
        Ended { broke: moved.is_err(), account, busy_fraction }
    }

    fn send(&self, piece: &[u8]) -> io::Result<()> {
        let mut at = 0;
        self.until_over(|| {
            let count = (&self.socket).write(&piece[at..])?;
            at = (at + count) % piece.len();
            Ok(count)
        })
    }

    fn receive(&self, piece: &mut [u8]) -> io::Result<()> {
        self.until_over(|| match (&self.socket).read(piece)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        })
    }

    fn until_over(&self, mut step: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
        let mut total = 0;
        while !self.over.load(Ordering::Relaxed) {
            match step() {
                Ok(count) => {
                    total += count as u64;
                    // This thread alone writes the counter.
                    self.bytes.store(total, Ordering::Relaxed);
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends this side and reads to the server's end, whose last bytes are its account.
    fn close(&self, piece: &mut [u8]) -> io::Result<Option<Account>> {
        self.socket.shutdown(Shutdown::Write)?;
        let deadline = Instant::now() + END_LIMIT;
        let mut tail = Vec::new();
        while Instant::now() < deadline {
            match (&self.socket).read(piece) {
                Ok(0) => return Ok(Account::decode(&tail)),
                Ok(count) => {
                    tail.extend_from_slice(&piece[count.saturating_sub(ACCOUNT_BYTES)..count]);
                    tail.drain(..tail.len().saturating_sub(ACCOUNT_BYTES));
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Says what is wanted; whether the server will do it.
fn agree(socket: &mut TcpStream, mode: Mode) -> io::Result<bool> {
    socket.set_read_timeout(Some(OPEN_LIMIT))?;
    socket.set_write_timeout(Some(LOOK_EVERY))?;
    socket.write_all(mode.opening())?;
    let mut answer = [0; OPENING_BYTES];
    let read = socket.read_exact(&mut answer);
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    match read {
        Ok(()) => Ok(answer == *READY),
        // It waits for more, or has closed: either way it is no echo server of this version.
        Err(error) if is_passing(&error) || error.kind() == io::ErrorKind::UnexpectedEof => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
