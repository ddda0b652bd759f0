//! Finds programs: ours as cargo built them, others as xtask installed them or the system has.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// How far above the test's own file (`target/debug/deps/…`) the target folder can be.
const TARGET_DEPTH: usize = 4;

/// Our own program `name`, as it was built last into the target folder of the calling test.
pub fn binary(name: &str) -> Result<PathBuf> {
    folders_above_test()
        .map(|folder| folder.join(name))
        .find(|path| is_executable(path))
        .with_context(|| {
            format!("the program `{name}` is not built: run `cargo build -p {name}` first")
        })
}

/// Where Debian keeps the programs of PostgreSQL, in a folder for each version.
const POSTGRESQL: &str = "/usr/lib/postgresql";

/// A foreign program: from `target/tools`, the search path, or Debian's folder of servers.
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

/// Runs a command; on failure, the last line of its output.
pub(crate) fn attempt(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    Err(errors.lines().chain(printed.lines()).next_back().unwrap_or("no reason given").to_owned())
}

/// Copies the files `names` of `project` into `folder`.
pub(crate) fn copy_files(project: &Path, folder: &Path, names: &[&str]) -> Result<(), String> {
    for name in names {
        std::fs::copy(project.join(name), folder.join(name))
            .map_err(|error| format!("{} cannot be copied: {error}", project.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
