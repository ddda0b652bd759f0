//! Pythons of our own with packages from their registry, which nobody here wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TOOL_MISSING;
use crate::program::{alone, attempt};

/// A Python in `folder` with what `pip install` brings for `packages`, made once and kept; the
/// reason if that cannot be. `folder`'s name should say which versions it holds.
pub fn python_with(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = crate::tool("python3").ok_or_else(|| format!("{TOOL_MISSING}python3"))?;
    if attempt(Command::new(&python).args(["-c", "import ensurepip"])).is_err() {
        return Err(format!("{TOOL_MISSING}python3-venv"));
    }
    let own = folder.join("bin/python");
    let done = folder.join("installed");
    let _alone = alone(folder)?;
    if done.exists() {
        return Ok(own);
    }
    let install = || {
        attempt(Command::new(&python).args(["-m", "venv", "--clear"]).arg(folder))?;
        attempt(
            Command::new(&own)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(["--timeout", "20", "--retries", "1"])
                .args(packages),
        )
    };
    install().map_err(|reason| format!("{packages:?} could not be installed: {reason}"))?;
    std::fs::write(&done, "").map_err(|error| error.to_string())?;
    Ok(own)
}
