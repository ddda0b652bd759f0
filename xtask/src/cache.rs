//! The folder outside the checkout for tools that take minutes to build or to fetch.
//!
//! Each has a folder of its own for each set of pins, so that a new checkout finds what an earlier one
//! built, and a changed pin never finds the old build. Nothing is removed from it; it may be deleted.

use std::collections::hash_map::DefaultHasher;
use std::env::{temp_dir, var_os};
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{self, is_executable};

/// The variable that names the folder; `testkit` reads it too.
pub(crate) const VARIABLE: &str = "TOLLWAY_CACHE";

/// The whole cache: by the variable, or below the user's own.
pub(crate) fn root() -> PathBuf {
    let below = |variable: &str, path: &str| Some(PathBuf::from(var_os(variable)?).join(path));
    below(VARIABLE, "")
        .or_else(|| below("XDG_CACHE_HOME", "tollway"))
        .or_else(|| below("HOME", ".cache/tollway"))
        .unwrap_or_else(|| temp_dir().join("tollway-cache"))
}

/// The folder for `name` with these pins; it may not exist yet.
pub(crate) fn entry(name: &str, pins: impl Hash) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    pins.hash(&mut hasher);
    root().join(format!("{name}-{:016x}", hasher.finish()))
}

/// A program of a Rust package, built on first use.
pub(crate) struct CargoTool {
    pub package: &'static str,
    pub version: &'static str,
    /// Further options of `cargo install`.
    pub options: &'static [&'static str],
}

impl CargoTool {
    /// Its program, which is built where it was not.
    ///
    /// # Errors
    ///
    /// Says that it cannot be built, with the reason of cargo on the screen.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        let folder = root().join(format!("{}-{}", self.package, self.version));
        let program = folder.join("bin").join(self.package);
        if is_executable(&program) {
            return Ok(program);
        }
        let build = folder.join("build");
        // An unoptimised build without debug information takes a third of the time.
        process::run(
            process::cargo()
                .args(["install", "--locked", "--debug", "--quiet", self.package])
                .args(["--version", self.version, "--root"])
                .arg(&folder)
                .args(self.options)
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .env("CARGO_TARGET_DIR", &build)
                .env("RUSTC_WRAPPER", OsStr::new("")),
        )
        .with_context(|| format!("{} {} could not be built", self.package, self.version))?;
        remove_folder(&build)?;
        Ok(program)
    }
}

/// Has `make` fill a folder of the cache unless it is there, and whole. Of several that want it one
/// makes it, and the others wait; what a killed maker left is made from the beginning.
///
/// # Errors
///
/// Those of `make`, and that the folder cannot be written.
pub(crate) fn once(folder: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let failed = || format!("could not make {}", folder.display());
    let above = folder.parent().with_context(failed)?;
    std::fs::create_dir_all(above).with_context(failed)?;
    // The kernel unlocks the file when its holder ends, however it ends.
    let lock = File::create(folder.with_added_extension("lock")).with_context(failed)?;
    lock.lock().with_context(failed)?;
    if folder.is_dir() {
        return Ok(());
    }
    let partial = folder.with_added_extension("partial");
    remove_folder(&partial)?;
    std::fs::create_dir(&partial).with_context(failed)?;
    make(&partial)?;
    std::fs::rename(&partial, folder).with_context(failed)
}

/// Removes a folder with all that is in it, if it is there.
pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Makes the symbolic link `at` to `target`, in place of what is there.
pub(crate) fn link(target: &Path, at: &Path) -> Result<()> {
    let failed = || format!("could not make the link {}", at.display());
    if let Some(folder) = at.parent() {
        std::fs::create_dir_all(folder).with_context(failed)?;
    }
    let _ = std::fs::remove_file(at);
    std::os::unix::fs::symlink(target, at).with_context(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use anyhow::bail;

    use super::*;

    #[test]
    fn another_pin_has_another_folder() {
        assert_eq!(entry("h2spec", "a"), entry("h2spec", "a"));
        assert_ne!(entry("h2spec", "a"), entry("h2spec", "b"));
        assert_ne!(entry("h2spec", "a"), entry("k6", "a"));
    }

    #[test]
    fn a_link_replaces_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("tools/h2spec");
        for target in ["/one", "/other"] {
            link(Path::new(target), &at).unwrap();
            assert_eq!(std::fs::read_link(&at).unwrap(), Path::new(target));
        }
    }

    #[test]
    fn a_folder_is_made_once_by_however_many_and_never_left_half_made() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("tools/a");
        let failed = once(&folder, |partial| {
            std::fs::write(partial.join("half"), "")?;
            bail!("no luck")
        });
        assert_eq!(failed.unwrap_err().to_string(), "no luck");
        assert!(!folder.exists());
        let made = AtomicU8::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let make = |partial: &Path| {
                        made.fetch_add(1, Ordering::Relaxed);
                        assert!(!partial.join("half").exists());
                        Ok(std::fs::write(partial.join("whole"), "")?)
                    };
                    once(&folder, make).unwrap();
                    assert!(folder.join("whole").is_file());
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
