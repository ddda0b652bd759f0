//! Chunk framing: size lines and the line end after the data of each chunk.
//!
//! In a response, space after a size and line ends without CR are taken: servers write them, and what
//! goes on is framed by the writer.

use super::syntax::is_field_value;
use super::{Limits, Refusal};

/// Reads chunk framing byte by byte, so that it never needs a line as a whole.
#[derive(Debug, Default)]
pub(super) struct ChunkFraming {
    position: Position,
    size: u64,
    digits: u8,
    /// Bytes of the current size line.
    line_bytes: usize,
    /// Bytes of all extensions so far.
    extension_bytes: usize,
    /// Space behind a size and line ends of LF alone are taken.
    is_lenient: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum Position {
    #[default]
    Size,
    /// In white space before an extension.
    Space,
    Extension,
    /// Behind the CR of a size line.
    LineEnd,
    /// Behind the data of a chunk.
    DataEnd,
    /// Behind the CR that follows it.
    DataLineEnd,
}

impl ChunkFraming {
    pub(super) fn of_response() -> Self {
        Self { is_lenient: true, ..Self::default() }
    }

    /// Takes the next byte; the size of the chunk that begins behind it, if it ends a size line.
    pub(super) fn take(&mut self, byte: u8, limits: &Limits) -> Result<Option<u64>, Refusal> {
        self.position = match (self.position, byte) {
            (Position::Space, b' ' | b'\t') => self.count_extension(Position::Space, limits)?,
            (Position::Space, b';') => self.count_extension(Position::Extension, limits)?,
            (Position::Space, b'\r') if self.is_lenient => Position::LineEnd,
            (Position::Size, b'\n') if self.is_lenient && self.digits > 0 => {
                return Ok(Some(self.end_line()));
            }
            (Position::Space | Position::Extension, b'\n') if self.is_lenient => {
                return Ok(Some(self.end_line()));
            }
            (Position::Size, _) => self.take_size(byte, limits)?,
            (Position::Space, _) => return Err(Refusal::ChunkSize),
            (Position::Extension, b'\r') => Position::LineEnd,
            (Position::Extension, _) if is_field_value(&[byte]) => {
                self.count_extension(Position::Extension, limits)?
            }
            (Position::Extension, _) => return Err(Refusal::ChunkExtension),
            (Position::LineEnd, b'\n') => return Ok(Some(self.end_line())),
            (Position::LineEnd, _) => return Err(Refusal::ChunkSize),
            (Position::DataEnd, b'\r') => Position::DataLineEnd,
            (Position::DataLineEnd, b'\n') => Position::Size,
            (Position::DataEnd, b'\n') if self.is_lenient => Position::Size,
            (Position::DataEnd | Position::DataLineEnd, _) => return Err(Refusal::ChunkEnd),
        };
        Ok(None)
    }

    fn take_size(&mut self, byte: u8, limits: &Limits) -> Result<Position, Refusal> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ if self.digits == 0 => return Err(Refusal::ChunkSize),
            b'\r' => return Ok(Position::LineEnd),
            b';' => return self.count_extension(Position::Extension, limits),
            b' ' | b'\t' => return self.count_extension(Position::Space, limits),
            _ => return Err(Refusal::ChunkSize),
        };
        // Leading zeros count as digits; the sign bit of a recipient is never reached.
        if self.digits == 16 || self.size > i64::MAX as u64 >> 4 {
            return Err(Refusal::ChunkTooLarge);
        }
        self.count_line(limits)?;
        self.size = self.size << 4 | u64::from(digit);
        self.digits += 1;
        Ok(Position::Size)
    }

    fn count_extension(&mut self, next: Position, limits: &Limits) -> Result<Position, Refusal> {
        self.count_line(limits)?;
        self.extension_bytes += 1;
        let limit = limits.chunk_extension_total_bytes;
        if self.extension_bytes > limit {
            return Err(Refusal::ChunkExtensionsTooLong { limit });
        }
        Ok(next)
    }

    fn count_line(&mut self, limits: &Limits) -> Result<(), Refusal> {
        self.line_bytes += 1;
        let limit = limits.chunk_line_bytes;
        if self.line_bytes > limit {
            return Err(Refusal::ChunkLineTooLong { limit });
        }
        Ok(())
    }

    /// The size on the line; what comes next here follows the chunk's data.
    fn end_line(&mut self) -> u64 {
        self.position = Position::DataEnd;
        self.digits = 0;
        self.line_bytes = 0;
        std::mem::take(&mut self.size)
    }
}
