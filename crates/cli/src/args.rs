//! The command line. Every command is a struct with its options; `command` carries them out.

use clap::{Parser, Subcommand};

use crate::command::apply::{ApplyArgs, DeleteArgs};
use crate::command::call::CallArgs;
use crate::command::check::CheckArgs;
use crate::command::control::ControlArgs;
use crate::command::demo::DemoArgs;
use crate::command::echo::EchoArgs;
use crate::command::fabric::FabricArgs;
use crate::command::front::FrontArgs;
use crate::command::gateway::GatewayArgs;
use crate::command::get::GetArgs;
use crate::command::join::JoinArgs;
use crate::command::lab::LabCommand;
use crate::command::load::LoadArgs;
use crate::command::local_control::LocalControlArgs;
use crate::command::neighbours::NeighboursArgs;
use crate::command::run::RunArgs;
use crate::command::sidecar::SidecarArgs;
use crate::command::store::StoreArgs;
use crate::command::token::TokenArgs;

/// Joins services of different networks by name, encrypted end to end, and measures the toll.
#[derive(Parser)]
#[command(name = "tollway", version = tollway_lab::VERSION, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Two networks and one far away, apps, mesh, load: prints what the crossing costs.
    Demo(DemoArgs),
    /// Run an app with a sidecar.
    Run(RunArgs),
    /// Call a service: one request through the mesh.
    Call(CallArgs),
    /// Run a control plane: identity, registry, discovery, peering.
    Control(ControlArgs),
    /// Run the sidecar of an app.
    Sidecar(SidecarArgs),
    /// Run a gateway at the edge of a network.
    Gateway(GatewayArgs),
    /// End TLS for an app: ordinary certificates, no mesh needed.
    Front(Box<FrontArgs>),
    /// Forward packets of virtual networks between hosts, in the kernel.
    Fabric(FabricArgs),
    /// Make tokens by which sidecars and gateways join their network.
    Token(TokenArgs),
    /// Join networks.
    Join(JoinArgs),
    /// Look into the store of a control plane that does not run, and repair it.
    Store(StoreArgs),
    /// Create or change policies: who may call what.
    Apply(ApplyArgs),
    /// Show what a control plane knows.
    Get(GetArgs),
    /// See whether what is needed is there, before something is started.
    Check(CheckArgs),
    /// Remove policies.
    Delete(DeleteArgs),
    /// Write and read neighbours of the fabric: where addresses of virtual networks are.
    Neighbours(NeighboursArgs),
    /// Send load and measure.
    Load(LoadArgs),
    /// Run a server that echoes HTTP, gRPC and TCP: something to send load to.
    Echo(EchoArgs),
    /// Serves the apps of one user of this machine.
    #[command(hide = true)]
    LocalControl(LocalControlArgs),
    /// Ends what an app has started when `tollway run` is killed.
    #[command(hide = true)]
    RunGuard,
    /// Measure: run experiments, list and compare them.
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
            Self::Join(args) => args.prints_json(),
            Self::Neighbours(args) => args.prints_json(),
            Self::Check(args) => args.prints_json(),
            Self::Call(args) => args.prints_json(),
            Self::Fabric(args) => args.prints_json(),
            Self::Lab { command } => command.prints_json(),
            _ => false,
        }
    }
}
