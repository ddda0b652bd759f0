//! `cargo xtask cluster`: two real Kubernetes clusters on this machine, for tests: `a` with two machines,
//! `b` with one, and a routed link between their networks.
//!
//! Each machine has namespaces and cgroups of its own, and nothing of the host is changed. `programs`
//! builds what runs, `plan` has the addresses, `supervisor` is the process that all of it ends with,
//! `state` the folder by which tests find everything.

mod cgroups;
mod debian;
mod down;
mod gateway_api;
mod images;
mod keys;
mod kubectl;
mod machine;
mod network;
mod plan;
mod programs;
mod ready;
mod requirements;
mod running;
mod services;
mod state;
mod supervisor;
mod up;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;

use crate::workspace::Workspace;
use crate::{cache, image, process, proof, tools};
use gateway_api::GatewayApi;
use kubectl::Kubectl;
use plan::CLUSTERS;
use state::State;

/// The variable by which tests find the rig's folder; `testkit` reads it.
const VARIABLE: &str = "TOLLWAY_CLUSTER";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Bring the clusters up; where they are up, start killed machines again and load more images.
    Up(up::Options),
    /// Take them down, and what is left of killed ones.
    Down,
    /// Run `kubectl` against one of them.
    Kubectl {
        #[arg(value_parser = ["a", "b"])]
        cluster: String,
        /// Arguments of `kubectl`, after `--`.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Bring them up, run the tests that need them, and take them down unless they were up before.
    Test {
        #[command(flatten)]
        options: up::Options,
        /// Only tests with this in their name.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
    },
    /// The process that the rig ends with.
    #[command(hide = true)]
    Supervise { state: PathBuf },
    /// A process that becomes a machine.
    #[command(hide = true)]
    Enter { state: PathBuf, machine: String },
    /// The first process of a machine.
    #[command(hide = true)]
    Boot { state: PathBuf, machine: String },
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(options) => up::run(&options).map(|state| show(&state)),
        Command::Down => down::run(),
        Command::Kubectl { cluster, arguments } => call(&cluster, &arguments),
        Command::Test { options, only } => test(&options, only.as_deref()),
        Command::Supervise { state } => supervisor::run(&State::at(&state)),
        Command::Enter { state, machine } => {
            machine::enter(&State::at(&state), plan::machine(&machine)?.1)
                .with_context(|| format!("machine {machine}"))
        }
        Command::Boot { state, machine } => {
            let (cluster, machine) = plan::machine(&machine)?;
            machine::boot(&State::at(&state), cluster, machine)
                .with_context(|| format!("machine {}", machine.name))
        }
    }
}

/// Prints how to use the rig.
fn show(state: &State) {
    println!("export {VARIABLE}={}", state.root().display());
    for cluster in &CLUSTERS {
        println!("{}", state.kubectl(cluster.name).display());
    }
}

fn call(cluster: &str, arguments: &[String]) -> Result<()> {
    let state = State::of_user()?;
    let found = CLUSTERS.iter().find(|found| found.name == cluster);
    let found = found.with_context(|| format!("there is no cluster `{cluster}`"))?;
    ensure!(
        state.supervisor().is_some(),
        "the clusters are not up: `cargo xtask cluster up` brings them up"
    );
    let status = Kubectl::new(&state, found).run(arguments)?;
    if !status.success() {
        bail!("`kubectl` failed: {status}");
    }
    Ok(())
}

/// Runs the tests beside the others of `cargo xtask test`; where clusters cannot run, it prints why.
pub(crate) fn run_with_tests() -> Result<()> {
    if let Err(error) = requirements::check(&cache::root()) {
        eprintln!("SKIP tests of Kubernetes: {error:#}");
        return Ok(());
    }
    test(&up::Options::default(), None)
}

/// Builds what the clusters and their tests need, unless they cannot run here.
pub(crate) fn build() -> Result<()> {
    let workspace = Workspace::load()?;
    requirements::check(&cache::root())?;
    tools::install_for_cluster_tests(&workspace);
    GatewayApi::build(&workspace)?;
    programs::build(&workspace).map(drop)
}

/// Runs those of the tests that the words choose, as a test program takes them, with these variables.
pub(crate) fn run_chosen(words: &[&str], variables: &[(&str, OsString)]) -> Result<()> {
    requirements::check(&cache::root())?;
    run_tests(&up::Options::default(), words, variables)
}

fn test(options: &up::Options, only: Option<&str>) -> Result<()> {
    run_tests(options, only.as_slice(), &[])
}

fn run_tests(options: &up::Options, words: &[&str], variables: &[(&str, OsString)]) -> Result<()> {
    let workspace = Workspace::load()?;
    tools::install_for_cluster_tests(&workspace);
    process::run(process::cargo().args(["build", "--workspace", "--bins", "--tests"]))?;
    let gateway_api = GatewayApi::build(&workspace)?;
    let mut options = options.clone();
    options.image.push(image::of_development_build(&workspace)?);
    options.image.push(gateway_api.image);
    let was_up = State::of_user()?.supervisor().is_some();
    let outcome: Result<()> = up::run(&options).and_then(|state| {
        // The rig's own, and the product's: of the whole workspace, as they were built above.
        let mut tests = process::cargo();
        tests.args(["test", "--workspace", "--test", "cluster", "--no-fail-fast", "--"]);
        // One after the other: some of them kill machines.
        tests.args(["--test-threads=1", "--nocapture"]).args(words);
        tests.envs(variables.iter().map(|(name, value)| (name, value)));
        tests.env(VARIABLE, state.root()).env("TOLLWAY_TOOLS", workspace.tools());
        tests.env("TOLLWAY_DAPR_DEFINITIONS", proof::dapr::definitions()?);
        tests.env("TOLLWAY_GATEWAY_CONFORMANCE", gateway_api.program);
        tests.env("TOLLWAY_GATEWAY_DEFINITIONS", gateway_api.definitions);
        process::run(&mut tests)
    });
    let ended = if was_up { Ok(()) } else { down::run() };
    outcome.and(ended)
}
