//! Topologies, links, limits, subjects and scenarios that measure shipped binaries.
//!
//! An [`experiment`] runs a [`scenario`]: it makes a [`topology`], starts its subjects in it
//! ([`subject`]; [`process`], Tollway's command lines in [`commands`]), makes the runs of its plan
//! and returns a record. The lab never links what it measures. [`ChildCommand`] holds the
//! hidden subcommands by which the binary serves the lab itself: links are processes of their own.

pub mod actors;
pub mod affinity;
pub mod calibrate;
pub mod cancel;
pub mod cgroup;
pub mod commands;
pub mod error;
pub mod experiment;
pub mod link_command;
pub mod machine;
mod mistake_list;
pub mod ping;
pub mod process;
pub mod progress;
pub mod relay;
pub mod sample;
pub mod scenario;
pub mod subject;
pub mod topology;
mod work_dir;

pub use cancel::Cancel;
pub use error::LabError;
pub use experiment::{Experiment, ExperimentOptions};
pub use progress::{Event, PlainProgress, Progress};
pub use topology::Isolation;

/// This program's version, and whether the compiler knew which of its code is hot: where it did
/// not, a request takes up to a quarter more of a processor. `xtask/pgo/rustc` sets it.
pub const VERSION: &str = if cfg!(tollway_profiled) {
    env!("CARGO_PKG_VERSION")
} else {
    concat!(env!("CARGO_PKG_VERSION"), " (built without a profile)")
};

/// The hidden subcommands of `tollway lab`, for the lab's own children.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum ChildCommand {
    /// Be an emulated link between two network namespaces.
    #[command(hide = true)]
    Link(link_command::LinkArgs),
    /// Be an emulated link between two places on loopback.
    #[command(hide = true)]
    Relay(relay::RelayArgs),
    /// Be what linkerd2-proxy needs of a control plane.
    #[command(hide = true)]
    LinkerdControl(subject::LinkerdControlArgs),
}

/// Why a child of the lab failed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error(transparent)]
    Link(#[from] link_command::LinkCommandError),
    #[error(transparent)]
    Relay(#[from] relay::RelayError),
    #[error(transparent)]
    LinkerdControl(#[from] subject::LinkerdControlError),
}

impl ChildCommand {
    /// Does the child's work until it is stopped.
    pub fn run(&self) -> Result<(), ChildError> {
        match self {
            Self::Link(args) => Ok(link_command::run_link(args)?),
            Self::Relay(args) => Ok(relay::run_relay(args)?),
            Self::LinkerdControl(args) => Ok(subject::run_linkerd_control(args)?),
        }
    }
}
