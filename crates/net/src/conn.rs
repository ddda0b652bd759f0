//! One connection: a non-blocking socket, optional TLS, an output buffer.
//!
//! The owner writes into [`Conn::out`] as often as it likes during a pass of its loop and
//! calls [`Conn::flush`] once at the end: one write, one TLS record run, for all of it. Reading
//! takes what the socket has, up to the scratch buffer, and remembers whether there may be more.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustls::{CommonState, HandshakeKind};

pub use self::outcome::{Agreed, Closed, ConnError, Flush, Peer, Read};
pub use self::reading::Scratch;
use self::socket::Socket;
pub use self::socket::local_pair;
use crate::option::limit_unsent;
use crate::poller::Readiness;
use crate::tls::Tls;

mod outcome;
mod reading;
mod socket;

/// An output buffer that grew beyond this releases its memory when it is empty, unless the owner
/// asked for more.
const OUT_KEEP_BYTES: usize = 32 * 1024;

/// One connection. Dropping it closes the socket.
pub struct Conn {
    socket: Socket,
    tls: Option<Box<Tls>>,
    /// Application bytes to send.
    out: Vec<u8>,
    /// Bytes for the wire: TLS records, of which `sent` are with the kernel.
    wire: Vec<u8>,
    sent: usize,
    /// Room that an empty output buffer may keep.
    keep_bytes: usize,
    connecting: bool,
    readable: bool,
    writable: bool,
    /// The poller reported that the peer closed or the socket failed.
    close_told: bool,
    /// Sending failed: the end that reads find is not one that the peer chose.
    is_broken: bool,
    read_ended: bool,
    close_notify_seen: bool,
    close_notify_sent: bool,
    /// Close our side once all is sent.
    finishing: bool,
    write_ended: bool,
}

impl Conn {
    /// An accepted or otherwise connected socket; it must be non-blocking.
    #[must_use]
    pub fn accepted(stream: TcpStream, tls: Option<Tls>) -> Self {
        Self::new(Socket::Kernel(stream.into()), tls, false).readable()
    }

    /// One end of a [`local_pair`].
    #[must_use]
    pub fn local(stream: UnixStream) -> Self {
        Self::new(Socket::Kernel(stream.into()), None, false)
    }

    /// Starts to connect; the first flush or read that succeeds shows that it worked.
    ///
    /// # Errors
    /// When it fails at once: no descriptor, no route.
    pub fn connect(address: SocketAddr, tls: Option<Tls>) -> Result<Self, ConnError> {
        Ok(Self::new(Socket::Kernel(socket::dial(address)?), tls, true))
    }

    /// Starts to connect by a socket that has been made elsewhere; it must be non-blocking.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_from(socket: OwnedFd, address: SocketAddr) -> Result<Self, ConnError> {
        Ok(Self::new(Socket::Kernel(socket::dial_from(socket, address)?), None, true))
    }

    /// An end of an established connection in memory.
    #[cfg(feature = "memory")]
    #[must_use]
    pub fn accepted_in_memory(end: crate::memory::End) -> Self {
        Self::new(Socket::Memory(end), None, false).readable()
    }

    /// An end of a connection in memory that is connecting.
    #[cfg(feature = "memory")]
    #[must_use]
    pub fn connect_in_memory(end: crate::memory::End) -> Self {
        Self::new(Socket::Memory(end), None, true)
    }

    /// Bytes may have come before the poller knew of it.
    fn readable(mut self) -> Self {
        self.readable = true;
        self
    }

    fn new(socket: Socket, tls: Option<Tls>, connecting: bool) -> Self {
        Self {
            socket,
            tls: tls.map(Box::new),
            out: Vec::new(),
            wire: Vec::new(),
            sent: 0,
            keep_bytes: OUT_KEEP_BYTES,
            connecting,
            readable: false,
            writable: !connecting,
            close_told: false,
            is_broken: false,
            read_ended: false,
            close_notify_seen: false,
            close_notify_sent: false,
            finishing: false,
            write_ended: false,
        }
    }

    /// Wraps an established plain connection in TLS; nothing may be queued.
    pub fn start_tls(&mut self, tls: Tls) {
        debug_assert!(self.out.is_empty() && self.tls.is_none());
        self.tls = Some(Box::new(tls));
    }

    /// Lets empty output buffers keep up to `bytes` of memory: for a few connections that write a
    /// lot in every pass.
    pub fn keep_output_room(&mut self, bytes: usize) {
        self.keep_bytes = bytes;
    }

    /// What an accepted connection was meant for before the kernel redirected it to this process; `None`
    /// for one that was not redirected.
    #[must_use]
    pub fn original_destination(&self) -> Option<SocketAddr> {
        self.socket.original_destination()
    }

    /// How long a round trip takes.
    ///
    /// # Errors
    /// When the connection is none of TCP.
    pub fn round_trip(&self) -> io::Result<Duration> {
        self.socket.round_trip()
    }

    /// Has the kernel take about `bytes` that it cannot send yet.
    ///
    /// # Errors
    /// When the connection is none of TCP.
    pub fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        limit_unsent(&self.socket, bytes)
    }

    /// The socket, taken out of the loop's hands; `None` with TLS or while something waits to be
    /// sent. It is non-blocking, and its owner takes it from the poller first.
    #[must_use]
    pub fn into_stream(self) -> Option<TcpStream> {
        let is_bare = self.tls.is_none() && !self.connecting && self.pending() == 0;
        if is_bare { self.socket.into_stream() } else { None }
    }

    /// Records what the poller reports.
    pub fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
        self.close_told |= readiness.closed;
    }

    /// Whether a read may find something.
    #[must_use]
    pub fn may_read(&self) -> bool {
        (self.readable || self.close_notify_seen) && !self.read_ended && !self.connecting
    }

    #[must_use]
    pub fn is_connecting(&self) -> bool {
        self.connecting
    }

    /// Whether the TLS handshake is still under way.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connecting || self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// What the peer proved; `None` without TLS or before the handshake is over.
    #[must_use]
    pub fn peer(&self) -> Option<Peer<'_>> {
        let tls = self.tls()?;
        Some(Peer {
            certificates: tls.peer_certificates().unwrap_or_default(),
            alpn: tls.alpn_protocol(),
        })
    }

    /// What TLS agreed on; `None` without TLS or before the handshake is over.
    #[must_use]
    pub fn agreed(&self) -> Option<Agreed> {
        let tls = self.tls()?;
        Some(Agreed {
            version: tls.protocol_version()?,
            cipher: tls.negotiated_cipher_suite()?.suite(),
            is_resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }

    /// The TLS session, for its parameters; `None` without TLS or before the handshake is over.
    #[must_use]
    pub fn tls(&self) -> Option<&CommonState> {
        let tls: &CommonState = self.tls.as_deref()?;
        Some(tls).filter(|tls| !tls.is_handshaking())
    }

    /// The buffer to which application bytes are appended.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes queued here and not yet with the kernel.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.out.len() + self.wire.len() - self.sent
    }

    /// Whether a flush has something to do.
    #[must_use]
    pub fn wants_flush(&self) -> bool {
        self.pending() > 0
            || (self.finishing && !self.write_ended)
            || self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends what is queued, as far as the socket takes it.
    pub fn flush(&mut self) -> Flush {
        if self.write_ended {
            self.discard_output();
            return Flush::Done;
        }
        if self.connecting {
            match self.finish_connect() {
                Ok(true) => {}
                Ok(false) => return Flush::Blocked,
                Err(error) => return Flush::Failed(error),
            }
        }
        if let Err(error) = self.encrypt() {
            self.note_broken();
            return Flush::Failed(ConnError::Tls(error));
        }
        match self.send() {
            Ok(true) => {}
            Ok(false) => return Flush::Blocked,
            Err(error) => {
                self.note_broken();
                return Flush::Failed(ConnError::Socket(error.into()));
            }
        }
        if self.finishing && self.pending() == 0 {
            self.write_ended = true;
            self.socket.finish();
        }
        Flush::Done
    }

    fn finish_connect(&mut self) -> Result<bool, ConnError> {
        if !self.writable {
            return Ok(false);
        }
        if let Err(error) = self.socket.dialled() {
            self.write_ended = true;
            self.read_ended = true;
            return Err(error);
        }
        self.connecting = false;
        Ok(true)
    }

    /// Makes records of queued application bytes. Before the handshake is over they wait.
    fn encrypt(&mut self) -> Result<(), rustls::Error> {
        let Some(tls) = self.tls.as_deref_mut() else { return Ok(()) };
        if tls.is_handshaking() {
            return match tls.wants_write() {
                true => tls.encrypt(&[], false, &mut self.wire),
                false => Ok(()),
            };
        }
        let closes = self.finishing && !self.close_notify_sent;
        if !self.out.is_empty() || closes || tls.wants_write() {
            tls.encrypt(&self.out, closes, &mut self.wire)?;
            self.close_notify_sent |= closes;
            shrink_when_empty(&mut self.out, self.keep_bytes);
        }
        Ok(())
    }

    /// `Ok(false)`: the socket is full.
    fn send(&mut self) -> Result<bool, Errno> {
        let plain = self.tls.is_none();
        loop {
            let buffer = if plain { &self.out } else { &self.wire };
            let rest = &buffer[self.sent..];
            if rest.is_empty() {
                break;
            }
            if !self.writable {
                self.drop_sent();
                return Ok(false);
            }
            match self.socket.send(rest) {
                Ok(count) => {
                    self.writable = count == rest.len();
                    self.sent += count;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        shrink_when_empty(if plain { &mut self.out } else { &mut self.wire }, self.keep_bytes);
        Ok(true)
    }

    /// Releases the space of sent bytes. Otherwise a peer that always leaves something unsent would
    /// make the buffer as long as all it was ever sent. Moves fewer bytes than it drops.
    fn drop_sent(&mut self) {
        let buffer = if self.tls.is_none() { &mut self.out } else { &mut self.wire };
        if self.sent > buffer.len() / 2 {
            buffer.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// The kernel reports why a connection broke once, here to the sender; a reader then finds the
    /// bytes from before, and an end.
    fn note_broken(&mut self) {
        self.is_broken = true;
        self.write_ended = true;
        self.readable = true;
        self.close_told = true;
        self.discard_output();
    }

    fn discard_output(&mut self) {
        self.out.clear();
        self.wire.clear();
        self.sent = 0;
    }

    /// Sends FIN (and `close_notify`) after everything queued; flush to carry it out.
    pub fn finish(&mut self) {
        self.finishing = true;
    }

    /// Lets the close of this connection be a reset, so that the peer does not take what it got
    /// for the whole.
    pub fn abort_on_close(&mut self) {
        self.socket.reset_on_close();
        self.discard_output();
        self.write_ended = true;
    }

    /// Whether our side has been closed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.write_ended
    }

    /// Whether the peer's side has ended.
    #[must_use]
    pub fn read_ended(&self) -> bool {
        self.read_ended
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn shrink_when_empty(buffer: &mut Vec<u8>, keep_bytes: usize) {
    buffer.clear();
    if buffer.capacity() > keep_bytes {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests;
