//! The record side of TLS: what came off the wire to application bytes, and back.
//!
//! Decrypts in the buffer that the socket was read into, and encrypts into the one that is sent.
//! Holds bytes of its own only while what they begin is incomplete; sockets are [`Conn`]'s.
//!
//! [`Conn`]: crate::Conn

use std::ops::Deref;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error, InvalidMessage};

/// Plaintext of one record.
const RECORD_BYTES: usize = 16 * 1024;
/// More than a record adds to its plaintext: header, explicit nonce or inner type, tag.
const RECORD_OVERHEAD_BYTES: usize = 32;
/// Held of a record or handshake message whose end has not come. Longer than any record.
pub(crate) const KEPT_BYTES_MAX: usize = 64 * 1024 - 1;

/// One side of a TLS connection, with its parameters.
pub struct Tls {
    session: Session,
    /// What the next read continues. The session counts on finding it before what comes.
    kept: Vec<u8>,
    peer_closed: bool,
}

impl From<UnbufferedClientConnection> for Tls {
    fn from(client: UnbufferedClientConnection) -> Self {
        Self::new(Session::Client(client))
    }
}

impl From<UnbufferedServerConnection> for Tls {
    fn from(server: UnbufferedServerConnection) -> Self {
        Self::new(Session::Server(server))
    }
}

impl Deref for Tls {
    type Target = CommonState;

    fn deref(&self) -> &CommonState {
        match &self.session {
            Session::Client(client) => client,
            Session::Server(server) => server,
        }
    }
}

impl Tls {
    fn new(session: Session) -> Self {
        Self { session, kept: Vec::new(), peer_closed: false }
    }

    /// Bytes that must precede those of the next read, at most [`KEPT_BYTES_MAX`].
    pub(crate) fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Whether the peer has ended its sending side.
    pub(crate) fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Appends the application bytes in `raw`, which begins with [`Tls::kept`], to `plain`, and the
    /// replies to `wire`.
    ///
    /// # Errors
    /// The peer breaks the protocol or is not trusted; [`Tls::alert`] then has the alert for it,
    /// and nothing else may be called any more.
    pub(crate) fn decrypt(
        &mut self,
        raw: &mut [u8],
        plain: &mut Vec<u8>,
        wire: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let closed = &mut self.peer_closed;
        let used = self.session.run(raw, &mut Step { plain, wire, closed, write: None })?;
        // Nothing counts that comes after the peer's end.
        let rest = if self.peer_closed { &[] } else { &raw[used..] };
        if rest.len() > KEPT_BYTES_MAX {
            return Err(InvalidMessage::HandshakePayloadTooLarge.into());
        }
        if rest.is_empty() {
            self.kept = Vec::new();
        } else {
            self.kept.clear();
            // Exactly this much: any peer may have it held before it is authenticated.
            self.kept.reserve_exact(rest.len());
            self.kept.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Appends to `wire` the handshake's messages and, once it is over, records of `out` and then,
    /// with `close`, the end. Before that, `out` and `close` must be empty.
    ///
    /// # Errors
    /// When the keys have been used as often as they may be.
    pub(crate) fn encrypt(
        &mut self,
        out: &[u8],
        close: bool,
        wire: &mut Vec<u8>,
    ) -> Result<(), Error> {
        debug_assert!(!self.is_handshaking() || (out.is_empty() && !close));
        let mut plain = Vec::new();
        let write = (!out.is_empty() || close).then_some(Write { out, close });
        let closed = &mut self.peer_closed;
        // A session within a handshake message searches for its beginning even now.
        let mut step = Step { plain: &mut plain, wire, closed, write };
        let used = self.session.run(&mut self.kept, &mut step)?;
        debug_assert!(plain.is_empty(), "nothing kept is complete");
        self.kept.drain(..used);
        Ok(())
    }

    /// Appends to `wire` the alert of a failed session.
    pub(crate) fn alert(&mut self, wire: &mut Vec<u8>) {
        let (mut plain, mut closed) = (Vec::new(), false);
        // Output that waits is sent before the input is processed, which would fail again.
        while self.wants_write() {
            let closed = &mut closed;
            let mut step = Step { plain: &mut plain, wire, closed, write: None };
            if self.session.advance(&mut [], &mut step).1.is_err() {
                break;
            }
        }
    }
}

enum Session {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Session {
    /// Takes steps until there is nothing more to do; returns how many bytes of `raw` are used up.
    fn run(&mut self, raw: &mut [u8], step: &mut Step<'_>) -> Result<usize, Error> {
        let mut used = 0;
        loop {
            let (discard, goes_on) = self.advance(&mut raw[used..], step);
            used += discard;
            if !goes_on? {
                return Ok(used);
            }
        }
    }

    fn advance(&mut self, raw: &mut [u8], step: &mut Step<'_>) -> (usize, Result<bool, Error>) {
        match self {
            Self::Client(client) => step.take(client.process_tls_records(raw)),
            Self::Server(server) => step.take(server.process_tls_records(raw)),
        }
    }
}

/// Where what a session has goes to, and where what it may send comes from.
struct Step<'a> {
    plain: &'a mut Vec<u8>,
    wire: &'a mut Vec<u8>,
    closed: &'a mut bool,
    write: Option<Write<'a>>,
}

struct Write<'a> {
    out: &'a [u8],
    close: bool,
}

impl Step<'_> {
    /// How many bytes are done with, and whether another step is due.
    fn take<Side>(
        &mut self,
        status: UnbufferedStatus<'_, '_, Side>,
    ) -> (usize, Result<bool, Error>) {
        (status.discard, status.state.and_then(|state| self.act(state)))
    }

    fn act<Side>(&mut self, state: ConnectionState<'_, '_, Side>) -> Result<bool, Error> {
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    self.plain.extend_from_slice(record?.payload);
                }
            }
            ConnectionState::EncodeTlsData(mut message) => encode(&mut message, self.wire)?,
            ConnectionState::TransmitTlsData(queued) => queued.done(),
            ConnectionState::PeerClosed => *self.closed = true,
            ConnectionState::WriteTraffic(mut traffic) => {
                if let Some(write) = self.write.take() {
                    write.run(&mut traffic, self.wire)?;
                }
                return Ok(false);
            }
            // This side offers no early data.
            ConnectionState::BlockedHandshake
            | ConnectionState::Closed
            | ConnectionState::ReadEarlyData(_)
            | _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Write<'_> {
    fn run<Side>(
        &self,
        traffic: &mut WriteTraffic<'_, Side>,
        wire: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if !self.out.is_empty() {
            // One record more than those of `out`: an update of the keys may go before them.
            let records = self.out.len().div_ceil(RECORD_BYTES) + 1;
            let room = self.out.len() + records * RECORD_OVERHEAD_BYTES;
            append(wire, room, |space| traffic.encrypt(self.out, space))?;
        }
        if self.close {
            append(wire, 2 * RECORD_OVERHEAD_BYTES, |space| traffic.queue_close_notify(space))?;
        }
        Ok(())
    }
}

/// Has `write` fill `room` bytes, or as many as it then requires, behind what is in `wire`.
fn append(
    wire: &mut Vec<u8>,
    room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), Error> {
    let start = wire.len();
    wire.resize(start + room, 0);
    let mut written = write(&mut wire[start..]);
    if let Err(EncryptError::InsufficientSize(short)) = &written {
        wire.resize(start + short.required_size, 0);
        written = write(&mut wire[start..]);
    }
    wire.truncate(start + written.as_ref().copied().unwrap_or(0));
    written.map(|_| ()).map_err(|_| Error::EncryptError)
}

fn encode<Side>(message: &mut EncodeTlsData<'_, Side>, wire: &mut Vec<u8>) -> Result<(), Error> {
    let start = wire.len();
    // It reported the space that it requires, so it can be given that.
    if let Err(EncodeError::InsufficientSize(short)) = message.encode(&mut []) {
        wire.resize(start + short.required_size, 0);
    }
    message.encode(&mut wire[start..]).map(|_| ()).map_err(|_| Error::EncryptError)
}

#[cfg(test)]
mod tests;
