//! Field lines: split, judged, and copied once into [`Fields`].

use memchr::memchr;

use super::framing::Framing;
use super::syntax::{is_field_value, is_token_byte, members, trim};
use super::{Refusal, Version};
use crate::Fields;

/// The most options that the `connection` fields of one message may name.
pub(super) const CONNECTION_OPTIONS_MAX: usize = 64;

/// Extra capacity (lines, bytes) for the fields that a proxy adds to a request.
const FORWARDING: (usize, usize) = (8, 320);

/// The lines of a head that the scanner has found whole: each ends in CR LF, or LF in a response.
pub(super) struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn new(lines: &'a [u8]) -> Self {
        Self { rest: lines, number: 0 }
    }
}

impl<'a> Iterator for Lines<'a> {
    /// Number from 1, and the line without its end.
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (line, rest) = self.rest.split_at(memchr(b'\n', self.rest)? + 1);
        self.rest = rest;
        self.number += 1;
        let line = &line[..line.len() - 1];
        Some((self.number, line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

/// The fields of a head, and the values of those that the codec owns or needs.
#[derive(Default)]
pub(super) struct HeadFields<'a> {
    /// Without `content-length` and `transfer-encoding`; without `host` in a request.
    pub(super) fields: Fields,
    pub(super) host: Option<&'a [u8]>,
    pub(super) framing: Framing,
    pub(super) connection: ConnectionOptions,
    pub(super) upgrade: UpgradeOffer,
    pub(super) expects_continue: bool,
}

/// The options of all `connection` lines that matter to the codec.
#[derive(Clone, Copy, Default)]
pub(super) struct ConnectionOptions {
    count: usize,
    close: bool,
    keep_alive: bool,
    pub(super) upgrade: bool,
}

/// What all `upgrade` lines offer.
#[derive(Clone, Copy, Default)]
pub(super) struct UpgradeOffer {
    any: bool,
    h2c: bool,
}

impl<'a> HeadFields<'a> {
    /// Reads the field lines of a request into `room`, which is empty; `host` is set apart.
    pub(super) fn of_request(
        lines: Lines<'a>,
        count: usize,
        mut room: Fields,
    ) -> Result<Self, Refusal> {
        let (more_lines, more_bytes) = FORWARDING;
        room.reserve(count + more_lines, lines.rest.len() + more_bytes);
        Self::read(lines, room, true)
    }

    pub(super) fn of_response(lines: Lines<'a>, count: usize) -> Result<Self, Refusal> {
        let room = Fields::with_capacity(count, lines.rest.len());
        Self::read(lines, room, false)
    }

    fn read(lines: Lines<'a>, room: Fields, is_request: bool) -> Result<Self, Refusal> {
        let mut head = Self { fields: room, ..Self::default() };
        for (number, line) in lines {
            let (name, value) = split_field(line, number)?;
            head.take(name, value, is_request)?;
        }
        Ok(head)
    }

    fn take(&mut self, name: &[u8], value: &'a [u8], is_request: bool) -> Result<(), Refusal> {
        match Known::of(name) {
            Known::ContentLength if is_request => return self.framing.add_content_length(value),
            Known::ContentLength => return self.framing.add_content_lengths(value),
            Known::TransferEncoding if is_request => {
                self.framing.add_transfer_encoding(value);
                return Ok(());
            }
            Known::TransferEncoding => {
                self.framing.add_transfer_encoding_of_response(value);
                return Ok(());
            }
            Known::Host if is_request => {
                let before = self.host.replace(value);
                return if before.is_some() { Err(Refusal::HostRepeated) } else { Ok(()) };
            }
            Known::Connection => self.connection.add(value)?,
            Known::Upgrade => self.upgrade.add(value),
            Known::Expect => {
                self.expects_continue |=
                    members(value).any(|member| member.eq_ignore_ascii_case(b"100-continue"));
            }
            Known::Secret => {
                self.fields.push_sensitive(name, value);
                return Ok(());
            }
            Known::Host | Known::Other => {}
        }
        self.fields.push(name, value);
        Ok(())
    }
}

impl ConnectionOptions {
    fn add(&mut self, value: &[u8]) -> Result<(), Refusal> {
        for option in members(value) {
            self.count += 1;
            if self.count > CONNECTION_OPTIONS_MAX {
                return Err(Refusal::TooManyConnectionOptions { limit: CONNECTION_OPTIONS_MAX });
            }
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
        Ok(())
    }

    /// Whether the sender means to go on after this message (RFC 9112 section 9.3).
    pub(super) fn persist(&self, version: Version) -> bool {
        match version {
            Version::Http11 => !self.close,
            Version::Http10 => self.keep_alive && !self.close,
        }
    }
}

impl UpgradeOffer {
    fn add(&mut self, value: &[u8]) {
        for protocol in members(value).filter(|protocol| !protocol.is_empty()) {
            self.any = true;
            self.h2c |= protocol.eq_ignore_ascii_case(b"h2c");
        }
    }

    /// Whether there is an offer that may be carried on. `h2c` may not: the requests inside would
    /// pass unseen, and RFC 9113 section 3.1 has withdrawn it.
    pub(super) fn is_acceptable(&self) -> bool {
        self.any && !self.h2c
    }

    pub(super) fn offers_h2c(&self) -> bool {
        self.h2c
    }
}

/// Names that the parser acts on.
enum Known {
    ContentLength,
    TransferEncoding,
    Host,
    Connection,
    Upgrade,
    Expect,
    /// Must not enter a compression table that requests of others share.
    Secret,
    Other,
}

impl Known {
    fn of(name: &[u8]) -> Self {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        match name.len() {
            4 if is(b"host") => Self::Host,
            6 if is(b"expect") => Self::Expect,
            6 if is(b"cookie") => Self::Secret,
            7 if is(b"upgrade") => Self::Upgrade,
            10 if is(b"connection") => Self::Connection,
            10 if is(b"set-cookie") => Self::Secret,
            13 if is(b"authorization") => Self::Secret,
            14 if is(b"content-length") => Self::ContentLength,
            17 if is(b"transfer-encoding") => Self::TransferEncoding,
            19 if is(b"proxy-authorization") => Self::Secret,
            _ => Self::Other,
        }
    }
}

/// Name and trimmed value of a field line without its CR LF; both are judged.
pub(super) fn split_field(line: &[u8], number: usize) -> Result<(&[u8], &[u8]), Refusal> {
    let name_end = line.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(line.len());
    match line.get(name_end) {
        Some(b':') if name_end > 0 => {}
        Some(b' ' | b'\t') if name_end == 0 => return Err(Refusal::FoldedLine { line: number }),
        Some(b' ' | b'\t') if trim(&line[name_end..]).first() == Some(&b':') => {
            return Err(Refusal::SpaceBeforeColon { line: number });
        }
        Some(_) | None => return Err(Refusal::FieldName { line: number }),
    }
    let value = &line[name_end + 1..];
    if !is_field_value(value) {
        return Err(Refusal::FieldValue { line: number });
    }
    Ok((&line[..name_end], trim(value)))
}
