//! The findings of checks, and how they are printed.

use std::fmt::Write;

use tollway_model::ErrorCode;

use crate::failure::{Report, without_os_numbers};

/// Columns of the names.
const NAME_COLUMNS: usize = 16;
/// Columns before the text of a finding: the level, two blanks, the name.
const INDENT: usize = 6 + NAME_COLUMNS;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    Ok,
    /// It works, with less, or may stop working.
    Warn,
    /// What was checked does not work.
    Fail,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line of the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// The subject of the check, in a word.
    pub(crate) name: String,
    pub(crate) what: String,
    /// What to do; empty where there is nothing to do.
    pub(crate) fix: String,
    pub(crate) code: Option<ErrorCode>,
}

impl Finding {
    pub(crate) fn ok(name: &str, what: impl Into<String>) -> Self {
        Self::new(Level::Ok, name, what, "")
    }

    pub(crate) fn warn(name: &str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Warn, name, what, fix)
    }

    pub(crate) fn fail(
        name: &str,
        code: impl Into<Option<ErrorCode>>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { code: code.into(), ..Self::new(Level::Fail, name, what, fix) }
    }

    /// In the words of the command that meets the error.
    pub(crate) fn of_error(name: &str, error: &anyhow::Error) -> Self {
        let (what, code, fix) = Report::of(error).into_parts();
        Self::fail(name, code, what, fix)
    }

    /// A failure of something that was not requested is only a warning.
    pub(crate) fn at_most(mut self, level: Level) -> Self {
        self.level = self.level.min(level);
        self
    }

    fn new(level: Level, name: &str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        let what = without_os_numbers(&what.into());
        Self { level, name: name.to_owned(), what, fix: fix.into(), code: None }
    }

    /// The lines for a terminal of `columns`.
    pub(crate) fn to_text(&self, columns: usize) -> String {
        let mut said = self.what.clone();
        if let Some(code) = self.code.filter(|_| self.level > Level::Ok) {
            // Writing into a string does not fail.
            let _ = write!(said, " [{code}]");
        }
        let start = format!("{:<6}{:<NAME_COLUMNS$}", self.level.word(), self.name);
        let separator = if self.name.len() < NAME_COLUMNS { "" } else { " " };
        let mut text = wrapped(&format!("{start}{separator}"), &said, columns);
        if !self.fix.is_empty() && self.level > Level::Ok {
            let start = format!("{:>INDENT$}", "fix: ");
            text += &wrapped(&start, &self.fix, columns);
        }
        text
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "level": self.level.word(),
            "name": self.name,
            "what": self.what,
            "fix": self.fix,
            "code": self.code.map(|code| code.to_string()),
        })
    }
}

/// `text` behind `start`, broken between words, the later lines indented.
fn wrapped(start: &str, text: &str, columns: usize) -> String {
    let room = columns.saturating_sub(INDENT).max(20);
    let mut lines = String::from(start);
    let mut used = start.chars().count().saturating_sub(INDENT);
    let mut first = true;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if !first && used + 1 + length > room {
            let _ = write!(lines, "\n{:INDENT$}", "");
            used = 0;
            first = true;
        }
        if !first {
            lines.push(' ');
            used += 1;
        }
        lines += word;
        used += length;
        first = false;
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_the_terminal() {
        let finding = Finding::fail(
            "http_listen",
            ErrorCode::PortTaken,
            "127.0.0.1:3500 is held by python3 (process 4711)",
            "end that process, or choose another address with --http-listen",
        );
        let text = finding.to_text(60);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(
            text.starts_with("fail  http_listen     127.0.0.1:3500 is held by python3"),
            "{text}"
        );
        assert!(text.contains("[ERR_PORT_TAKEN]"), "{text}");
        assert!(text.contains("\n                 fix: end that process"), "{text}");
    }

    #[test]
    fn what_is_well_has_no_fix() {
        let refused = Finding::warn("x", "Permission denied (os error 13)", "y");
        assert_eq!(refused.what, "Permission denied");
        let text = Finding::ok("kernel", "Linux 6.18").to_text(60);
        assert_eq!(text, "ok    kernel          Linux 6.18\n");
        let softened = Finding::fail("x", ErrorCode::PortTaken, "a", "b").at_most(Level::Warn);
        assert!(softened.to_text(60).starts_with("warn  x "));
    }
}
