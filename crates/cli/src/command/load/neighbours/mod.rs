//! `tollway load neighbours`: load on a control plane's table of neighbours, as an operator who
//! writes or as agents of a group.

mod agent_options;
mod get_load;
mod list_load;
mod rounds_output;
mod write_load;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_echo::Stop;

use crate::async_runtime::block_on;

#[derive(Args)]
pub(super) struct NeighboursLoadArgs {
    #[command(subcommand)]
    command: NeighboursLoadCommand,
}

#[derive(Subcommand)]
enum NeighboursLoadCommand {
    /// Write new neighbours, in rounds; they stay there.
    Write(write_load::WriteArgs),
    /// Take the whole group into a table of this machine's kernel as an agent does, in rounds;
    /// needs root.
    List(list_load::ListArgs),
    /// Look single neighbours up, as so many agents.
    Get(get_load::GetArgs),
}

pub(super) fn run(args: &NeighboursLoadArgs, stop: Stop) -> Result<ExitCode> {
    match &args.command {
        NeighboursLoadCommand::Write(args) => block_on(write_load::run(args, &stop))??,
        NeighboursLoadCommand::List(args) => block_on(list_load::run(args, &stop))??,
        NeighboursLoadCommand::Get(args) => return get_load::run(args, stop),
    }
    Ok(ExitCode::SUCCESS)
}
