//! Frames made by hand, for peers that break rules on purpose.

use std::time::Duration;

use tollway_http::h2::{Config, Connection, ConnectionError, Event};
use tollway_http::hpack::Encoder;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// A header block without dynamic entries.
pub(crate) fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(0);
    encoder.begin(&mut out);
    for (name, value) in lines {
        encoder.field(name.as_bytes(), value.as_bytes(), false, &mut out);
    }
    out
}

/// HEADERS of `POST http://a/`.
pub(crate) fn post(stream: u32) -> Vec<u8> {
    let lines = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    frame(HEADERS, END_HEADERS, stream, &block(&lines))
}

/// The frames in `bytes`: type, flags, stream, payload.
pub(crate) fn parse(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        frames.push((head[3], head[4], stream, rest[..len].to_vec()));
        bytes = &rest[len..];
    }
    assert!(bytes.is_empty(), "half a frame was written");
    frames
}

/// A server that has met its client.
pub(crate) struct Server {
    pub(crate) connection: Connection,
    pub(crate) events: Vec<Event>,
    pub(crate) out: Vec<u8>,
    pub(crate) now: Duration,
}

impl Server {
    pub(crate) fn new(config: Config) -> Self {
        let mut out = Vec::new();
        let connection = Connection::server(config, &mut out);
        let mut server = Self { connection, events: Vec::new(), out, now: Duration::ZERO };
        server.take(PREFACE).unwrap();
        server.take(&frame(SETTINGS, 0, 0, &[])).unwrap();
        server.take(&frame(SETTINGS, ACK, 0, &[])).unwrap();
        server.out.clear();
        server.events.clear();
        server
    }

    /// Receives without draining `out`.
    pub(crate) fn take(&mut self, input: &[u8]) -> Result<(), ConnectionError> {
        self.connection.receive(input, self.now, &mut self.events, &mut self.out)
    }

    /// Repeats until the connection is refused, draining `out` each time; how often it went well.
    pub(crate) fn take_until_refused(
        &mut self,
        most: u32,
        mut input: impl FnMut(u32) -> Vec<u8>,
    ) -> (u32, Option<ConnectionError>) {
        for nth in 0..most {
            self.out.clear();
            self.events.clear();
            if let Err(error) = self.take(&input(nth)) {
                return (nth, Some(error));
            }
        }
        (most, None)
    }
}
