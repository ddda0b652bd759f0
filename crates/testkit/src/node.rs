//! Packages of Node's registry, which nobody here wrote.

use std::path::Path;
use std::process::Command;

use crate::TOOL_MISSING;
use crate::program::attempt;

/// Node with what `npm install` brings for `packages` into `folder`, once; the reason if that
/// cannot be. `folder`'s name should say which versions it holds. No script of a package is run.
pub fn node_with(folder: &Path, packages: &[&str]) -> Result<Command, String> {
    let tool = |name: &str| crate::tool(name).ok_or_else(|| format!("{TOOL_MISSING}{name}"));
    let (node, npm) = (tool("node")?, tool("npm")?);
    let done = folder.join("installed");
    if !done.exists() {
        let quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"];
        attempt(
            Command::new(npm).arg("install").args(quiet).arg("--prefix").arg(folder).args(packages),
        )
        .map_err(|reason| format!("{packages:?} could not be installed: {reason}"))?;
        std::fs::write(&done, "").map_err(|error| error.to_string())?;
    }
    let mut command = Command::new(node);
    command.env("NODE_PATH", folder.join("node_modules"));
    Ok(command)
}
