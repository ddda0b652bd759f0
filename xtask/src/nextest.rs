//! All tests in one queue, by cargo-nextest: each in a process of its own, retried once if it fails.
//!
//! `.config/nextest.toml` has what runs alone, what is retried and when a test is ended.

use std::process::Command;

use anyhow::Result;

use crate::cache::CargoTool;
use crate::process;

/// Without its updater, which would bring a second TLS library and half a minute of build.
const NEXTEST: CargoTool = CargoTool {
    package: "cargo-nextest",
    version: "0.9.151",
    options: &["--no-default-features", "--features", "default-no-update"],
};

/// Its own setting for how many tests run at a time.
const THREADS: &str = "NEXTEST_TEST_THREADS";

/// The command that runs every test of the workspace but the examples in the documentation.
///
/// # Errors
///
/// Says that the runner cannot be built.
pub(crate) fn all_tests() -> Result<Command> {
    let mut command = Command::new(NEXTEST.program()?);
    command.args(["nextest", "run", "--workspace"]);
    if std::env::var_os(THREADS).is_none() {
        // Many tests wait for leases and processes more than they compute.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (processors + 1).to_string());
    }
    Ok(command)
}

/// The command that runs the examples in the documentation, which nextest cannot.
pub(crate) fn documented_examples() -> Command {
    let mut command = process::cargo();
    command.args(["test", "--workspace", "--doc", "--quiet"]);
    command
}
