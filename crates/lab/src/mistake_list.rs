//! The mistakes of meaning in a file that a user writes, a scenario or a subject, and the rules for
//! names and lists that such files share.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_saphyr::{Location, Spanned};
use tollway_config::Mistake;

/// Longest name of anything in a file.
pub(crate) const MAX_NAME: usize = 40;

/// The mistakes found so far, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct MistakeList(Vec<Mistake>);

impl MistakeList {
    pub(crate) fn add(&mut self, at: Location, what: impl Into<String>) {
        self.0.push(Mistake::at(at, what));
    }

    /// `written` is no `kind` that is known.
    pub(crate) fn unknown(
        &mut self,
        at: Location,
        kind: &str,
        written: &str,
        known: impl IntoIterator<Item: AsRef<str>>,
    ) {
        self.0.push(Mistake::unknown(at, kind, written, known));
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
        let known: Vec<&str> = known.collect();
        if !known.contains(&name.value.as_str()) {
            self.unknown(name.referenced, kind, &name.value, known);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_vec(self) -> Vec<Mistake> {
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
            let mut errors = MistakeList::default();
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
    fn an_unknown_name_is_reported_with_what_is_known() {
        let mut errors = MistakeList::default();
        errors.known("network", &nowhere("west".to_owned()), ["west"].into_iter());
        errors.known("network", &nowhere("wast".to_owned()), ["west"].into_iter());
        let found = errors.into_vec();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "unknown network `wast`; did you mean `west`?");
    }
}
