//! Packets in transit, in one ring of bytes.

use std::collections::VecDeque;

use crate::tun::MAX_PACKET_BYTES;

/// Packets in transit, first in first out, in one ring of bytes that grows up to a limit. Each
/// packet is contiguous: if one does not fit before the end, the rest remains unused.
#[derive(Debug)]
pub(super) struct HeldPackets {
    bytes: Vec<u8>,
    limit: usize,
    queue: VecDeque<Held>,
    tail: usize,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    due_ns: u64,
    start: usize,
    length: usize,
}

impl HeldPackets {
    pub(super) fn new(initial: usize, limit: usize) -> Self {
        Self { bytes: vec![0; initial], limit, queue: VecDeque::new(), tail: 0 }
    }

    /// Room for one packet of any length, or nothing while the limit is reached.
    pub(super) fn space(&mut self) -> Option<&mut [u8]> {
        if !self.make_room() {
            return None;
        }
        self.bytes.get_mut(self.tail..self.tail + MAX_PACKET_BYTES)
    }

    /// Keeps the first `length` bytes of what [`Self::space`] gave.
    pub(super) fn commit(&mut self, length: usize, due_ns: u64) {
        self.queue.push_back(Held { due_ns, start: self.tail, length });
        self.tail += length;
    }

    pub(super) fn first(&self) -> Option<(u64, &[u8])> {
        let held = self.queue.front()?;
        Some((held.due_ns, self.bytes.get(held.start..held.start + held.length)?))
    }

    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    fn make_room(&mut self) -> bool {
        let Some(first) = self.queue.front() else {
            self.tail = 0;
            return true;
        };
        // Strictly less: head and tail may only meet when nothing is held.
        let fits_before = |end: usize, tail: usize| tail + MAX_PACKET_BYTES < end;
        if self.tail > first.start {
            if self.tail + MAX_PACKET_BYTES <= self.bytes.len() {
                return true;
            }
            if fits_before(first.start, 0) {
                self.tail = 0;
                return true;
            }
        } else if fits_before(first.start, self.tail) {
            return true;
        }
        self.grow()
    }

    fn grow(&mut self) -> bool {
        let size = self.bytes.len() * 2;
        if size > self.limit {
            return false;
        }
        let mut bytes = vec![0; size];
        let mut tail = 0;
        for held in &mut self.queue {
            let from = held.start..held.start + held.length;
            bytes[tail..tail + held.length].copy_from_slice(&self.bytes[from]);
            held.start = tail;
            tail += held.length;
        }
        self.bytes = bytes;
        self.tail = tail;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::SplitMix64;
    use super::*;

    #[test]
    fn held_packets_come_out_in_order_and_intact_while_the_ring_wraps_and_grows() {
        let mut held = HeldPackets::new(4 * MAX_PACKET_BYTES, 32 * MAX_PACKET_BYTES);
        let mut random = SplitMix64(42);
        let (mut next_in, mut next_out) = (0u64, 0u64);
        for round in 0..20_000u64 {
            let fill = round % 200 < 100;
            if fill == (random.unit() < 0.7) {
                if let Some(space) = held.space() {
                    let length = 8 + (random.unit() * (MAX_PACKET_BYTES - 8) as f64) as usize;
                    space[..length].fill(next_in as u8);
                    space[..8].copy_from_slice(&next_in.to_le_bytes());
                    held.commit(length, next_in);
                    next_in += 1;
                }
            } else if let Some((due_ns, packet)) = held.first() {
                assert_eq!(due_ns, next_out);
                assert_eq!(packet[..8], next_out.to_le_bytes());
                assert!(packet[8..].iter().all(|&byte| byte == next_out as u8));
                held.pop();
                next_out += 1;
            }
        }
        assert!(next_out > 5_000);
        assert!(held.bytes.len() <= 32 * MAX_PACKET_BYTES);
    }

    #[test]
    fn a_full_ring_takes_no_more_until_something_left() {
        let mut held = HeldPackets::new(2 * MAX_PACKET_BYTES, 4 * MAX_PACKET_BYTES);
        let mut count = 0;
        while held.space().is_some() {
            held.commit(MAX_PACKET_BYTES, 0);
            count += 1;
        }
        assert!((3..=4).contains(&count), "{count}");
        while held.first().is_some() {
            held.pop();
        }
        assert!(held.space().is_some());
    }
}
