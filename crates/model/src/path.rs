//! The one form in which a request's path is judged and sent on.
//!
//! Two programs that read one path differently let a caller past a rule. So a path is brought
//! into its normal form once (RFC 3986 section 6.2), rules are matched against that form, and the
//! app gets that form. Where even the normal form is read differently by common servers
//! (`;` parameters, encoded slashes, backslashes), the second reading is given too, and a rule
//! must hold for both. What has no safe reading is refused.

use std::borrow::Cow;

use thiserror::Error;

/// Why a path has no safe reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PathError {
    #[error("the path does not begin with `/`")]
    NotAbsolute,
    #[error("the path holds a `%` that two hexadecimal digits do not follow")]
    Escape,
    #[error("the path is encoded twice (`%25` and two hexadecimal digits)")]
    EncodedTwice,
    #[error("the path holds a control character, perhaps encoded")]
    Control,
    #[error("the path holds a `#`")]
    Fragment,
    #[error("the path's encoded bytes are not UTF-8")]
    NotUtf8,
    #[error("the path leads above its root with `..`")]
    AboveRoot,
    #[error("the path has `..` behind an empty segment, which servers read differently")]
    DotsBehindSlashes,
    #[error("the path hides dot segments or slashes behind `;`, `%2F`, `%5C` or `\\`")]
    Hidden,
    #[error("the path mixes `;`, `%3B`, `%2F`, `%5C` and `\\`, which servers read differently")]
    Mixed,
}

/// A path in its normal form: no dot segments, no empty ones, no escape that means an
/// unreserved character, upper-case digits in those that stay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NormalPath<'a> {
    path: Cow<'a, [u8]>,
    /// The whole target, where it differs from what came in.
    target: Option<Vec<u8>>,
    second: Option<Vec<u8>>,
}

impl<'a> NormalPath<'a> {
    /// Reads the path of `target`, which may have a query; the query stays as it is.
    ///
    /// # Errors
    /// [`PathError`] when the path has no safe reading.
    pub fn read(target: &'a [u8]) -> Result<Self, PathError> {
        let end = target.iter().position(|b| *b == b'?').unwrap_or(target.len());
        let (path, query) = target.split_at(end);
        if is_plain(path) {
            return Ok(Self { path: Cow::Borrowed(path), target: None, second: None });
        }
        if path.is_empty() || path == b"*" {
            // The server as a whole (RFC 9110 section 9.3.7); its path counts as the root.
            return Ok(Self { path: Cow::Borrowed(b"/"), target: None, second: None });
        }
        let decoded = decode_unreserved(path)?;
        let normal = remove_dots(&decoded)?;
        let second = second_reading(&normal)?;
        let target = (normal != path).then(|| [&normal[..], query].concat());
        Ok(Self { path: Cow::Owned(normal), target, second })
    }

    /// The normal form, without the query.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// How servers read it that cut off `;` parameters, or take encoded slashes or backslashes
    /// for separators; `None` when they read nothing else.
    #[must_use]
    pub fn second_reading(&self) -> Option<&[u8]> {
        self.second.as_deref()
    }

    /// Path and query as they have to be sent on, when that is not what came in.
    #[must_use]
    pub fn into_changed_target(self) -> Option<Vec<u8>> {
        self.target
    }
}

/// Bytes that need no closer check.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        plain[byte] = !matches!(byte as u8, b'%' | b';' | b'\\' | b'#');
        byte += 1;
    }
    plain
};

/// Whether a path is its own normal form and every server reads it alike: the usual case, found in
/// one pass.
fn is_plain(path: &[u8]) -> bool {
    if path.first() != Some(&b'/') {
        return false;
    }
    let mut before = 0;
    for &byte in path {
        let is_suspect = !PLAIN[byte as usize] || (before == b'/' && matches!(byte, b'/' | b'.'));
        if is_suspect {
            return false;
        }
        before = byte;
    }
    true
}

/// Decodes escapes of unreserved characters and writes the others with upper-case digits.
fn decode_unreserved(path: &[u8]) -> Result<Vec<u8>, PathError> {
    if path.first() != Some(&b'/') {
        return Err(PathError::NotAbsolute);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let value = if byte == b'%' { escaped(after)? } else { byte };
        rest = if byte == b'%' { &after[2..] } else { after };
        match value {
            0..=0x20 | 0x7f if byte != b'%' => return Err(PathError::Control),
            0..=0x1f | 0x7f => return Err(PathError::Control),
            b'#' if byte != b'%' => return Err(PathError::Fragment),
            _ if is_unreserved(value) || (byte != b'%' && value < 0x80) => out.push(value),
            _ => push_escape(&mut out, value),
        }
        decoded.push(value);
    }
    std::str::from_utf8(&decoded).map_err(|_| PathError::NotUtf8)?;
    // A remaining escape sequence is one to a server that decodes twice, also if its digits were
    // escaped.
    let is_encoded_twice =
        decoded.windows(3).any(|three| three[0] == b'%' && escaped(&three[1..]).is_ok());
    if is_encoded_twice { Err(PathError::EncodedTwice) } else { Ok(out) }
}

/// The byte that two hexadecimal digits at the start of `digits` mean.
fn escaped(digits: &[u8]) -> Result<u8, PathError> {
    let digit = |at: usize| digits.get(at).and_then(|d| char::from(*d).to_digit(16));
    match (digit(0), digit(1)) {
        (Some(high), Some(low)) => Ok(u8::try_from(high << 4 | low).expect("two digits")),
        _ => Err(PathError::Escape),
    }
}

fn push_escape(out: &mut Vec<u8>, value: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let (high, low) = (DIGITS[usize::from(value >> 4)], DIGITS[usize::from(value & 15)]);
    out.extend_from_slice(&[b'%', high, low]);
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Resolves dot segments, then merges repeated slashes. The order matters only if `..` follows an
/// empty segment, which is refused.
fn remove_dots(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut is_folder = false;
    for segment in path[1..].split(|b| *b == b'/') {
        is_folder = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"." => {}
            b".." => match kept.pop() {
                None => return Err(PathError::AboveRoot),
                Some(b"") => return Err(PathError::DotsBehindSlashes),
                Some(_) => {}
            },
            _ => kept.push(segment),
        }
    }
    let mut normal = Vec::with_capacity(path.len());
    for segment in kept.into_iter().filter(|segment| !segment.is_empty()) {
        normal.push(b'/');
        normal.extend_from_slice(segment);
    }
    if is_folder || normal.is_empty() {
        normal.push(b'/');
    }
    Ok(normal)
}

/// What servers are known to read differently, and the bytes that mean it in a normal path.
const DISPUTED: [(&[u8], Dispute); 5] = [
    (b";", Dispute::Parameter),
    (b"%3B", Dispute::Parameter),
    (b"%2F", Dispute::Separator),
    (b"\\", Dispute::Separator),
    (b"%5C", Dispute::Separator),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dispute {
    /// From here to the end of the segment is not part of the name.
    Parameter,
    /// This is a slash.
    Separator,
}

/// The path as the other servers read it. One kind of dispute has one other reading; two kinds
/// have several, so they are refused.
fn second_reading(normal: &[u8]) -> Result<Option<Vec<u8>>, PathError> {
    let mut found = DISPUTED.iter().filter(|(text, _)| contains(normal, text));
    let Some((text, dispute)) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(PathError::Mixed);
    }
    let read = match dispute {
        Dispute::Separator => replace_with_slash(normal, text),
        Dispute::Parameter => cut_parameters(normal, text),
    };
    let mut segments = read[1..].split(|b| *b == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if matches!(segment, b"." | b"..") || (segment.is_empty() && !is_last) {
            return Err(PathError::Hidden);
        }
    }
    Ok(Some(read))
}

fn contains(path: &[u8], text: &[u8]) -> bool {
    path.windows(text.len()).any(|window| window == text)
}

fn replace_with_slash(path: &[u8], text: &[u8]) -> Vec<u8> {
    let mut read = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        match rest.strip_prefix(text) {
            Some(behind) => {
                read.push(b'/');
                rest = behind;
            }
            None => {
                read.push(byte);
                rest = after;
            }
        }
    }
    read
}

fn cut_parameters(path: &[u8], text: &[u8]) -> Vec<u8> {
    let mut read = Vec::with_capacity(path.len());
    for segment in path[1..].split(|b| *b == b'/') {
        let end = segment.windows(text.len()).position(|window| window == text);
        read.push(b'/');
        read.extend_from_slice(&segment[..end.unwrap_or(segment.len())]);
    }
    read
}

#[cfg(test)]
mod tests;
