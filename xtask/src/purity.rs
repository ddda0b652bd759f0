//! Pure crates stay pure: no sockets, clock, environment, randomness or runtime in what ships.
//!
//! Time and seeds are arguments there, so that a decision can be replayed. Their tests are free. What
//! a pure crate links is checked here; what it calls is checked by clippy, which resolves names, with
//! the list in `xtask/pure/clippy.toml`.

use anyhow::Result;

use crate::edges::CRATES;
use crate::process;
use crate::workspace::{Package, Resolved, Workspace};

/// Crates that bring input and output, a runtime or the system's randomness.
const IMPURE_CRATES: &[&str] = &[
    "async-io",
    "async-std",
    "getrandom",
    "hyper",
    "mio",
    "reqwest",
    "rustix",
    "smol",
    "socket2",
    "tempfile",
    "tokio",
];

/// Impure crates that a pure one links.
pub(crate) fn breaches(workspace: &Workspace, resolved: &Resolved) -> Vec<String> {
    let linked = resolved.linked_crates();
    let mut breaches = Vec::new();
    for package in pure_packages(workspace) {
        let name = package.short_name();
        for bad in linked.get(&package.name).into_iter().flatten() {
            if IMPURE_CRATES.contains(&bad.as_str()) {
                breaches.push(format!("pure crate `{name}` links `{bad}`: see `cargo tree -i`"));
            }
        }
    }
    breaches
}

/// Fails where the library of a pure crate uses what its list forbids.
pub(crate) fn calls(workspace: &Workspace) -> Result<()> {
    let mut clippy = process::cargo();
    clippy.args(["clippy", "--quiet", "--lib"]);
    for package in pure_packages(workspace) {
        clippy.args(["--package", &package.name]);
    }
    clippy.args(["--", "-D", "warnings"]);
    process::run(clippy.env("CLIPPY_CONF_DIR", workspace.root.join("xtask/pure")))
}

fn pure_packages(workspace: &Workspace) -> impl Iterator<Item = &Package> {
    let is_pure =
        |package: &&Package| CRATES.iter().any(|c| c.pure && c.name == package.short_name());
    workspace.packages.iter().filter(is_pure)
}
