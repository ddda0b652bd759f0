//! One connection: a non-blocking socket, optional TLS, an output buffer.
//!
//! The owner writes into [`Conn::out`] as often as it likes during a turn and calls
//! [`Conn::flush`] once at its end: one write, one TLS record run, for all of it. Reading takes
//! what the socket has, up to the scratch buffer, and remembers whether there may be more.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use rustls::Connection as Tls;
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, HandshakeKind, ProtocolVersion};
use thiserror::Error;

use crate::poller::Readiness;

/// Bytes taken from a socket at a time.
const READ_BYTES: usize = 64 * 1024;
/// An output buffer that grew beyond this gives its memory back when it is empty, unless the owner
/// asked for more.
const OUT_KEEP_BYTES: usize = 32 * 1024;
/// Plaintext of one TLS record.
const RECORD_BYTES: usize = 16 * 1024;

/// Buffers shared by all connections of a thread; no slice outlives the next read.
pub struct Scratch {
    raw: Vec<u8>,
    plain: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    #[must_use]
    pub fn new() -> Self {
        Self { raw: Vec::with_capacity(READ_BYTES), plain: Vec::with_capacity(READ_BYTES) }
    }
}

/// Why a connection is over.
#[derive(Debug, Error)]
pub enum ConnError {
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    #[error("the connection failed: {0}")]
    Socket(#[source] io::Error),
    #[error("TLS failed: {0}")]
    Tls(#[source] rustls::Error),
}

/// How the peer closed its side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// With the end that its protocol has: FIN, and before it `close_notify` with TLS.
    Clean,
    /// FIN without `close_notify`, or the end of a connection that broke: the bytes before may
    /// have been cut off.
    Truncated,
}

/// What a read gave.
#[derive(Debug)]
pub enum Read<'a> {
    /// Application bytes, valid until the scratch is used again.
    Data(&'a [u8]),
    /// Nothing now; an event will tell.
    Blocked,
    /// The peer sends no more. Told once, after all data.
    Closed(Closed),
    Failed(ConnError),
}

/// What a flush achieved.
#[derive(Debug)]
pub enum Flush {
    /// Everything is with the kernel.
    Done,
    /// The socket is full; an event will tell when to go on.
    Blocked,
    /// Nothing can be sent any more. What the peer sent before can still be read, and its end
    /// then.
    Failed(ConnError),
}

/// What a TLS peer proved.
pub struct Peer<'a> {
    /// Its chain, leaf first; empty if it showed none.
    pub certificates: &'a [CertificateDer<'static>],
    /// The protocol agreed on.
    pub alpn: Option<&'a [u8]>,
    /// The server name it asked for (server side only).
    pub server_name: Option<&'a str>,
}

/// What both ends of a TLS connection agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    pub version: ProtocolVersion,
    pub cipher: CipherSuite,
    /// The handshake went on from an earlier session.
    pub is_resumed: bool,
}

/// One connection. Dropping it closes the socket.
pub struct Conn {
    socket: OwnedFd,
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
    /// The poller told that the peer closed or the socket failed.
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
        Self::new(stream.into(), tls, false).readable()
    }

    /// One end of an in-process socket pair; it must be non-blocking.
    #[must_use]
    pub fn local(stream: UnixStream) -> Self {
        Self::new(stream.into(), None, false)
    }

    /// Starts to connect; the first flush or read that succeeds shows that it worked.
    ///
    /// # Errors
    /// When it fails at once: no descriptor, no route.
    pub fn connect(address: SocketAddr, tls: Option<Tls>) -> Result<Self, ConnError> {
        let failed = |error: Errno| ConnError::Connect(error.into());
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true).map_err(failed)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self::new(socket, tls, true)),
            Err(error) => Err(failed(error)),
        }
    }

    /// Bytes may have come before the poller knew of it.
    fn readable(mut self) -> Self {
        self.readable = true;
        self
    }

    fn new(socket: OwnedFd, tls: Option<Tls>, connecting: bool) -> Self {
        let mut tls = tls.map(Box::new);
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(None);
        }
        Self {
            socket,
            tls,
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
    pub fn start_tls(&mut self, mut tls: Tls) {
        debug_assert!(self.out.is_empty() && self.tls.is_none());
        tls.set_buffer_limit(None);
        self.tls = Some(Box::new(tls));
    }

    /// Lets empty output buffers keep up to `bytes` of memory: for a few connections that write a
    /// lot in every turn.
    pub fn keep_output_room(&mut self, bytes: usize) {
        self.keep_bytes = bytes;
    }

    /// The socket, taken out of the loop's hands; `None` with TLS or while something waits to be
    /// sent. It is non-blocking, and its owner takes it from the poller first.
    #[must_use]
    pub fn into_stream(self) -> Option<TcpStream> {
        let is_bare = self.tls.is_none() && !self.connecting && self.pending() == 0;
        is_bare.then(|| self.socket.into())
    }

    /// Takes note of what the poller said.
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
        let server_name = match tls {
            Tls::Server(server) => server.server_name(),
            Tls::Client(_) => None,
        };
        Some(Peer {
            certificates: tls.peer_certificates().unwrap_or_default(),
            alpn: tls.alpn_protocol(),
            server_name,
        })
    }

    /// What TLS agreed on; `None` without TLS or before the handshake is over.
    #[must_use]
    pub fn agreed(&self) -> Option<Agreed> {
        let tls = self.tls.as_ref().filter(|tls| !tls.is_handshaking())?;
        Some(Agreed {
            version: tls.protocol_version()?,
            cipher: tls.negotiated_cipher_suite()?.suite(),
            is_resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }

    /// The TLS session, for what it says about itself; `None` without TLS or before the handshake
    /// is over.
    #[must_use]
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_deref().filter(|tls| !tls.is_handshaking())
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

    /// Takes what the socket has. Call until it says `Blocked` or stop and come back: what is
    /// left keeps [`Conn::may_read`] true.
    pub fn read<'s>(&mut self, scratch: &'s mut Scratch) -> Read<'s> {
        if !self.may_read() {
            return Read::Blocked;
        }
        if self.close_notify_seen {
            self.read_ended = true;
            return Read::Closed(Closed::Clean);
        }
        match self.receive(&mut scratch.raw) {
            Ok(0) => {
                self.read_ended = true;
                let clean = self.tls.is_none() && !self.is_broken;
                return Read::Closed(if clean { Closed::Clean } else { Closed::Truncated });
            }
            Ok(_) => {}
            // Sending may fail where the peer knows nothing of it: no end of his is awaited.
            Err(Errno::AGAIN) if self.is_broken => {
                self.read_ended = true;
                return Read::Closed(Closed::Truncated);
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Read::Blocked;
            }
            Err(Errno::INTR) => return Read::Data(&[]),
            Err(error) => return self.failed(ConnError::Socket(error.into())),
        }
        if self.tls.is_none() {
            return Read::Data(&scratch.raw);
        }
        scratch.plain.clear();
        match self.decrypt(&scratch.raw, &mut scratch.plain) {
            Ok(()) => Read::Data(&scratch.plain),
            Err(error) => {
                self.send_alert();
                self.failed(ConnError::Tls(error))
            }
        }
    }

    fn receive(&mut self, raw: &mut Vec<u8>) -> Result<usize, Errno> {
        raw.clear();
        let room = raw.capacity();
        let spare = rustix::buffer::spare_capacity(raw);
        let (count, _) = rustix::net::recv(&self.socket, spare, RecvFlags::empty())?;
        // A short read has drained the socket: the next bytes are a new edge. At the end of
        // the stream the edge has come already, so one more read is due.
        if count > 0 && count < room && !self.close_told {
            self.readable = false;
        }
        Ok(count)
    }

    fn decrypt(&mut self, mut raw: &[u8], plain: &mut Vec<u8>) -> Result<(), rustls::Error> {
        let Some(tls) = self.tls.as_deref_mut() else { return Ok(()) };
        while !raw.is_empty() {
            let taken = tls.read_tls(&mut raw).unwrap_or(0);
            let state = tls.process_new_packets()?;
            take_plaintext(tls, state.plaintext_bytes_to_read(), plain);
            self.close_notify_seen |= state.peer_has_closed();
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }

    fn send_alert(&mut self) {
        if let Some(tls) = self.tls.as_deref_mut() {
            drain_records(tls, &mut self.wire);
            // The connection is over; whether the alert arrives is up to the peer.
            let _ = rustix::net::send(&self.socket, &self.wire[self.sent..], send_flags());
        }
    }

    fn failed(&mut self, error: ConnError) -> Read<'static> {
        self.read_ended = true;
        self.write_ended = true;
        Read::Failed(error)
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
        self.encrypt();
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
            // Fails only when the connection is gone, which the next read tells.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
        Flush::Done
    }

    fn finish_connect(&mut self) -> Result<bool, ConnError> {
        if !self.writable {
            return Ok(false);
        }
        let connected = rustix::net::sockopt::socket_error(&self.socket)
            .and_then(|result| result)
            .map_err(|error| ConnError::Connect(error.into()));
        match connected {
            Ok(()) => {
                self.connecting = false;
                Ok(true)
            }
            Err(error) => {
                self.write_ended = true;
                self.read_ended = true;
                Err(error)
            }
        }
    }

    /// Turns queued application bytes into records. Before the handshake is over they wait.
    fn encrypt(&mut self) {
        let Some(tls) = self.tls.as_deref_mut() else { return };
        if !tls.is_handshaking() {
            for chunk in self.out.chunks(RECORD_BYTES) {
                // Without a buffer limit the writer takes everything.
                let _ = io::Write::write_all(&mut tls.writer(), chunk);
            }
            shrink_when_empty(&mut self.out, self.keep_bytes);
            if self.finishing && !self.close_notify_sent {
                self.close_notify_sent = true;
                tls.send_close_notify();
            }
        }
        drain_records(tls, &mut self.wire);
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
            match rustix::net::send(&self.socket, rest, send_flags()) {
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

    /// Gives up the room of what is sent. A peer that always leaves something unsent would
    /// otherwise make the buffer as long as all it was ever sent. Moves fewer bytes than it drops.
    fn drop_sent(&mut self) {
        let buffer = if self.tls.is_none() { &mut self.out } else { &mut self.wire };
        if self.sent > buffer.len() / 2 {
            buffer.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// The kernel tells why a connection broke once, here to the sender; a reader then finds what
    /// had come before, and an end.
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
        // Fails only when the connection is gone already.
        let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
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

fn send_flags() -> SendFlags {
    SendFlags::NOSIGNAL | SendFlags::DONTWAIT
}

fn take_plaintext(tls: &mut Tls, count: usize, plain: &mut Vec<u8>) {
    if count == 0 {
        return;
    }
    let start = plain.len();
    plain.resize(start + count, 0);
    let got = io::Read::read(&mut tls.reader(), &mut plain[start..]).unwrap_or(0);
    plain.truncate(start + got);
}

fn drain_records(tls: &mut Tls, wire: &mut Vec<u8>) {
    while tls.wants_write() {
        // Writing into a vector does not fail.
        if tls.write_tls(wire).is_err() {
            break;
        }
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
