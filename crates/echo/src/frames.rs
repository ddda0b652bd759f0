//! Where gRPC messages begin and end in a stream of bytes, without holding any of them.

/// Bytes before each message: a flag and the length.
pub const PREFIX_BYTES: usize = 5;

/// Follows the frames of one direction of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounter {
    prefix: [u8; PREFIX_BYTES],
    prefix_seen: usize,
    /// Bytes of the current message still to come.
    left: u64,
    /// Complete messages.
    pub messages: u64,
    /// Bytes of messages, complete or not, without their prefixes.
    pub message_bytes: u64,
    /// A flag that is neither 0 nor 1 was seen.
    pub malformed: bool,
}

impl FrameCounter {
    pub fn feed(&mut self, mut input: &[u8]) {
        while !input.is_empty() {
            if self.prefix_seen == PREFIX_BYTES {
                input = self.skip_message(input);
                continue;
            }
            let wanted = (PREFIX_BYTES - self.prefix_seen).min(input.len());
            let (head, rest) = input.split_at(wanted);
            self.prefix[self.prefix_seen..self.prefix_seen + wanted].copy_from_slice(head);
            self.prefix_seen += wanted;
            input = rest;
            if self.prefix_seen == PREFIX_BYTES {
                self.begin_message();
            }
        }
    }

    /// Whether the bytes so far end with a message, or there were none.
    pub fn is_at_border(&self) -> bool {
        self.prefix_seen == 0
    }

    fn begin_message(&mut self) {
        let [flag, length @ ..] = self.prefix;
        self.malformed |= flag > 1;
        self.left = u64::from(u32::from_be_bytes(length));
        self.end_if_complete();
    }

    fn skip_message<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len());
        self.left -= taken as u64;
        self.message_bytes += taken as u64;
        self.end_if_complete();
        &input[taken..]
    }

    fn end_if_complete(&mut self) {
        if self.left == 0 {
            self.messages += 1;
            self.prefix_seen = 0;
        }
    }
}

/// A message behind its prefix, uncompressed. Messages are far below 4 GiB.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("messages are limited to far below 4 GiB");
    let mut framed = Vec::with_capacity(PREFIX_BYTES + message.len());
    framed.push(0);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    framed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_message_is_a_message() {
        let mut counter = FrameCounter::default();
        counter.feed(&frame(b""));
        assert_eq!((counter.messages, counter.is_at_border()), (1, true));
        counter.feed(&[0, 0]);
        assert!(!counter.is_at_border());
    }

    #[test]
    fn an_unknown_flag_is_malformed() {
        let mut counter = FrameCounter::default();
        counter.feed(&[2, 0, 0, 0, 0]);
        assert!(counter.malformed);
    }

    proptest! {
        #[test]
        fn any_split_counts_the_same(
            sizes in proptest::collection::vec(0_usize..50, 0..10),
            cut in 1_usize..20,
        ) {
            let bytes: Vec<u8> = sizes.iter().flat_map(|size| frame(&vec![7; *size])).collect();
            let mut counter = FrameCounter::default();
            for piece in bytes.chunks(cut) {
                counter.feed(piece);
            }
            prop_assert_eq!(counter.messages, sizes.len() as u64);
            prop_assert_eq!(counter.message_bytes, sizes.iter().sum::<usize>() as u64);
            prop_assert!(counter.is_at_border() && !counter.malformed);
        }
    }
}
