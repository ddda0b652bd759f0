//! All tests in one queue, by cargo-nextest: each in a process of its own, retried once if it fails.
//!
//! `.config/nextest.toml` has what runs alone, what is retried and when a test is ended.

use std::process::Command;

use anyhow::Result;

use crate::cache::CargoTool;
use crate::process;
use crate::sources;
use crate::workspace::{Package, Workspace};

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
        // Many tests wait for leases, timeouts and processes more than they compute.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (3 * processors).to_string());
    }
    Ok(command)
}

/// The command that runs the examples in the documentation, which nextest cannot. `None` where no
/// package has any: cargo would link all of them to find that out.
pub(crate) fn documented_examples(workspace: &Workspace) -> Result<Option<Command>> {
    let files = sources::rust_files(&workspace.root)?;
    let has_examples = |package: &&Package| {
        let folder = package.manifest_path.parent();
        let mut own =
            files.iter().filter(|file| folder.is_some_and(|at| file.path.starts_with(at)));
        own.any(|file| has_example(&file.text))
    };
    let packages: Vec<&Package> = workspace.packages.iter().filter(has_examples).collect();
    if packages.is_empty() {
        return Ok(None);
    }
    let mut command = process::cargo();
    command.args(["test", "--doc", "--quiet"]);
    for package in packages {
        command.args(["--package", &package.name]);
    }
    Ok(Some(command))
}

/// Whether a comment of the documentation has a block of code.
fn has_example(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| {
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        comment
            .is_some_and(|text| text.trim_start().starts_with("```") || text.starts_with("     "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_blocks_of_code_in_documentation() {
        assert!(has_example("/// Adds.\n///\n/// ```\n/// add(1, 2);\n/// ```\nfn add() {}\n"));
        assert!(has_example("    //! ```no_run\n"));
        assert!(has_example("/// So:\n///\n///     add(1, 2);\n"));
        assert!(!has_example("/// A word in `quotes`.\n// ```\nlet text = \"/// ```\";\n"));
    }
}
