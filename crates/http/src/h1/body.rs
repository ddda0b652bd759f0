//! Bodies: which bytes of the input are data, and where the message ends.

use std::ops::Range;

use super::chunk::ChunkFraming;
use super::trailers::TrailerSection;
use super::{BodyLength, Limits, Refusal};
use crate::Fields;

/// Reads one body. Holds none of its data, and needs no more input at a time than one byte.
#[derive(Debug)]
pub struct BodyDecoder {
    state: State,
    framing: ChunkFraming,
    /// Made when the last chunk has come.
    trailers: Option<Box<TrailerSection>>,
    limits: Limits,
    is_of_response: bool,
}

/// What one read of the input yields. With `data` empty, only framing was consumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Bytes of the input that are spent; `data` ends where they do.
    pub consumed: usize,
    /// The body data among them.
    pub data: Range<usize>,
}

/// What the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not ours.
    Finished,
    /// Data, as so many behind it.
    Fixed(u64),
    UntilClose,
    /// Data of a chunk that lacks so many.
    Chunk(u64),
    ChunkFraming,
    Trailers,
}

impl BodyDecoder {
    #[must_use]
    pub fn new(length: BodyLength, limits: &Limits) -> Self {
        let state = match length {
            BodyLength::None | BodyLength::Fixed(0) => State::Finished,
            BodyLength::Fixed(length) => State::Fixed(length),
            BodyLength::Chunked => State::ChunkFraming,
            BodyLength::UntilClose => State::UntilClose,
        };
        Self {
            state,
            framing: ChunkFraming::default(),
            trailers: None,
            limits: *limits,
            is_of_response: false,
        }
    }

    /// Of a response, where space after chunk sizes, line ends without CR and folded trailers are taken.
    #[must_use]
    pub fn of_response(length: BodyLength, limits: &Limits) -> Self {
        Self {
            framing: ChunkFraming::of_response(),
            is_of_response: true,
            ..Self::new(length, limits)
        }
    }

    /// Reads `input` up to the end of the next piece of data, of the message, or of the input.
    ///
    /// Call again with what is left until `consumed` is 0 or the body is finished. Data that comes
    /// before a mistake is given out before the mistake is refused. After a refusal the decoder is
    /// of no more use.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, Refusal> {
        let mut at = 0;
        while at < input.len() {
            let available = input.len() - at;
            let (data, next) = match self.state {
                State::Finished => break,
                State::ChunkFraming => {
                    self.read_framing(input[at])?;
                    at += 1;
                    continue;
                }
                State::Trailers => {
                    at += self.read_trailers(&input[at..])?;
                    continue;
                }
                State::UntilClose => (available, State::UntilClose),
                State::Fixed(left) => take(left, available, State::Fixed, State::Finished),
                State::Chunk(left) => take(left, available, State::Chunk, State::ChunkFraming),
            };
            self.state = next;
            return Ok(Step { consumed: at + data, data: at..at + data });
        }
        Ok(Step { consumed: at, data: at..at })
    }

    /// Whether the message has ended; the next byte is not part of it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// The trailers of a finished chunked body, once, if there were any that
    /// [may be there](super::syntax::is_forbidden_trailer); the others have been dropped.
    pub fn take_trailers(&mut self) -> Option<Fields> {
        if !self.is_finished() {
            return None;
        }
        self.trailers.take().map(|section| section.fields).filter(|fields| !fields.is_empty())
    }

    /// The peer has closed: the end of a body that lasts until then, [`Refusal::Truncated`] for
    /// any other that has not ended.
    pub fn close(&mut self) -> Result<(), Refusal> {
        match self.state {
            State::Finished | State::UntilClose => {
                self.state = State::Finished;
                Ok(())
            }
            State::Fixed(_) | State::Chunk(_) | State::ChunkFraming | State::Trailers => {
                Err(Refusal::Truncated)
            }
        }
    }

    fn read_framing(&mut self, byte: u8) -> Result<(), Refusal> {
        match self.framing.take(byte, &self.limits)? {
            None => {}
            Some(0) => self.state = State::Trailers,
            Some(size) => self.state = State::Chunk(size),
        }
        Ok(())
    }

    fn read_trailers(&mut self, input: &[u8]) -> Result<usize, Refusal> {
        let is_lenient = self.is_of_response;
        let section = self.trailers.get_or_insert_with(|| TrailerSection::new(is_lenient).into());
        let read = section.read(input, &self.limits)?;
        if read.ends_section {
            self.state = State::Finished;
        }
        Ok(read.consumed)
    }
}

/// How many of `available` bytes belong to the `left` ones, and the state behind them.
fn take(left: u64, available: usize, more: fn(u64) -> State, end: State) -> (usize, State) {
    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(available);
    match left - taken as u64 {
        0 => (taken, end),
        rest => (taken, more(rest)),
    }
}

#[cfg(test)]
impl BodyDecoder {
    /// Whether the last chunk has come.
    pub(super) fn trailers_begun(&self) -> bool {
        self.state == State::Trailers || self.is_finished()
    }

    /// Data that the current chunk still lacks.
    pub(super) fn chunk_left(&self) -> u64 {
        if let State::Chunk(left) = self.state { left } else { 0 }
    }
}
