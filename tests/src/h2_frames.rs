//! HTTP/2 frames and header blocks by hand, which no proper codec would send.

use std::io::Read;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

/// The preface, empty SETTINGS, and the acknowledgement of the server's before they have come.
pub fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, ACK, 0, &[])].concat()
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub const INITIAL_WINDOW: u16 = 4;
pub const HEADER_TABLE_SIZE: u16 = 1;
pub const MAX_FRAME_SIZE: u16 = 5;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const INTERNAL_ERROR: u32 = 2;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

pub fn reset(stream: u32) -> Vec<u8> {
    reset_with(stream, CANCEL)
}

pub fn reset_with(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Streams above `last` were not processed.
pub fn goaway(last: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

pub fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// A header block of literals that enter no table (RFC 7541 section 6.2.2), without Huffman.
pub fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in lines {
        literal(0, name, value, &mut out);
    }
    out
}

/// A literal that enters the dynamic table, as its newest entry (section 6.2.1).
pub fn indexed_literal(name: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    literal(0x40, name, value, &mut out);
    out
}

/// A reference to the newest entry of the dynamic table: one byte.
pub const NEWEST: u8 = 0x80 | 62;

fn literal(kind: u8, name: &str, value: &str, out: &mut Vec<u8>) {
    out.push(kind);
    for text in [name, value] {
        integer(text.len(), out);
        out.extend(text.as_bytes());
    }
}

/// A length with a prefix of seven bits, the eighth zero (section 5.1).
fn integer(length: usize, out: &mut Vec<u8>) {
    let Some(mut rest) = length.checked_sub(127) else {
        return out.push(u8::try_from(length).unwrap());
    };
    out.push(127);
    while rest >= 128 {
        out.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    out.push(u8::try_from(rest).unwrap());
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The next one; `None` once the peer has ended.
    pub fn read(from: &mut impl Read) -> Option<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).ok()?;
        let [l0, l1, l2, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
        from.read_exact(&mut payload).ok()?;
        Some(Self { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// The whole ones that `bytes` begins with.
    pub fn all(mut bytes: &[u8]) -> Vec<Self> {
        std::iter::from_fn(|| Self::read(&mut bytes)).collect()
    }

    /// Whether its sender ends the stream.
    pub fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The code of a reset.
    pub fn code(&self) -> Option<u32> {
        let code = <[u8; 4]>::try_from(&self.payload[..]);
        code.ok().filter(|_| self.kind == RST_STREAM).map(u32::from_be_bytes)
    }

    /// The code of the end of a connection.
    pub fn goaway_code(&self) -> Option<u32> {
        let code = self.payload.get(4..)?.first_chunk();
        code.filter(|_| self.kind == GOAWAY).map(|code| u32::from_be_bytes(*code))
    }
}

/// How many whole frames `bytes` begins with.
pub fn count(mut bytes: &[u8]) -> u64 {
    let mut frames = 0;
    while let Some([l0, l1, l2, ..]) = bytes.first_chunk::<9>() {
        let end = 9 + u32::from_be_bytes([0, *l0, *l1, *l2]) as usize;
        let Some(rest) = bytes.get(end..) else { break };
        bytes = rest;
        frames += 1;
    }
    frames
}

/// The types of the whole frames that `bytes` begins with.
pub fn kinds(bytes: &[u8]) -> Vec<u8> {
    Frame::all(bytes).into_iter().map(|frame| frame.kind).collect()
}
