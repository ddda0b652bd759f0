//! The command line: collects the options of all commands, and calls the command that was given.
//! Nothing but `main` uses this module.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tollway_settings::{Control, Front, Gateway, Sidecar};

use crate::command::actors::ActorsArgs;
use crate::command::apply::{ApplyArgs, DeleteArgs};
use crate::command::call::CallArgs;
use crate::command::check::CheckArgs;
use crate::command::demo::DemoArgs;
use crate::command::diff::DiffArgs;
use crate::command::echo::EchoArgs;
use crate::command::fabric::FabricArgs;
use crate::command::get::GetArgs;
use crate::command::identity::IdentityArgs;
use crate::command::join::JoinArgs;
use crate::command::kube::KubeArgs;
use crate::command::lab::LabCommand;
use crate::command::load::LoadArgs;
use crate::command::local_control::LocalControlArgs;
use crate::command::neighbours::NeighboursArgs;
use crate::command::run::RunArgs;
use crate::command::state::StateArgs;
use crate::command::store::StoreArgs;
use crate::command::token::TokenArgs;
use crate::command::{
    actors, apply, call, check, control, demo, diff, echo, fabric, front, gateway, get, identity,
    join, kube, lab, load, local_control, neighbours, run as run_command, sidecar, state, store,
    token,
};
use crate::part::PartArgs;

/// Joins services of different networks by name, encrypted end to end, and measures the toll.
#[derive(Parser)]
#[command(name = "tollway", version = tollway_lab::VERSION, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a demo: two networks and one far away, apps and load; print what the crossing costs.
    Demo(DemoArgs),
    /// Run an app with a sidecar.
    #[command(
        after_help = "tollway run --dapr takes the options of `dapr run` in place of these: see tollway run --dapr \
                      --help."
    )]
    Run(RunArgs),
    /// Call a service: one request through the mesh.
    Call(CallArgs),
    /// Run a control plane: identity, registry, discovery, peering.
    Control(PartArgs<Control>),
    /// Run the sidecar of an app.
    #[command(
        after_help = "tollway sidecar --dapr takes the flags and the environment of daprd in place of these, as does \
                      this program under the name `daprd`: see tollway sidecar --dapr --help."
    )]
    Sidecar(PartArgs<Sidecar>),
    /// Run a gateway at the edge of a network.
    Gateway(PartArgs<Gateway>),
    /// Terminate TLS for an app: ordinary certificates, no mesh needed.
    Front(PartArgs<Front>),
    /// Forward packets of virtual networks between hosts, in the kernel.
    Fabric(FabricArgs),
    /// Create, list and revoke tokens with which sidecars and gateways join their network.
    Token(TokenArgs),
    /// Show who has an identity, and take identities back.
    Identity(IdentityArgs),
    /// Join networks.
    Join(JoinArgs),
    /// Show and set which apps may host which actor types.
    Actors(ActorsArgs),
    /// List and remove what apps keep in the state of their network.
    State(StateArgs),
    /// Inspect and repair the store of a control plane that does not run.
    Store(StoreArgs),
    /// Create or change policies, routes, traffic policies, failover.
    Apply(ApplyArgs),
    /// Show what `apply` would change; exit code 1 if anything.
    Diff(DiffArgs),
    /// Show the state of a control plane.
    Get(GetArgs),
    /// Run pre-flight checks.
    Check(CheckArgs),
    /// Remove policies, routes, traffic policies, failover.
    Delete(DeleteArgs),
    /// Write and read neighbours of the fabric: the hosts of addresses in virtual networks.
    Neighbours(NeighboursArgs),
    /// Bring apps on Kubernetes into the mesh.
    Kube(KubeArgs),
    /// Send load and measure.
    Load(LoadArgs),
    /// Run a server that echoes HTTP, gRPC and TCP: something to send load to.
    Echo(EchoArgs),
    /// Serve the apps of one user of this machine.
    #[command(hide = true)]
    LocalControl(LocalControlArgs),
    /// Kill what an app has started when `tollway run` is killed.
    #[command(hide = true)]
    RunGuard,
    /// Run experiments, and list and compare them.
    Lab {
        #[command(subcommand)]
        command: LabCommand,
    },
}

impl Command {
    /// Whether its errors are for a program to read, as its output is.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others print no JSON")]
    pub(crate) fn prints_json(&self) -> bool {
        match self {
            Self::Apply(args) => args.prints_json(),
            Self::Delete(args) => args.prints_json(),
            Self::Get(args) => args.prints_json(),
            Self::Identity(args) => args.prints_json(),
            Self::Join(args) => args.prints_json(),
            Self::Actors(args) => args.prints_json(),
            Self::State(args) => args.prints_json(),
            Self::Neighbours(args) => args.prints_json(),
            Self::Token(args) => args.prints_json(),
            Self::Check(args) => args.prints_json(),
            Self::Call(args) => args.prints_json(),
            Self::Fabric(args) => args.prints_json(),
            Self::Lab { command } => command.prints_json(),
            _ => false,
        }
    }
}

/// Runs a command; the exit code is 0 unless the command sets another.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Check(args) => return check::check(args),
        Command::Demo(args) => return demo::run(&args),
        Command::Run(args) => return run_command::run(args),
        Command::RunGuard => tollway_net::process::run_guard(),
        Command::LocalControl(args) => local_control::run(&args)?,
        Command::Call(args) => return call::run(args),
        Command::Control(args) => args.start(control::run)?,
        Command::Sidecar(args) => args.start(sidecar::run)?,
        Command::Gateway(args) => args.start(gateway::run)?,
        Command::Front(args) => args.start(front::run)?,
        Command::Fabric(args) => fabric::run(args)?,
        Command::Identity(args) => identity::run(args)?,
        Command::Token(args) => token::run(args)?,
        Command::State(args) => state::run(args)?,
        Command::Store(args) => return store::run(args),
        Command::Join(args) => join::run(args)?,
        Command::Actors(args) => actors::run(args)?,
        Command::Apply(args) => apply::apply(&args)?,
        Command::Diff(args) => return diff::run(&args),
        Command::Get(args) => get::run(&args)?,
        Command::Delete(args) => apply::delete(&args)?,
        Command::Neighbours(args) => neighbours::run(&args)?,
        Command::Kube(args) => kube::run(args)?,
        Command::Load(args) => return load::run(&args),
        Command::Echo(args) => echo::run(args)?,
        Command::Lab { command } => return lab::run(&command),
    }
    Ok(ExitCode::SUCCESS)
}
