//! Prefixed integers (RFC 7541 section 5.1), at most `MAX`.

use super::DecodeError;

/// Larger than any table, string or index that a limit would let through.
const MAX: usize = (1 << 28) - 1;

/// Reads an integer whose first byte, its upper bits masked off, is `first` of a prefix of `bits`
/// bits; `rest` is moved past what follows.
pub(super) fn decode(first: u8, bits: u32, rest: &mut &[u8]) -> Result<usize, DecodeError> {
    let prefix_max = (1_usize << bits) - 1;
    let prefix = usize::from(first) & prefix_max;
    if prefix < prefix_max {
        return Ok(prefix);
    }
    let mut value = prefix_max;
    for shift in [0, 7, 14, 21] {
        let (&byte, tail) = rest.split_first().ok_or(DecodeError::Truncated)?;
        *rest = tail;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return if value <= MAX { Ok(value) } else { Err(DecodeError::IntegerTooLarge) };
        }
    }
    Err(DecodeError::IntegerTooLarge)
}

/// Writes `value` with a prefix of `bits` bits below the pattern `first`.
#[inline]
pub(super) fn encode(first: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let prefix_max = (1_usize << bits) - 1;
    if value < prefix_max {
        out.push(first | value.to_le_bytes()[0]);
        return;
    }
    out.push(first | prefix_max.to_le_bytes()[0]);
    let mut rest = value - prefix_max;
    while rest >= 0x80 {
        out.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    out.push(rest.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: usize, bits: u32, wire: &[u8]) {
        let mut out = Vec::new();
        encode(0, bits, value, &mut out);
        assert_eq!(out, wire, "encoding {value}");
        let mut rest = &wire[1..];
        assert_eq!(decode(wire[0], bits, &mut rest), Ok(value));
        assert!(rest.is_empty());
    }

    #[test]
    fn examples_of_rfc_7541_appendix_c_1() {
        check(10, 5, &[0b01010]);
        check(1337, 5, &[0b11111, 0b1001_1010, 0b0000_1010]);
        check(42, 8, &[0b0010_1010]);
    }

    #[test]
    fn borders_of_the_prefix_round_trip() {
        for bits in 4..=8 {
            for value in [0, 1, 14, 15, 16, 30, 31, 127, 128, 254, 255, 256, 16_383, MAX] {
                let mut out = Vec::new();
                encode(0, bits, value, &mut out);
                assert_eq!(decode(out[0], bits, &mut &out[1..]), Ok(value));
            }
        }
    }

    #[test]
    fn overflow_and_truncation_are_refused() {
        let endless = [0xff; 12];
        assert_eq!(decode(0xff, 7, &mut &endless[..]), Err(DecodeError::IntegerTooLarge));
        let zeros = [0x80; 12];
        assert_eq!(decode(0xff, 7, &mut &zeros[..]), Err(DecodeError::IntegerTooLarge));
        assert_eq!(
            decode(0xff, 7, &mut &[0xff, 0xff, 0xff, 0x7f][..]),
            Err(DecodeError::IntegerTooLarge)
        );
        assert_eq!(decode(0xff, 7, &mut &[0x80][..]), Err(DecodeError::Truncated));
        assert_eq!(decode(0xff, 7, &mut &[][..]), Err(DecodeError::Truncated));
    }
}
