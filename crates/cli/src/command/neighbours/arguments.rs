//! The options that the commands about neighbours share.

use std::net::IpAddr;

use anyhow::Result;
use clap::Args;
use tollway_control::NeighboursClient;
use tollway_model::{Group, Vni};

use crate::command::access::StoreArg;

/// A group, and the control plane that has it.
#[derive(Args)]
pub(super) struct GroupArgs {
    /// The group of neighbours.
    #[arg(short = 'g', long, value_parser = group)]
    pub(super) group: Group,
    #[command(flatten)]
    store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Neighbours by their addresses.
#[derive(Args)]
pub(super) struct KeysArgs {
    /// Number of the virtual network.
    #[arg(long, value_parser = vni)]
    pub(super) vni: Vni,
    /// Addresses in it.
    #[arg(required = true)]
    pub(super) ip: Vec<IpAddr>,
}

impl GroupArgs {
    pub(super) async fn client(&self) -> Result<NeighboursClient> {
        Ok(self.store.admin().await?.neighbours())
    }
}

/// Reads the name of a group, for the command line.
pub(crate) fn group(text: &str) -> Result<Group, String> {
    Group::new(text).map_err(|error| tollway_model::chain(&error))
}

/// Reads the number of a virtual network.
pub(super) fn vni(text: &str) -> Result<Vni, String> {
    let number = text.parse().map_err(|_| "write a number from 0 to 16777215".to_owned())?;
    Vni::new(number).map_err(|error| error.to_string())
}
