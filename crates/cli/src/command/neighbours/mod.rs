//! `tollway neighbours`: the hosts of the addresses of virtual networks.

mod arguments;
mod columns;
mod import_file;
mod read;
mod write;

use anyhow::Result;
use clap::{Args, Subcommand};

pub(crate) use self::arguments::group;
use crate::async_runtime::block_on;

#[derive(Args)]
pub(crate) struct NeighboursArgs {
    #[command(subcommand)]
    command: NeighboursCommand,
}

#[derive(Subcommand)]
enum NeighboursCommand {
    /// Create or change the neighbours of a file: all of them, or none if it has a mistake.
    Import(write::ImportArgs),
    /// Create or change a neighbour.
    Apply(write::ApplyArgs),
    /// Remove neighbours.
    Delete(write::DeleteArgs),
    /// Show neighbours.
    Get(read::GetArgs),
    /// Show all neighbours of a group.
    List(read::ListArgs),
    /// Show a group and what changes in it, until stopped.
    Watch(read::WatchArgs),
}

impl NeighboursArgs {
    pub(crate) fn prints_json(&self) -> bool {
        match &self.command {
            NeighboursCommand::Import(args) => args.group.json,
            NeighboursCommand::Apply(args) => args.group.json,
            NeighboursCommand::Delete(args) => args.group.json,
            NeighboursCommand::Get(args) => args.group.json,
            NeighboursCommand::List(args) => args.group.json,
            NeighboursCommand::Watch(args) => args.group.json,
        }
    }
}

pub(crate) fn run(args: &NeighboursArgs) -> Result<()> {
    block_on(async {
        match &args.command {
            NeighboursCommand::Import(args) => write::import(args).await,
            NeighboursCommand::Apply(args) => write::apply(args).await,
            NeighboursCommand::Delete(args) => write::delete(args).await,
            NeighboursCommand::Get(args) => read::get(args).await,
            NeighboursCommand::List(args) => read::list(args).await,
            NeighboursCommand::Watch(args) => read::watch(args).await,
        }
    })?
}
