//! The scenario's working directory: logs, ports files, stores and tokens of its processes.
//!
//! Removed at the end, kept after a failure; of an interrupted experiment the journal stays. A lab that was killed cannot remove its own, so the
//! next one does: a directory is abandoned when nobody holds the lock of its `in-use` file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use tempfile::TempDir;

const PREFIX: &str = "tollway-lab-";
const IN_USE: &str = "in-use";
/// Where an experiment notes what it has done.
pub(crate) const JOURNAL: &str = "journal";
/// How long the journal of a killed experiment is kept.
const JOURNAL_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A directory of one run.
#[derive(Debug)]
pub(crate) struct WorkDir {
    /// Of a new one; one that is reopened is removed by hand.
    dir: Dir,
    /// Locked as long as this process lives.
    _in_use: File,
}

/// Who removes the directory.
#[derive(Debug)]
enum Dir {
    New(TempDir),
    Reopened(PathBuf),
}

impl WorkDir {
    /// Makes a directory only we can read in `root`, and removes abandoned ones beside it.
    pub(crate) fn create(root: &Path) -> io::Result<Self> {
        remove_abandoned(root);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(root)?;
        let in_use = File::create(dir.path().join(IN_USE))?;
        rustix::fs::flock(&in_use, FlockOperation::LockExclusive)?;
        Ok(Self { dir: Dir::New(dir), _in_use: in_use })
    }

    /// Takes over the directory of an experiment that ended early.
    pub(crate) fn reopen(path: &Path) -> io::Result<Self> {
        let in_use = File::options().create(true).append(true).open(path.join(IN_USE))?;
        rustix::fs::flock(&in_use, FlockOperation::NonBlockingLockExclusive)?;
        let dir = Self { dir: Dir::Reopened(fs::canonicalize(path)?), _in_use: in_use };
        // Ports files of processes that are gone would be taken for those of new ones.
        dir.remove_files(|name| name != JOURNAL && name != IN_USE);
        Ok(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        match &self.dir {
            Dir::New(dir) => dir.path(),
            Dir::Reopened(path) => path,
        }
    }

    /// Leaves the journal alone for a later process.
    pub(crate) fn keep_journal(self) -> PathBuf {
        self.remove_files(|name| name != JOURNAL);
        self.keep()
    }

    fn remove_files(&self, unwanted: impl Fn(&str) -> bool) {
        let Ok(entries) = fs::read_dir(self.path()) else { return };
        for entry in entries.filter_map(Result::ok) {
            if entry.file_name().to_str().is_some_and(&unwanted) {
                // What cannot be removed is in nobody's way but the reader's.
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
    }

    /// Leaves the directory for a person to look into; no later run removes it.
    pub(crate) fn keep(mut self) -> PathBuf {
        let path = match std::mem::replace(&mut self.dir, Dir::Reopened(PathBuf::new())) {
            Dir::New(dir) => dir.keep(),
            Dir::Reopened(path) => path,
        };
        // If this fails the next run removes what was meant to be kept: no harm.
        let _ = fs::remove_file(path.join(IN_USE));
        path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Dir::Reopened(path) = &self.dir
            && !path.as_os_str().is_empty()
        {
            // As with a new one: what cannot be removed stays.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Best effort: what cannot be read or removed stays.
fn remove_abandoned(root: &Path) {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.filter_map(Result::ok) {
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        // Not through a symbolic link, and nobody else's: the root is often shared.
        let ours = named && entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
        if ours && is_abandoned(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(dir: &Path) -> bool {
    // Somebody may want to go on with it.
    let journal = fs::metadata(dir.join(JOURNAL)).and_then(|journal| journal.modified());
    if journal.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < JOURNAL_KEPT)) {
        return false;
    }
    let Ok(in_use) = File::open(dir.join(IN_USE)) else { return false };
    rustix::fs::flock(&in_use, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_run_leaves_nothing_and_a_failed_one_its_files() {
        let root = tempfile::tempdir().unwrap();
        drop(WorkDir::create(root.path()).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        let kept = WorkDir::create(root.path()).unwrap().keep();
        drop(WorkDir::create(root.path()).unwrap());
        assert!(kept.is_dir(), "a later run does not remove what was kept");
    }

    #[test]
    fn the_next_run_removes_what_a_killed_one_left_but_not_what_is_in_use() {
        let root = tempfile::tempdir().unwrap();
        let abandoned = root.path().join("tollway-lab-killed");
        fs::create_dir(&abandoned).unwrap();
        fs::write(abandoned.join(IN_USE), "").unwrap();
        let foreign = root.path().join("tollway-lab-notes");
        fs::create_dir(&foreign).unwrap();
        let first = WorkDir::create(root.path()).unwrap();
        let second = WorkDir::create(root.path()).unwrap();
        assert!(!abandoned.exists());
        assert!(foreign.is_dir() && first.path().is_dir() && second.path().is_dir());
    }
}
