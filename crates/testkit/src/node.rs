//! Packages of Node's registry, which nobody here wrote.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TOOL_MISSING;
use crate::program::{alone, attempt, is_copied};

/// Node with what `npm install` brings for `packages` into `folder`, once; the reason if that
/// cannot be. `folder`'s name should say which versions it holds. No script of a package is run.
pub fn node_with(folder: &Path, packages: &[&str]) -> Result<Command, String> {
    let (node, npm) = (tool("node")?, tool("npm")?);
    let done = folder.join("installed");
    let _alone = alone(folder)?;
    if !done.exists() {
        attempt(
            Command::new(npm).arg("install").args(QUIET).arg("--prefix").arg(folder).args(packages),
        )
        .map_err(|reason| format!("{packages:?} could not be installed: {reason}"))?;
        std::fs::write(&done, "").map_err(|error| error.to_string())?;
    }
    Ok(with_modules(node, folder))
}

/// Node with exactly what the lock file beside `package.json` in `project` names, installed into
/// `folder` once and again when it changes; the reason if that cannot be. No script of a package is
/// run.
pub fn node_project(project: &Path, folder: &Path) -> Result<Command, String> {
    let (node, npm) = (tool("node")?, tool("npm")?);
    let names = ["package.json", "package-lock.json"];
    let _alone = alone(folder)?;
    if !is_copied(project, folder, &names)? {
        attempt(Command::new(npm).arg("ci").args(QUIET).current_dir(folder))
            .map_err(|reason| format!("{} cannot be installed: {reason}", project.display()))?;
        std::fs::write(folder.join("installed"), "").map_err(|error| error.to_string())?;
    }
    Ok(with_modules(node, folder))
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
