//! Bodies of a given length whose bytes are always the same.

/// Makes `bytes` lower-case letters that a receiver can verify and that compress badly.
#[must_use]
pub fn payload(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            b'a' + u8::try_from(state % 26).expect("less than 26")
        })
        .collect()
}
