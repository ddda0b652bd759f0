//! Reasons why a mutant may survive, as they are written beside the code: a comment that begins with
//! [`MARK`], then the change up to the next backtick, a colon, and the reason.
//!
//! The comment stands above the line that the mutant changes. For a replaced function that is the
//! first line of its body.

use std::ops::RangeInclusive;

/// What a comment begins with that has a reason.
const MARK: &str = "// Mutant `";

/// One reason of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excuse {
    /// The line of code that follows, from 1.
    pub line: usize,
    /// The change, as cargo-mutants describes it, without its function.
    pub change: String,
    pub reason: String,
}

impl Excuse {
    /// Whether this is the reason for a mutant of that line with that description.
    pub(super) fn covers(&self, line: usize, description: &str) -> bool {
        let rest = description.strip_prefix(&self.change);
        line == self.line && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" in "))
    }
}

/// All reasons of a file, or the line of a comment that begins as one and gives none.
pub(super) fn excuses(text: &str) -> Result<Vec<Excuse>, usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    let begins = (0..lines.len()).filter(|at| lines[*at].starts_with(MARK));
    for at in begins {
        let code = (at..lines.len()).find(|next| !lines[*next].starts_with("//"));
        let code = code.ok_or(at + 1)?;
        let own = (at + 1..code).find(|next| lines[*next].starts_with(MARK)).unwrap_or(code);
        let (change, reason) = read(&lines, at..=own - 1).ok_or(at + 1)?;
        found.push(Excuse { line: code + 1, change, reason });
    }
    Ok(found)
}

fn read(lines: &[&str], of: RangeInclusive<usize>) -> Option<(String, String)> {
    let words = lines[of].iter().map(|line| line.trim_start_matches('/').trim());
    let text = words.collect::<Vec<_>>().join(" ");
    let (change, reason) = text.strip_prefix("Mutant `")?.split_once("`: ")?;
    (!reason.trim().is_empty()).then(|| (change.to_owned(), reason.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_that_of_the_line_below() {
        let text = "fn f() {\n    // Mutant `replace < with <=`: both are\n    // the same.\n    \
                    // Mutant `replace f with ()`: it only logs.\n    a < b\n}\n";
        let found = excuses(text).unwrap();
        let reasons: Vec<_> = found.iter().map(|excuse| excuse.reason.as_str()).collect();
        assert_eq!(reasons, ["both are the same.", "it only logs."]);
        assert!(found[0].covers(5, "replace < with <= in f"));
        assert!(found[1].covers(5, "replace f with ()"));
        assert!(!found[0].covers(6, "replace < with <= in f"), "another line");
        assert!(!found[0].covers(5, "replace < with <=> in f"), "another change");
        assert!(!found[0].covers(5, "replace < with > in f"), "another change");
    }

    #[test]
    fn a_mark_without_a_reason_is_refused_by_its_line() {
        for text in
            ["\n// Mutant `replace < with <=`:\na < b", "\n// Mutant `x`: y.", "\n// Mutant `x\nf"]
        {
            assert_eq!(excuses(text), Err(2), "{text}");
        }
    }
}
