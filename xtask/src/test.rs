//! `cargo xtask test`: tools, one build, all tests, a tenth of Dapr's own suite, the tests of real
//! Kubernetes clusters, and what was skipped and why.
//!
//! Tests that skip themselves write to the file in `TOLLWAY_SKIP_LOG` (see the crate `testkit`),
//! because the runner hides what a passing test prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::advisories;
use crate::cache;
use crate::cluster;
use crate::docs;
use crate::idle;
use crate::nextest;
use crate::process::{self, in_ci};
use crate::proof;
use crate::tools;
use crate::workspace::Workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Leave out the slow tests.
    #[arg(long)]
    fast: bool,
    /// Install no tools that tests need; tests whose tools are missing are skipped.
    #[arg(long)]
    no_install: bool,
}

/// Installs, builds, tests, and reports; in CI a test skipped for want of a tool, or of a right that
/// this process has, is an error.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if !options.no_install {
        tools::install(workspace);
    }
    let skip_log = workspace.target.join("skipped-tests.log");
    remove_if_there(&skip_log)?;
    // Tests start the shipped program, so it is built first, in the same graph of features as
    // the tests: cargo then compiles every dependency once.
    process::run(process::cargo().args(["build", "--workspace", "--bins", "--tests"]))?;
    docs::commands(workspace)?;
    // Tests wait more than they compute: what the last steps need is built meanwhile. An error is one of the
    // step itself, which builds it again.
    let prepared = (!options.fast).then(|| idle::spawn(prepare));
    let tests = Some(nextest::all_tests()?);
    let examples = nextest::documented_examples(workspace)?;
    let run =
        |mut command| process::run(with_surroundings(&mut command, workspace, options, &skip_log));
    let outcomes: Vec<_> = [tests, examples].into_iter().flatten().map(run).collect();
    let skips = read_skips(&skip_log)?;
    for skip in &skips {
        eprintln!("SKIP {}: {}", skip.test, skip.reason);
    }
    eprintln!("skipped: {} tests", skips.len());
    advisories::warn_if_old(workspace)?;
    if let Some(prepared) = prepared {
        let _ = prepared.join();
    }
    let dapr = match options.fast {
        true => Ok(()),
        false => proof::dapr::run_with_tests(workspace, may_administrate()),
    };
    let clusters = if options.fast { Ok(()) } else { cluster::run_with_tests() };
    outcomes.into_iter().chain([dapr, clusters]).collect::<Result<()>>()?;
    let here = Here { in_ci: in_ci(), may_administrate: may_administrate() };
    let unexcused = skips.iter().filter(|skip| !is_excused(skip, here)).count();
    if unexcused > 0 {
        bail!(
            "{unexcused} tests were skipped for want of a tool that CI can install, or of a right \
             that it has: look at the lines above that begin with SKIP"
        );
    }
    Ok(())
}

/// Builds the programs of Dapr's suite and of the clusters, as far as they can run here.
fn prepare() {
    if may_administrate() {
        let _ = proof::dapr::build();
    }
    let _ = cluster::build();
}

/// The tests that end within a minute or two, with the tools that are already here.
pub(crate) fn fast(workspace: &Workspace) -> Result<()> {
    run(workspace, &Options { fast: true, no_install: true })
}

/// Sets the environment of tests: where their tools and their cache are, where a skip is written
/// down, and whether slow ones run.
fn with_surroundings<'a>(
    command: &'a mut Command,
    workspace: &Workspace,
    options: &Options,
    skip_log: &Path,
) -> &'a mut Command {
    command
        .env("TOLLWAY_SKIP_LOG", skip_log)
        .env("TOLLWAY_TOOLS", workspace.tools())
        .env(cache::VARIABLE, cache::root())
        .env("TOLLWAY_SLOW_TESTS", if options.fast { "0" } else { "1" })
}

/// A test that did not run: one line of the log, `name<tab>reason`.
#[derive(Debug, PartialEq, Eq)]
struct Skip {
    test: String,
    reason: String,
}

/// The start of a reason that `testkit` gives when a program is not there.
const TOOL_MISSING: &str = "tool missing: ";
/// And when the kernel does not let a test make what it needs.
const RIGHT_MISSING: &str = "right missing: ";

/// Requirements that the environment of the tests may meet.
#[derive(Clone, Copy)]
struct Here {
    in_ci: bool,
    /// Whether network namespaces can be made.
    may_administrate: bool,
}

fn is_excused(skip: &Skip, here: Here) -> bool {
    if !here.in_ci {
        return true;
    }
    match skip.reason.strip_prefix(TOOL_MISSING) {
        Some(tool) => !tools::is_listed(tool.trim()),
        None => !(here.may_administrate && skip.reason.starts_with(RIGHT_MISSING)),
    }
}

/// Whether this process may administrate the machine, as the root user of one may, and not that of
/// most containers.
fn may_administrate() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_administration(&status)
}

/// Looks for `CAP_SYS_ADMIN` among the rights that `/proc/self/status` lists.
fn has_administration(status: &str) -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    rights.is_some_and(|rights| rights & (1 << CAP_SYS_ADMIN) != 0)
}

fn read_skips(log: &PathBuf) -> Result<Vec<Skip>> {
    if !log.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(log)
        .with_context(|| format!("could not read the log of skipped tests {}", log.display()))?;
    Ok(parse_skips(&text))
}

fn parse_skips(text: &str) -> Vec<Skip> {
    text.lines()
        .map(|line| {
            let (test, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
            Skip { test: test.to_owned(), reason: reason.to_owned() }
        })
        .collect()
}

fn remove_if_there(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(reason: &str) -> Skip {
        Skip { test: "a::b".into(), reason: reason.into() }
    }

    #[test]
    fn skip_log_is_read_line_by_line() {
        let skips = parse_skips("a::b\ttool missing: curl\nc::d\tnot root\n");
        assert_eq!(skips.len(), 2);
        assert_eq!(skips[0], skip("tool missing: curl"));
    }

    #[test]
    fn reasons_start_as_testkit_writes_them() {
        assert_eq!(TOOL_MISSING, tollway_testkit::TOOL_MISSING);
        assert_eq!(RIGHT_MISSING, tollway_testkit::RIGHT_MISSING);
    }

    #[test]
    fn missing_tool_is_an_error_only_in_ci_and_only_if_listed() {
        let elsewhere = Here { in_ci: false, may_administrate: true };
        let ci = Here { in_ci: true, ..elsewhere };
        assert!(is_excused(&skip("tool missing: curl"), elsewhere));
        assert!(!is_excused(&skip("tool missing: curl"), ci));
        assert!(is_excused(&skip("tool missing: unlisted"), ci));
        assert!(!is_excused(&skip("tool missing: fortio"), ci), "Go of any version brings it");
        assert!(is_excused(&skip("needs the TUN device"), ci));
        assert!(is_excused(&skip("slow: `cargo xtask test` runs it"), ci));
    }

    #[test]
    fn missing_right_is_an_error_only_in_ci_and_only_where_it_is_given() {
        let refused = skip("right missing: cannot create network namespace \"ports\"");
        for (in_ci, may_administrate, excused) in
            [(true, true, false), (true, false, true), (false, true, true), (false, false, true)]
        {
            assert_eq!(is_excused(&refused, Here { in_ci, may_administrate }), excused, "{in_ci}");
        }
    }

    #[test]
    fn the_right_is_read_from_the_capabilities_of_the_process() {
        assert!(has_administration("Uid:\t0\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n"));
        assert!(!has_administration("Uid:\t0\nCapEff:\t00000000a80425fb\n"), "of a container");
        assert!(!has_administration("CapEff:\tnonsense\n") && !has_administration(""));
    }
}
