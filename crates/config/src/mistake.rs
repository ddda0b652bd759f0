//! A mistake in what a user wrote: where it stands, what is wrong, and what to do.

use crate::go::At;
use crate::suggest;
use crate::yaml::YamlError;

/// A mistake of meaning, found in values that were read from a text. The text has no name yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// Counted from 1; 0 where there is no position to point at.
    pub line: u64,
    pub column: u64,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl Mistake {
    /// A mistake at a position.
    pub fn at(at: impl Into<At>, what: impl Into<String>) -> Self {
        let At { line, column } = at.into();
        Self { line, column, what: what.into() }
    }

    /// A name that is not known, with a suggestion of one that is.
    pub fn unknown(
        at: impl Into<At>,
        kind: &str,
        written: &str,
        known: impl IntoIterator<Item: AsRef<str>>,
    ) -> Self {
        let known: Vec<_> = known.into_iter().collect();
        Self::at(at, suggest::unknown(kind, written, known.iter().map(AsRef::as_ref)))
    }

    /// The mistake with the file, or another name, of its text.
    #[must_use]
    pub fn within(self, source: &str) -> YamlError {
        let Self { line, column, what } = self;
        YamlError { source_name: source.to_owned(), line, column, what }
    }
}
