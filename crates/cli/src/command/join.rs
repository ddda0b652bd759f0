//! `tollway join`: networks trust and find each other.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_control::BUNDLE_LIMIT_BYTES;
use tollway_model::{ErrorCode, NetworkName};
use tollway_net::SecretFile;
use tollway_wire::v1;

use crate::async_runtime::block_on;
use crate::command::access::StoreArg;
use crate::command::secret_output::SecretOutput;
use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct JoinArgs {
    #[command(subcommand)]
    command: JoinCommand,
}

#[derive(Subcommand)]
enum JoinCommand {
    /// Print a join bundle of this network. It holds a secret that works once.
    Export {
        #[command(flatten)]
        store: StoreArg,
        /// Validity, in milliseconds.
        #[arg(long, value_name = "MS", default_value_t = 3_600_000)]
        ttl_ms: u64,
        /// Let the gateways of the network that accepts it move later without a new bundle.
        #[arg(long)]
        follow_gateways: bool,
        #[command(flatten)]
        output: SecretOutput,
    },
    /// Join the network of a bundle; then each network has the other's trust.
    Accept {
        #[command(flatten)]
        store: StoreArg,
        /// The bundle; `-` reads standard input.
        #[arg(value_name = "FILE")]
        bundle: PathBuf,
        /// Let the network's gateways move later without a new bundle; else they stay those of this
        /// one.
        #[arg(long)]
        follow_gateways: bool,
        /// Read the bundle although others than the file's owner can use it.
        #[arg(long)]
        allow_open_files: bool,
    },
    /// Show the joined networks.
    List {
        #[command(flatten)]
        store: StoreArg,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// End the trust in a joined network.
    Remove {
        #[command(flatten)]
        store: StoreArg,
        network: NetworkName,
    },
}

impl JoinArgs {
    pub(crate) fn prints_json(&self) -> bool {
        matches!(self.command, JoinCommand::List { json: true, .. })
    }
}

pub(crate) fn run(args: JoinArgs) -> Result<()> {
    block_on(async {
        match args.command {
            JoinCommand::Export { store, ttl_ms, follow_gateways, output } => {
                let request = v1::ExportJoinRequest { ttl_ms, follow_gateways };
                output.write(&store.admin().await?.export_join_with(request).await?)
            }
            JoinCommand::Accept { store, bundle, follow_gateways, allow_open_files } => {
                accept(&store, SecretFile::new(bundle, allow_open_files), follow_gateways).await
            }
            JoinCommand::List { store, json } => list(&store, json).await,
            JoinCommand::Remove { store, network } => {
                store.admin().await?.remove_join(network.as_str()).await?;
                println!("{network} is no longer joined");
                Ok(())
            }
        }
    })?
}

async fn accept(store: &StoreArg, file: SecretFile, follow_gateways: bool) -> Result<()> {
    let bundle = read_bundle(&file).map_err(|error| {
        let code = ErrorCode::of_file(&error, ErrorCode::FileUnusable);
        Failure::new(code, format!("cannot read the bundle {}: {error}", file.path().display()))
    })?;
    let request = v1::AcceptJoinRequest { bundle, follow_gateways };
    let joined = store.admin().await?.accept_join_with(request).await?;
    println!("joined {}", joined.network);
    Ok(())
}

/// One byte more than a bundle may have is enough to have it refused.
fn read_bundle(file: &SecretFile) -> std::io::Result<Vec<u8>> {
    let limit = BUNDLE_LIMIT_BYTES as u64 + 1;
    if file.path() != Path::new("-") {
        return file.read(limit);
    }
    let mut bundle = Vec::new();
    std::io::stdin().lock().take(limit).read_to_end(&mut bundle)?;
    Ok(bundle)
}

async fn list(store: &StoreArg, json: bool) -> Result<()> {
    let joins = store.admin().await?.joins().await?;
    if json {
        let rows: Vec<_> = joins
            .iter()
            .map(|join| {
                serde_json::json!({
                    "network": join.network,
                    "trust_domain": join.trust_domain,
                    "reachable": join.reachable,
                    "control_plane": if join.last_error.is_empty() { "answers" } else { "away" },
                    "last_error": join.last_error,
                    "gateways": gateways(join),
                    "follow_gateways": join.follow_gateways,
                    "dials_out": join.dials_out,
                })
            })
            .collect();
        println!("{}", serde_json::Value::Array(rows));
        return Ok(());
    }
    println!("{:<20} {:<30} {:<30} GATEWAYS", "NETWORK", "TRUST DOMAIN", "STATE");
    for join in joins {
        let (network, trust_domain, state) = (&join.network, &join.trust_domain, state(&join));
        let may_move = if join.follow_gateways { ", may move" } else { "" };
        let gateways =
            if join.dials_out { "only dials out".to_owned() } else { gateways(&join).join(", ") };
        println!("{network:<20} {trust_domain:<30} {state:<30} {gateways}{may_move}");
    }
    Ok(())
}

fn gateways(join: &v1::JoinStatus) -> Vec<String> {
    let read = |address| tollway_wire::address(Some(address), "gateways").ok();
    join.gateways.iter().filter_map(read).map(|address| address.to_string()).collect()
}

/// A network without its control plane is reachable as long as its gateways answer.
fn state(join: &v1::JoinStatus) -> &'static str {
    match (join.reachable, join.last_error.is_empty()) {
        (true, true) => "reachable",
        (true, false) => "reachable, control plane away",
        (false, _) => "unreachable",
    }
}
