//! Trailer sections: field lines behind the last chunk.
//!
//! Fields that are not allowed in trailers are dropped, as RFC 9110 section 6.5.1 has it: the
//! message has been forwarded by then, nothing downstream reads them, and refusing would only
//! truncate it. Malformed lines are refused like those of a head; in those of a response, line ends
//! without CR and folded lines are taken. Trailers are never merged into a head.

use memchr::memchr;

use super::fields::split_field;
use super::syntax::{is_field_value, is_forbidden_trailer, trim};
use super::{Limits, Refusal};
use crate::Fields;

/// A trailer section as it comes in.
#[derive(Debug)]
pub(super) struct TrailerSection {
    pub(super) fields: Fields,
    /// The beginning of a line whose end has not come yet.
    pending: Vec<u8>,
    bytes: usize,
    lines: usize,
    is_lenient: bool,
    /// What became of the line before, which another may continue.
    before: Before,
}

#[derive(Clone, Copy, Debug, Default)]
enum Before {
    #[default]
    Nothing,
    Dropped,
    Kept,
}

pub(super) struct Read {
    pub(super) consumed: usize,
    pub(super) ends_section: bool,
}

impl TrailerSection {
    pub(super) fn new(is_lenient: bool) -> Self {
        Self {
            fields: Fields::new(),
            pending: Vec::new(),
            bytes: 0,
            lines: 0,
            is_lenient,
            before: Before::Nothing,
        }
    }

    /// Takes one line, or what there is of it.
    pub(super) fn read(&mut self, input: &[u8], limits: &Limits) -> Result<Read, Refusal> {
        let line_end = memchr(b'\n', input).map(|at| at + 1);
        let piece = &input[..line_end.unwrap_or(input.len())];
        self.bytes += piece.len();
        if self.bytes > limits.trailer_bytes {
            return Err(Refusal::TrailersTooLong { limit: limits.trailer_bytes });
        }
        let ends_section = match line_end {
            Some(_) if self.pending.is_empty() => self.end_line(piece, limits)?,
            Some(_) => {
                let mut line = std::mem::take(&mut self.pending);
                line.extend_from_slice(piece);
                self.end_line(&line, limits)?
            }
            None => {
                self.pending.extend_from_slice(piece);
                false
            }
        };
        Ok(Read { consumed: piece.len(), ends_section })
    }

    fn end_line(&mut self, line: &[u8], limits: &Limits) -> Result<bool, Refusal> {
        self.lines += 1;
        let line = match line.strip_suffix(b"\r\n") {
            Some(line) => line,
            None if self.is_lenient => line.strip_suffix(b"\n").unwrap_or(line),
            None => return Err(Refusal::BareLineFeed { line: self.lines }),
        };
        if line.is_empty() {
            return Ok(true);
        }
        if self.lines > limits.trailer_fields {
            return Err(Refusal::TooManyTrailers { limit: limits.trailer_fields });
        }
        if self.is_lenient && matches!(line.first(), Some(b' ' | b'\t')) {
            self.unfold(line)?;
            return Ok(false);
        }
        let (name, value) = split_field(line, self.lines)?;
        self.before = Before::Dropped;
        if !is_forbidden_trailer(&name.to_ascii_lowercase()) {
            self.fields.push(name, value);
            self.before = Before::Kept;
        }
        Ok(false)
    }

    /// Takes a line that continues the one before it.
    fn unfold(&mut self, line: &[u8]) -> Result<(), Refusal> {
        if !is_field_value(line) {
            return Err(Refusal::FieldValue { line: self.lines });
        }
        match (self.before, trim(line)) {
            (Before::Nothing, _) => return Err(Refusal::FoldedLine { line: self.lines }),
            (Before::Dropped, _) | (Before::Kept, b"") => {}
            (Before::Kept, more) => self.fields.extend_last(more),
        }
        Ok(())
    }
}
