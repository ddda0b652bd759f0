//! One direction of a body between its source and its sink.
//!
//! Normally empty: bytes go from the source's read straight into the sink's output. What the
//! sink cannot take waits here, bounded because the source is then held back.

use tollway_http::Fields;

/// Bytes that wait, and where both ends stand.
#[derive(Default)]
pub(crate) struct Pipe {
    pending: Vec<u8>,
    start: usize,
    /// Flow-control credit of the source not yet given back.
    pub(crate) credit_owed: usize,
    /// The source has ended.
    pub(crate) ended: bool,
    pub(crate) trailers: Option<Fields>,
    /// The end has been handed to the sink.
    pub(crate) finished: bool,
    /// Stands in the sink's line of those that wait for room.
    pub(crate) in_line: bool,
    /// Bytes passed on.
    pub(crate) passed: u64,
}

impl Pipe {
    /// A pipe of which the source may have ended already.
    pub(crate) fn new(ended: bool) -> Self {
        Self { ended, ..Self::default() }
    }

    pub(crate) fn pending(&self) -> &[u8] {
        &self.pending[self.start..]
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len() - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn push(&mut self, data: &[u8]) {
        if self.start > 0 && self.start >= self.pending.len() / 2 {
            self.pending.drain(..self.start);
            self.start = 0;
        }
        self.pending.extend_from_slice(data);
    }

    /// Puts bytes in front of everything that waits (a replay).
    pub(crate) fn push_front(&mut self, data: Vec<u8>) {
        let rest = self.pending.split_off(self.start);
        self.pending = data;
        self.start = 0;
        self.pending.extend_from_slice(&rest);
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.pending.len() {
            self.pending = Vec::new();
            self.start = 0;
        }
    }

    /// Whether nothing more will come through.
    pub(crate) fn is_drained(&self) -> bool {
        self.ended && self.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_they_came() {
        let mut pipe = Pipe::default();
        pipe.push(b"abc");
        pipe.consume(2);
        pipe.push(b"def");
        assert_eq!(pipe.pending(), b"cdef");
        pipe.push_front(b"ab".to_vec());
        assert_eq!(pipe.pending(), b"abcdef");
        pipe.consume(6);
        assert!(pipe.is_empty());
        assert!(!pipe.is_drained());
        pipe.ended = true;
        assert!(pipe.is_drained());
    }
}
