//! The options of an agent of a group, as which load is made.

use clap::Args;
use tollway_model::Group;

use crate::command::fabric::MemberArgs;
use crate::command::neighbours::group;

/// An agent of a group, and its right to join.
#[derive(Args)]
pub(super) struct AgentArgs {
    /// The group of neighbours.
    #[arg(short = 'g', long, value_parser = group)]
    pub(super) group: Group,
    #[command(flatten)]
    pub(super) member: MemberArgs,
}
