//! Message heads, common to HTTP/1.1 and HTTP/2.
//!
//! A head owns its bytes: parsers copy each field once into one buffer. Field names are lower case
//! (RFC 9110 section 5.1 makes them case-insensitive); values have no leading or trailing white
//! space. Order and repetition are preserved.

use std::borrow::Cow;
use std::fmt;

/// Field lines of a head or of trailers, in order.
#[derive(Clone, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
struct Line {
    name_start: u32,
    value_start: u32,
    end: u32,
    sensitive: bool,
}

impl Fields {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With capacity for `lines` field lines of `bytes` bytes in all.
    #[must_use]
    pub fn with_capacity(lines: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), lines: Vec::with_capacity(lines) }
    }

    /// Appends a field line; `name` is lowered, `value` taken as it is.
    ///
    /// The caller has checked that `name` is a token and `value` a field value: this type does
    /// not validate, so that a checked head is not checked again.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let name_start = self.bytes.len();
        self.bytes.reserve(name.len() + value.len());
        self.bytes.extend_from_slice(name);
        make_lower(&mut self.bytes[name_start..]);
        let value_start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.lines.push(Line {
            name_start: offset(name_start),
            value_start: offset(value_start),
            end: offset(self.bytes.len()),
            sensitive: false,
        });
    }

    /// Appends a field line of which `write` appends the value: without a buffer in between.
    pub fn push_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.push(name, &[]);
        write(&mut self.bytes);
        if let Some(line) = self.lines.last_mut() {
            line.end = offset(self.bytes.len());
        }
    }

    /// Appends ` more` to the value of the last field line, if there is one; `more` is a trimmed field
    /// value.
    pub fn extend_last(&mut self, more: &[u8]) {
        let Some(line) = self.lines.last_mut() else { return };
        if line.end > line.value_start {
            self.bytes.push(b' ');
        }
        self.bytes.extend_from_slice(more);
        line.end = offset(self.bytes.len());
    }

    /// Appends a field line that must never enter a compression table (RFC 7541 section 7.1.3).
    pub fn push_sensitive(&mut self, name: &[u8], value: &[u8]) {
        self.push(name, value);
        if let Some(line) = self.lines.last_mut() {
            line.sensitive = true;
        }
    }

    /// Removes every line named `name` (lower case) and puts one with `value` at the end.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// The first value of `name` (lower case).
    #[must_use]
    pub fn value(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|field| field.name == name).map(|field| field.value)
    }

    /// Every value of `name` (lower case), in order.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |field| field.name == name).map(|field| field.value)
    }

    #[must_use]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.value(name).is_some()
    }

    /// Removes every line named `name` (lower case); returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.lines.len();
        let bytes = &self.bytes;
        self.lines.retain(|line| line.name(bytes) != name);
        self.lines.len() != before
    }

    /// Keeps the lines of which `keep(name, value)` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) {
        let bytes = &self.bytes;
        self.lines.retain(|line| keep(line.name(bytes), line.value(bytes)));
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Field<'_>> + Clone {
        self.lines.iter().map(|line| Field {
            name: line.name(&self.bytes),
            value: line.value(&self.bytes),
            sensitive: line.sensitive,
        })
    }

    /// Number of field lines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Bytes of names and values that fit without new memory.
    #[must_use]
    pub fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// Forgets all lines and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lines.clear();
    }

    /// Makes room for `lines` field lines of `bytes` bytes in all.
    pub(crate) fn reserve(&mut self, lines: usize, bytes: usize) {
        self.lines.reserve(lines);
        self.bytes.reserve(bytes);
    }
}

/// Lowers letters, a word at a time: most names are short. The last word may overlap the one
/// before.
fn make_lower(name: &mut [u8]) {
    let lower = |word: &mut [u8; 8]| *word = lower_word(u64::from_le_bytes(*word)).to_le_bytes();
    name.as_chunks_mut().0.iter_mut().for_each(lower);
    match name.last_chunk_mut() {
        Some(last) => lower(last),
        None => name.make_ascii_lowercase(),
    }
}

/// Each byte from `A` to `Z` gets the bit that makes it a small letter.
const fn lower_word(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = 0x80 * EACH;
    let low_bits = word & !TOP;
    let from_a = low_bits + (0x80 - b'A' as u64) * EACH;
    let beyond_z = low_bits + (0x80 - b'Z' as u64 - 1) * EACH;
    word | ((from_a & !beyond_z & !word & TOP) >> 2)
}

/// Heads are bounded far below 4 GiB by every codec's limits.
fn offset(at: usize) -> u32 {
    u32::try_from(at).expect("heads are limited to less than 4 GiB")
}

impl Line {
    fn name(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.name_start as usize..self.value_start as usize]
    }
    fn value(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.value_start as usize..self.end as usize]
    }
}

/// One field line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Lower case.
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// Never to be indexed by HPACK.
    pub sensitive: bool,
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}
impl Eq for Fields {}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for field in self.iter() {
            let value: &[u8] = if field.sensitive { b"(sensitive)" } else { field.value };
            list.entry(&format_args!("{}: {}", field.name.escape_ascii(), value.escape_ascii()));
        }
        list.finish()
    }
}

impl<'a> FromIterator<(&'a [u8], &'a [u8])> for Fields {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], &'a [u8])>>(iter: I) -> Self {
        let mut fields = Self::new();
        for (name, value) in iter {
            fields.push(name, value);
        }
        fields
    }
}

/// The method of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    /// Any other token, as written: methods are case-sensitive (RFC 9110 section 9.1).
    Other(Box<[u8]>),
}

impl Method {
    /// The method that `token` names; the caller has checked that it is a token.
    #[must_use]
    pub fn from_token(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            other => Self::Other(other.into()),
        }
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Get => b"GET",
            Self::Head => b"HEAD",
            Self::Post => b"POST",
            Self::Put => b"PUT",
            Self::Delete => b"DELETE",
            Self::Connect => b"CONNECT",
            Self::Options => b"OPTIONS",
            Self::Trace => b"TRACE",
            Self::Patch => b"PATCH",
            Self::Other(token) => token,
        }
    }

    /// Whether sending it twice has the effect of sending it once (RFC 9110 section 9.2.2).
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        !matches!(self, Self::Post | Self::Connect | Self::Patch | Self::Other(_))
    }
}

/// The scheme of a request; the usual two need no memory.
pub type Scheme = Cow<'static, [u8]>;

/// A scheme with memory of its own where it needs any.
#[must_use]
pub(crate) fn scheme_of(text: &[u8]) -> Scheme {
    match text {
        b"" => Cow::Borrowed(b""),
        b"http" => Cow::Borrowed(b"http"),
        b"https" => Cow::Borrowed(b"https"),
        other => Cow::Owned(other.to_vec()),
    }
}

/// The head of a request. `path` is the path and query (`/a?b`), `*` for `OPTIONS *`, and
/// empty for CONNECT, whose target is `authority`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestHead {
    pub method: Method,
    /// `http`, `https`, or the scheme of an absolute target or of `:scheme`; empty without one.
    pub scheme: Scheme,
    /// Host and port as the request names them; empty without. The `host` field line itself is not
    /// in `fields`: the codec moves it here and writes it back.
    pub authority: Vec<u8>,
    pub path: Vec<u8>,
    pub fields: Fields,
    /// The extended CONNECT protocol (RFC 8441) if any.
    pub protocol: Option<Box<[u8]>>,
}

impl RequestHead {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.method = Method::default();
        self.scheme = Scheme::default();
        self.authority.clear();
        self.path.clear();
        self.fields.clear();
        self.protocol = None;
    }

    /// Bytes that fit without new memory.
    #[must_use]
    pub fn room(&self) -> usize {
        self.authority.capacity() + self.path.capacity() + self.fields.room()
    }
}

/// The head of a response.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseHead {
    /// 100 to 999.
    pub status: u16,
    pub fields: Fields,
}

impl ResponseHead {
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self { status, fields: Fields::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lowered_and_order_is_kept() {
        let mut fields = Fields::new();
        fields.push(b"Set-Cookie", b"a=1");
        fields.push(b"X-One", b"1");
        fields.push(b"SET-COOKIE", b"b=2");
        let values: Vec<_> = fields.values(b"set-cookie").collect();
        assert_eq!(values, [b"a=1", b"b=2"]);
        assert_eq!(fields.len(), 3);
    }

    #[test]
    fn every_byte_at_every_place_of_a_word_is_lowered_as_ascii() {
        for byte in 0..=255_u8 {
            for length in 1..=17 {
                let name = vec![byte; length];
                let mut lowered = name.clone();
                make_lower(&mut lowered);
                assert_eq!(lowered, name.to_ascii_lowercase());
            }
        }
        let mut mixed = *b"Az@[`{\x80Z09-_Content-TYPE";
        make_lower(&mut mixed);
        assert_eq!(&mixed, b"az@[`{\x80z09-_content-type");
    }

    #[test]
    fn set_replaces_every_line_of_the_name() {
        let mut fields: Fields =
            [(&b"a"[..], &b"1"[..]), (b"b", b"2"), (b"a", b"3")].into_iter().collect();
        fields.set(b"a", b"4");
        let lines: Vec<_> = fields.iter().map(|f| (f.name, f.value)).collect();
        assert_eq!(lines, [(&b"b"[..], &b"2"[..]), (b"a", b"4")]);
    }

    #[test]
    fn sensitive_values_are_not_printed() {
        let mut fields = Fields::new();
        fields.push_sensitive(b"authorization", b"secret");
        assert!(!format!("{fields:?}").contains("secret"));
    }
}
