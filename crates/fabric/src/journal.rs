//! The revision up to which the table of neighbours is whole, on disk, so that a restart continues
//! from there.
//!
//! The journal may lag behind the table and never leads it. It counts only for the very table that
//! it was written for: one map of the kernel, since the machine was started.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The content of a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The control plane's table, whose revisions these are.
    pub table: u64,
    /// Everything up to here is in the map.
    pub revision: u64,
}

/// The map that a journal is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapName {
    /// The kernel's id of this boot.
    pub boot: String,
    /// The kernel's number of the map.
    pub map: u32,
}

impl MapName {
    /// Names the map with this number, here and now.
    ///
    /// # Errors
    /// An error if the kernel has no id of this boot.
    pub fn here(map: u32) -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self { boot: boot.trim().to_owned(), map })
    }
}

/// Why a journal cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot read the journal {}; remove it if it is damaged, then all is listed anew", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write the journal {}; a restart would list more than it must", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// A journal, in a file of its own.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    map: MapName,
}

const FIRST_LINE: &str = "tollway fabric journal 1";

impl Journal {
    /// The journal in the file `path`, for one map.
    #[must_use]
    pub fn new(path: PathBuf, map: MapName) -> Self {
        Self { path, map }
    }

    /// The journal's content; `None` if it has none, or belongs to another map or version.
    ///
    /// # Errors
    /// [`JournalError::Read`].
    pub fn read(&self) -> Result<Option<Entry>, JournalError> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(parse(&text, &self.map)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(JournalError::Read { path: self.path.clone(), source }),
        }
    }

    /// Writes `entry`; it is on disk when this returns.
    ///
    /// # Errors
    /// [`JournalError::Write`]; the former content remains.
    pub fn write(&self, entry: &Entry) -> Result<(), JournalError> {
        let written = replace(&self.path, &text(entry, &self.map));
        written.map_err(|source| JournalError::Write { path: self.path.clone(), source })
    }
}

fn text(entry: &Entry, map: &MapName) -> String {
    format!(
        "{FIRST_LINE}\nboot {}\nmap {}\ntable {}\nrevision {}\nend\n",
        map.boot, map.map, entry.table, entry.revision
    )
}

fn parse(text: &str, map: &MapName) -> Option<Entry> {
    let mut lines = text.lines();
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let (first, rest) = FIRST_LINE.split_once(' ')?;
    (field(first)? == rest).then_some(())?;
    let (boot, number) = (field("boot")?, field("map")?);
    let is_of_map = boot == map.boot && number.parse() == Ok(map.map);
    let entry =
        Entry { table: field("table")?.parse().ok()?, revision: field("revision")?.parse().ok()? };
    // A truncated file must not be taken for a shorter one.
    (is_of_map && lines.next() == Some("end")).then_some(entry)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(number: u32) -> MapName {
        MapName { boot: "b7".into(), map: number }
    }

    #[test]
    fn journal_is_read_as_it_was_written_and_only_for_its_map() {
        let folder = tollway_testkit::TempDir::new().unwrap();
        let path = folder.path().join("deep/journal");
        let journal = Journal::new(path.clone(), map(3));
        assert_eq!(journal.read().unwrap(), None);
        let entry = Entry { table: u64::MAX, revision: 12 };
        journal.write(&entry).unwrap();
        assert_eq!(journal.read().unwrap(), Some(entry));
        assert_eq!(Journal::new(path.clone(), map(4)).read().unwrap(), None);
        let other_boot = MapName { boot: "b8".into(), map: 3 };
        assert_eq!(Journal::new(path, other_boot).read().unwrap(), None);
    }

    #[test]
    fn a_truncated_journal_is_not_read() {
        let whole = text(&Entry { table: 7, revision: 1234 }, &map(3));
        assert!(parse(&whole, &map(3)).is_some());
        for length in 0..whole.len() - 1 {
            assert_eq!(parse(&whole[..length], &map(3)), None, "{length}");
        }
    }

    #[test]
    fn file_that_cannot_be_written_is_named() {
        let journal = Journal::new("/proc/nowhere/journal".into(), map(1));
        let error = journal.write(&Entry { table: 1, revision: 1 }).unwrap_err().to_string();
        assert!(error.contains("/proc/nowhere/journal"), "{error}");
    }
}
