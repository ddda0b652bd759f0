//! `tollway fabric`: the forwarder of a virtual network on this machine.

mod group;
mod membership;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use tollway_fabric::agent::{Joined, RunOptions, run_agent};
use tollway_fabric::layout::SourceCheck;
use tollway_fabric::{Mode, Options, VXLAN_PORT, pins};
use tollway_model::{Group, Instance};
use tollway_settings::Log;

use self::group::GroupArg;
pub(crate) use self::membership::{CapacityArg, MemberArgs};
use super::log;
use crate::async_runtime::{block_on, shutdown_or_hangup};
use crate::part::SettingsArgs;

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
    /// Where programs are attached.
    #[arg(long, value_enum, default_value_t = ModeArg::Auto)]
    mode: ModeArg,
    /// The UDP port of VXLAN.
    #[arg(long, default_value_t = VXLAN_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    capacity: CapacityArg,
    /// Which packets are dropped because their inner source does not live at the host that sent
    /// them.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = SourceCheckArg::Known)]
    source_check: SourceCheckArg,
    #[command(flatten)]
    member: MemberArgs,
    /// Name of this agent of the group [default: random].
    #[arg(long, value_name = "NAME")]
    instance: Option<Instance>,
    /// File in which the agent notes the revision of its table [default:
    /// /var/lib/tollway/fabric-GROUP.journal].
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// How often the table is compared with the control plane's and repaired, in seconds; 0 never.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    audit_every_s: u64,
    /// Write a line of JSON to this new file for each revision that the table has reached, with
    /// the times at which it was sent, received, programmed and readable, in nanoseconds of
    /// CLOCK_MONOTONIC. To measure with.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    marks_file: Option<PathBuf>,
    /// Metrics and health; port 0 takes a free one [default: none].
    #[arg(long, value_name = "IP:PORT")]
    admin_listen: Option<SocketAddr>,
    #[command(flatten)]
    log: SettingsArgs<Log>,
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SourceCheckArg {
    /// Those of addresses that have another host in the table.
    Known,
    /// Those of addresses that have no entry in the table, too.
    Strict,
    /// None.
    Off,
}

impl SourceCheckArg {
    fn chosen(self) -> SourceCheck {
        match self {
            Self::Known => SourceCheck::Known,
            Self::Strict => SourceCheck::Strict,
            Self::Off => SourceCheck::Off,
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
        FabricCommand::Agent(args) => agent(*args),
        FabricCommand::Status(args) => status::run(&args),
        FabricCommand::Detach { group } => detach(&group.group),
    }
}

fn agent(args: AgentArgs) -> Result<()> {
    let _log = log::start(&args.log.0);
    let group = args.group.group;
    let options = RunOptions {
        group: group.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        forwarder: Options {
            devices: args.devices,
            mode: args.mode.chosen(),
            port: args.port,
            capacity: args.capacity.capacity,
            source_check: args.source_check.chosen(),
        },
        journal: args.journal,
        audit_every: (args.audit_every_s > 0).then(|| Duration::from_secs(args.audit_every_s)),
        marks_file: args.marks_file,
        admin_listen: args.admin_listen,
    };
    let join = async {
        let mesh = args.member.join(&group, args.instance).await?;
        let credentials = mesh.credentials();
        Ok(Joined { credentials, connect: async move || mesh.connect().await })
    };
    block_on(async { Ok(run_agent(options, join, shutdown_or_hangup()?).await?) })?
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
