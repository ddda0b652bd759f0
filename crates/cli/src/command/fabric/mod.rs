//! `tollway fabric`: the forwarder of a virtual network on this machine.

mod facts;
mod member;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use tokio::net::TcpListener;
use tollway_fabric::agent::{Agent, AgentOptions};
use tollway_fabric::journal::{Journal, MapName};
use tollway_fabric::{Forwarder, Mode, Options, VXLAN_PORT, marks, misses, pinned_counts, pins};
use tollway_model::{Group, Instance};
use tollway_net::let_start_go;
use tollway_telemetry::serve_admin;

use self::facts::AgentFacts;
pub(crate) use self::member::{CapacityArg, MemberArgs};
use super::log::LogArgs;
use crate::runtime::{block_on, shutdown_or_hangup};

/// How long after its start, and again, what only the start has used may go.
const STARTED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

#[derive(Args)]
pub(crate) struct FabricArgs {
    #[command(subcommand)]
    command: FabricCommand,
}

#[derive(Subcommand)]
enum FabricCommand {
    /// Forward VXLAN packets between hosts, by the neighbours of a group.
    ///
    /// Programs and table stay in the kernel when the agent ends, and forward on; the next one
    /// takes them over. `tollway fabric detach` removes them.
    Agent(Box<AgentArgs>),
    /// Show the forwarder of a group on this machine, whether or not its agent runs; or all agents
    /// of the group, as the control plane knows them.
    Status(status::StatusArgs),
    /// Take the programs of a group off their devices and remove its table.
    Detach {
        #[command(flatten)]
        group: GroupArg,
    },
}

#[derive(Args)]
struct GroupArg {
    /// The group of forwarders.
    #[arg(long, value_name = "NAME", value_parser = Group::new)]
    group: Group,
}

// In two lines, for narrow terminals: clap does not break a usage.
#[derive(Args)]
#[command(override_usage = "tollway fabric agent [OPTIONS] --group <NAME>\n       \
    --device <NAME>")]
struct AgentArgs {
    #[command(flatten)]
    group: GroupArg,
    /// A device that VXLAN packets come in by, and leave by; may be repeated.
    #[arg(long = "device", value_name = "NAME", required = true)]
    devices: Vec<String>,
    /// How programs meet packets.
    #[arg(long, value_enum, default_value_t = ModeArg::Auto)]
    mode: ModeArg,
    /// The UDP port of VXLAN.
    #[arg(long, default_value_t = VXLAN_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    capacity: CapacityArg,
    #[command(flatten)]
    member: MemberArgs,
    /// Tells this agent from others of the group [default: made up].
    #[arg(long, value_name = "NAME")]
    instance: Option<Instance>,
    /// Where the agent notes how far its table has come [default:
    /// /var/lib/tollway/fabric-GROUP.journal].
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// How often the table is compared with the control plane's and repaired, in seconds; 0 never.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    audit_every_s: u64,
    /// Writes a line of JSON to this new file for each revision that the table has come to, with
    /// the times at which it was sent, received, programmed and readable, in nanoseconds of
    /// CLOCK_MONOTONIC. To measure with.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    marks_file: Option<PathBuf>,
    /// Metrics and health; port 0 takes a free one [default: none].
    #[arg(long, value_name = "IP:PORT")]
    admin_listen: Option<SocketAddr>,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeArg {
    /// XDP where a driver of hardware runs it, tc on virtual devices.
    Auto,
    /// XDP in the driver.
    Native,
    /// XDP in the kernel, to try it out.
    Generic,
    /// tc, at the device's entrance.
    Tc,
}

impl ModeArg {
    fn chosen(self) -> Option<Mode> {
        match self {
            Self::Auto => None,
            Self::Native => Some(Mode::Native),
            Self::Generic => Some(Mode::Generic),
            Self::Tc => Some(Mode::Tc),
        }
    }
}

impl FabricArgs {
    pub(crate) fn prints_json(&self) -> bool {
        matches!(&self.command, FabricCommand::Status(args) if args.json)
    }
}

pub(crate) fn run(args: FabricArgs) -> Result<()> {
    match args.command {
        FabricCommand::Agent(args) => run_agent(*args),
        FabricCommand::Status(args) => status::run(&args),
        FabricCommand::Detach { group } => detach(&group.group),
    }
}

fn run_agent(args: AgentArgs) -> Result<()> {
    let _log = args.log.start();
    let group = args.group.group.clone();
    let pins = pins::directory(&group.to_lower())?;
    let options = Options {
        devices: args.devices.clone(),
        mode: args.mode.chosen(),
        port: args.port,
        capacity: args.capacity.capacity,
    };
    let forwarder = Forwarder::open(&options, &pins)?;
    for port in &forwarder.ports {
        let (device, mode) = (&port.device.name, port.attached.mode);
        let far_end = port.far_end.as_ref().map(|far| far.peer.as_str());
        tracing::info!(device, %mode, far_end, replaced = port.attached.replaced, "forwarding");
    }
    let capacity = forwarder.table.capacity().context("cannot read the size of the table")?;
    if capacity != args.capacity.capacity {
        tracing::warn!(
            capacity,
            "the table that is pinned has another size than --capacity; `tollway fabric detach` \
             removes it"
        );
    }
    let map = forwarder.table.id().and_then(MapName::here).context("cannot name the table")?;
    let journal = Journal::new(journal_of(&args), map);
    let marks = match &args.marks_file {
        Some(path) => {
            let (marks, told) = marks::marks();
            let written = marks::write_marks(path, told);
            written.with_context(|| format!("cannot write {}", path.display()))?;
            Some(marks)
        }
        None => None,
    };
    let options = AgentOptions {
        group,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        capacity: capacity.into(),
        audit_every: (args.audit_every_s > 0).then(|| Duration::from_secs(args.audit_every_s)),
        marks,
    };
    let counts = pinned_counts(&pins).context("cannot open the programs' counters")?;
    let agent = Agent::new(options, Some(journal), forwarder.table)?;
    let facts = Arc::new(AgentFacts::new(&agent, counts, capacity));
    block_on(async {
        let end = shutdown_or_hangup()?;
        let admin = match args.admin_listen {
            Some(address) => {
                let bound = TcpListener::bind(address).await;
                Some(bound.with_context(|| format!("cannot listen on {address} (admin)"))?)
            }
            None => None,
        };
        if let Some(admin) = &admin {
            tracing::info!(address = %admin.local_addr()?, "admin");
        }
        let admin = async {
            match admin {
                Some(listener) => serve_admin(facts.clone(), listener).await,
                None => std::future::pending().await,
            }
        };
        let (reports, misses) = tokio::sync::mpsc::channel(misses::QUEUE);
        let serve = async {
            let mesh = args.member.join(&args.group.group, args.instance).await?;
            facts.has_joined(mesh.credentials());
            Ok(agent.run(async || mesh.connect().await, misses).await?)
        };
        let settle = async {
            for wait in STARTED {
                tokio::time::sleep(wait).await;
                let_start_go();
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            ended = serve => ended,
            () = admin => Ok(()),
            () = settle => Ok(()),
            failed = misses::pass_on(forwarder.misses, reports) => {
                failed.context("cannot wait for reports of the programs")
            }
            () = end => Ok(()),
        }
    })?
}

fn journal_of(args: &AgentArgs) -> PathBuf {
    let name = format!("fabric-{}.journal", args.group.group.to_lower());
    args.journal.clone().unwrap_or_else(|| PathBuf::from("/var/lib/tollway").join(name))
}

fn detach(group: &Group) -> Result<()> {
    let path = pins::path_of(&group.to_lower())?;
    if !path.exists() {
        println!("there is no forwarder of group {group} here");
        return Ok(());
    }
    for link in tollway_fabric::detach_all(&path)? {
        println!("took off {link}");
    }
    pins::remove_tables(&group.to_lower())?;
    println!("removed the table of group {group}");
    Ok(())
}
