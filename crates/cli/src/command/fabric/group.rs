//! The option that names a group of forwarders.

use clap::Args;
use tollway_model::Group;

#[derive(Args)]
pub(super) struct GroupArg {
    /// The group of forwarders.
    #[arg(long, value_name = "NAME", value_parser = Group::new)]
    pub(super) group: Group,
}
