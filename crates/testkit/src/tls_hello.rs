//! The beginning of a TLS connection that goes no further.

/// Plaintext of a record as long as it may be.
const RECORD_BYTES: usize = 16 * 1024;

/// The first `bytes` bytes (65,535 at most) of a ClientHello of the greatest length, in records of
/// the greatest length. Its content is void, since it is read only at its end.
#[must_use]
pub fn begun_hello(bytes: usize) -> Vec<u8> {
    const RECORD_HEAD: [u8; 5] = [22, 3, 1, (RECORD_BYTES >> 8) as u8, 0];
    let message = [&[1, 0, 0xff, 0xff][..], &[0; 0xffff]].concat();
    let records = message.chunks(RECORD_BYTES);
    records.flat_map(|part| [&RECORD_HEAD[..], part].concat()).take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_cut_where_it_is_to_be() {
        let hello = begun_hello(65_535);
        assert_eq!(hello.len(), 65_535);
        assert_eq!(hello[..9], [22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff]);
        assert_eq!(hello[5 + RECORD_BYTES..][..5], [22, 3, 1, 0x40, 0]);
        assert_eq!(begun_hello(7), hello[..7]);
    }
}
