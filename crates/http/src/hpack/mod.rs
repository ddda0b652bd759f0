//! Header compression of HTTP/2 (RFC 7541), bounded on both sides.
//!
//! One [`Decoder`] and one [`Encoder`] live as long as their connection and must see every header
//! block of it, in order. Neither validates names or values: the message layer does.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod static_table;
mod table;

#[cfg(test)]
mod tests;

pub use decoder::{DecodeError, Decoded, Decoder, ListLimits};
pub use encoder::Encoder;

/// What RFC 7541 section 4.1 adds to name and value for each line.
pub const LINE_OVERHEAD: usize = 32;

/// The table size both sides start with (RFC 9113 section 6.5.2).
pub const DEFAULT_TABLE_BYTES: usize = 4096;

/// Hash of `bytes`, continuing from `seed`. Not keyed: tables are small and bounded, so the worst
/// a peer can do with collisions is to make a look-up walk one of them.
const fn hash(seed: u32, mut bytes: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (seed as u64) ^ ((bytes.len() as u64) << 32);
    while let Some((word, rest)) = bytes.split_first_chunk::<8>() {
        state = (state.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR);
        bytes = rest;
    }
    let mut last = 0;
    while let Some((byte, rest)) = bytes.split_first() {
        last = (last << 8) | *byte as u64;
        bytes = rest;
    }
    state = (state.rotate_left(5) ^ last).wrapping_mul(FACTOR);
    (state >> 32) as u32
}
