//! `tollway kube`: apps on Kubernetes.

mod capture;
mod inject;

use anyhow::Result;
use clap::{Args, Subcommand};

use capture::CaptureArgs;
use inject::InjectArgs;

#[derive(Args)]
pub(crate) struct KubeArgs {
    #[command(subcommand)]
    command: KubeCommand,
}

#[derive(Subcommand)]
enum KubeCommand {
    /// Add sidecars to the pods of manifests, and print them.
    Inject(Box<InjectArgs>),
    /// Lead the connections of a pod's app to its sidecar: what an injected init container runs.
    Capture(CaptureArgs),
}

pub(crate) fn run(args: KubeArgs) -> Result<()> {
    match args.command {
        KubeCommand::Inject(args) => inject::run(&args),
        KubeCommand::Capture(args) => capture::run(&args),
    }
}
