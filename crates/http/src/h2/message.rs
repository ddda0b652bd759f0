//! Field lines to heads and trailers: the shape that RFC 9113 section 8 demands.
//!
//! Whatever could mean something else once it is written as HTTP/1.1 is malformed here.

use crate::h1::syntax::{escaped_length, is_field_value, push_escaped};
use crate::head::scheme_of;
use crate::{Field, Fields, Method, RequestHead, ResponseHead};

/// The message breaks a rule of RFC 9113 section 8: a stream error PROTOCOL_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Collects the lines of a request's head.
#[derive(Default)]
pub(super) struct RequestBuilder {
    /// What has come so far; it has no fields yet.
    head: Box<RequestHead>,
    has_method: bool,
    has_scheme: bool,
    has_authority: bool,
    has_path: bool,
    regular: Regular,
}

/// Collects the lines of a response's head.
#[derive(Default)]
pub(super) struct ResponseBuilder {
    status: Option<u16>,
    regular: Regular,
}

/// Collects trailers.
#[derive(Default)]
pub(super) struct TrailersBuilder {
    regular: Regular,
}

/// The lines that are not pseudo-header fields, less those that have a place of their own.
#[derive(Default)]
struct Regular {
    fields: Fields,
    cookie: Vec<u8>,
    is_cookie_sensitive: bool,
    host: Option<Vec<u8>>,
    content_length: Option<u64>,
    has_begun: bool,
    is_malformed: bool,
}

impl RequestBuilder {
    /// Collects into `head`, which is empty.
    pub(super) fn collecting(mut head: Box<RequestHead>) -> Self {
        let fields = std::mem::take(&mut head.fields);
        Self { head, regular: Regular { fields, ..Regular::default() }, ..Self::default() }
    }

    pub(super) fn add(&mut self, field: Field<'_>) {
        if !field.name.starts_with(b":") {
            return self.regular.add(field);
        }
        if self.add_pseudo(field).is_err() || self.regular.has_begun {
            self.regular.is_malformed = true;
        }
    }

    fn add_pseudo(&mut self, field: Field<'_>) -> Result<(), Malformed> {
        let (value, head) = (field.value, &mut self.head);
        match field.name {
            b":method" if is_token(value) => {
                first(&mut self.has_method)?;
                head.method = Method::from_token(value);
            }
            b":scheme" if is_scheme(value) => {
                first(&mut self.has_scheme)?;
                head.scheme = scheme_of(value);
            }
            b":authority" if is_authority(value) => {
                first(&mut self.has_authority)?;
                head.authority.extend_from_slice(value);
            }
            b":path" if is_target(value) => {
                first(&mut self.has_path)?;
                head.path.extend_from_slice(value);
            }
            b":path" if is_target_with_letters(value) => {
                first(&mut self.has_path)?;
                push_escaped(&mut head.path, value);
            }
            b":protocol" if is_token(value) => {
                return once(&mut head.protocol, || value.into());
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// The head, and the length of the body if the request has one. Extended CONNECT is an error
    /// unless this side offered it.
    pub(super) fn finish(
        mut self,
        takes_connect_protocol: bool,
    ) -> Result<(Box<RequestHead>, Option<u64>), Malformed> {
        let head = &mut self.head;
        if !self.has_method {
            return Err(Malformed);
        }
        let is_connect = head.method == Method::Connect;
        if is_connect && head.protocol.is_none() {
            if self.has_scheme || self.has_path || !self.has_authority {
                return Err(Malformed);
            }
        } else {
            let is_asterisk = head.path == b"*" && head.method == Method::Options;
            // `:scheme` and `:path` of anything but plain CONNECT (RFC 9113 section 8.3.1).
            if !(self.has_scheme && (head.path.starts_with(b"/") || is_asterisk)) {
                return Err(Malformed);
            }
        }
        if head.protocol.is_some() && !(is_connect && takes_connect_protocol) {
            return Err(Malformed);
        }
        if let Some(host) = self.regular.host.take() {
            // They must not name two places (RFC 9113 section 8.3.1).
            if self.has_authority && !head.authority.eq_ignore_ascii_case(&host) {
                return Err(Malformed);
            }
            if !self.has_authority {
                head.authority = host;
            }
        }
        let (fields, content_length) = self.regular.finish()?;
        self.head.fields = fields;
        Ok((self.head, content_length))
    }
}

impl ResponseBuilder {
    /// Collects into `fields`, which are empty.
    pub(super) fn collecting(fields: Fields) -> Self {
        Self { regular: Regular { fields, ..Regular::default() }, ..Self::default() }
    }

    pub(super) fn add(&mut self, field: Field<'_>) {
        if !field.name.starts_with(b":") {
            return self.regular.add(field);
        }
        let status = if field.name == b":status" { status(field.value) } else { None };
        match status {
            Some(status) if self.status.is_none() && !self.regular.has_begun => {
                self.status = Some(status);
            }
            _ => self.regular.is_malformed = true,
        }
    }

    /// The head, and the length of the body if the response has one.
    pub(super) fn finish(mut self) -> Result<(ResponseHead, Option<u64>), Malformed> {
        let status = self.status.ok_or(Malformed)?;
        if let Some(host) = self.regular.host.take() {
            self.regular.fields.push(b"host", &host); // means nothing in a response
        }
        let (fields, content_length) = self.regular.finish()?;
        Ok((ResponseHead { status, fields }, content_length))
    }
}

impl TrailersBuilder {
    /// Collects into `fields`, which are empty.
    pub(super) fn collecting(fields: Fields) -> Self {
        Self { regular: Regular { fields, ..Regular::default() } }
    }

    pub(super) fn add(&mut self, field: Field<'_>) {
        if field.name.starts_with(b":") {
            self.regular.is_malformed = true;
        } else {
            self.regular.add(field);
        }
    }

    /// The trailers; fields that would change the framing or the target have no place there.
    pub(super) fn finish(self) -> Result<Fields, Malformed> {
        if self.regular.host.is_some() {
            return Err(Malformed);
        }
        match self.regular.finish()? {
            (fields, None) => Ok(fields),
            (_, Some(_)) => Err(Malformed),
        }
    }
}

impl Regular {
    fn add(&mut self, field: Field<'_>) {
        self.has_begun = true;
        if !is_name(field.name) || !is_value(field.value) || self.sort(field).is_err() {
            self.is_malformed = true;
        }
    }

    fn sort(&mut self, field: Field<'_>) -> Result<(), Malformed> {
        match field.name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => return Err(Malformed),
            b"te" if !field.value.eq_ignore_ascii_case(b"trailers") => return Err(Malformed),
            b"host" if !is_authority(field.value) => return Err(Malformed),
            b"host" => return once(&mut self.host, || field.value.to_vec()),
            b"content-length" => return self.add_length(field.value),
            b"cookie" => self.add_crumb(field),
            _ if field.sensitive => self.fields.push_sensitive(field.name, field.value),
            _ => self.fields.push(field.name, field.value),
        }
        Ok(())
    }

    /// Repeating the same length is harmless (RFC 9110 section 8.6), two lengths are not.
    fn add_length(&mut self, value: &[u8]) -> Result<(), Malformed> {
        let length = decimal(value).ok_or(Malformed)?;
        if self.content_length.is_some_and(|other| other != length) {
            return Err(Malformed);
        }
        self.content_length = Some(length);
        Ok(())
    }

    /// Crumbs become one line again (RFC 9113 section 8.2.3).
    fn add_crumb(&mut self, field: Field<'_>) {
        if !self.cookie.is_empty() {
            self.cookie.extend_from_slice(b"; ");
        }
        self.cookie.extend_from_slice(field.value);
        self.is_cookie_sensitive |= field.sensitive;
    }

    fn finish(mut self) -> Result<(Fields, Option<u64>), Malformed> {
        if self.is_malformed {
            return Err(Malformed);
        }
        if !self.cookie.is_empty() {
            if self.is_cookie_sensitive {
                self.fields.push_sensitive(b"cookie", &self.cookie);
            } else {
                self.fields.push(b"cookie", &self.cookie);
            }
        }
        Ok((self.fields, self.content_length))
    }
}

/// Notes that a pseudo-header field has come.
fn first(has_come: &mut bool) -> Result<(), Malformed> {
    if std::mem::replace(has_come, true) { Err(Malformed) } else { Ok(()) }
}

fn once<T>(place: &mut Option<T>, value: impl FnOnce() -> T) -> Result<(), Malformed> {
    if place.is_some() {
        return Err(Malformed);
    }
    *place = Some(value());
    Ok(())
}

/// Three digits, 100 to 999; 101 has no meaning in HTTP/2 (RFC 9113 section 8.6).
fn status(value: &[u8]) -> Option<u16> {
    let &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else { return None };
    let digit = |byte: u8| u16::from(byte - b'0');
    Some(digit(a) * 100 + digit(b) * 10 + digit(c)).filter(|&status| status != 101)
}

/// At most 2^63 - 1, as in HTTP/1.1: what is accepted here may have to be written there.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    let number = value.iter().try_fold(0_u64, |sum, byte| match byte {
        b'0'..=b'9' => Some(sum * 10 + u64::from(byte - b'0')),
        _ => None,
    });
    number.filter(|&number| i64::try_from(number).is_ok())
}

/// A field name as HTTP/2 requires it: a token without upper case.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| is(byte, NAME))
}

/// A field value: visible characters, spaces and tabs, none of these at the ends.
fn is_value(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_field_value(value) && !is_blank(value.first()) && !is_blank(value.last())
}

fn is_token(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|&byte| is(byte, TOKEN))
}

fn is_scheme(value: &[u8]) -> bool {
    value.first().is_some_and(u8::is_ascii_alphabetic)
        && value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

/// Host and port: not empty, no user information, nothing that could end it.
fn is_authority(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|&byte| is(byte, AUTHORITY))
}

/// A path and query, or `*`.
fn is_target(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|&byte| is(byte, TARGET))
}

/// A path and query with letters beyond ASCII in UTF-8, which are sent on as escapes.
fn is_target_with_letters(value: &[u8]) -> bool {
    value.iter().all(|&byte| !byte.is_ascii() || is(byte, TARGET))
        && escaped_length(value).is_some()
}

const TOKEN: u8 = 1;
const NAME: u8 = 2;
const AUTHORITY: u8 = 4;
const TARGET: u8 = 8;

static CLASSES: [u8; 256] = classes();

fn is(byte: u8, class: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        let is_token = crate::bytes::is_token_byte(byte);
        let is_visible = byte > b' ' && byte != 0x7f;
        if is_token {
            classes[at] |= TOKEN;
        }
        if is_token && !byte.is_ascii_uppercase() {
            classes[at] |= NAME;
        }
        if is_visible && byte < 0x80 {
            if !matches!(byte, b'/' | b'?' | b'#' | b'@' | b'\\' | b'"' | b'<' | b'>' | b',') {
                classes[at] |= AUTHORITY;
            }
            if byte != b'#' {
                classes[at] |= TARGET;
            }
        }
        at += 1;
    }
    classes
}

#[cfg(test)]
mod tests;
