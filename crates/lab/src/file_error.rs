//! Mistakes of meaning in the files that users write, scenarios and subjects: location and text of
//! a mistake, and the rules for names and lists.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_saphyr::{Location, Spanned};

/// Longest name of anything in a file.
pub(crate) const MAX_NAME: usize = 40;

/// A mistake of meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// Counted from 1; 0 where the file has no place to point at.
    pub line: u64,
    pub column: u64,
    /// What is wrong and what would be right.
    pub what: String,
    /// What was written and what is known, to suggest a likely name; empty where no name is
    /// unknown.
    pub known: Vec<String>,
    pub written: String,
}

/// The mistakes found so far, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct FileErrors(Vec<FileError>);

impl FileErrors {
    pub(crate) fn add(&mut self, at: Location, what: impl Into<String>) {
        let (line, column) = (at.line(), at.column());
        let what = what.into();
        self.0.push(FileError { line, column, what, known: Vec::new(), written: String::new() });
    }

    /// `written` is no `kind` that is known.
    pub(crate) fn unknown(&mut self, at: Location, kind: &str, written: &str, known: Vec<String>) {
        let (line, column, what) = (at.line(), at.column(), kind.to_owned());
        self.0.push(FileError { line, column, what, known, written: written.to_owned() });
    }

    /// What a record and a process can be called.
    pub(crate) fn name(&mut self, kind: &str, name: &Spanned<String>) {
        let plain =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let text = &name.value;
        if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(plain) {
            let what = format!(
                "the name of a {kind} has 1 to {MAX_NAME} lower-case letters, digits, `-` and `.`"
            );
            self.add(name.referenced, what);
        }
    }

    pub(crate) fn count(
        &mut self,
        at: Location,
        what: &str,
        count: usize,
        allowed: RangeInclusive<usize>,
    ) {
        if !allowed.contains(&count) {
            let (least, most) = allowed.into_inner();
            self.add(at, format!("`{what}` has from {least} to {most} entries, here {count}"));
        }
    }

    pub(crate) fn unique<'a>(
        &mut self,
        kind: &str,
        names: impl Iterator<Item = &'a Spanned<String>>,
    ) {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(&name.value) {
                self.add(name.referenced, format!("two {kind}s are called `{}`", name.value));
            }
        }
    }

    pub(crate) fn known<'a>(
        &mut self,
        kind: &str,
        name: &Spanned<String>,
        known: impl Iterator<Item = &'a str>,
    ) {
        let known: Vec<String> = known.map(str::to_owned).collect();
        if !known.contains(&name.value) {
            self.unknown(name.referenced, kind, &name.value, known);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_vec(self) -> Vec<FileError> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::nowhere;

    #[test]
    fn names_are_short_and_plain() {
        let check = |name: &str, good: bool| {
            let mut errors = FileErrors::default();
            errors.name("case", &nowhere(name.to_owned()));
            assert_eq!(errors.is_empty(), good, "{name}: {errors:?}");
        };
        check("get-4k.tls", true);
        check(&"a".repeat(MAX_NAME), true);
        for bad in ["", "Get", "a_b", "a/b", "ä", &"a".repeat(MAX_NAME + 1)] {
            check(bad, false);
        }
    }

    #[test]
    fn an_unknown_name_keeps_what_is_known() {
        let mut errors = FileErrors::default();
        errors.known("network", &nowhere("west".to_owned()), ["west"].into_iter());
        errors.known("network", &nowhere("wast".to_owned()), ["west"].into_iter());
        let found = errors.into_vec();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].written.as_str(), &found[0].known[..]),
            ("wast", &["west".into()][..])
        );
    }
}
