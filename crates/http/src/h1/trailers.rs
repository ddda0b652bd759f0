//! Trailer sections: field lines behind the last chunk.
//!
//! Fields that are not allowed in trailers are dropped, as RFC 9110 section 6.5.1 has it: the
//! message has been forwarded by then, nothing downstream reads them, and refusing would only
//! truncate it. Malformed lines are refused like those of a head. Trailers are never merged into a
//! head.

use memchr::memchr;

use super::fields::split_field;
use super::syntax::is_forbidden_trailer;
use super::{Limits, Refusal};
use crate::Fields;

/// A trailer section as it comes in.
#[derive(Debug, Default)]
pub(super) struct TrailerSection {
    pub(super) fields: Fields,
    /// The beginning of a line whose end has not come yet.
    pending: Vec<u8>,
    bytes: usize,
    lines: usize,
}

pub(super) struct Read {
    pub(super) consumed: usize,
    pub(super) ends_section: bool,
}

impl TrailerSection {
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
        let Some(line) = line.strip_suffix(b"\r\n") else {
            return Err(Refusal::BareLineFeed { line: self.lines });
        };
        if line.is_empty() {
            return Ok(true);
        }
        if self.lines > limits.trailer_fields {
            return Err(Refusal::TooManyTrailers { limit: limits.trailer_fields });
        }
        let (name, value) = split_field(line, self.lines)?;
        if !is_forbidden_trailer(&name.to_ascii_lowercase()) {
            self.fields.push(name, value);
        }
        Ok(false)
    }
}
