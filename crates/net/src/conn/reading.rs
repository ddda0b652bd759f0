//! From the socket to application bytes, in buffers that all connections of a thread share.

use rustix::io::Errno;

use super::{Closed, Conn, ConnError, Read};
use crate::tls::{KEPT_BYTES_MAX, Tls};

/// Bytes taken from a socket at a time.
const READ_BYTES: usize = 64 * 1024;
/// There is space to read into after what TLS holds.
const _: () = assert!(KEPT_BYTES_MAX < READ_BYTES);

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

impl Conn {
    /// Reads the socket. Call it until it returns `Blocked`, or stop and come back:
    /// [`Conn::may_read`] stays true while bytes are left.
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
            // Sending may fail without the peer's knowledge: its end is not awaited.
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
        match self.decrypt(&mut scratch.raw, &mut scratch.plain) {
            Ok(()) => Read::Data(&scratch.plain),
            Err(error) => {
                self.send_alert();
                self.failed(ConnError::Tls(error))
            }
        }
    }

    /// Wraps an established plain connection in the server's side of TLS, of which the peer's first
    /// bytes were `read` already; nothing may be queued. Flush it to send what answers them.
    ///
    /// # Errors
    /// The peer breaks the protocol or is not trusted; the alert for it is sent.
    pub fn start_tls_after(&mut self, tls: Tls, mut read: Vec<u8>) -> Result<(), ConnError> {
        self.start_tls(tls);
        let mut plain = Vec::new();
        let taken = self.decrypt(&mut read, &mut plain);
        debug_assert!(plain.is_empty(), "no data before the end of the handshake");
        taken.map_err(|error| {
            self.send_alert();
            self.read_ended = true;
            self.write_ended = true;
            ConnError::Tls(error)
        })
    }

    fn receive(&mut self, raw: &mut Vec<u8>) -> Result<usize, Errno> {
        raw.clear();
        if let Some(tls) = &self.tls {
            raw.extend_from_slice(tls.kept());
        }
        let room = raw.capacity() - raw.len();
        let count = self.socket.receive(raw)?;
        // A short read has drained the socket: the next bytes are a new edge. At the end of
        // the stream the edge has come already, so one more read is due.
        if count > 0 && count < room && !self.close_told {
            self.readable = false;
        }
        Ok(count)
    }

    fn decrypt(&mut self, raw: &mut [u8], plain: &mut Vec<u8>) -> Result<(), rustls::Error> {
        let Some(tls) = self.tls.as_deref_mut() else { return Ok(()) };
        let decrypted = tls.decrypt(raw, plain, &mut self.wire);
        self.close_notify_seen |= tls.peer_closed();
        decrypted
    }

    fn send_alert(&mut self) {
        if let Some(tls) = self.tls.as_deref_mut() {
            tls.alert(&mut self.wire);
            // The connection is over; whether the alert arrives is up to the peer.
            let _ = self.socket.send(&self.wire[self.sent..]);
        }
    }

    fn failed(&mut self, error: ConnError) -> Read<'static> {
        self.read_ended = true;
        self.write_ended = true;
        Read::Failed(error)
    }
}
