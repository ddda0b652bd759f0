//! `tollway load neighbours`: load on a control plane's table of neighbours, as an operator who
//! writes or as agents of a group.

mod get;
mod list;
mod output;
mod write;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_echo::Stop;
use tollway_model::Group;

use crate::command::fabric::MemberArgs;
use crate::command::neighbours::group;
use crate::runtime::block_on;

#[derive(Args)]
pub(super) struct NeighboursLoadArgs {
    #[command(subcommand)]
    command: NeighboursLoadCommand,
}

#[derive(Subcommand)]
enum NeighboursLoadCommand {
    /// Write new neighbours, in rounds; they stay there.
    Write(write::WriteArgs),
    /// Take the whole group into a table of this machine's kernel as an agent does, in rounds;
    /// needs root.
    List(list::ListArgs),
    /// Look single neighbours up, as so many agents.
    Get(get::GetArgs),
}

/// An agent of a group: by which name, and with which right.
#[derive(Args)]
struct AgentArgs {
    /// The group of neighbours.
    #[arg(short = 'g', long, value_parser = group)]
    group: Group,
    #[command(flatten)]
    member: MemberArgs,
}

pub(super) fn run(args: &NeighboursLoadArgs, stop: Stop) -> Result<ExitCode> {
    match &args.command {
        NeighboursLoadCommand::Write(args) => block_on(write::run(args, &stop))??,
        NeighboursLoadCommand::List(args) => block_on(list::run(args, &stop))??,
        NeighboursLoadCommand::Get(args) => return get::run(args, stop),
    }
    Ok(ExitCode::SUCCESS)
}
