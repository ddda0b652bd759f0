//! Paths and queries: what rules are compared with, and how rules change them.

use std::borrow::Cow;

use percent_encoding::percent_decode;
use tollway_model::NormalPath;
use tollway_model::route::PathEdit;

/// The path of a target, as rules are compared with it: its normal form, or as it came where it has
/// none. What has no safe reading is refused by the callee's sidecar if a policy looks at paths.
pub(super) fn normal(target: &[u8]) -> Cow<'_, [u8]> {
    let (path, _) = split(target);
    match NormalPath::read(target) {
        Ok(normal) if normal.path() != path => Cow::Owned(normal.path().to_vec()),
        Ok(_) | Err(_) => Cow::Borrowed(path),
    }
}

/// The query of a target, without its question mark.
pub(super) fn query(target: &[u8]) -> &[u8] {
    split(target).1.strip_prefix(b"?").unwrap_or_default()
}

/// Path, and query with its question mark.
fn split(target: &[u8]) -> (&[u8], &[u8]) {
    let end = target.iter().position(|b| *b == b'?').unwrap_or(target.len());
    target.split_at(end)
}

/// The decoded value of the first parameter of this name.
pub(super) fn parameter<'q>(query: &'q [u8], name: &str) -> Option<Cow<'q, [u8]>> {
    query.split(|b| *b == b'&').find_map(|part| {
        let at = part.iter().position(|b| *b == b'=').unwrap_or(part.len());
        let (own, value) = part.split_at(at);
        (decoded(own).as_ref() == name.as_bytes())
            .then(|| decoded(value.strip_prefix(b"=").unwrap_or_default()))
    })
}

/// `+` is a space, as forms have it; an escape that is none stays.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|b| matches!(b, b'+' | b'%')) {
        return Cow::Borrowed(text);
    }
    let spaced: Vec<u8> = text.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

/// Whether `prefix`, without a slash at its end, names the path or something above it.
pub(super) fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// A prefix as it is compared: without the slash at its end.
pub(super) fn trimmed(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// Path and query after an edit; `prefix` is the length of what the match names. `None` if the edit
/// has no prefix to replace.
pub(super) fn rewrite(target: &[u8], prefix: Option<usize>, edit: &PathEdit) -> Option<Vec<u8>> {
    let (_, query) = split(target);
    let path = match edit {
        PathEdit::Full(path) => path.as_bytes().to_vec(),
        PathEdit::Prefix(other) => {
            let path = normal(target);
            let rest = path.get(prefix?..)?;
            [trimmed(other).as_bytes(), rest].concat()
        }
    };
    let path = if path.is_empty() { b"/".to_vec() } else { path };
    Some([&path[..], query].concat())
}
