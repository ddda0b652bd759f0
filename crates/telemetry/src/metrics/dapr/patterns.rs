//! Patterns of paths, as Go's `net/http.ServeMux` reads and matches them: Dapr's `pathMatching`.

use std::borrow::Cow;

use super::paths::decoded;

/// Every call of an app, as a pattern that is no such call gets it for its own path, too.
const CALLS: &str = "/v1.0/invoke/{app_id}/method";
/// The beginning of a pattern that is one of calls.
const OF_CALLS: &str = "/v1.0/invoke/";

/// A part of a pattern. Of those that match, the first in this order counts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    /// This text. A slash is the end behind a slash (`{$}`).
    Exact(String),
    /// One part, whatever it is (`{name}`).
    Any,
    /// All that is left, which may be nothing (`{name...}`, or a slash at the end).
    Rest,
}

/// How the paths that two patterns match relate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    Same,
    /// The first matches all of the second, and more.
    Wider,
    Narrower,
    /// Each matches some that the other does not.
    Overlapping,
    Apart,
}

impl Relation {
    fn and(self, next: Self) -> Self {
        match (self, next) {
            (Self::Apart, _) | (_, Self::Apart) => Self::Apart,
            (Self::Same, other) | (other, Self::Same) => other,
            (one, other) if one == other => one,
            _ => Self::Overlapping,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Pattern {
    text: String,
    parts: Vec<Part>,
}

/// Patterns without conflicts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PathPatterns {
    /// Of two that match a path, the more specific one is first.
    patterns: Vec<Pattern>,
    /// Whether `/` is among them for what no other matches.
    has_own_root: bool,
}

impl PathPatterns {
    /// Reads patterns. With `is_detailed` a path that none matches is its own label.
    ///
    /// # Errors
    /// Which pattern cannot be, and why.
    pub(super) fn read(list: &[String], is_detailed: bool) -> Result<Self, String> {
        let mut texts = Vec::new();
        for text in list {
            let text = normal(text).into_owned();
            if !text.starts_with(OF_CALLS) {
                texts.push(format!("{CALLS}{text}"));
            }
            texts.push(text);
        }
        let has_own_root = is_detailed && !texts.iter().any(|text| text == "/");
        if has_own_root {
            texts.push("/".to_owned());
        }
        texts.sort();
        texts.dedup();
        let mut patterns: Vec<Pattern> = Vec::new();
        for text in texts {
            let pattern = Pattern::read(text)?;
            let conflict = patterns.iter().find(|other| {
                matches!(pattern.relation(other), Relation::Same | Relation::Overlapping)
            });
            if let Some(other) = conflict {
                return Err(format!(
                    "`{}` and `{}` match the same paths, and neither is more specific",
                    other.text, pattern.text
                ));
            }
            patterns.push(pattern);
        }
        patterns.sort_by(|one, other| one.parts.cmp(&other.parts));
        Ok(Self { patterns, has_own_root })
    }

    /// The pattern of a path in its normal form; the path itself where the root stands for all others.
    /// Empty for none.
    pub(super) fn find<'a>(&'a self, path: &'a str) -> Cow<'a, str> {
        let clean = clean(path);
        match self.matching(&clean) {
            None => Cow::Borrowed(""),
            Some(pattern) if pattern.text == "/" && self.has_own_root => Cow::Borrowed(path),
            Some(pattern) => Cow::Borrowed(&pattern.text),
        }
    }

    /// A path without a slash at its end matches a pattern with one, as Go would redirect it there.
    fn matching(&self, path: &str) -> Option<&Pattern> {
        let first = |path: &str| self.patterns.iter().find(|pattern| pattern.matches(path));
        let found = first(path);
        if path.ends_with('/') || found.is_some_and(|found| found.is_exact(path)) {
            return found;
        }
        let slashed = format!("{path}/");
        first(&slashed).filter(|pattern| pattern.is_exact(&slashed)).or(found)
    }
}

impl Pattern {
    /// Reads a pattern that begins with a slash.
    fn read(text: String) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("`{text}`: {why}"));
        if text.contains([' ', '\t']) {
            return wrong("a pattern has neither a method nor a space");
        }
        let (mut parts, mut names) = (Vec::new(), Vec::new());
        let mut written = text.split('/').skip(1).peekable();
        while let Some(part) = written.next() {
            let is_last = written.peek().is_none();
            if part.is_empty() && is_last {
                parts.push(Part::Rest);
                break;
            }
            if !part.contains('{') {
                parts.push(Part::Exact(decoded(part).into_owned()));
                continue;
            }
            let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            let Some(name) = name else { return wrong("braces stand around a whole part") };
            if name == "$" {
                if !is_last {
                    return wrong("`{$}` stands at the end");
                }
                parts.push(Part::Exact("/".to_owned()));
                break;
            }
            let (name, is_rest) = match name.strip_suffix("...") {
                Some(name) => (name, true),
                None => (name, false),
            };
            if is_rest && !is_last {
                return wrong("`{name...}` stands at the end");
            }
            if !is_name(name) {
                return wrong("a name in braces has letters, digits and `_`, and no digit first");
            }
            if names.contains(&name) {
                return wrong("a name in braces occurs twice (`app_id` is that of the calls)");
            }
            names.push(name);
            parts.push(if is_rest { Part::Rest } else { Part::Any });
        }
        Ok(Self { parts, text })
    }

    fn matches(&self, path: &str) -> bool {
        let mut rest = path;
        for part in &self.parts {
            let Some(after) = rest.strip_prefix('/') else { return false };
            let (one, more) = after.split_at(after.find('/').unwrap_or(after.len()));
            let is_matched = match part {
                Part::Rest => return true,
                Part::Exact(text) if text == "/" => after.is_empty(),
                Part::Exact(text) => text == one,
                Part::Any => !one.is_empty(),
            };
            if !is_matched {
                return false;
            }
            rest = more;
        }
        rest.is_empty()
    }

    /// Whether what it leaves open at the end of a path that it matches is nothing.
    fn is_exact(&self, path: &str) -> bool {
        let slashes = path.bytes().filter(|byte| *byte == b'/').count();
        self.parts.last() != Some(&Part::Rest)
            || (path.ends_with('/') && slashes == self.parts.len())
    }

    fn relation(&self, other: &Self) -> Relation {
        let ends_open = |pattern: &Self| pattern.parts.last() == Some(&Part::Rest);
        let (count, of_other) = (self.parts.len(), other.parts.len());
        let shorter_is_open = match count.cmp(&of_other) {
            std::cmp::Ordering::Less => ends_open(self),
            std::cmp::Ordering::Equal => true,
            std::cmp::Ordering::Greater => ends_open(other),
        };
        if !shorter_is_open {
            return Relation::Apart;
        }
        let pairs = self.parts.iter().zip(&other.parts);
        pairs.fold(Relation::Same, |so_far, (one, other)| so_far.and(compare(one, other)))
    }
}

fn compare(one: &Part, other: &Part) -> Relation {
    match (one, other) {
        (Part::Rest, Part::Rest) | (Part::Any, Part::Any) => Relation::Same,
        (Part::Rest, _) => Relation::Wider,
        (_, Part::Rest) => Relation::Narrower,
        (Part::Any, Part::Exact(text)) | (Part::Exact(text), Part::Any) if text == "/" => {
            Relation::Apart
        }
        (Part::Any, Part::Exact(_)) => Relation::Wider,
        (Part::Exact(_), Part::Any) => Relation::Narrower,
        (Part::Exact(one), Part::Exact(other)) if one == other => Relation::Same,
        (Part::Exact(_), Part::Exact(_)) => Relation::Apart,
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c == '_' || c.is_alphabetic();
    text.starts_with(is_letter) && text.chars().all(|c| is_letter(c) || c.is_numeric())
}

/// A path that begins with a slash and has no two in a row.
pub(super) fn normal(path: &str) -> Cow<'_, str> {
    if path.starts_with('/') && !path.contains("//") {
        return Cow::Borrowed(path);
    }
    let mut normal = String::with_capacity(path.len() + 1);
    for part in path.split('/').filter(|part| !part.is_empty()) {
        normal.push('/');
        normal.push_str(part);
    }
    if normal.is_empty() || path.ends_with('/') {
        normal.push('/');
    }
    Cow::Owned(normal)
}

/// A path in its normal form, without `.` and `..`.
fn clean(path: &str) -> Cow<'_, str> {
    if !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match part {
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if path.ends_with('/') && clean.len() > 1 {
        clean.push('/');
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &[&str], is_detailed: bool) -> Result<PathPatterns, String> {
        let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
        PathPatterns::read(&list, is_detailed)
    }

    #[track_caller]
    fn check(list: &[&str], cases: &[(&str, &str)]) {
        let patterns = read(list, false).unwrap();
        for (path, expected) in cases {
            assert_eq!(patterns.find(path), *expected, "{path} of {list:?}");
        }
    }

    #[test]
    fn a14_the_most_specific_pattern_counts_as_in_go() {
        check(
            &["/orders/{id}", "/orders/1234", "orders", "/orders/{id}/items/", "/a/{rest...}"],
            &[
                ("/orders", "/orders"),
                ("/orders/1234", "/orders/1234"),
                ("/orders/7", "/orders/{id}"),
                ("/orders/", ""),
                ("/orders/7/items", "/orders/{id}/items/"),
                ("/orders/7/items/", "/orders/{id}/items/"),
                ("/orders/7/items/8/9", "/orders/{id}/items/"),
                ("/orders/./x/../1234", "/orders/1234"),
                ("/a/b/c", "/a/{rest...}"),
                ("/a", "/a/{rest...}"),
                ("/b", ""),
                ("/v1.0/invoke/shop/method/orders/7", "/v1.0/invoke/{app_id}/method/orders/{id}"),
            ],
        );
        check(
            &["/a/{$}", "/a/", "/b%20c"],
            &[("/a/", "/a/{$}"), ("/a/x", "/a/"), ("/b c", "/b%20c")],
        );
        check(&["/v1.0/invoke/a/method/x"], &[("/v1.0/invoke/b/method/x", "")]);
        check(&["/"], &[("/x", "/"), ("/", "/")]);
    }

    #[test]
    fn a14_what_no_pattern_matches_is_its_own_label_only_in_detail() {
        let patterns = read(&["/orders/{id}"], true).unwrap();
        assert_eq!(patterns.find("/items/7"), "/items/7");
        assert_eq!(patterns.find("/orders/7"), "/orders/{id}");
        assert_eq!(read(&["/", "/a"], true).unwrap().find("/items/7"), "/");
    }

    #[test]
    fn a14_patterns_that_go_refuses_are_refused() {
        for (list, part) in [
            (&["GET /orders"][..], "neither a method"),
            (&["/a{b}"], "around a whole part"),
            (&["/{a}b"], "around a whole part"),
            (&["/{}"], "a name in braces has"),
            (&["/{7a}"], "a name in braces has"),
            (&["/{a-b}"], "a name in braces has"),
            (&["/{a...}/b"], "stands at the end"),
            (&["/{$}/b"], "stands at the end"),
            (&["/{a}/{a}"], "occurs twice"),
            (&["/{app_id}"], "occurs twice"),
            (&["/{a}", "/{b}"], "neither is more specific"),
            (&["/a/{x}", "/{y}/b"], "neither is more specific"),
            (&["/a/", "/a/{x...}"], "neither is more specific"),
        ] {
            let refused = read(list, false).unwrap_err();
            assert!(refused.contains(part), "{list:?}: {refused}");
        }
        assert!(read(&["/{x...}"], true).unwrap_err().contains("neither is more specific"));
        read(&["/{x...}"], false).unwrap();
        read(&["/a/{x}", "/a/{x}/", "/a/b", "/a/", "/a/{$}", "/ä/{größe}", "/a/b"], true).unwrap();
    }

    #[test]
    fn slashes_are_one_and_come_first() {
        for (path, expected) in
            [("", "/"), ("a", "/a"), ("//a///b//", "/a/b/"), ("/a/b", "/a/b"), ("//", "/")]
        {
            assert_eq!(normal(path), expected, "{path}");
        }
    }
}
