//! HTTP/2 frames and header blocks by hand: what no codec of ours or of anybody else would send.

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// The preface, empty SETTINGS, and the acknowledgement of the server's before they have come.
pub(crate) fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, ACK, 0, &[])].concat()
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    const CANCEL: u32 = 8;
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

pub(crate) fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// A header block of literals that enter no table (RFC 7541 section 6.2.2), without Huffman.
pub(crate) fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in lines {
        literal(0, name, value, &mut out);
    }
    out
}

/// A literal that enters the dynamic table, as its newest entry (section 6.2.1).
pub(crate) fn indexed_literal(name: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    literal(0x40, name, value, &mut out);
    out
}

/// A reference to the newest entry of the dynamic table: one byte.
pub(crate) const NEWEST: u8 = 0x80 | 62;

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

/// The types of the whole frames that `bytes` begins with.
pub(crate) fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(behind) = rest.get(length..) else { break };
        kinds.push(head[3]);
        bytes = behind;
    }
    kinds
}
