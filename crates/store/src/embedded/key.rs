//! Keys of the state in memory.
//!
//! A short key is stored in its row, where it is compared in four words. With a million rows, a
//! look-up waits for memory at each key that is stored elsewhere, and for most of these at a call.

use std::cmp::Ordering;

/// Bytes of a short key, at most.
const SHORT: usize = 31;
/// Says that a key is longer, in the place of its length.
const IS_LONG: u8 = 32;

/// A key, ordered as its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// The key's first bytes, zeros behind them, and the length of a short one.
    head: [u8; SHORT + 1],
    /// The whole of a long one.
    long: Box<[u8]>,
}

impl Key {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut head = [0; SHORT + 1];
        let (length, long) = match u8::try_from(bytes.len()) {
            Ok(length) if length < IS_LONG => (length, Box::default()),
            Ok(_) | Err(_) => (IS_LONG, bytes.into()),
        };
        let first = bytes.len().min(SHORT);
        head[..first].copy_from_slice(&bytes[..first]);
        head[SHORT] = length;
        Self { head, long }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match usize::from(self.head[SHORT]) {
            short @ 0..=SHORT => &self.head[..short],
            _ => &self.long,
        }
    }

    /// The head, so that words are in the order of bytes. A key that another begins with has zeros
    /// where the other goes on, and is the shorter one.
    fn words(&self) -> [u64; 4] {
        let (words, _) = self.head.as_chunks::<8>();
        std::array::from_fn(|at| u64::from_be_bytes(words[at]))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.words().cmp(&other.words()).then_with(|| self.long.cmp(&other.long))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_their_bytes_are() {
        let mut all: Vec<Vec<u8>> = vec![Vec::new()];
        for length in [1, 7, 8, 9, 30, 31, 32, 33, 64, 255, 256, 300] {
            for (position, byte) in
                [(0, 0), (0, 1), (length / 2, 1), (length - 1, 0), (length - 1, 9)]
            {
                for filling in [0, 1, 255] {
                    let mut key = vec![filling; length];
                    key[position] = byte;
                    all.push(key);
                }
            }
        }
        for one in &all {
            let key = Key::new(one);
            assert_eq!(key.as_slice(), one);
            for other in &all {
                assert_eq!(key.cmp(&Key::new(other)), one.cmp(other), "{one:?} {other:?}");
                assert_eq!(key == Key::new(other), one == other, "{one:?} {other:?}");
            }
        }
    }
}
