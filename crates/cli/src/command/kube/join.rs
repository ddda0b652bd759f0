//! `tollway kube join`: the networks of two clusters trust and find each other.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tollway_kube::{Cluster, JoinOptions, Outcome, Side, join_clusters};

use crate::async_runtime::block_on;

#[derive(Args)]
pub(crate) struct JoinArgs {
    /// Context of one cluster, as the configuration of `kubectl` names it.
    #[arg(value_name = "CONTEXT")]
    first: String,
    /// Context of the other one.
    #[arg(value_name = "CONTEXT")]
    second: String,
    /// Namespace of the installs.
    #[arg(short = 'n', long, value_name = "NAME", default_value = "tollway")]
    namespace: String,
    /// Namespace of the second install, if it is another one.
    #[arg(long, value_name = "NAME")]
    second_namespace: Option<String>,
    /// Let the gateways of each network move later without joining again.
    #[arg(long)]
    follow_gateways: bool,
    /// Time for each network to reach the other, in seconds; 0 does not wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait_s: u64,
}

pub(super) fn run(args: JoinArgs) -> Result<()> {
    let JoinArgs { first, second, namespace, second_namespace, follow_gateways, wait_s } = args;
    let second_namespace = second_namespace.unwrap_or_else(|| namespace.clone());
    let within = (wait_s > 0).then(|| Duration::from_secs(wait_s));
    let options = JoinOptions { follow_gateways, within };
    let side = async |context: String, namespace: String| {
        let cluster = Cluster::of_context(&context).await?;
        anyhow::Ok(Side { cluster, context, namespace })
    };
    let outcome = block_on(async {
        let sides = [side(first, namespace).await?, side(second, second_namespace).await?];
        let [first, second] = &sides;
        Box::pin(join_clusters([first, second], options)).await.context("join")
    })??;
    match outcome {
        Outcome::Joined(one, other) => println!("joined {one} and {other}"),
        Outcome::WereJoined(one, other) => println!("{one} and {other} are joined already"),
    }
    Ok(())
}
