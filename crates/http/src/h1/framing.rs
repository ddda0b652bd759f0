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
    /// Of a request. RFC 9112 section 6.3 lets equal repetitions pass; they are refused, as is a list,
    /// because no sender has a reason for them and not every recipient agrees on them.
    pub(super) fn add_content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.length.is_some() {
            return Err(Refusal::ContentLengthRepeated);
        }
        self.length = Some(parse_length(value).ok_or(Refusal::ContentLength)?);
        Ok(())
    }

    /// Of a response, where the same number may come again: servers that pass on the fields of another
    /// answer write it twice, and what goes on has it once. An empty value is none.
    pub(super) fn add_content_lengths(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if value.is_empty() {
            return Ok(());
        }
        for member in members(value) {
            let length = parse_length(member).ok_or(Refusal::ContentLength)?;
            if self.length.is_some_and(|other| other != length) {
                return Err(Refusal::ContentLengthsDiffer);
            }
            self.length = Some(length);
        }
        Ok(())
    }

    /// Of a request. An empty member is no coding.
    pub(super) fn add_transfer_encoding(&mut self, value: &[u8]) {
        let codings = self.codings.get_or_insert_default();
        for member in members(value) {
            codings.add(member);
        }
    }

    /// Of a response, where empty members are passed over (RFC 9110 section 5.6.1.2).
    pub(super) fn add_transfer_encoding_of_response(&mut self, value: &[u8]) {
        let codings = self.codings.get_or_insert_default();
        for member in members(value).filter(|member| !member.is_empty()) {
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

    /// What a response declares. `transfer-encoding` overrides a length (RFC 9112 section 6.3), also in
    /// HTTP/1.0.
    pub(super) fn declared_of_response(&self, version: Version) -> Result<OfResponse, Refusal> {
        let Some(codings) = self.codings else {
            let declared = self.length.map_or(Declared::Nothing, Declared::Length);
            return Ok(OfResponse { declared, is_doubtful: false });
        };
        let is_doubtful = self.length.is_some() || version == Version::Http10;
        Ok(OfResponse { declared: codings.judge()?, is_doubtful })
    }
}

/// The framing of a response's head, judged.
pub(super) struct OfResponse {
    pub(super) declared: Declared,
    /// The server may mean another end: its connection must not carry another response.
    pub(super) is_doubtful: bool,
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
        } else if self.unknown || !self.chunked {
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
