//! One connection.

use std::time::Duration;

use super::{Config, ConnectionError, ErrorCode, Event, OpenError, StreamGone, StreamId};
use crate::{Fields, RequestHead, ResponseHead};

/// One HTTP/2 connection without its socket.
///
/// `out` is always the bytes to be written to the peer, in order. A driver whose `out` is not
/// drained stops calling `receive`.
pub struct Connection {
    _config: Config,
}

#[expect(unused_variables, reason = "bodies follow in the next commits")]
impl Connection {
    /// The server's side; queues SETTINGS (and the connection's WINDOW_UPDATE).
    #[must_use]
    pub fn server(config: Config, out: &mut Vec<u8>) -> Self {
        todo!()
    }

    /// The client's side; queues the preface, SETTINGS and the connection's WINDOW_UPDATE.
    #[must_use]
    pub fn client(config: Config, out: &mut Vec<u8>) -> Self {
        todo!()
    }

    /// Takes all of `input` (an unfinished frame is kept inside, bounded) and appends events.
    ///
    /// `now` is the time since an epoch of the caller's choice and never goes back.
    ///
    /// # Errors
    /// The connection is over; GOAWAY is already in `out`. Events before the error stand.
    pub fn receive(
        &mut self,
        input: &[u8],
        now: Duration,
        events: &mut Vec<Event>,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionError> {
        todo!()
    }

    /// Checks what only time can tell: `unfinished_timeout` and `settings_timeout`. Call it
    /// about once a second.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) -> Result<(), ConnectionError> {
        todo!()
    }

    /// Opens a stream (client). `content-length`, `host` and connection-specific fields in
    /// `head.fields` are left out; the length comes from `content_length`.
    ///
    /// # Errors
    /// Nothing was sent: try another connection.
    pub fn send_request(
        &mut self,
        head: &RequestHead,
        content_length: Option<u64>,
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<StreamId, OpenError> {
        todo!()
    }

    /// Sends a response's head (server); informational ones any number of times, with `end`
    /// false.
    ///
    /// # Errors
    /// The stream is gone or has its final head already.
    pub fn send_response(
        &mut self,
        stream: StreamId,
        head: &ResponseHead,
        content_length: Option<u64>,
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamGone> {
        todo!()
    }

    /// Bytes `send_data` would take now on `stream`; 0 if it is gone.
    #[must_use]
    pub fn capacity(&self, stream: StreamId) -> usize {
        todo!()
    }

    /// Bytes the peer's connection window has left.
    #[must_use]
    pub fn connection_capacity(&self) -> usize {
        todo!()
    }

    /// Sends as much of `data` as the windows allow and returns how much; `end` is applied only
    /// if all was taken. What is left is to be offered again after `WindowOpen`.
    pub fn send_data(
        &mut self,
        stream: StreamId,
        data: &[u8],
        end: bool,
        out: &mut Vec<u8>,
    ) -> usize {
        todo!()
    }

    /// Sends trailers and ends this side's half.
    ///
    /// # Errors
    /// The stream is gone.
    pub fn send_trailers(
        &mut self,
        stream: StreamId,
        fields: &Fields,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamGone> {
        todo!()
    }

    /// Ends `stream` at once; nothing if it is gone. No event follows.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode, out: &mut Vec<u8>) {
        todo!()
    }

    /// The consumer has taken `bytes` of `stream`: a WINDOW_UPDATE is sent when half the window
    /// has gathered.
    pub fn release(&mut self, stream: StreamId, bytes: usize, out: &mut Vec<u8>) {
        todo!()
    }

    /// The same for the connection's window.
    pub fn release_connection(&mut self, bytes: usize, out: &mut Vec<u8>) {
        todo!()
    }

    /// Announces the end. With NO_ERROR a server still takes the streams already on their way:
    /// send [`goaway_final`](Self::goaway_final) a round trip later.
    pub fn goaway(&mut self, code: ErrorCode, out: &mut Vec<u8>) {
        todo!()
    }

    /// Names the last stream taken; later ones are dropped unseen.
    pub fn goaway_final(&mut self, out: &mut Vec<u8>) {
        todo!()
    }

    /// Sends PING; `PingAck` with the same bytes follows.
    pub fn ping(&mut self, payload: [u8; 8], out: &mut Vec<u8>) {
        todo!()
    }

    /// Streams that are neither closed nor reset.
    #[must_use]
    pub fn active_streams(&self) -> usize {
        todo!()
    }

    /// Whether `send_request` would work now.
    #[must_use]
    pub fn can_open(&self) -> bool {
        todo!()
    }

    /// Streams the peer lets this side have at once.
    #[must_use]
    pub fn peer_max_streams(&self) -> u32 {
        todo!()
    }

    /// Whether the peer takes extended CONNECT (RFC 8441).
    #[must_use]
    pub fn peer_takes_connect_protocol(&self) -> bool {
        todo!()
    }

    /// No new stream will come or go: the peer or this side sent GOAWAY, or ids are used up.
    #[must_use]
    pub fn is_going_away(&self) -> bool {
        todo!()
    }
}
