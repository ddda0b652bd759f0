//! The scenario's working directory: logs, ports files, stores and tokens of its processes.
//!
//! Removed at the end, retained after a failure; of an interrupted experiment that has made a run
//! the journal stays. A lab that was killed cannot remove its own, so the next one does: a
//! directory is abandoned if no process holds the lock of its `in-use` file. A retained one is
//! removed after a week.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use tempfile::TempDir;

const PREFIX: &str = "tollway-lab-";
const IN_USE: &str = "in-use";
/// A file in a directory that is retained for the user.
const RETAINED: &str = "kept";
/// Where an experiment notes what it has done.
pub(crate) const JOURNAL: &str = "journal";
/// How long the journal of an interrupted experiment, and the directory of a failed one, is
/// retained.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// A directory of one run.
#[derive(Debug)]
pub(crate) struct WorkDir {
    /// Of a new one; one that is reopened is removed by hand.
    dir: Dir,
    /// Locked as long as this process lives.
    in_use: File,
}

/// Whether the directory is removed.
#[derive(Debug)]
enum Dir {
    New(TempDir),
    Reopened(PathBuf),
}

impl WorkDir {
    /// Makes a directory in `root` that only this user can read, and removes abandoned ones there.
    pub(crate) fn create(root: &Path) -> io::Result<Self> {
        remove_abandoned(root);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(root)?;
        let in_use = File::create(dir.path().join(IN_USE))?;
        rustix::fs::flock(&in_use, FlockOperation::LockExclusive)?;
        Ok(Self { dir: Dir::New(dir), in_use })
    }

    /// Takes over the directory of an experiment that ended early.
    pub(crate) fn reopen(path: &Path) -> io::Result<Self> {
        let in_use = File::options().create(true).append(true).open(path.join(IN_USE))?;
        rustix::fs::flock(&in_use, FlockOperation::NonBlockingLockExclusive)?;
        let dir = Self { dir: Dir::Reopened(fs::canonicalize(path)?), in_use };
        // Ports files of processes that are gone would be taken for those of new ones.
        remove_files(dir.path(), |name| name != JOURNAL && name != IN_USE);
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
        leave_journal(self.path());
        self.leave()
    }

    /// Leaves the directory for the user, for a week at least.
    pub(crate) fn keep(self) -> PathBuf {
        // The week begins now, after any length of experiment. If either fails, the next run
        // removes the directory: no harm.
        let _ = self.in_use.set_modified(SystemTime::now());
        let _ = fs::rename(self.path().join(IN_USE), self.path().join(RETAINED));
        self.leave()
    }

    fn leave(mut self) -> PathBuf {
        match std::mem::replace(&mut self.dir, Dir::Reopened(PathBuf::new())) {
            Dir::New(dir) => dir.keep(),
            Dir::Reopened(path) => path,
        }
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
        // Not through a symbolic link, and only ours: the root is often shared.
        let ours = named && entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
        if ours {
            clear(&entry.path());
        }
    }
}

/// Removes what an earlier lab left in `dir`, unless it is in use, retained for a reader, or no lab's.
/// Of a killed lab whose experiment can go on, the journal stays.
fn clear(dir: &Path) {
    // Locked until all is removed, so that no process resumes what is about to go.
    let in_use = File::open(dir.join(IN_USE)).ok();
    let lock = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    if in_use.as_ref().is_some_and(|file| lock(file).is_err()) {
        return;
    }
    let (journal, retained) = (dir.join(JOURNAL), dir.join(RETAINED));
    let can_go_on = is_young(&journal) && has_runs(&journal);
    let is_over =
        in_use.is_some() || (!is_young(&retained) && (retained.exists() || journal.exists()));
    if can_go_on && in_use.is_some() {
        leave_journal(dir);
    } else if is_over && !can_go_on {
        let _ = fs::remove_dir_all(dir);
    }
}

fn is_young(file: &Path) -> bool {
    let modified = fs::metadata(file).and_then(|file| file.modified());
    modified.is_ok_and(|at| at.elapsed().map_or(true, |age| age < KEPT_FOR))
}

/// Whether the journal has a line behind its header: a run to go on from.
fn has_runs(journal: &Path) -> bool {
    let Ok(file) = File::open(journal) else { return false };
    BufReader::new(file).split(b'\n').map_while(Result::ok).nth(1).is_some()
}

/// The lock goes last: a process that finds none finds the journal alone.
fn leave_journal(dir: &Path) {
    remove_files(dir, |name| name != JOURNAL && name != IN_USE);
    let _ = fs::remove_file(dir.join(IN_USE));
}

/// Best effort: what cannot be removed takes space and does no other harm.
fn remove_files(dir: &Path, unwanted: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(&unwanted) {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_run_leaves_nothing_and_a_failed_one_its_files() {
        let root = tempfile::tempdir().unwrap();
        drop(WorkDir::create(root.path()).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        let failed = WorkDir::create(root.path()).unwrap();
        age(&failed.path().join(IN_USE));
        let retained = failed.keep();
        drop(WorkDir::create(root.path()).unwrap());
        assert!(retained.is_dir(), "a later run does not remove what was kept");
        age(&retained.join(RETAINED));
        drop(WorkDir::create(root.path()).unwrap());
        assert!(!retained.exists(), "unless it was long ago");
    }

    #[test]
    fn of_a_killed_run_stays_what_can_go_on_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let killed = |name: &str, journal: &str| {
            let dir = root.path().join(format!("tollway-lab-{name}"));
            fs::create_dir(&dir).unwrap();
            for (file, text) in [(IN_USE, ""), (JOURNAL, journal), ("west-echo.err", "started")] {
                fs::write(dir.join(file), text).unwrap();
            }
            dir
        };
        let begun = killed("begun", "header\n");
        let measured = killed("measured", "header\nrun\n");
        let old = killed("old", "header\nrun\n");
        age(&old.join(JOURNAL));
        for _ in 0..2 {
            drop(WorkDir::create(root.path()).unwrap());
            assert!(!begun.exists() && !old.exists(), "there is nothing to go on from");
            let left = fs::read_dir(&measured).unwrap().map(|entry| entry.unwrap().file_name());
            assert_eq!(left.collect::<Vec<_>>(), [JOURNAL]);
        }
        age(&measured.join(JOURNAL));
        drop(WorkDir::create(root.path()).unwrap());
        assert!(!measured.exists());
    }

    /// Makes a file look older than anything is kept.
    fn age(file: &Path) {
        let then = SystemTime::now() - KEPT_FOR - Duration::from_secs(1);
        File::options().append(true).open(file).unwrap().set_modified(then).unwrap();
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
