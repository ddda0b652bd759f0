//! Finds in the written frames of HTTP/2 which streams and connections end for mistakes of the peer:
//! the library that serves reports them to the peer alone.

const FRAME_HEAD_BYTES: usize = 9;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
/// Where the code begins in the payload of these frames, and its bytes.
const RESET_CODE_AT: usize = 0;
const GOAWAY_CODE_AT: usize = 4;
const CODE_BYTES: usize = 4;

/// The codes (RFC 9113 section 7) for which a peer is not to blame, or that end what is answered.
const BLAMELESS: [u32; 5] = [NO_ERROR, INTERNAL_ERROR, CANCEL, CONNECT_ERROR, HTTP_1_1_REQUIRED];
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;
const CONNECT_ERROR: u32 = 10;
const HTTP_1_1_REQUIRED: u32 = 13;

/// Follows the frames of one connection.
#[derive(Default)]
pub(super) struct Frames {
    /// The examined bytes of the frame that has begun.
    begun: Vec<u8>,
    /// Its bytes that are skipped.
    rest: usize,
}

impl Frames {
    /// Follows the next written bytes. Returns how many streams, or the connection, they end for
    /// mistakes.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> u64 {
        let mut refused = 0;
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            let (taken, others) = bytes.split_at(self.missing().min(bytes.len()));
            self.begun.extend_from_slice(taken);
            bytes = others;
            if self.missing() == 0 {
                refused += u64::from(self.end_frame());
            }
        }
        refused
    }

    /// Missing bytes to examine of the frame that has begun.
    fn missing(&self) -> usize {
        let wanted = self.code_at().map_or(FRAME_HEAD_BYTES, |at| at + CODE_BYTES);
        wanted - self.begun.len()
    }

    /// Where the code of that frame is, if it has one.
    fn code_at(&self) -> Option<usize> {
        match *self.begun.get(3)? {
            RST_STREAM => Some(FRAME_HEAD_BYTES + RESET_CODE_AT),
            GOAWAY => Some(FRAME_HEAD_BYTES + GOAWAY_CODE_AT),
            _ => None,
        }
    }

    /// Skips the rest of the frame. Returns whether it ends something for mistakes.
    fn end_frame(&mut self) -> bool {
        let code = self.code_at().and_then(|at| self.begun.get(at..)?.first_chunk());
        let is_refusal = code.is_some_and(|code| !BLAMELESS.contains(&u32::from_be_bytes(*code)));
        let length = [0, self.begun[0], self.begun[1], self.begun[2]];
        let length = u32::from_be_bytes(length) as usize;
        self.rest = (FRAME_HEAD_BYTES + length).saturating_sub(self.begun.len());
        self.begun.clear();
        is_refusal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u8 = 0;
    const ENHANCE_YOUR_CALM: u32 = 11;
    const REFUSED_STREAM: u32 = 7;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        bytes.extend(payload);
        bytes
    }

    fn goaway(code: u32, words: &[u8]) -> Vec<u8> {
        frame(GOAWAY, &[&[0; 4], &code.to_be_bytes()[..], words].concat())
    }

    fn reset(code: u32) -> Vec<u8> {
        frame(RST_STREAM, &code.to_be_bytes())
    }

    #[test]
    fn what_ends_for_mistakes_is_seen_in_any_pieces() {
        // A payload that looks like a frame, and an empty one.
        let data = frame(DATA, &reset(REFUSED_STREAM));
        let written = [
            data.clone(),
            frame(DATA, &[]),
            reset(REFUSED_STREAM),
            goaway(NO_ERROR, b""),
            reset(CANCEL),
            data,
            goaway(ENHANCE_YOUR_CALM, b"too_many_resets"),
            reset(NO_ERROR),
        ]
        .concat();
        for piece in 1..=written.len() {
            let mut frames = Frames::default();
            let refused: u64 = written.chunks(piece).map(|bytes| frames.follow(bytes)).sum();
            assert_eq!(refused, 2, "in pieces of {piece}");
        }
    }
}
