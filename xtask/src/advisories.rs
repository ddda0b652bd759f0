//! When the dependencies were last compared with the advisory database: a record that is checked
//! in, so that a run which cannot fetch the database can show how old the last check is.
//!
//! The record is made of a database that was fetched and a check that passed, and of nothing else:
//! [`Checked`] is its only source. A run that fetched nothing or found an advisory leaves it as it
//! is.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

use crate::workspace::Workspace;

const FILE: &str = "xtask/advisories.txt";
const LOCK: &str = "Cargo.lock";

/// What the record holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    /// As `YYYY-MM-DD`, UTC.
    day: String,
    /// SHA-256 of the `Cargo.lock` that was checked.
    lock: String,
}

/// Proof of a fetched database and a check against it that passed.
pub(crate) struct Checked(());

/// Fetches, then checks; what either returned decides whether there is a proof.
///
/// # Errors
/// [`Unchecked::Failed`] with the error of the check; [`Unchecked::NotFetched`] with that of the
/// fetch, in which case nothing is checked.
pub(crate) fn check(
    fetch: impl FnOnce() -> Result<()>,
    check: impl FnOnce() -> Result<()>,
) -> Result<Checked, Unchecked> {
    fetch().map_err(Unchecked::NotFetched)?;
    check().map_err(Unchecked::Failed)?;
    Ok(Checked(()))
}

/// Why there was no check that passed.
#[derive(Debug)]
pub(crate) enum Unchecked {
    NotFetched(anyhow::Error),
    Failed(anyhow::Error),
}

/// Writes the record of a check that has just passed, if the day or the dependencies are others.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn note(workspace: &Workspace, _proof: &Checked) -> Result<()> {
    let record = Record { day: today(), lock: lock_hash(&workspace.root)? };
    if read(&workspace.root)?.as_ref() == Some(&record) {
        return Ok(());
    }
    let path = path(&workspace.root);
    std::fs::write(&path, record.text()).with_context(|| format!("write {}", path.display()))?;
    eprintln!("deny: wrote {FILE}; commit it");
    Ok(())
}

/// Prints a warning unless the record is of today and of these dependencies.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn warn_if_old(workspace: &Workspace) -> Result<()> {
    let lock = lock_hash(&workspace.root)?;
    if let Some(warning) = warning(read(&workspace.root)?.as_ref(), &today(), &lock) {
        eprintln!("\nWARNING {warning}");
    }
    Ok(())
}

/// The warning of a run at `today` with dependencies of the hash `lock`.
fn warning(record: Option<&Record>, today: &str, lock: &str) -> Option<String> {
    let Some(record) = record else {
        return Some("advisories were not checked, and no check is on record".to_owned());
    };
    let day = &record.day;
    if day.as_str() > today {
        return Some(format!(
            "advisories were not checked, and the record is of {day}, after today: it is not \
             believed; set the clock, or remove {FILE}"
        ));
    }
    let has_changed = record.lock != lock;
    if day == today && !has_changed {
        return None;
    }
    let mut text = format!("advisories were not checked today; the last check was on {day}");
    if has_changed {
        text.push_str(", of other dependencies than these");
    }
    Some(text)
}

impl Record {
    fn text(&self) -> String {
        let mut text = String::from(
            "# Written by `cargo xtask lint` after it has fetched the advisory database and the \
             check has passed.\n",
        );
        // Writing to a string does not fail.
        let _ = writeln!(text, "checked {}\nlock {}", self.day, self.lock);
        text
    }

    /// `None` for what was not written by [`Record::text`].
    fn parse(text: &str) -> Option<Self> {
        let value =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let record = Self { day: value("checked")?.to_owned(), lock: value("lock")?.to_owned() };
        let is_digit = |at: usize, byte: u8| {
            if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() }
        };
        let is_day =
            record.day.len() == 10 && record.day.bytes().enumerate().all(|(at, b)| is_digit(at, b));
        (is_day && record.text() == text).then_some(record)
    }
}

fn path(root: &Path) -> PathBuf {
    root.join(FILE)
}

fn read(root: &Path) -> Result<Option<Record>> {
    match std::fs::read_to_string(path(root)) {
        Ok(text) => Record::parse(&text)
            .map(Some)
            .with_context(|| format!("{FILE} is damaged; remove it, or take it from git")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {FILE}")),
    }
}

fn lock_hash(root: &Path) -> Result<String> {
    let bytes = std::fs::read(root.join(LOCK)).with_context(|| format!("read {LOCK}"))?;
    Ok(Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    day(since.as_secs() / 86_400)
}

/// The day that is so many after 1970-01-01.
fn day(days: u64) -> String {
    // Counted from the 1st of March of the year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_based = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn record(day: &str, lock: &str) -> Record {
        Record { day: day.to_owned(), lock: lock.to_owned() }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (days, text) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_453, "2025-12-31"),
            (20_454, "2026-01-01"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(day(days), text);
        }
    }

    /// The harm: a run that could not fetch, or that found an advisory, makes the last check young.
    #[test]
    fn a_run_that_fails_proves_no_check() {
        let mut checked = 0;
        let count = || {
            checked += 1;
            Ok(())
        };
        let not_fetched = check(|| bail!("no network"), count);
        assert!(matches!(not_fetched, Err(Unchecked::NotFetched(_))));
        assert_eq!(checked, 0, "an old database is not checked");
        let failed = check(|| Ok(()), || bail!("RUSTSEC-0000-0000"));
        assert!(matches!(failed, Err(Unchecked::Failed(_))));
        check(|| Ok(()), || Ok(())).map_err(|_| ()).unwrap();
    }

    #[test]
    fn a_check_that_did_not_run_is_a_warning_with_the_day_of_the_last() {
        let last = record("2026-11-20", "a");
        let shown = |today: &str, lock: &str| warning(Some(&last), today, lock);
        assert_eq!(shown("2026-11-20", "a"), None);
        let old = shown("2026-11-27", "a").unwrap();
        assert!(old.ends_with("the last check was on 2026-11-20"), "{old}");
        let other = shown("2026-11-20", "b").unwrap();
        assert!(other.contains("2026-11-20, of other dependencies"), "{other}");
        let future = shown("2026-11-19", "a").unwrap();
        assert!(future.contains("not believed"), "{future}");
        assert!(warning(None, "2026-11-27", "a").unwrap().contains("no check is on record"));
    }

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        let written = record("2026-11-20", "a").text();
        assert_eq!(Record::parse(&written), Some(record("2026-11-20", "a")));
        let changed = [
            written.replace("2026-11-20", "yesterday"),
            written.replace("lock", "luck"),
            format!("{written}checked 2027-01-01\n"),
            String::new(),
        ];
        for text in changed {
            assert_eq!(Record::parse(&text), None, "{text}");
        }
    }
}
