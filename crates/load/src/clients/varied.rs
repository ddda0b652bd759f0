//! Parts of a path that are not the same in every request: `{uuid}` is another random UUID each
//! time, `{1..1000}` each of these numbers one after the other.
//!
//! Their text is as long in each request, so that it is written over that of the last one in
//! bytes that were rendered once: numbers have zeros before them.

use std::hash::{BuildHasher, RandomState};

use tollway_record::SplitMix64;

use crate::error::LoadError;

/// Characters of a UUID.
const UUID_LEN: usize = 36;
/// Where its groups end.
const UUID_DASHES: [usize; 4] = [8, 13, 18, 23];

/// The parts of one path, and what they are next.
#[derive(Debug)]
pub(super) struct Varied {
    parts: Vec<Part>,
    /// Of the UUIDs; each run has a new seed.
    random: SplitMix64,
}

#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// Of its first byte in the path.
    at: usize,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Uuid,
    Number { next: u64, first: u64, last: u64, width: usize },
}

impl Varied {
    /// `path` with text as long as that of every request in place of each part, and the parts;
    /// none where nothing is to vary.
    pub(super) fn parse(path: &str) -> Result<(String, Option<Self>), LoadError> {
        let (mut text, mut parts) = (String::with_capacity(path.len()), Vec::new());
        let mut rest = path;
        while let Some(at) = rest.find(['{', '}']) {
            let unknown = || LoadError::Varied(rest[at..].to_owned());
            let inner = rest[at..].strip_prefix('{').ok_or_else(unknown)?;
            let (inner, behind) = inner.split_once('}').ok_or_else(unknown)?;
            let kind = Kind::parse(inner).ok_or_else(unknown)?;
            text.push_str(&rest[..at]);
            let at = text.len();
            text.extend(std::iter::repeat_n('0', kind.width()));
            parts.push(Part { at, kind });
            rest = behind;
        }
        text.push_str(rest);
        let random = SplitMix64::new(RandomState::new().hash_one(0_u8));
        let varied = (!parts.is_empty()).then_some(Self { parts, random });
        Ok((text, varied))
    }

    /// Writes what the parts are in the next request over what they were in the last; `path`
    /// begins with the path.
    pub(super) fn advance(&mut self, path: &mut [u8]) {
        for Part { at, kind } in &mut self.parts {
            let text = &mut path[*at..*at + kind.width()];
            match kind {
                Kind::Uuid => write_uuid([self.random.next_u64(), self.random.next_u64()], text),
                Kind::Number { next, first, last, .. } => {
                    write_number(*next, text);
                    *next = if next == last { *first } else { *next + 1 };
                }
            }
        }
    }
}

impl Kind {
    fn parse(inner: &str) -> Option<Self> {
        if inner == "uuid" {
            return Some(Self::Uuid);
        }
        let (from, to) = inner.split_once("..")?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (first, last) = (from.parse().ok()?, to.parse().ok()?);
        (is_number(from) && is_number(to) && first <= last).then_some(Self::Number {
            next: first,
            first,
            last,
            width: from.len().max(to.len()),
        })
    }

    fn width(&self) -> usize {
        match self {
            Self::Uuid => UUID_LEN,
            Self::Number { width, .. } => *width,
        }
    }
}

/// A random one (version 4, RFC 9562), as text.
fn write_uuid(random: [u64; 2], text: &mut [u8]) {
    let mut bits = (u128::from(random[0]) << 64) | u128::from(random[1]);
    bits = bits & !(0xf << 76) | (0x4 << 76);
    bits = bits & !(0x3 << 62) | (0x2 << 62);
    for (at, byte) in text.iter_mut().enumerate() {
        if UUID_DASHES.contains(&at) {
            *byte = b'-';
        } else {
            *byte = b"0123456789abcdef"[(bits >> 124) as usize];
            bits <<= 4;
        }
    }
}

/// Decimal, with zeros before it.
fn write_number(mut number: u64, text: &mut [u8]) {
    for byte in text.iter_mut().rev() {
        *byte = b"0123456789"[(number % 10) as usize];
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn texts(path: &str, count: usize) -> Vec<String> {
        let (text, varied) = Varied::parse(path).unwrap();
        let (mut bytes, mut varied) = (text.into_bytes(), varied.unwrap());
        let mut next = || {
            varied.advance(&mut bytes);
            String::from_utf8(bytes.clone()).unwrap()
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn numbers_come_in_turn_and_are_as_wide_as_the_widest() {
        let expected = ["/a/08/x", "/a/09/x", "/a/10/x", "/a/08/x"];
        assert_eq!(texts("/a/{8..10}/x", 4), expected);
        assert_eq!(texts("/{007..8}", 3), ["/007", "/008", "/007"]);
        assert_eq!(texts("/{5..5}", 2), ["/5", "/5"]);
    }

    #[test]
    fn each_request_has_a_random_uuid_of_its_own() {
        let all = texts("/a/{uuid}", 1000);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 1000);
        for text in &all {
            let uuid = text.strip_prefix("/a/").unwrap();
            let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(groups, [8, 4, 4, 4, 12], "{uuid}");
            assert!(uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{uuid}");
            assert!(uuid[14..].starts_with('4'), "its version: {uuid}");
            assert!(matches!(uuid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "variant: {uuid}");
        }
        assert_ne!(all[0], texts("/a/{uuid}", 1)[0], "another run has others");
    }

    #[test]
    fn several_parts_vary_each_by_itself() {
        assert_eq!(texts("/{1..2}/{1..3}", 4), ["/1/1", "/2/2", "/1/3", "/2/1"]);
    }

    #[test]
    fn a_path_without_parts_is_as_it_was() {
        let (text, varied) = Varied::parse("/a?b=%7Bc%7D").unwrap();
        assert_eq!(text, "/a?b=%7Bc%7D");
        assert!(varied.is_none());
    }

    #[test]
    fn what_is_no_part_is_refused_with_what_there_is() {
        let wrong = [
            ("/{}", "{}"),
            ("/{id}/x", "{id}/x"),
            ("/{2..1}", "{2..1}"),
            ("/{1..}", "{1..}"),
            ("/{+1..2}", "{+1..2}"),
            ("/{1..99999999999999999999}", "{1..99999999999999999999}"),
            ("/a{uuid", "{uuid"),
            ("/a}", "}"),
        ];
        for (path, named) in wrong {
            let said = Varied::parse(path).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{named:?} ")), "{path}: {said}");
            assert!(said.contains("{uuid}") && said.contains("%7B"), "{said}");
        }
    }
}
