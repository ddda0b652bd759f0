//! Packages of Node's registry: clients and servers that share no code with ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{attempt, copy_files};
use crate::{TOOL_MISSING, cache};

/// Node with what `npm install` installs for `packages`, which name their versions. It is installed
/// once and cached; the error is the reason of a skip. No script of a package runs.
pub fn node_with(packages: &[&str]) -> Result<Command, String> {
    let (node, npm) = (tool("node")?, tool("npm")?);
    let folder = cache::folder("node", packages);
    cache::install_once(&folder, || {
        let mut install = Command::new(npm);
        attempt(install.arg("install").args(QUIET).arg("--prefix").arg(&folder).args(packages))
    })
    .map_err(|reason| format!("{packages:?} could not be installed: {reason}"))?;
    Ok(with_modules(node, &folder))
}

/// Node with exactly what the lock file in `project` names. It is installed once and cached; the
/// error is the reason of a skip. No script of a package runs.
pub fn node_project(project: &Path) -> Result<Command, String> {
    const FILES: [&str; 2] = ["package.json", "package-lock.json"];
    let (node, npm) = (tool("node")?, tool("npm")?);
    let pins = FILES.map(|name| std::fs::read(project.join(name)).unwrap_or_default());
    let folder = cache::folder("node", pins);
    cache::install_once(&folder, || {
        copy_files(project, &folder, &FILES)?;
        attempt(Command::new(npm).arg("ci").args(QUIET).current_dir(&folder))
    })
    .map_err(|reason| format!("{} cannot be installed: {reason}", project.display()))?;
    Ok(with_modules(node, &folder))
}

const QUIET: [&str; 4] = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"];

fn tool(name: &str) -> Result<PathBuf, String> {
    crate::tool(name).ok_or_else(|| format!("{TOOL_MISSING}{name}"))
}

fn with_modules(node: PathBuf, folder: &Path) -> Command {
    let mut command = Command::new(node);
    command.env("NODE_PATH", folder.join("node_modules"));
    command
}
