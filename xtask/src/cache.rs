//! The folder outside the checkout for tools that take minutes to build or to fetch.
//!
//! Each has a folder of its own for each set of pins, so that a new checkout finds what an earlier one
//! built, and a changed pin never finds the old build. Nothing is removed from it; it may be deleted.

use std::collections::hash_map::DefaultHasher;
use std::env::{temp_dir, var_os};
use std::ffi::OsStr;
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
}
