//! The grammar's character classes, as a table and as predicates.
//!
//! The HTTP/2 codec and code that adds fields to a head use these predicates too, so that what one
//! protocol accepts can be written in the other.

use super::authority::Authority;

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const NAME: u8 = 4;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = class(byte as u8);
        byte += 1;
    }
    table
}

const fn class(byte: u8) -> u8 {
    let token = crate::bytes::is_token_byte(byte);
    let target = byte.is_ascii_graphic() && byte != b'#';
    let name = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    (if token { TOKEN } else { 0 })
        | (if target { TARGET } else { 0 })
        | (if name { NAME } else { 0 })
}

fn all(bytes: &[u8], class: u8) -> bool {
    bytes.iter().all(|&byte| CLASSES[usize::from(byte)] & class != 0)
}

pub(super) fn is_token_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TOKEN != 0
}

/// The first byte of `bytes` that is not allowed in a request target.
pub(super) fn not_target_byte(bytes: &[u8]) -> Option<u8> {
    bytes.iter().copied().find(|&byte| CLASSES[usize::from(byte)] & TARGET == 0)
}

/// Whether `bytes` is a host name of unreserved characters (RFC 3986 section 2.3).
pub(super) fn is_host_name(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, NAME)
}

/// Whether `bytes` is a token (RFC 9110 section 5.6.2): a field name or a method.
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// Whether `bytes` is a valid field value: no control bytes but tab. White space at the ends is not
/// checked; a parser trims it, a writer must not add it.
#[must_use]
pub fn is_field_value(bytes: &[u8]) -> bool {
    // Without an early end this compiles to vector code.
    bytes
        .iter()
        .fold(true, |good, &byte| good & (((byte >= b' ') & (byte != 0x7f)) | (byte == b'\t')))
}

/// Whether `bytes` may be a [`path`](crate::RequestHead::path): `*`, or `/` followed by visible
/// ASCII without `#`.
///
/// `"`, `<`, `>`, `[`, `\`, `]`, `^`, `` ` ``, `{`, `|` and `}` are accepted although RFC 3986 requires
/// them to be escaped: clients send them, and no parser ends a target at them. Some servers read `\` in a
/// path as `/`, so code that decides by path judges both readings.
#[must_use]
pub fn is_path(bytes: &[u8]) -> bool {
    bytes == b"*" || (bytes.first() == Some(&b'/') && all(bytes, TARGET))
}

/// Appends `target` with each byte beyond ASCII as an escape (RFC 3987 section 3.1).
pub(crate) fn push_escaped(out: &mut Vec<u8>, target: &[u8]) {
    for &byte in target {
        match byte {
            0x80.. => {
                let digit = |half: u8| b"0123456789ABCDEF"[usize::from(half & 15)];
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte)]);
            }
            _ => out.push(byte),
        }
    }
}

/// Bytes of `target` when [escaped](push_escaped); `None` if what is beyond ASCII there is not UTF-8.
pub(crate) fn escaped_length(target: &[u8]) -> Option<usize> {
    std::str::from_utf8(target).ok()?;
    Some(target.len() + 2 * target.iter().filter(|byte| !byte.is_ascii()).count())
}

/// Whether `bytes` is a host with an optional port: a name of letters, digits and `-._~`, an
/// IPv4 address, or an IPv6 address in brackets; a port of 1 to 65535.
///
/// Narrower than RFC 3986 on purpose: user information, an empty port, percent-escapes and
/// sub-delimiters (a comma joins two hosts to one value) are not part of any name that can be
/// resolved.
#[must_use]
pub fn is_authority(bytes: &[u8]) -> bool {
    Authority::parse(bytes).is_some()
}

/// Whether the field `name` (lower case) must not come in trailers (RFC 9110 section 6.5.1):
/// what frames, routes, authenticates, or must be known before the content.
#[must_use]
pub fn is_forbidden_trailer(name: &[u8]) -> bool {
    const FORBIDDEN: [&[u8]; 37] = [
        b"age",
        b"authorization",
        b"cache-control",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"content-type",
        b"cookie",
        b"date",
        b"expect",
        b"expires",
        b"forwarded",
        b"host",
        b"http2-settings",
        b"if-match",
        b"if-modified-since",
        b"if-none-match",
        b"if-range",
        b"if-unmodified-since",
        b"keep-alive",
        b"location",
        b"max-forwards",
        b"pragma",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"range",
        b"retry-after",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"vary",
        b"via",
        b"www-authenticate",
    ];
    FORBIDDEN.binary_search(&name).is_ok() || name.starts_with(b"x-forwarded-")
}

/// `bytes` without spaces and tabs at its ends.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(|byte| !blank(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &bytes[start..end]
}

/// The members of a comma-separated list, trimmed, empty ones too.
pub(super) fn members(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == b',').map(trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_agree_with_the_grammar_written_out() {
        let delimiters = b"\"(),/:;<=>?@[\\]{}";
        for byte in 0..=255u8 {
            let visible = (0x21..=0x7e).contains(&byte);
            assert_eq!(is_token(&[byte]), visible && !delimiters.contains(&byte), "{byte:#x}");
            assert_eq!(
                is_field_value(&[byte]),
                visible || byte >= 0x80 || byte == b' ' || byte == b'\t',
                "{byte:#x}"
            );
            assert_eq!(is_path(&[b'/', byte]), visible && byte != b'#');
        }
        assert!(!is_token(b""));
        assert!(is_field_value(b""));
    }

    #[test]
    fn one_bad_byte_anywhere_in_a_long_value_is_found() {
        for at in 0..70 {
            let mut value = vec![b'a'; 70];
            value[at] = b'\n';
            assert!(!is_field_value(&value), "at {at}");
        }
    }

    #[test]
    fn forbidden_trailers_are_framing_routing_and_authentication() {
        for name in ["content-length", "host", "age", "www-authenticate", "x-forwarded-for", "te"] {
            assert!(is_forbidden_trailer(name.as_bytes()), "{name}");
        }
        for name in ["grpc-status", "etag", "server-timing", "x-forwarded", "digest"] {
            assert!(!is_forbidden_trailer(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn trimming_takes_spaces_and_tabs_only() {
        assert_eq!(trim(b" \t a b\t"), b"a b");
        assert_eq!(trim(b" \t "), b"");
        assert_eq!(trim(b"\x0ba"), b"\x0ba");
    }
}
