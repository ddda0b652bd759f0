//! Python environments with packages from their registry: clients and servers that share no code
//! with ours.

use std::path::PathBuf;
use std::process::Command;

use crate::program::attempt;
use crate::{TOOL_MISSING, cache};

/// The Python of an environment with what `pip install` installs for `packages`, which name their
/// versions. It is made once and cached; the error is the reason of a skip.
pub fn python_with(packages: &[&str]) -> Result<PathBuf, String> {
    let python = crate::tool("python3").ok_or_else(|| format!("{TOOL_MISSING}python3"))?;
    if attempt(Command::new(&python).args(["-c", "import ensurepip"])).is_err() {
        return Err(format!("{TOOL_MISSING}python3-venv"));
    }
    let folder = cache::folder("python", (&python, packages));
    let own = folder.join("bin/python");
    let install = || {
        attempt(Command::new(&python).args(["-m", "venv", "--clear"]).arg(&folder))?;
        attempt(
            Command::new(&own)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(["--timeout", "20", "--retries", "1"])
                .args(packages),
        )
    };
    cache::install_once(&folder, install)
        .map_err(|reason| format!("{packages:?} could not be installed: {reason}"))?;
    Ok(own)
}
