//! The Python SDK's own integration tests, of what we serve. They start `dapr run`.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::super::alone::alone;
use super::{Site, python};

/// Files of tests about what we serve.
const FILES: [&str; 7] = [
    "test_metadata.py",
    "test_metadata_async.py",
    "test_state_store.py",
    "test_state_store_async.py",
    "test_invoke.py",
    "test_invoke_async.py",
    "test_actor_grpc.py",
];
const FOLDER: &str = "tests/integration/";
/// How long all of them may take, in seconds: twenty where nothing else runs.
const WITHIN_S: u32 = 600;

/// A test and what it came to.
pub(super) struct Test {
    /// `FILE::NAME`.
    pub(super) name: String,
    pub(super) passed: bool,
}

/// Runs them all in the folder of the SDK.
///
/// # Errors
/// They do not start.
pub(super) fn run(site: &Site, sdk: &Path) -> Result<Vec<Test>> {
    let programs = python::environment()?;
    let files: Vec<String> = FILES.iter().map(|file| format!("{FOLDER}{file}")).collect();
    let script = format!(
        "redis-server --port 6379 --save '' > {}/redis.log & \
         exec timeout -s KILL {WITHIN_S} pytest -v -p no:cacheprovider --color=no {}",
        site.logs.display(),
        files.join(" ")
    );
    let log = site.logs.join("sdk.log");
    let file = std::fs::File::create(&log).with_context(|| format!("cannot write {log:?}"))?;
    let mut command = alone(&script);
    command.current_dir(sdk).env("HOME", &site.home).env("PATH", site.path(&programs)?);
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdout(file.try_clone()?).stderr(file);
    command.status().context("cannot start unshare")?;
    let printed = std::fs::read(&log).with_context(|| format!("cannot read {log:?}"))?;
    let tests = tests_in(&String::from_utf8_lossy(&printed));
    ensure!(!tests.is_empty(), "no test of the SDK ran; its output is in {}", log.display());
    Ok(tests)
}

/// What pytest prints of each test.
fn tests_in(printed: &str) -> Vec<Test> {
    let test = |line: &str| {
        let (name, rest) = line.strip_prefix(FOLDER)?.split_once(' ')?;
        let word = rest.split_whitespace().next()?;
        let ended = ["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS"].contains(&word);
        let passed = word == "PASSED";
        (ended && name.contains("::")).then(|| Test { name: name.to_owned(), passed })
    };
    printed.lines().filter_map(test).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_skipped_has_not_passed() {
        let printed = "collected 3 items\n\n\
                       tests/integration/test_a.py::test_b PASSED   [ 33%]\n\
                       tests/integration/test_a.py::test_c SKIPPED (no daprd) [ 66%]\n\
                       tests/integration/test_a.py::test_d ERROR [100%]\n\
                       ERROR tests/integration/test_a.py::test_d - RuntimeError\n";
        let found: Vec<_> =
            tests_in(printed).into_iter().map(|test| (test.name, test.passed)).collect();
        let test = |name: &str, passed| (format!("test_a.py::{name}"), passed);
        assert_eq!(found, [test("test_b", true), test("test_c", false), test("test_d", false)]);
    }
}
