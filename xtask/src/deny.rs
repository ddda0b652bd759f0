//! `cargo deny`: licences, bans and sources always, advisories where their database can be had;
//! `advisories` keeps when that was.

use anyhow::Result;

use crate::advisories::{self, Unchecked};
use crate::cache::CargoTool;
use crate::process;
use crate::workspace::Workspace;

/// The version that `deny.toml` is written for.
const DENY: CargoTool = CargoTool { package: "cargo-deny", version: "0.20.2", options: &[] };

/// Installs `cargo-deny` if it is missing (about a minute), then checks.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let program = DENY.program()?;
    let deny = || {
        let mut command = std::process::Command::new(&program);
        command
            .args(["--workspace", "--all-features", "--log-level", "warn"])
            .current_dir(&workspace.root);
        command
    };
    process::run(deny().args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))?;
    // The database is a git repository elsewhere: without it there is nothing to compare with.
    let checked = advisories::check(
        || process::output(deny().args(["fetch", "db"])).map(drop),
        || process::run(deny().args(["check", "--disable-fetch", "advisories"])),
    );
    match checked {
        Ok(proof) => advisories::note(workspace, &proof),
        Err(Unchecked::Failed(error)) => Err(error),
        Err(Unchecked::NotFetched(error)) => {
            let last = error.to_string().lines().last().unwrap_or_default().to_owned();
            eprintln!("deny: the advisory database could not be fetched: {last}");
            Ok(())
        }
    }
}
