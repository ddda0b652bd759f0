//! `tollway kube`: apps on Kubernetes.

mod capture;
mod check;
mod inject;
mod injector;
mod install;
mod join;
mod sidecar_args;

use anyhow::Result;
use clap::{Args, Subcommand};

use capture::CaptureArgs;
use check::{CheckArgs, PodsArgs};
use inject::InjectArgs;
use injector::InjectorArgs;
use install::{InstallArgs, UninstallArgs};
use join::JoinArgs;

#[derive(Args)]
pub(crate) struct KubeArgs {
    #[command(subcommand)]
    command: KubeCommand,
}

#[derive(Subcommand)]
enum KubeCommand {
    /// Install control plane, injector and gateway into a cluster; the chart does the same with Helm.
    Install(Box<InstallArgs>),
    /// Show whether an install is as it should be.
    Check(CheckArgs),
    /// List the apps whose pods have sidecars, with their versions.
    Pods(PodsArgs),
    /// Join the networks of two clusters, so that apps of one call apps of the other by name.
    Join(JoinArgs),
    /// Remove an install. Sidecars stay in their pods until these are replaced.
    Uninstall(UninstallArgs),
    /// Add sidecars to the pods of manifests, and print them.
    Inject(Box<InjectArgs>),
    /// Add sidecars to the pods of a cluster as they are made: the webhook that the chart installs.
    Injector(Box<InjectorArgs>),
    /// Lead the connections of a pod's app to its sidecar: what an injected init container runs.
    Capture(CaptureArgs),
}

pub(crate) fn run(args: KubeArgs) -> Result<()> {
    match args.command {
        KubeCommand::Install(args) => install::install(*args),
        KubeCommand::Check(args) => check::check(&args),
        KubeCommand::Pods(args) => check::pods(&args),
        KubeCommand::Join(args) => join::run(args),
        KubeCommand::Uninstall(args) => install::uninstall(&args),
        KubeCommand::Inject(args) => inject::run(&args),
        KubeCommand::Injector(args) => injector::run(*args),
        KubeCommand::Capture(args) => capture::run(&args),
    }
}
