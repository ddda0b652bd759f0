//! `content-length` and `transfer-encoding`: the two fields that determine where a body ends.

use super::syntax::{is_token, members, trim};
use super::{Refusal, Version};

/// The values of a head's framing fields.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Framing {
    length: Option<u64>,
    codings: Option<Codings>,
}

/// What all `transfer-encoding` lines of a head name together.
#[derive(Clone, Copy, Debug, Default)]
struct Codings {
    chunked: bool,
    unknown: bool,
    malformed: bool,
}

/// The framing of one head, judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Declared {
    Nothing,
    Length(u64),
    Chunked,
}

impl Framing {
    /// RFC 9112 section 6.3 lets equal repetitions pass; they are refused, as is a list, because
    /// no sender has a reason for them and not every recipient agrees on them.
    pub(super) fn add_content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.length.is_some() {
            return Err(Refusal::ContentLengthRepeated);
        }
        self.length = Some(parse_length(value).ok_or(Refusal::ContentLength)?);
        Ok(())
    }

    pub(super) fn add_transfer_encoding(&mut self, value: &[u8]) {
        let codings = self.codings.get_or_insert_default();
        for member in members(value) {
            codings.add(member);
        }
    }

    pub(super) fn declared(&self, version: Version) -> Result<Declared, Refusal> {
        let Some(codings) = self.codings else {
            return Ok(self.length.map_or(Declared::Nothing, Declared::Length));
        };
        if self.length.is_some() {
            return Err(Refusal::LengthAndEncoding);
        }
        if version == Version::Http10 {
            return Err(Refusal::TransferEncodingInHttp10);
        }
        codings.judge()
    }
}

impl Codings {
    fn add(&mut self, coding: &[u8]) {
        let name = trim(coding.split(|&byte| byte == b';').next().unwrap_or_default());
        // Nothing may follow `chunked`, not even itself.
        self.malformed |= self.chunked || !is_token(name);
        if name.eq_ignore_ascii_case(b"chunked") {
            self.chunked = true;
            self.malformed |= name.len() != coding.len();
        } else {
            self.unknown = true;
        }
    }

    fn judge(self) -> Result<Declared, Refusal> {
        if self.malformed {
            Err(Refusal::TransferEncoding)
        } else if self.unknown {
            Err(Refusal::UnknownTransferEncoding)
        } else {
            Ok(Declared::Chunked)
        }
    }
}

/// At most 19 digits and 2^63 - 1, so that recipients with signed lengths agree.
fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = value.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    (length <= i64::MAX as u64).then_some(length)
}
