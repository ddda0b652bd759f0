//! Finds programs: ours as cargo built them, others as xtask installed them or the system has.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// How far above the test's own file (`target/debug/deps/…`) the target folder can be.
const TARGET_DEPTH: usize = 4;

/// Our own program `name` from the build that the calling test belongs to.
///
/// Cargo names it in `CARGO_BIN_EXE_<name>` for tests of the program's own package; tests of
/// other packages find it beside themselves, if it was built.
pub fn binary(name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(format!("CARGO_BIN_EXE_{name}")) {
        return Ok(path.into());
    }
    folders_above_test()
        .map(|folder| folder.join(name))
        .find(|path| is_executable(path))
        .with_context(|| {
            format!("the program `{name}` is not built: run `cargo build -p {name}` first")
        })
}

/// Where Debian keeps the programs of PostgreSQL, in a folder for each version.
const POSTGRESQL: &str = "/usr/lib/postgresql";

/// A program that nobody here wrote: from `target/tools`, the search path, or where Debian keeps
/// servers.
pub fn tool(name: &str) -> Option<PathBuf> {
    let own = std::env::var_os("TOLLWAY_TOOLS").map(PathBuf::from);
    let beside = folders_above_test().map(|folder| folder.join("tools"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = std::env::split_paths(&path);
    own.into_iter()
        .chain(beside)
        .chain(system)
        .chain(postgresql())
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn postgresql() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir(POSTGRESQL).into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin"))
}

/// The folders that hold the running test, innermost first.
fn folders_above_test() -> impl Iterator<Item = PathBuf> {
    let test = std::env::current_exe().unwrap_or_default();
    let folders: Vec<PathBuf> =
        test.ancestors().skip(1).take(TARGET_DEPTH).map(Path::to_owned).collect();
    folders.into_iter()
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Runs a command; the last line of what it said if it failed.
pub(crate) fn attempt(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    Err(errors.lines().chain(printed.lines()).next_back().unwrap_or("no reason given").to_owned())
}

/// Has `folder` for us alone until what is returned is dropped: tests that need the same packages run
/// at once, and what one installs another may not replace while it is used.
pub(crate) fn alone(folder: &Path) -> Result<File, String> {
    let mut lock = folder.as_os_str().to_owned();
    lock.push(".lock");
    let lock = PathBuf::from(lock);
    let locked = || {
        lock.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let file = File::create(&lock)?;
        file.lock().map(|()| file)
    };
    let locked: std::io::Result<File> = locked();
    locked.map_err(|error| format!("{} cannot be locked: {error}", lock.display()))
}

/// Whether `folder` holds what was installed there for the files `names` of `project`, as they are.
/// If not, it holds copies of them and nothing is installed: whoever installs puts a file
/// `installed` beside them at the end.
pub(crate) fn is_copied(project: &Path, folder: &Path, names: &[&str]) -> Result<bool, String> {
    let read = |from: &Path, name: &str| std::fs::read(from.join(name)).ok();
    let is_same = |name: &&str| read(project, name) == read(folder, name);
    let done = folder.join("installed");
    if done.exists() && names.iter().all(is_same) {
        return Ok(true);
    }
    let copy = || {
        std::fs::create_dir_all(folder)?;
        if done.exists() {
            std::fs::remove_file(&done)?;
        }
        names
            .iter()
            .try_for_each(|name| std::fs::copy(project.join(name), folder.join(name)).map(|_| ()))
    };
    let copied: std::io::Result<()> = copy();
    copied.map_err(|error| format!("{} cannot be copied: {error}", project.display()))?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::TempDir;

    #[test]
    fn what_is_installed_stands_until_its_project_changes() {
        let (project, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let is_copied = || is_copied(project.path(), folder.path(), &["lock"]);
        assert!(is_copied().is_err(), "there is no such file");
        std::fs::write(project.path().join("lock"), "1").unwrap();
        assert_eq!((is_copied(), is_copied()), (Ok(false), Ok(false)));
        let done = folder.path().join("installed");
        std::fs::write(&done, "").unwrap();
        assert_eq!(is_copied(), Ok(true));
        std::fs::write(project.path().join("lock"), "2").unwrap();
        assert_eq!(is_copied(), Ok(false));
        assert!(!done.exists());
    }

    #[test]
    fn one_at_a_time_installs_into_a_folder() {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().join("not/yet/there-1.0");
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let alone = alone(&folder).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another is in it");
                    std::thread::sleep(Duration::from_millis(2));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(alone);
                });
            }
        });
        let beside = alone(&dir.path().join("not/yet/there-1.1"));
        let both = (alone(&folder), beside);
        assert!(both.0.is_ok() && both.1.is_ok(), "each folder has its own lock");
    }

    #[test]
    fn program_that_is_not_built_is_an_error_with_the_way_out() {
        let error = binary("no-such-program").unwrap_err().to_string();
        assert!(error.contains("cargo build -p no-such-program"), "{error}");
    }

    #[test]
    fn program_beside_the_test_is_found() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(binary(name).unwrap(), own);
    }

    #[test]
    fn tool_of_the_system_is_found_and_a_missing_one_is_none() {
        assert!(is_executable(&tool("sh").unwrap()));
        assert_eq!(tool("no-such-program-anywhere"), None);
    }
}
