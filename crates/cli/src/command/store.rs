//! `tollway store`: inspects and repairs the store of a control plane that does not run, and makes one good
//! that was put back from a copy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use tollway_control::{AUTHORITY_KEY, Restored, confirm_restored, store_file};
use tollway_store::{Damage, Inspection, inspect, repair};

use crate::async_runtime::block_on;

#[derive(Args)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// Show what is in a store and whether it is damaged; exit code 1 if it is.
    Check {
        /// Directory of the control plane's store; no control plane may run over it.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
    /// Confirm that a store was put back from a copy, before a control plane runs over it: join tokens
    /// and bundles that were made before are void, and what to look at is printed.
    Restored {
        /// Directory of the control plane's store; no control plane may run over it.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
    /// Keep what was written before the damage; the damaged file stays next to the new one.
    Repair {
        /// Directory of the control plane's store; no control plane may run over it.
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
    },
}

pub(crate) fn run(args: StoreArgs) -> Result<ExitCode> {
    match args.command {
        StoreCommand::Check { store } => check(&store),
        StoreCommand::Restored { store } => {
            print_restored(&block_on(confirm_restored(&store))??);
            Ok(ExitCode::SUCCESS)
        }
        StoreCommand::Repair { store } => mend(&store),
    }
}

fn check(store: &Path) -> Result<ExitCode> {
    let found = inspect(&store_file(store))?;
    print(&found);
    let Some(Damage { offset, what, .. }) = &found.damage else {
        println!("state     whole");
        return Ok(ExitCode::SUCCESS);
    };
    println!("state     damaged at byte {offset}: {what}");
    println!("lost      what was written after revision {}", found.revision);
    if !has_authority(&found) {
        println!("          the network's authority: it cannot be kept");
    }
    eprintln!("hint: keep what is above with");
    eprintln!("hint: tollway store repair --store {}", store.display());
    eprintln!("hint: or put a copy in its place, and confirm that with");
    eprintln!("hint: tollway store restored --store {}", store.display());
    Ok(ExitCode::FAILURE)
}

fn mend(store: &Path) -> Result<ExitCode> {
    let repaired = repair(&store_file(store))?;
    print(&repaired.remaining);
    println!("state     repaired");
    println!("damaged   kept as {}", repaired.damaged_file.display());
    if !has_authority(&repaired.remaining) {
        eprintln!("hint: the network's authority is lost: the next start makes a new one, and");
        eprintln!("hint: every workload and joined network must join again");
    }
    Ok(ExitCode::SUCCESS)
}

fn print_restored(restored: &Restored) {
    let Restored { revision, tokens, bundles, instances, joined, revoked } = restored;
    println!("revision  {revision}, from which the network goes on");
    println!("void      {tokens:>7} join tokens");
    println!("void      {bundles:>7} join bundles");
    println!("forgotten {instances:>7} instances' keys; each renews with the one that it has");
    for (label, of) in [("joined", joined), ("revoked", revoked)] {
        for (index, one) in of.iter().enumerate() {
            println!("{:<9} {one}", if index == 0 { label } else { "" });
        }
    }
    eprintln!(
        "hint: remove networks that were removed since the copy was made (`tollway join remove`),"
    );
    eprintln!("hint: revoke identities that were revoked since (`tollway identity revoke`), apply");
    eprintln!(
        "hint: policies that have changed (`tollway apply`), and make new tokens for workloads that"
    );
    eprintln!("hint: start again (`tollway token create`)");
}

fn print(found: &Inspection) {
    println!("store     {}", found.path.display());
    println!("size      {} bytes", found.file_bytes);
    println!("revision  {}", found.revision);
    for (index, (group, count)) in found.keys.iter().enumerate() {
        let label = if index == 0 { "holds" } else { "" };
        println!("{label:<9} {count:>7} {group}");
    }
}

/// Without it nothing that was issued is good any more.
fn has_authority(found: &Inspection) -> bool {
    found.keys.contains_key(AUTHORITY_KEY)
}
