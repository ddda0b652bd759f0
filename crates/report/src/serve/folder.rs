//! The folder whose files are shown: its listing, and its files by name. Read only; a name can
//! only mean a file in the folder itself, and a link that leads out of it is not followed.

use std::cmp::Reverse;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use thiserror::Error;
use tollway_model::{ErrorCode, decode_text};

use crate::document::{Document, DocumentError};

/// Files that are listed, the newest.
pub const FILES_LIMIT: usize = 2_000;

/// Most entries of the folder that are read.
const ENTRIES_LIMIT: usize = 50_000;

/// Longest file that is read, in bytes.
pub const FILE_LIMIT_BYTES: u64 = 64 << 20;

/// Longest file name that is looked up, in bytes: the longest that file systems have.
const NAME_LIMIT_BYTES: usize = 255;

/// A folder that is open for as long as this lives.
pub(crate) struct Folder {
    path: PathBuf,
    fd: OwnedFd,
}

/// A file as the folder lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) stamp: Stamp,
}

/// What changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) modified: SystemTime,
    pub(crate) length: u64,
}

/// Why a folder cannot be read.
#[derive(Debug, Error)]
#[error("the folder {path} cannot be read; give one that holds results", path = path.display())]
pub struct FolderError {
    path: PathBuf,
    source: std::io::Error,
}

impl FolderError {
    pub(crate) fn code(&self) -> ErrorCode {
        ErrorCode::of_file(&self.source, ErrorCode::FileUnusable)
    }
}

/// Why a file of the folder cannot be read.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    #[error("there is no file of that name in the folder")]
    Absent,
    #[error("it cannot be opened")]
    Open(#[source] std::io::Error),
    #[error("it is a link that leads out of the folder, and is not followed")]
    LeadsOut,
    #[error("it is not a plain file")]
    NotPlain,
    #[error("it is {length} bytes long; at most {FILE_LIMIT_BYTES} are read")]
    TooLong { length: u64 },
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    #[error("it is not text in UTF-8")]
    NotText,
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Folder {
    /// # Errors
    /// [`FolderError`] when there is no such folder, or it may not be read.
    pub(crate) fn open(path: &Path) -> Result<Self, FolderError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, path, flags, Mode::empty());
        let failed = |error: Errno| FolderError { path: path.into(), source: error.into() };
        let fd = opened.map_err(failed)?;
        // The shown path is more informative than `.`.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(Self { fd, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder's JSON files, newest first, and how many older ones are left out.
    ///
    /// # Errors
    /// [`FolderError`] when the folder cannot be read.
    pub(crate) fn list(&self) -> Result<(Vec<Found>, usize), FolderError> {
        let failed = |source| FolderError { path: self.path.clone(), source };
        let entries = std::fs::read_dir(&self.path).map_err(failed)?;
        let mut found: Vec<Found> =
            entries.take(ENTRIES_LIMIT).flatten().filter_map(|entry| found(&entry)).collect();
        found.sort_by_key(|file| (Reverse(file.stamp.modified), Reverse(file.name.clone())));
        let older = found.len().saturating_sub(FILES_LIMIT);
        found.truncate(FILES_LIMIT);
        Ok((found, older))
    }

    /// The text of the file of that name.
    ///
    /// # Errors
    /// [`FileError`] when there is none, it leads out of the folder, is too long or no text.
    pub(crate) fn text(&self, name: &str) -> Result<String, FileError> {
        if !is_name(name) {
            return Err(FileError::Absent);
        }
        let file = File::from(self.open_file(name)?);
        let facts = file.metadata().map_err(FileError::Open)?;
        if !facts.is_file() {
            return Err(FileError::NotPlain);
        }
        if facts.len() > FILE_LIMIT_BYTES {
            return Err(FileError::TooLong { length: facts.len() });
        }
        let mut bytes = Vec::with_capacity(facts.len() as usize);
        // The file may grow while it is read.
        file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(FileError::Read)?;
        let length = bytes.len() as u64;
        if length > FILE_LIMIT_BYTES {
            return Err(FileError::TooLong { length });
        }
        decode_text(bytes).ok_or(FileError::NotText)
    }

    /// The document in the file of that name.
    ///
    /// # Errors
    /// [`FileError`] when the file or what is in it cannot be read.
    pub(crate) fn document(&self, name: &str) -> Result<Document, FileError> {
        Ok(Document::from_json(&self.text(name)?)?)
    }

    fn open_file(&self, name: &str) -> Result<OwnedFd, FileError> {
        // A FIFO without a writer would be waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = match openat2(&self.fd, name, flags, Mode::empty(), within) {
            // If the kernel does not support it, or a container forbids the call, no link is
            // followed.
            Err(Errno::NOSYS | Errno::PERM) => {
                openat(&self.fd, name, flags | OFlags::NOFOLLOW, Mode::empty())
            }
            other => other,
        };
        opened.map_err(|error| match error {
            Errno::NOENT => FileError::Absent,
            Errno::XDEV | Errno::LOOP => FileError::LeadsOut,
            other => FileError::Open(other.into()),
        })
    }
}

/// Whether the name can be that of a result in the folder, and only there.
fn is_name(name: &str) -> bool {
    name.len() <= NAME_LIMIT_BYTES
        && name.ends_with(".json")
        && !name.starts_with('.')
        && !name.contains(['/', '\0'])
}

fn found(entry: &std::fs::DirEntry) -> Option<Found> {
    let name = entry.file_name().into_string().ok().filter(|name| is_name(name))?;
    // Of a link, not of what it leads to.
    let facts = entry.metadata().ok().filter(|facts| !facts.is_dir())?;
    let stamp = Stamp { modified: facts.modified().ok()?, length: facts.len() };
    Some(Found { name, stamp })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tollway_testkit::TempDir;

    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_absent() {
        let dir = TempDir::new().unwrap();
        let inside = dir.path().join("inside");
        std::fs::create_dir_all(inside.join("deeper.json")).unwrap();
        for folder in [dir.path(), &inside, &inside.join("deeper.json")] {
            std::fs::write(folder.join("a.json"), "{}").unwrap();
        }
        std::fs::write(inside.join(".hidden.json"), "{}").unwrap();
        symlink("../a.json", inside.join("out.json")).unwrap();
        symlink(dir.path().join("a.json"), inside.join("absolute.json")).unwrap();
        symlink("a.json", inside.join("within.json")).unwrap();
        let folder = Folder::open(&inside).unwrap();
        assert_eq!(folder.text("a.json").unwrap(), "{}");
        assert_eq!(folder.text("within.json").unwrap(), "{}");
        for name in [
            "../a.json",
            "./a.json",
            "deeper.json/a.json",
            "/etc/a.json",
            "..",
            "",
            "a.json\0",
            ".hidden.json",
            "none.json",
        ] {
            assert!(matches!(folder.text(name), Err(FileError::Absent)), "{name:?}");
        }
        for name in ["out.json", "absolute.json"] {
            assert!(matches!(folder.text(name), Err(FileError::LeadsOut)), "{name}");
        }
        assert!(matches!(folder.text("deeper.json"), Err(FileError::NotPlain)));
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = TempDir::new().unwrap();
        let fifo = dir.path().join("fifo.json");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        assert!(matches!(folder.text("fifo.json"), Err(FileError::NotPlain)));
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let dir = TempDir::new().unwrap();
        let long = File::create(dir.path().join("long.json")).unwrap();
        long.set_len(FILE_LIMIT_BYTES + 1).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        assert!(matches!(folder.text("long.json"), Err(FileError::TooLong { .. })));
    }

    #[test]
    fn the_newest_files_are_listed() {
        let dir = TempDir::new().unwrap();
        for number in 0..FILES_LIMIT + 3 {
            let file = File::create(dir.path().join(format!("{number}.json"))).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            file.set_modified(at).unwrap();
        }
        std::fs::write(dir.path().join("notes.txt"), "").unwrap();
        let (found, older) = Folder::open(dir.path()).unwrap().list().unwrap();
        assert_eq!((found.len(), older), (FILES_LIMIT, 3));
        assert_eq!(found[0].name, format!("{}.json", FILES_LIMIT + 2));
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = Folder::open(Path::new("no/such/folder")).err().unwrap();
        assert!(error.to_string().contains("no/such/folder"), "{error}");
    }
}
