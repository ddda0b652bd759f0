//! Finding the end of a head, once per byte however slowly it comes.

use std::ops::Range;

use memchr::memchr;

use super::request::METHOD_BYTES_MAX;
use super::syntax::is_token_byte;
use super::{Limits, Refusal};

/// Which kind of first line a head has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Request,
    Response,
}

/// Remembers how far a head has been searched for its end.
///
/// One per connection and direction. It restarts after a complete head, and when it is given fewer
/// bytes than before; between two calls that are `Partial` the input only grows.
#[derive(Clone, Debug)]
pub struct HeadScanner {
    searched: usize,
    /// Where the head begins, behind a leading empty line.
    start: usize,
    line_start: usize,
    /// Complete lines so far.
    lines: usize,
    /// Every line so far ends in CR LF and none continues another.
    is_plain: bool,
}

/// A complete head.
#[derive(Debug)]
pub(super) struct Head {
    /// Its lines, each with its line end, without the closing empty line.
    pub(super) lines: Range<usize>,
    /// Where the bytes after the head begin.
    pub(super) end: usize,
    /// Number of its field lines.
    pub(super) fields: usize,
    /// Each line ends in CR LF and none continues another: always so in a request.
    pub(super) is_plain: bool,
}

impl Default for HeadScanner {
    fn default() -> Self {
        Self { searched: 0, start: 0, line_start: 0, lines: 0, is_plain: true }
    }
}

impl HeadScanner {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on to the end of the head in `input`; `None` if it is not there yet.
    ///
    /// Judges line ends and limits, in the order of the bytes, so that the outcome does not depend
    /// on how the input was cut into pieces.
    pub(super) fn find(
        &mut self,
        input: &[u8],
        role: Role,
        limits: &Limits,
    ) -> Result<Option<Head>, Refusal> {
        if input.len() < self.searched {
            *self = Self::default();
        }
        self.check_first_byte(input, role)?;
        loop {
            let Some(at) = memchr(b'\n', &input[self.searched..]) else {
                self.searched = input.len();
                self.check_length(role, limits)?;
                return Ok(None);
            };
            self.searched += at + 1;
            self.check_length(role, limits)?;
            if self.end_line(input, role, limits)? {
                let head = Head {
                    lines: self.start..self.line_start,
                    end: self.searched,
                    fields: self.lines - 1,
                    is_plain: self.is_plain,
                };
                *self = Self::default();
                return Ok(Some(head));
            }
        }
    }

    /// A byte with which no head begins (such as the first of a TLS handshake) is refused at once
    /// rather than when its first line ends.
    fn check_first_byte(&self, input: &[u8], role: Role) -> Result<(), Refusal> {
        let first = match input.first() {
            Some(&byte) if self.searched == 0 => byte,
            Some(_) | None => return Ok(()),
        };
        match role {
            Role::Request if !is_token_byte(first) && !matches!(first, b'\r' | b'\n') => {
                Err(Refusal::RequestLine)
            }
            Role::Response if first != b'H' => Err(Refusal::StatusLine),
            Role::Request | Role::Response => Ok(()),
        }
    }

    fn check_length(&self, role: Role, limits: &Limits) -> Result<(), Refusal> {
        if role == Role::Request && self.lines == 0 {
            let line =
                limits.target_bytes.saturating_add(METHOD_BYTES_MAX + "  HTTP/1.1\r\n".len());
            let first_line_end = self.start.saturating_add(line);
            if first_line_end < limits.head_bytes && self.searched > first_line_end {
                return Err(Refusal::TargetTooLong { limit: limits.target_bytes });
            }
        }
        if self.searched > limits.head_bytes {
            return Err(Refusal::HeadTooLong { limit: limits.head_bytes });
        }
        Ok(())
    }

    /// Checks the line that ends at `searched`; returns whether it ends the head.
    fn end_line(&mut self, input: &[u8], role: Role, limits: &Limits) -> Result<bool, Refusal> {
        let line = &input[self.line_start..self.searched];
        if !line.ends_with(b"\r\n") {
            if role == Role::Request {
                return Err(Refusal::BareLineFeed { line: self.lines + 1 });
            }
            self.is_plain = false;
        }
        if role == Role::Response && self.lines > 0 && matches!(line, [b' ' | b'\t', ..]) {
            self.is_plain = false;
        }
        if !matches!(line, b"\r\n" | b"\n") {
            self.lines += 1;
            self.line_start = self.searched;
            if self.lines > limits.fields.saturating_add(1) {
                return Err(Refusal::TooManyFields { limit: limits.fields });
            }
            return Ok(false);
        }
        if self.lines > 0 {
            return Ok(true);
        }
        // RFC 9112 section 2.2: one empty line may come before a request line.
        if role == Role::Response || self.start > 0 {
            return Err(Refusal::EmptyLines);
        }
        self.start = self.searched;
        self.line_start = self.searched;
        Ok(false)
    }
}
