//! `tollway kube capture`: has the kernel lead connections and questions for names to the sidecar, in the
//! network that this process is in. It ends at once; what it has set up goes with the network.

use anyhow::{Context, Result};
use clap::Args;
use tollway_intercept::{Capture, capture};

#[derive(Args)]
pub(crate) struct CaptureArgs {
    /// The sidecar's `--capture-port`.
    #[arg(long, value_name = "PORT", default_value_t = 15_006)]
    port: u16,
    /// The sidecar's `--capture-names-port`.
    #[arg(long, value_name = "PORT", default_value_t = 15_053)]
    names_port: u16,
    /// User of the sidecar: its own connections are left alone.
    #[arg(long, value_name = "UID", default_value_t = 15_001)]
    sidecar_uid: u32,
}

pub(super) fn run(args: &CaptureArgs) -> Result<()> {
    let settings =
        Capture { listener: args.port, names: args.names_port, sidecar_user: args.sidecar_uid };
    capture(&settings).context(
        "cannot lead the pod's connections to its sidecar; give this container the capability \
         NET_ADMIN, on a node whose kernel has nftables with NAT",
    )
}
