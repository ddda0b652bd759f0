//! Methods of apps: their form as text (`InvokeService`, `OnInvoke`) and as the path of a request.
//!
//! Between two sidecars a method is a path, by which policies judge it. [`path_of_method`] and
//! [`method_of_path`] are each other's inverse but for methods with escapes (`a%20b`), which the path
//! has as they are.

use std::borrow::Cow;

use percent_encoding::{
    AsciiSet, CONTROLS, percent_decode_str, percent_encode, utf8_percent_encode,
};
use thiserror::Error;

/// Characters that a path has escaped.
const NOT_IN_PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');
/// Characters that a query has escaped.
const NOT_IN_QUERY: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`');

/// Why a method has no path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum MethodError {
    #[error("the method contains a forbidden character, `{0}`; leave it out")]
    Forbidden(char),
    #[error("the method contains a control character at position {0}; leave it out")]
    Control(usize),
    #[error("the path has a `%` that two hexadecimal digits do not follow; write `%25`")]
    Escape,
    #[error("the path is not text in UTF-8; encode it so")]
    NotText,
}

/// A method without what leads elsewhere: `a/../b` is `b`, `a//b` is `a/b`, `a/` is `a`. What would lead
/// above the root is left out.
///
/// # Errors
/// [`MethodError`]: it has `#`, `?` or a control character.
pub fn clean_method(method: &str) -> Result<Cow<'_, str>, MethodError> {
    for (at, character) in method.char_indices() {
        match character {
            '#' | '?' => return Err(MethodError::Forbidden(character)),
            '\0'..'\x20' | '\x7f' => return Err(MethodError::Control(at)),
            _ => {}
        }
    }
    if is_clean(method) {
        return Ok(Cow::Borrowed(method));
    }
    let mut kept: Vec<&str> = Vec::new();
    for part in method.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(kept.pop()),
            part => kept.push(part),
        }
    }
    let root = if method.starts_with('/') { "/" } else { "" };
    Ok(Cow::Owned(format!("{root}{}", kept.join("/"))))
}

fn is_clean(method: &str) -> bool {
    let method = method.strip_prefix('/').unwrap_or(method);
    method.is_empty() || method.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The path of a clean method, with what no path has escaped. Escapes stay as they are.
#[must_use]
pub fn path_of_method(method: &str) -> String {
    let method = method.strip_prefix('/').unwrap_or(method);
    let mut path = String::with_capacity(method.len() + 1);
    path.push('/');
    let mut rest = method;
    while let Some(at) = rest.find('%') {
        let (before, after) = rest.split_at(at);
        path.extend(utf8_percent_encode(before, NOT_IN_PATH));
        path.push_str(if is_escape(after.as_bytes()) { "%" } else { "%25" });
        rest = &after[1..];
    }
    path.extend(utf8_percent_encode(rest, NOT_IN_PATH));
    path
}

/// A query string with what no query has escaped. Escapes stay as they are.
#[must_use]
pub fn query_on_the_wire(query: &str) -> String {
    utf8_percent_encode(query, NOT_IN_QUERY).to_string()
}

/// The method that a path stands for, clean.
///
/// # Errors
/// [`MethodError`].
pub fn method_of_path(path: &str) -> Result<String, MethodError> {
    let decoded = percent_decode_str(path.trim_start_matches('/')).decode_utf8();
    let decoded = decoded.map_err(|_| MethodError::NotText)?;
    let clean = clean_method(&decoded)?;
    Ok(clean.strip_prefix('/').unwrap_or(&clean).to_owned())
}

/// The target of a call over HTTP as a sidecar in daprd's place sends it on: the path decoded, clean, and
/// encoded again. `None` if it stays as it is.
///
/// # Errors
/// [`MethodError`].
pub fn clean_target(target: &[u8]) -> Result<Option<Vec<u8>>, MethodError> {
    let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    let (path, query) = target.split_at(end);
    if is_plain(path) {
        return Ok(None);
    }
    let decoded = decode(path)?;
    let text = std::str::from_utf8(&decoded).map_err(|_| MethodError::NotText)?;
    let clean = clean_method(text)?;
    let bytes = clean.as_bytes();
    if bytes.iter().enumerate().any(|(at, byte)| *byte == b'%' && !is_escape(&bytes[at..])) {
        return Err(MethodError::Escape);
    }
    let mut written = b"/".to_vec();
    let bare = clean.trim_start_matches('/');
    written.extend(percent_encode(bare.as_bytes(), NOT_IN_PATH).flat_map(str::bytes));
    written.extend_from_slice(query);
    Ok((written != target).then_some(written))
}

/// Whether a path is clean and has no escapes: the usual case.
fn is_plain(path: &[u8]) -> bool {
    let mut before = 0;
    for &byte in path {
        let leads_on = before == b'/' && matches!(byte, b'/' | b'.');
        if leads_on || !(0x21..0x7f).contains(&byte) || matches!(byte, b'%' | b'#') {
            return false;
        }
        before = byte;
    }
    path.first() == Some(&b'/') && (before != b'/' || path.len() == 1)
}

fn decode(path: &[u8]) -> Result<Vec<u8>, MethodError> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(MethodError::Escape) };
        decoded.extend(u8::try_from(high << 4 | low));
        rest = &after[2..];
    }
    Ok(decoded)
}

/// Whether bytes begin with an escape.
fn is_escape(bytes: &[u8]) -> bool {
    matches!(bytes, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a6_a_method_is_cleaned_as_dapr_does() {
        for (method, clean) in [
            ("public", "public"),
            ("admin/../public", "public"),
            ("admin/../../public", "public"),
            ("public/", "public"),
            ("api///v1///users", "api/v1/users"),
            ("./a/.", "a"),
            ("..", ""),
            ("", ""),
            ("/", "/"),
            ("//a", "/a"),
            ("/a/..", "/"),
            ("größe", "größe"),
            ("say hello", "say hello"),
            (r#"a"b\c{d}"#, r#"a"b\c{d}"#),
            ("admin%2F..%2Fpublic", "admin%2F..%2Fpublic"),
            ("test%stream", "test%stream"),
        ] {
            assert_eq!(clean_method(method).unwrap(), clean, "{method}");
        }
    }

    #[test]
    fn a6_hash_question_mark_and_control_characters_are_refused() {
        for method in ["a#b", "a?b", "a#b?c%d"] {
            assert!(matches!(clean_method(method), Err(MethodError::Forbidden(_))), "{method}");
        }
        for method in ["a\0b", "a\rb", "a\x7fb"] {
            assert_eq!(clean_method(method), Err(MethodError::Control(1)), "{method:?}");
        }
    }

    #[test]
    fn a6_a_method_is_the_same_after_its_way_as_a_path() {
        for method in ["größe", "say hello", r#"a"b"#, r"a\b", "a{b}|c^`", "100%", "a;b=c&d"] {
            let path = path_of_method(method);
            assert!(path.bytes().all(|byte| (0x21..0x7f).contains(&byte)), "{path}");
            assert_eq!(method_of_path(&path).unwrap(), method);
        }
        assert_eq!(path_of_method("a%20b"), "/a%20b");
        assert_eq!(path_of_method("/a"), "/a");
        assert_eq!(query_on_the_wire(r"a=b c&d=\é"), "a=b%20c&d=%5C%C3%A9");
    }

    #[test]
    fn a12_the_path_of_a_call_is_cleaned_as_dapr_does() {
        let clean = |target: &str| {
            let changed = clean_target(target.as_bytes()).unwrap();
            String::from_utf8(changed.unwrap_or_else(|| target.into())).unwrap()
        };
        for (target, sent) in [
            ("/test*stream", "/test*stream"),
            ("/test%2Astream", "/test*stream"),
            ("/test%22stream", "/test%22stream"),
            ("/test%5Cstream", "/test%5Cstream"),
            ("/admin%2F..%2Fpublic?x=%2F", "/public?x=%2F"),
            ("/admin/../public", "/public"),
            ("/a//b/?q", "/a/b?q"),
            ("/a%20b", "/a%20b"),
            ("/gr%C3%B6%c3%9fe", "/gr%C3%B6%C3%9Fe"),
            ("/", "/"),
            ("/?a=//", "/?a=//"),
            ("/../..", "/"),
        ] {
            assert_eq!(clean(target), sent, "{target}");
        }
        for target in ["/a%00b", "/a%23b", "/a%3Fb", "/a%0Db", "/test%25stream", "/%zz", "/%FF"] {
            assert!(clean_target(target.as_bytes()).is_err(), "{target}");
        }
    }
}
