//! `tollway neighbours`: where the addresses of virtual networks are found.

mod change;
mod file;
mod look;
mod print;

use std::net::IpAddr;

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_control::NeighboursClient;
use tollway_model::{Group, Vni};

use crate::command::access::StoreArg;
use crate::runtime::block_on;

#[derive(Args)]
pub(crate) struct NeighboursArgs {
    #[command(subcommand)]
    command: NeighboursCommand,
}

#[derive(Subcommand)]
enum NeighboursCommand {
    /// Create or change the neighbours of a file, all of them or, with a mistake in it, none.
    Import(change::ImportArgs),
    /// Create or change one.
    Apply(change::ApplyArgs),
    /// Remove some.
    Delete(change::DeleteArgs),
    /// Show some.
    Get(look::GetArgs),
    /// Show all of a group.
    List(look::ListArgs),
    /// Show a group and what changes in it, until stopped.
    Watch(look::WatchArgs),
}

/// A group, and the control plane that keeps it.
#[derive(Args)]
struct GroupArgs {
    /// The group of neighbours.
    #[arg(short = 'g', long, value_parser = group)]
    group: Group,
    #[command(flatten)]
    store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Neighbours by their addresses.
#[derive(Args)]
struct KeysArgs {
    /// Number of the virtual network.
    #[arg(long, value_parser = vni)]
    vni: Vni,
    /// Addresses in it.
    #[arg(required = true)]
    ip: Vec<IpAddr>,
}

impl GroupArgs {
    async fn client(&self) -> Result<NeighboursClient> {
        Ok(self.store.admin().await?.neighbours())
    }
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
            NeighboursCommand::Import(args) => change::import(args).await,
            NeighboursCommand::Apply(args) => change::apply(args).await,
            NeighboursCommand::Delete(args) => change::delete(args).await,
            NeighboursCommand::Get(args) => look::get(args).await,
            NeighboursCommand::List(args) => look::list(args).await,
            NeighboursCommand::Watch(args) => look::watch(args).await,
        }
    })?
}

/// Reads the name of a group, for the command line.
pub(crate) fn group(text: &str) -> Result<Group, String> {
    Group::new(text).map_err(|error| tollway_model::chain(&error))
}

fn vni(text: &str) -> Result<Vni, String> {
    let number = text.parse().map_err(|_| "write a number from 0 to 16777215".to_owned())?;
    Vni::new(number).map_err(|error| error.to_string())
}
