//! From bytes to frames (RFC 9113 section 4), and what must hold of any frame.

use super::connection::{Connection, Turn};
use super::data::DataFrame;
use super::error::Fault;
use super::frame::{FrameHead, HEAD_LEN, PREFACE, flag, kind};

/// What the next byte of input belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    Preface {
        matched: usize,
    },
    Head,
    Payload(FrameHead),
    /// An unknown frame's payload.
    Skip {
        left: u32,
    },
    PadLength(FrameHead),
    Data(DataFrame),
}

impl Connection {
    /// Takes one step of reading; false when `input` has no byte for the next one.
    pub(super) fn step(
        &mut self,
        input: &[u8],
        at: &mut usize,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        match self.reading {
            Reading::Preface { matched } => self.read_preface(matched, input, at),
            Reading::Head => self.read_head(input, at, turn),
            Reading::Payload(head) => self.read_payload(head, input, at, turn),
            Reading::Skip { left } => {
                let taken = left.min(available(input, *at));
                *at += taken as usize;
                self.reading = match left - taken {
                    0 => Reading::Head,
                    left => Reading::Skip { left },
                };
                Ok(left == taken)
            }
            Reading::PadLength(head) => {
                let Some(&padding) = input.get(*at) else { return Ok(false) };
                *at += 1;
                self.begin_data(head, Some(padding), turn)
            }
            Reading::Data(frame) => match self.read_data(frame, input, at, turn) {
                Some(unfinished) => {
                    self.reading = Reading::Data(unfinished);
                    Ok(false)
                }
                None => {
                    self.reading = Reading::Head;
                    Ok(true)
                }
            },
        }
    }

    fn read_preface(
        &mut self,
        matched: usize,
        input: &[u8],
        at: &mut usize,
    ) -> Result<bool, Fault> {
        let rest = &PREFACE[matched..];
        let taken = rest.len().min(input.len() - *at);
        if input[*at..*at + taken] != rest[..taken] {
            return Err(Fault::protocol("the connection does not begin with the HTTP/2 preface"));
        }
        *at += taken;
        let is_whole = taken == rest.len();
        self.reading =
            if is_whole { Reading::Head } else { Reading::Preface { matched: matched + taken } };
        Ok(is_whole)
    }

    fn read_head(
        &mut self,
        input: &[u8],
        at: &mut usize,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        if self.held.is_empty() && self.block.is_none() {
            self.unit_since = turn.now;
        }
        let bytes = match input[*at..].first_chunk::<HEAD_LEN>() {
            Some(bytes) if self.held.is_empty() => {
                *at += HEAD_LEN;
                *bytes
            }
            _ => {
                self.hold(HEAD_LEN, input, at);
                let Some(&bytes) = self.held.first_chunk::<HEAD_LEN>() else { return Ok(false) };
                self.held.clear();
                bytes
            }
        };
        let head = FrameHead::parse(bytes);
        self.check_head(head)?;
        self.reading = match head.kind {
            kind::DATA if head.has(flag::PADDED) => {
                if head.len == 0 {
                    return Err(Fault::frame_size("a padded DATA frame has no pad length"));
                }
                Reading::PadLength(head)
            }
            kind::DATA => return self.begin_data(head, None, turn),
            kind::HEADERS..=kind::CONTINUATION => Reading::Payload(head),
            _ => {
                self.charge_control_frame(turn.now)?;
                Reading::Skip { left: head.len }
            }
        };
        Ok(true)
    }

    /// What must hold of any frame, whatever its payload.
    fn check_head(&mut self, head: FrameHead) -> Result<(), Fault> {
        if !self.has_peer_settings {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return Err(Fault::protocol("the first frame is not SETTINGS"));
            }
            self.has_peer_settings = true;
        }
        if let Some(block) = self.block
            && (head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            return Err(Fault::protocol("a header block is interrupted by another frame"));
        }
        if head.len > self.config.max_frame {
            return Err(Fault::frame_size("a frame is larger than SETTINGS_MAX_FRAME_SIZE"));
        }
        Ok(())
    }

    fn read_payload(
        &mut self,
        head: FrameHead,
        input: &[u8],
        at: &mut usize,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        let len = head.len as usize;
        if self.held.is_empty()
            && let Some(payload) = input[*at..].get(..len)
        {
            *at += len;
            self.reading = Reading::Head;
            self.receive_frame(head, payload, turn)?;
            return Ok(true);
        }
        self.hold(len, input, at);
        if self.held.len() < len {
            return Ok(false);
        }
        self.reading = Reading::Head;
        let mut payload = std::mem::take(&mut self.held);
        let outcome = self.receive_frame(head, &payload, turn);
        payload.clear();
        self.held = payload;
        outcome.map(|()| true)
    }

    /// DATA begins: if the frame may not be delivered, its bytes are read and dropped.
    fn begin_data(
        &mut self,
        head: FrameHead,
        padding: Option<u8>,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Fault> {
        let (frame, outcome) = self.admit_data(head, padding, turn)?;
        self.reading = Reading::Data(frame);
        outcome.map(|()| true)
    }

    /// Moves input to `held` until that has `wanted` bytes.
    fn hold(&mut self, wanted: usize, input: &[u8], at: &mut usize) {
        let taken = (wanted - self.held.len()).min(input.len() - *at);
        self.held.extend_from_slice(&input[*at..*at + taken]);
        *at += taken;
    }

    /// Whether a preface, a header block or a frame other than DATA has begun and not ended.
    pub(super) fn is_unfinished(&self) -> bool {
        match self.reading {
            Reading::Head => !self.held.is_empty() || self.block.is_some(),
            Reading::Preface { .. } | Reading::Payload(_) | Reading::PadLength(_) => true,
            Reading::Skip { .. } => true,
            Reading::Data(_) => false,
        }
    }
}

fn available(input: &[u8], at: usize) -> u32 {
    u32::try_from(input.len() - at).unwrap_or(u32::MAX)
}
