//! Which paths an operation of Dapr's access control means.

use std::fmt;
use std::str::FromStr;

use super::pattern::{
    PATTERN_SEGMENTS_LIMIT, PatternError, PatternSegment, check_length, normal_segment,
    parse_segment,
};

/// One segment of an operation's path.
#[derive(Clone, PartialEq, Eq, Debug)]
enum OperationSegment {
    /// These bytes, in the normal form of a path.
    Is(Box<[u8]>),
    /// Any one segment: `{name}`.
    Any,
    /// These bytes, and anything where they have `*`.
    Like(Box<[u8]>),
    /// `**`.
    Several,
}

/// Paths as Dapr's access control writes them: `*` stands for any one segment or for a part of one,
/// `**` at the end for the path before it and everything below. `**` before the end is one segment
/// to Dapr, and several by its documentation; [`OperationPath::covers`] takes either. A slash at the
/// end makes no difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperationPath {
    text: Box<str>,
    segments: Box<[OperationSegment]>,
}

impl OperationPath {
    /// How many segments there are in front of a `**` at the end.
    #[must_use]
    pub fn length(&self) -> usize {
        self.segments.len() - usize::from(self.includes_below())
    }

    /// How many of them are not named in full.
    #[must_use]
    pub fn stars(&self) -> usize {
        let named = |segment: &&OperationSegment| matches!(segment, OperationSegment::Is(_));
        self.length() - self.segments.iter().filter(named).count()
    }

    /// Whether everything below is meant too.
    #[must_use]
    pub fn includes_below(&self) -> bool {
        self.segments.last() == Some(&OperationSegment::Several)
    }

    /// Whether a path in its normal form is meant, without regard to case. `many` is whether `**`
    /// before the end may stand for more than one segment.
    #[must_use]
    pub fn covers(&self, path: &[u8], many: bool) -> bool {
        let mut rest = path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty());
        let mut at = 0;
        // The last `**` before the end, and what is left behind the segments that it stands for.
        let mut taken = None;
        loop {
            let segment = self.segments.get(at);
            let is_last = at + 1 == self.segments.len();
            let fits = match (segment, rest.next()) {
                (None, None) => return true,
                (Some(OperationSegment::Several), _) if is_last => return true,
                (Some(OperationSegment::Several), Some(_)) => {
                    taken = many.then(|| (at, rest.clone()));
                    true
                }
                (Some(segment), Some(asked)) => segment.fits(asked),
                (Some(_), None) | (None, Some(_)) => false,
            };
            if fits {
                at += 1;
                continue;
            }
            let Some((several, mut left)) = taken.take() else { return false };
            if left.next().is_none() {
                return false;
            }
            at = several + 1;
            rest = left.clone();
            taken = Some((several, left));
        }
    }
}

impl OperationSegment {
    fn fits(&self, asked: &[u8]) -> bool {
        match self {
            Self::Is(own) => own.eq_ignore_ascii_case(asked),
            Self::Any | Self::Several => true,
            Self::Like(own) => is_like(asked, own),
        }
    }
}

/// Whether `asked` is `own` with something in place of each of its stars.
fn is_like(asked: &[u8], own: &[u8]) -> bool {
    let (mut at, mut own_at) = (0, 0);
    // Behind the last star, and where what it stands for ends.
    let mut star = None;
    while at < asked.len() {
        match own.get(own_at) {
            Some(b'*') => {
                own_at += 1;
                star = Some((own_at, at));
            }
            Some(byte) if asked.get(at).is_some_and(|asked| byte.eq_ignore_ascii_case(asked)) => {
                at += 1;
                own_at += 1;
            }
            _ => {
                let Some((behind, end)) = star else { return false };
                at = end + 1;
                own_at = behind;
                star = Some((behind, at));
            }
        }
    }
    own.iter().skip(own_at).all(|byte| *byte == b'*')
}

impl FromStr for OperationPath {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        check_length(text)?;
        if text.contains('?') {
            return Err(PatternError::Query(text.to_owned()));
        }
        let rest = text.strip_prefix('/');
        let rest = rest.ok_or_else(|| PatternError::NotAbsolute(text.to_owned()))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let texts: Vec<&str> = if rest.is_empty() { Vec::new() } else { rest.split('/').collect() };
        let path = Self {
            text: text.into(),
            segments: texts
                .into_iter()
                .map(|segment| match segment {
                    "**" => Ok(OperationSegment::Several),
                    _ if segment.contains('*') => {
                        normal_segment(text, segment).map(OperationSegment::Like)
                    }
                    _ => parse_segment(text, segment).map(|segment| match segment {
                        PatternSegment::Is(bytes) => OperationSegment::Is(bytes),
                        PatternSegment::Any => OperationSegment::Any,
                    }),
                })
                .collect::<Result<_, _>>()?,
        };
        if path.length() > PATTERN_SEGMENTS_LIMIT {
            let count = path.length();
            return Err(PatternError::TooManySegments { path: text.to_owned(), count });
        }
        Ok(path)
    }
}

impl fmt::Display for OperationPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, path: &str, one: bool, many: bool) {
        let read: OperationPath = pattern.parse().unwrap();
        assert_eq!(read.to_string(), pattern);
        let found = [false, true].map(|many| read.covers(path.as_bytes(), many));
        assert_eq!(found, [one, many], "{pattern} and {path}");
    }

    #[test]
    fn stars_stand_for_what_daprs_do() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/a/", "/A", true),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a", false),
            ("/a/*", "/a/b/c", false),
            ("/a/*/c", "/a/b/c", true),
            ("/a/**", "/a", true),
            ("/a/**", "/a/b/c", true),
            ("/**", "/", true),
            ("/order*", "/orders", true),
            ("/order*", "/ORDER", true),
            ("/order*", "/orders/7", false),
            ("/*s", "/orders", true),
            ("/*s", "/order", false),
            ("/v*/it*s", "/v1/items", true),
            ("/a*b*c", "/a-b-b-c", true),
            ("/a*b*c", "/a-b-b", false),
            ("/a**", "/ab", true),
            ("/caf\u{e9}*", "/caf%C3%A9s", true),
        ] {
            check(pattern, path, expected, expected);
        }
    }

    #[test]
    fn segments_that_are_not_named_in_full_are_counted() {
        for (pattern, length, stars) in [
            ("/", 0, 0),
            ("/a/b", 2, 0),
            ("/a/*", 2, 1),
            ("/a/*/b*/{c}/d/**", 5, 3),
            ("/a/**/b", 3, 1),
            ("/**", 0, 0),
        ] {
            let path: OperationPath = pattern.parse().unwrap();
            assert_eq!((path.length(), path.stars()), (length, stars), "{pattern}");
        }
    }

    #[test]
    fn two_stars_before_the_end_are_one_segment_or_several() {
        check("/a/**/d", "/a/b/d", true, true);
        check("/a/**/d", "/a/b/c/d", false, true);
        check("/a/**/d", "/a/d", false, false);
        check("/a/**/d", "/a/b/c", false, false);
        check("/**/d/**/f", "/a/b/d/e/e/f", false, true);
        check("/**/d/**", "/a/b/d", false, true);
        check("/a/**/b/c", "/a/x/b/b/c", false, true);
    }

    #[test]
    fn what_no_path_is_like_is_refused() {
        for (text, message) in [
            ("a", "begins with `/`"),
            ("/a?b", "has a query"),
            ("/a//b", "empty segment"),
            ("/a%2F*", "rules cannot rely on"),
            ("/%61*", "write `/a*`"),
            (&"/a".repeat(33), "33 segments"),
        ] {
            let refused = text.parse::<OperationPath>().unwrap_err().to_string();
            assert!(refused.contains(message), "{text}: {refused}");
        }
        assert!(format!("{}/**", "/a".repeat(32)).parse::<OperationPath>().is_ok());
    }
}
