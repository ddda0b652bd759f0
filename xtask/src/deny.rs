//! `cargo deny`: licences, bans and sources always, advisories where their database can be had.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::{self, find_program, is_executable};
use crate::workspace::Workspace;

/// The version that `deny.toml` is written for.
const VERSION: &str = "0.20.2";

/// Installs `cargo-deny` if it is missing (about a minute), then checks.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let program = find_or_install(workspace)?;
    let deny = || {
        let mut command = std::process::Command::new(&program);
        command
            .args(["--workspace", "--all-features", "--log-level", "warn"])
            .current_dir(&workspace.root);
        command
    };
    process::run(deny().args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))?;
    // The database is a git repository elsewhere: without it there is nothing to compare with.
    match process::output(deny().args(["fetch", "db"])) {
        Ok(_) => process::run(deny().args(["check", "--disable-fetch", "advisories"])),
        Err(error) => {
            let last = error.to_string().lines().last().unwrap_or_default().to_owned();
            eprintln!("SKIP deny advisories: the advisory database could not be fetched: {last}");
            Ok(())
        }
    }
}

fn find_or_install(workspace: &Workspace) -> Result<PathBuf> {
    let own = workspace.tools().join("bin").join("cargo-deny");
    if is_executable(&own) {
        return Ok(own);
    }
    if let Some(found) = find_program("cargo-deny") {
        return Ok(found);
    }
    // An unoptimised build takes a third of the time and checks this workspace in a second.
    process::run(
        process::cargo()
            .args(["install", "--locked", "--debug", "--quiet", "cargo-deny"])
            .args(["--version", VERSION])
            .arg("--root")
            .arg(workspace.tools())
            .env("CARGO_TARGET_DIR", workspace.tools().join("build")),
    )
    .context("cargo-deny could not be installed: do it by hand, or put it on the search path")?;
    Ok(own)
}
