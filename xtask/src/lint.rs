//! `cargo xtask lint`, and `check`, which is what a commit needs.

use anyhow::{Result, bail};

use crate::workspace::Workspace;
use crate::{advisories, deny, deps, docs, process, purity, test, tidy};

type Step = (&'static str, fn(&Workspace) -> Result<()>);

const FMT: Step = ("fmt", fmt);
const CLIPPY: Step = ("clippy", clippy);
const PURITY: Step = ("purity", purity::calls);
const DOC: Step = ("doc", docs::build);
const DEPS: Step = ("deps", deps::run);
const TIDY: Step = ("tidy", tidy::run);
const DENY: Step = ("deny", deny::run);
const FAST_TESTS: Step = ("fast tests", test::fast);

/// The steps that compile nothing: seconds, so they run first and end the run when one fails.
const QUICK: &[Step] = &[FMT, TIDY, DEPS];

/// Runs every check that is no test.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    steps(workspace, "lint", QUICK)?;
    steps(workspace, "lint", &[CLIPPY, PURITY, DOC, DENY])?;
    eprintln!("\nlint: ok");
    advisories::warn_if_old(workspace)
}

/// Runs what a commit needs.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    steps(workspace, "check", QUICK)?;
    steps(workspace, "check", &[CLIPPY, PURITY, FAST_TESTS])?;
    eprintln!("\ncheck: ok");
    Ok(())
}

/// Runs every step, also after one failed, and names the failed ones at the end.
fn steps(workspace: &Workspace, command: &str, steps: &[Step]) -> Result<()> {
    let mut failed = Vec::new();
    for (name, step) in steps {
        if let Err(error) = step(workspace) {
            eprintln!("{name}: {error:#}");
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        bail!("{command} failed: {}", failed.join(", "));
    }
    Ok(())
}

fn fmt(_workspace: &Workspace) -> Result<()> {
    process::run(process::cargo().args(["fmt", "--all", "--check"]))
}

fn clippy(_workspace: &Workspace) -> Result<()> {
    let options = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    process::run(process::cargo().args(options))
}
