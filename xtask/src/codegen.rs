//! `cargo xtask codegen`: Rust code from the protobuf definitions of crate `wire`, and what the
//! options of the program say in other files.
//!
//! The result is checked in, so that building Tollway needs neither protoc nor this program; a
//! test fails when the definitions and the checked-in code differ. `protox` and `prost` are Rust
//! themselves, hence the generator needs nothing installed either.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process;
use crate::workspace::Workspace;

/// Writes `crates/wire/src/generated/` anew.
///
/// # Errors
/// When a definition does not compile (with file and line) or a file cannot be written.
pub(crate) fn run() -> Result<()> {
    let target = wire_crate().join("src/generated");
    std::fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
    generate(&target)
}

/// Writes the schemas of settings files in `schema/` and the table of settings in
/// `docs/guide/configure.md` anew. Both are made of the program's own options, by the tests that
/// hold the files to them.
///
/// # Errors
/// When the program does not compile or a file cannot be written.
pub(crate) fn write_settings(workspace: &Workspace) -> Result<()> {
    let mut command = process::cargo();
    command.args(["test", "--quiet", "-p", "tollway", "--bin", "tollway", "settings::"]);
    command.env("UPDATE_DOCS", "1").current_dir(&workspace.root);
    process::run(&mut command)
}

/// Where the definitions are: a folder for each package.
const PACKAGES: &[&str] = &["tollway/v1", "dapr/proto/common/v1", "dapr/proto/runtime/v1"];

/// Compiles every definition into `target`.
fn generate(target: &Path) -> Result<()> {
    let include = wire_crate().join("proto");
    let mut found = Vec::new();
    for folder in PACKAGES {
        found.extend(definitions(&include.join(folder))?);
    }
    let descriptors =
        protox::compile(&found, [&include]).context("compile the protobuf definitions")?;
    tonic_prost_build::configure()
        .out_dir(target)
        .build_transport(false)
        .compile_fds(descriptors)
        .with_context(|| format!("write generated code to {}", target.display()))
}

/// The definition files in a stable order, so that the output does not depend on the directory.
fn definitions(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let mut files = entries
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("list {}", folder.display()))?;
    files.retain(|file| file.extension().is_some_and(|e| e == "proto"));
    files.sort();
    Ok(files)
}

fn wire_crate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/wire")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_in_code_is_current() {
        let fresh = tempfile::tempdir().unwrap();
        generate(fresh.path()).unwrap();
        for entry in std::fs::read_dir(fresh.path()).unwrap() {
            let file = entry.unwrap();
            let checked_in = wire_crate().join("src/generated").join(file.file_name());
            let (expected, found) = (
                std::fs::read_to_string(file.path()).unwrap(),
                std::fs::read_to_string(&checked_in).unwrap_or_default(),
            );
            assert!(
                expected == found,
                "{} is out of date: run `cargo xtask codegen`",
                checked_in.display()
            );
        }
    }
}
