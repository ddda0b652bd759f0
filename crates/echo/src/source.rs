//! Bytes made as they are needed: a pattern repeated to a given length.

use std::sync::Arc;

/// Length of the pattern of plain bodies.
const PATTERN_BYTES: usize = 64 * 1024;

/// What is left of a generated body.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pattern: Arc<[u8]>,
    at: usize,
    left: u64,
}

impl Source {
    /// `total` bytes of `pattern` over and over; an empty pattern gives nothing.
    pub(crate) fn new(pattern: Arc<[u8]>, total: u64) -> Self {
        let left = if pattern.is_empty() { 0 } else { total };
        Self { pattern, at: 0, left }
    }

    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The next piece, at most `room` bytes; empty only at the end or without room.
    pub(crate) fn peek(&self, room: usize) -> &[u8] {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = (self.pattern.len() - self.at).min(left).min(room);
        &self.pattern[self.at..self.at + length]
    }

    /// Goes on behind the first `count` bytes of what `peek` gave.
    pub(crate) fn advance(&mut self, count: usize) {
        self.left -= count as u64;
        self.at += count;
        if self.at == self.pattern.len() {
            self.at = 0;
        }
    }
}

/// The pattern of plain bodies.
pub(crate) fn plain_pattern() -> Arc<[u8]> {
    crate::payload::payload(PATTERN_BYTES).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_repeats_to_the_length() {
        let mut source = Source::new(Arc::from(&b"abc"[..]), 8);
        let mut text = Vec::new();
        while source.left() > 0 {
            let piece = source.peek(2).to_vec();
            source.advance(piece.len());
            text.extend(piece);
        }
        assert_eq!(text, b"abcabcab");
        assert!(source.peek(9).is_empty());
    }
}
