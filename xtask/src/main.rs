//! The repository's own commands; `.ci/run` calls only these.
//!
//! One module per command. Nothing here is linked into a shipped binary.

mod advisories;
mod bpf;
mod cache;
mod cluster;
mod codegen;
mod deny;
mod deps;
mod docs;
mod edges;
mod errors;
mod fuzz;
mod go;
mod idle;
mod image;
mod lint;
mod nextest;
mod parts;
mod process;
mod profile;
mod proof;
mod purity;
mod sources;
mod space;
mod test;
mod tidy;
mod tools;
mod words;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The repository's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need, build, run all tests and list the skipped ones.
    Test(test::Options),
    /// Check formatting, tidiness, dependencies, warnings, documentation and licences.
    Lint,
    /// Run what a commit needs: `lint` without documentation and licences, and the fast tests.
    Check,
    /// Check the crates' dependencies: allowed edges, pure crates, unused ones.
    Deps,
    /// Check module headers, leftovers, machine paths and that pages match the tree.
    Tidy,
    /// Write generated code, schemas of settings files and generated parts of docs again.
    Codegen,
    /// Compile the forwarder's programs for the kernel again; needs clang and libbpf's headers.
    Bpf,
    /// Record the profile that release builds are compiled with.
    Profile,
    /// Make the container image of the shipped program: an OCI layout, and an archive of it.
    Image(image::Options),
    /// Run two real Kubernetes clusters on this machine, for tests.
    Cluster {
        #[command(subcommand)]
        command: cluster::Command,
    },
    /// Look for inputs that break a parser; keep those that reach new code.
    Fuzz(fuzz::Options),
    /// Run one of the measured proofs; without a name, list them.
    Proof {
        name: Option<String>,
        /// Less of it, to see that it works: it concludes nothing and writes nothing.
        #[arg(long, requires = "name")]
        quick: bool,
        /// A former build of `tollway` to measure as well, for `attacks`, or beside, for `speed`.
        #[arg(long, requires = "name", value_name = "PROGRAM")]
        before: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    // Some of its commands run where there is no workspace.
    if let Command::Cluster { command } = command {
        return cluster::run(command).map_err(|error| with_shortage(error, &[&*cache::root()]));
    }
    let workspace = Workspace::load()?;
    perform(command, &workspace)
        .map_err(|error| with_shortage(error, &[&*workspace.target, &*cache::root()]))
}

/// An error, under the shortage of space that may be its cause.
fn with_shortage(error: anyhow::Error, folders: &[&Path]) -> anyhow::Error {
    match space::shortage(folders.iter().copied()) {
        Some(shortage) => error.context(shortage),
        None => error,
    }
}

fn perform(command: Command, workspace: &Workspace) -> Result<()> {
    match command {
        Command::Test(options) => test::run(workspace, &options),
        Command::Lint => lint::run(workspace),
        Command::Check => lint::check(workspace),
        Command::Deps => deps::run(workspace),
        Command::Tidy => tidy::run(workspace),
        Command::Codegen => {
            codegen::run()?;
            errors::write(workspace)?;
            codegen::write_settings(workspace)
        }
        Command::Bpf => bpf::run(),
        Command::Profile => profile::run(workspace),
        Command::Image(options) => image::run(workspace, &options),
        Command::Cluster { command } => cluster::run(command),
        Command::Fuzz(options) => fuzz::run(workspace, &options),
        Command::Proof { name, quick, before } => {
            let extent = if quick { proof::Extent::Quick } else { proof::Extent::Whole };
            let wanted = proof::Wanted { extent, before: before.as_deref() };
            proof::run(workspace, name.as_deref(), &wanted)
        }
    }
}
