//! Why cases do not pass: one line each, kept beside this file.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// `CASE TAB KIND TAB REASON`.
const REASONS: &str = include_str!("reasons.tsv");

/// Begins the reason of a case that passes on a machine that is fast enough.
pub(super) const AT_TIMES: &str = "at times: ";

/// Why a case does not pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// It fails with Dapr's own program, too, run as here.
    RealFails,
    /// It is about something that we say we lack.
    Lacks,
    /// We differ on purpose.
    Differs,
    /// It remains to be done.
    Open,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::RealFails, Self::Lacks, Self::Differs, Self::Open];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::RealFails => "real daprd fails",
            Self::Lacks => "lacks",
            Self::Differs => "differs",
            Self::Open => "open",
        }
    }
}

/// Of each case that does not pass.
pub(super) struct Reasons(BTreeMap<&'static str, (Kind, &'static str)>);

impl Reasons {
    /// # Errors
    /// A line is not of this form.
    pub(super) fn read() -> Result<Self> {
        Self::parse(REASONS)
    }

    pub(super) fn parse(text: &'static str) -> Result<Self> {
        let mut reasons = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let mut parts = line.splitn(3, '\t');
            let (case, kind) = (parts.next(), parts.next());
            let reason = parts.next().filter(|reason| !reason.trim().is_empty());
            let kind = Kind::ALL.into_iter().find(|known| Some(known.word()) == kind);
            let read = case.zip(kind.zip(reason));
            let (case, reason) = read.with_context(|| format!("no reason of a case: {line}"))?;
            if reasons.insert(case, reason).is_some() {
                bail!("{case} has two reasons");
            }
        }
        Ok(Self(reasons))
    }

    pub(super) fn of(&self, case: &str) -> Option<(Kind, &'static str)> {
        self.0.get(case).copied()
    }

    pub(super) fn cases(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_case_a_kind_and_a_reason() {
        Reasons::read().unwrap();
        for wrong in ["a", "a\topen", "a\topen\t ", "a\tother\tb", "a\topen\tb\na\topen\tc"] {
            assert!(Reasons::parse(wrong).is_err(), "{wrong}");
        }
        let reasons = Reasons::parse("a/b\tdiffers\tc d\n").unwrap();
        assert_eq!(reasons.of("a/b"), Some((Kind::Differs, "c d")));
        assert_eq!(reasons.of("a"), None);
    }
}
