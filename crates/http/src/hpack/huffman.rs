//! The Huffman code of RFC 7541 appendix B, which others send.
//!
//! The code is canonical: codes of one length are consecutive in the order of their symbols, and
//! each length starts where the shorter one ended. So the lengths are the whole data; codes and
//! decoding tables are computed from them by the compiler.

use super::DecodeError;

/// Code lengths in bits, by symbol (RFC 7541 appendix B); the last one is EOS.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, // 0x00
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, // 0x10
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, // 0x20
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, // 0x30
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, // 0x40
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, // 0x50
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, // 0x60
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, // 0x70
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, // 0x80
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, // 0x90
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, // 0xa0
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, // 0xb0
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, // 0xc0
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, // 0xd0
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, // 0xe0
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, // 0xf0
    30,
];

const SYMBOLS: usize = 257;
const EOS: u16 = 256;
const MAX_LENGTH: usize = 30;

/// Codes no longer than this are decoded by one look-up: all of printable ASCII that matters.
const FAST_BITS: u32 = 9;

/// Symbols of each code length: where they start in `ORDERED`, and their first code.
#[derive(Clone, Copy)]
struct Length {
    first_code: u32,
    first_symbol: u16,
    count: u16,
}

/// Symbols by length, then by value: the order of their codes.
const ORDERED: [u16; SYMBOLS] = order_symbols();
const BY_LENGTH: [Length; MAX_LENGTH + 1] = group_by_length();
#[cfg(test)]
static CODES: [u32; SYMBOLS] = assign_codes();
static FAST: [(u8, u8); 1 << FAST_BITS] = fill_fast_table();

/// Appends the code of `plain`, padded with ones. The encoder writes strings as they are.
#[cfg(test)]
pub(super) fn encode(plain: &[u8], out: &mut Vec<u8>) {
    let mut held: u64 = 0;
    let mut held_bits: u32 = 0;
    for &byte in plain {
        let symbol = usize::from(byte);
        let length = u32::from(LENGTHS[symbol]);
        held = (held << length) | u64::from(CODES[symbol]);
        held_bits += length;
        if held_bits >= 32 {
            held_bits -= 32;
            let word = (held >> held_bits) & u64::from(u32::MAX);
            out.extend_from_slice(&word.to_be_bytes()[4..]);
        }
    }
    while held_bits >= 8 {
        held_bits -= 8;
        out.push((held >> held_bits).to_le_bytes()[0]);
    }
    if held_bits > 0 {
        let padded = (held << (8 - held_bits)) | (0xff >> held_bits);
        out.push(padded.to_le_bytes()[0]);
    }
}

/// Appends the decoded text of `coded`: at most 8/5 of its length.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    out.reserve(coded.len() * 8 / 5);
    let mut input = coded;
    let mut held: u64 = 0; // the unread bits, left-aligned
    let mut held_bits: u32 = 0;
    loop {
        while held_bits <= 56 {
            let Some((&byte, rest)) = input.split_first() else { break };
            held |= u64::from(byte) << (56 - held_bits);
            held_bits += 8;
            input = rest;
        }
        let (symbol, length) = next_symbol(held);
        if length > held_bits {
            return check_padding(held, held_bits);
        }
        if symbol == EOS {
            return Err(DecodeError::Huffman);
        }
        out.push(symbol.to_le_bytes()[0]);
        held <<= length;
        held_bits -= length;
    }
}

/// The symbol at the left of `held` and its length; bits that are not there read as zeros, which
/// the caller notices by the length.
fn next_symbol(held: u64) -> (u16, u32) {
    let at = usize::try_from(held >> (64 - FAST_BITS)).expect("nine bits");
    let (symbol, length) = FAST[at];
    if length != 0 {
        return (u16::from(symbol), u32::from(length));
    }
    for length in FAST_BITS + 1..30 {
        let code = u32::try_from(held >> (64 - length)).expect("fewer than 32 bits");
        let group = BY_LENGTH[length as usize];
        if code.wrapping_sub(group.first_code) < u32::from(group.count) {
            let nth = u16::try_from(code - group.first_code).expect("below a u16");
            return (ORDERED[usize::from(group.first_symbol + nth)], length);
        }
    }
    let group = BY_LENGTH[MAX_LENGTH];
    let code = u32::try_from(held >> (64 - MAX_LENGTH)).expect("30 bits");
    let nth = usize::try_from(code.wrapping_sub(group.first_code)).expect("32 bits fit");
    (ORDERED.get(usize::from(group.first_symbol) + nth).copied().unwrap_or(EOS), 30)
}

/// What is left must be fewer than eight bits, all ones (RFC 7541 section 5.2).
fn check_padding(held: u64, held_bits: u32) -> Result<(), DecodeError> {
    let ones = held.leading_ones();
    if held_bits < 8 && ones >= held_bits { Ok(()) } else { Err(DecodeError::Huffman) }
}

const fn order_symbols() -> [u16; SYMBOLS] {
    let mut ordered = [0; SYMBOLS];
    let mut placed = 0;
    let mut length = 1;
    while length <= MAX_LENGTH {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                ordered[placed] = symbol as u16;
                placed += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    ordered
}

const fn group_by_length() -> [Length; MAX_LENGTH + 1] {
    let mut groups = [Length { first_code: 0, first_symbol: 0, count: 0 }; MAX_LENGTH + 1];
    let mut code = 0_u32;
    let mut at = 0;
    let mut length = 1;
    while length <= MAX_LENGTH {
        code <<= 1;
        groups[length] = Length { first_code: code, first_symbol: at as u16, count: 0 };
        while at < SYMBOLS && LENGTHS[ORDERED[at] as usize] as usize == length {
            groups[length].count += 1;
            code += 1;
            at += 1;
        }
        length += 1;
    }
    groups
}

const fn assign_codes() -> [u32; SYMBOLS] {
    let mut codes = [0; SYMBOLS];
    let mut at = 0;
    while at < SYMBOLS {
        let symbol = ORDERED[at] as usize;
        let group = BY_LENGTH[LENGTHS[symbol] as usize];
        codes[symbol] = group.first_code + (at as u32 - group.first_symbol as u32);
        at += 1;
    }
    codes
}

const fn fill_fast_table() -> [(u8, u8); 1 << FAST_BITS] {
    let codes = assign_codes();
    let mut table = [(0, 0); 1 << FAST_BITS];
    let mut symbol = 0;
    while symbol < 256 {
        let length = LENGTHS[symbol] as u32;
        if length <= FAST_BITS {
            let spare = FAST_BITS - length;
            let first = (codes[symbol] << spare) as usize;
            let mut at = first;
            while at < first + (1 << spare) {
                table[at] = (symbol as u8, length as u8);
                at += 1;
            }
        }
        symbol += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code points of RFC 7541 appendix B from each length, as printed there.
    #[test]
    fn codes_are_those_of_appendix_b() {
        for (symbol, code) in [
            (b'0', 0x0),
            (b't', 0x9),
            (b' ', 0x14),
            (b'u', 0x2d),
            (b':', 0x5c),
            (b'z', 0x7b),
            (b'&', 0xf8),
            (b'Z', 0xfd),
            (b'!', 0x3f8),
            (b'?', 0x3fc),
            (b'\'', 0x7fa),
            (b'#', 0xffa),
            (0, 0x1ff8),
            (b'^', 0x3ffc),
            (b'<', 0x7ffc),
            (b'\\', 0x7fff0),
            (128, 0xfffe6),
            (153, 0x1fffdc),
            (129, 0x3fffd2),
            (1, 0x7fffd8),
            (9, 0xffffea),
            (199, 0x1ffffec),
            (192, 0x3ffffe0),
            (203, 0x7ffffde),
            (2, 0xfffffe2),
            (249, 0xffffffe),
            (10, 0x3ffffffc),
            (22, 0x3ffffffe),
        ] {
            assert_eq!(CODES[usize::from(symbol)], code, "symbol {symbol}");
        }
        assert_eq!(CODES[usize::from(EOS)], 0x3fff_ffff);
    }

    #[test]
    fn the_code_is_complete() {
        let sum: u64 = LENGTHS.iter().map(|&length| 1_u64 << (30 - length)).sum();
        assert_eq!(sum, 1 << 30);
    }

    #[test]
    fn every_byte_round_trips_in_every_position() {
        let all: Vec<u8> = (0..=255).collect();
        for shift in 0..8 {
            let mut plain = vec![b'0'; shift];
            plain.extend(&all);
            plain.extend(all.iter().rev());
            let mut coded = Vec::new();
            encode(&plain, &mut coded);
            let mut back = Vec::new();
            decode(&coded, &mut back).unwrap();
            assert_eq!(back, plain);
        }
    }

    #[test]
    fn bad_padding_and_eos_are_refused() {
        let refused = |coded: &[u8]| assert!(decode(coded, &mut Vec::new()).is_err(), "{coded:x?}");
        refused(&[0b0000_0000]); // '0' and three bits of padding that are not ones
        refused(&[0b0000_0111, 0xff]); // more than seven bits of padding
        refused(&[0xff]); // padding alone, eight bits
        refused(&[0xff, 0xff, 0xff, 0xff]); // EOS
        refused(&[0xff, 0xff, 0xff, 0xfc, 0]); // EOS' neighbour, then zeros
        decode(&[0b0000_0111], &mut Vec::new()).unwrap();
        decode(&[], &mut Vec::new()).unwrap();
    }
}
