//! `cargo xtask codegen`: Rust code from the protobuf definitions of crate `wire`, and the files
//! that list settings.
//!
//! The result is checked in, so that building Tollway needs neither protoc nor this program; a
//! test fails when the definitions and the checked-in code differ. `protox` and `prost` are Rust
//! themselves, hence the generator needs nothing installed either.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process;
use crate::workspace::Workspace;

/// Writes `crates/wire/src/generated/`.
///
/// # Errors
/// When a definition does not compile (with file and line) or a file cannot be written.
pub(crate) fn run() -> Result<()> {
    let target = wire_crate().join("src/generated");
    std::fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
    generate(&target)
}

/// Writes the schemas of settings files in `schema/` and the table of settings in
/// `docs/guide/configure.md`. Both are made from the list of settings in crate `settings`, by the
/// tests that compare the files with it. So are the schema of the kinds and their custom resources, in
/// crate `config`, and the tables of annotations in `docs/guide/kubernetes.md`, in crate `inject`.
///
/// # Errors
/// When the program does not compile or a file cannot be written.
pub(crate) fn write_settings(workspace: &Workspace) -> Result<()> {
    for tests in [
        ["tollway-settings", "--test", "documents"].as_slice(),
        &["tollway-config", "--lib", "--", "schema::", "custom_resource::"],
        &["tollway-inject", "--test", "documents"],
    ] {
        let mut command = process::cargo();
        command.args(["test", "--quiet", "-p"]).args(tests);
        command.env("UPDATE_DOCS", "1").current_dir(&workspace.root);
        process::run(&mut command)?;
    }
    Ok(())
}

/// Where the definitions are: a folder for each package.
const PACKAGES: &[&str] = &["tollway/v1", "dapr/proto/common/v1", "dapr/proto/runtime/v1"];

/// Fields of bytes that are shared with what they are sent from or were read into, not copied.
const SHARED_BYTES: &[&str] = &[
    ".tollway.v1.WriteNeighboursRequest.packed",
    ".tollway.v1.GetNeighboursResponse.packed",
    ".tollway.v1.ListNeighboursResponse.packed",
    ".tollway.v1.WatchNeighboursResponse.packed",
];

/// Compiles every definition into `target`.
fn generate(target: &Path) -> Result<()> {
    let include = wire_crate().join("proto");
    let mut found = Vec::new();
    for folder in PACKAGES {
        found.extend(definitions(&include.join(folder))?);
    }
    let descriptors =
        protox::compile(&found, [&include]).context("compile the protobuf definitions")?;
    let builder = tonic_prost_build::configure().out_dir(target).build_transport(false);
    SHARED_BYTES
        .iter()
        .fold(builder, |builder, field| builder.bytes(field))
        .compile_fds(descriptors)
        .with_context(|| format!("write generated code to {}", target.display()))?;
    describe(&include, target)
}

/// Writes the descriptors of the sidecar's gRPC API, for reflection, and of the mesh's own services,
/// for the test that calls each of their methods: definitions and those they need, without comments.
fn describe(include: &Path, target: &Path) -> Result<()> {
    for package in ["dapr", "tollway"] {
        let mut compiler = protox::Compiler::new([include]).context("find the definitions")?;
        compiler.include_imports(true).include_source_info(false);
        for folder in PACKAGES.iter().filter(|folder| folder.starts_with(package)) {
            compiler
                .open_files(definitions(&include.join(folder))?)
                .with_context(|| format!("compile the definitions in {folder}"))?;
        }
        let file = target.join(format!("{package}.descriptors"));
        std::fs::write(&file, compiler.encode_file_descriptor_set())
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
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
                std::fs::read(file.path()).unwrap(),
                std::fs::read(&checked_in).unwrap_or_default(),
            );
            assert!(
                expected == found,
                "{} is out of date: run `cargo xtask codegen`",
                checked_in.display()
            );
        }
    }
}
