//! `cargo xtask test`: tools, one build, all tests, and what was skipped and why.
//!
//! Tests that skip themselves write to the file in `TOLLWAY_SKIP_LOG` (see the crate `testkit`),
//! because the test harness hides what a passing test prints. What failed while the machine
//! stood still is tried once more (see [`second_try`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process::{self, in_ci};
use crate::second_try;
use crate::tools;
use crate::workspace::Workspace;

/// How many tests of a program run at a time. Many wait for leases and processes more than they
/// compute, so one more than there are processors halves what the slowest programs take.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

#[derive(Args)]
pub(crate) struct Options {
    /// Leave out the slow tests.
    #[arg(long)]
    fast: bool,
    /// Install nothing; tests whose tools are missing are skipped.
    #[arg(long)]
    no_install: bool,
}

/// Installs, builds, tests, and reports; in CI a test skipped for want of a tool is an error.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if !options.no_install {
        tools::install(workspace);
    }
    let skip_log = workspace.target.join("skipped-tests.log");
    remove_if_there(&skip_log)?;
    // Tests start the shipped program, so it is built first, in the same graph of features as
    // the tests: cargo then compiles every dependency once.
    process::run(process::cargo().args(["build", "--workspace", "--bins", "--tests"]))?;
    let tests = second_try::run(|| tests(workspace, options, &skip_log));
    let skips = read_skips(&skip_log)?;
    for skip in &skips {
        eprintln!("SKIP {}: {}", skip.test, skip.reason);
    }
    eprintln!("skipped: {} tests", skips.len());
    tests?;
    let unexcused: Vec<_> = skips.iter().filter(|skip| !is_excused(skip, in_ci())).collect();
    if !unexcused.is_empty() {
        bail!("{} tests were skipped for want of a tool that CI can install", unexcused.len());
    }
    Ok(())
}

/// The tests that end within a minute or two, with the tools that are already here.
pub(crate) fn fast(workspace: &Workspace) -> Result<()> {
    run(workspace, &Options { fast: true, no_install: true })
}

fn tests(workspace: &Workspace, options: &Options, skip_log: &Path) -> Command {
    let mut command = process::cargo();
    command
        .args(["test", "--workspace"])
        .env("TOLLWAY_SKIP_LOG", skip_log)
        .env("TOLLWAY_TOOLS", workspace.tools())
        .env("TOLLWAY_SLOW_TESTS", if options.fast { "0" } else { "1" });
    if std::env::var_os(TEST_THREADS).is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(TEST_THREADS, (processors + 1).to_string());
    }
    command
}

/// A test that did not run: one line of the log, `name<tab>reason`.
#[derive(Debug, PartialEq, Eq)]
struct Skip {
    test: String,
    reason: String,
}

/// The start of a reason that `testkit` gives when a program is not there.
const TOOL_MISSING: &str = "tool missing: ";

fn is_excused(skip: &Skip, in_ci: bool) -> bool {
    let Some(tool) = skip.reason.strip_prefix(TOOL_MISSING) else {
        return true;
    };
    !in_ci || tools::may_be_missing(tool.trim())
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
    fn reason_of_a_missing_tool_starts_as_testkit_writes_it() {
        assert_eq!(TOOL_MISSING, tollway_testkit::TOOL_MISSING);
    }

    #[test]
    fn missing_tool_is_an_error_only_in_ci_and_only_if_listed() {
        assert!(is_excused(&skip("tool missing: curl"), false));
        assert!(!is_excused(&skip("tool missing: curl"), true));
        assert!(is_excused(&skip("tool missing: unlisted"), true));
        assert!(is_excused(&skip("tool missing: fortio"), true), "it needs a newer Go");
        assert!(is_excused(&skip("needs the TUN device"), true));
    }
}
