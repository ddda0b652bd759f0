//! Writes neighbours: one, some, or a file of them.

use std::fs::File;
use std::io::{BufReader, stdin};
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_control::AdminError;
use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};
use tollway_wire::v1;
use tollway_wire::v1::{NeighbourFailure, NeighbourOperation};

use super::arguments::{GroupArgs, KeysArgs, vni};
use super::import_file::{Contents, Purpose, read};

/// Failures of a file that are printed.
const FAILURES_SHOWN: usize = 20;
/// Bytes of a file that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Waiting for agents.
#[derive(Args)]
struct WaitArgs {
    /// Return when every connected agent of the group holds the change.
    #[arg(long)]
    wait: bool,
    /// Longest time to wait, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=600))]
    timeout_s: u32,
}

// Usages in two lines, for narrow terminals: clap does not break them.
#[derive(Args)]
#[command(override_usage = "tollway neighbours import [OPTIONS] --group <GROUP>\n       \
    <FILE|->")]
pub(super) struct ImportArgs {
    /// JSON, one object a line, or CSV with a header; `-` reads standard input.
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Remove the neighbours of the file instead; vni and ip are enough.
    #[arg(long)]
    delete: bool,
    #[command(flatten)]
    pub(super) group: GroupArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Args)]
#[command(override_usage = "tollway neighbours apply [OPTIONS] --group <GROUP>\n       \
    --vni <VNI> --ip <IP> --mac <MAC>\n       \
    --host-ip <HOST_IP> --host-mac <HOST_MAC>")]
pub(super) struct ApplyArgs {
    /// Number of the virtual network.
    #[arg(long, value_parser = vni)]
    vni: Vni,
    /// Its address there.
    #[arg(long)]
    ip: IpAddr,
    /// Its hardware address.
    #[arg(long)]
    mac: Mac,
    /// Address of its host.
    #[arg(long)]
    host_ip: IpAddr,
    /// Hardware address of its host.
    #[arg(long)]
    host_mac: Mac,
    /// Fail if it exists.
    #[arg(long)]
    create: bool,
    /// Fail if it does not exist.
    #[arg(long, conflicts_with = "create")]
    update: bool,
    #[command(flatten)]
    pub(super) group: GroupArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Args)]
#[command(override_usage = "tollway neighbours delete [OPTIONS] --group <GROUP>\n       \
    --vni <VNI> <IP>...")]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    keys: KeysArgs,
    /// Ignore neighbours that do not exist.
    #[arg(long)]
    ignore_missing: bool,
    #[command(flatten)]
    pub(super) group: GroupArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

/// What came of a command.
#[derive(Default)]
struct Outcome {
    revision: u64,
    changed: u64,
    unchanged: u64,
    /// The position of each, and why it was not made.
    failures: Vec<(String, NeighbourFailure)>,
}

impl Outcome {
    fn add(&mut self, response: v1::WriteNeighboursResponse, name: impl Fn(u32) -> String) {
        self.revision = self.revision.max(response.revision);
        self.changed += u64::from(response.changed);
        self.unchanged += u64::from(response.unchanged);
        let named = response.failures.into_iter().map(|failure| (name(failure.index), failure));
        self.failures.extend(named);
    }
}

pub(super) async fn import(args: &ImportArgs) -> Result<()> {
    let purpose = if args.delete { Purpose::Delete } else { Purpose::Write };
    let shown = args.file.display().to_string();
    let contents = match &*shown {
        "-" => read("standard input", stdin().lock(), purpose)?,
        _ => {
            let file = File::open(&args.file).with_context(|| format!("cannot read {shown}"))?;
            read(&shown, BufReader::with_capacity(BUFFER_BYTES, file), purpose)?
        }
    };
    let Contents { batches, lines } = contents;
    let group = args.group.group.to_string();
    let operation = match purpose {
        Purpose::Write => NeighbourOperation::Apply,
        Purpose::Delete => NeighbourOperation::Delete,
    };
    let requests = batches.into_iter().map(move |packed| v1::WriteNeighboursRequest {
        group: group.clone(),
        operation: operation.into(),
        neighbours: Vec::new(),
        packed: packed.into(),
    });
    let mut client = args.group.client().await?;
    let sent = client.write_neighbours_in_bulk(tokio_stream::iter(requests)).await;
    let mut answers = sent.map_err(AdminError::from)?.into_inner();
    let (mut outcome, mut done) = (Outcome::default(), 0);
    while let Some(response) = answers.message().await.map_err(AdminError::from)? {
        let line = |index: u32| {
            let at = usize::try_from(index).ok().and_then(|index| lines.get(done + index));
            at.map_or_else(|| shown.clone(), |line| format!("{shown}:{line}"))
        };
        let first = &lines[done.min(lines.len())..];
        let count = first.len().min(tollway_model::neighbour::packed::BATCH_RECORDS);
        outcome.add(response, line);
        done += count;
    }
    if done < lines.len() {
        bail!(
            "the control plane took only {done} of {} neighbours; import them again",
            lines.len()
        );
    }
    finish(&args.group, &args.wait, outcome).await
}

pub(super) async fn apply(args: &ApplyArgs) -> Result<()> {
    let location = HostLocation::new(args.mac, args.host_ip, args.host_mac)?;
    let record = NeighbourRecord {
        key: NeighbourKey::new(args.vni, args.ip)?,
        revision: 0,
        location: Some(location),
    };
    let operation = match (args.create, args.update) {
        (true, _) => NeighbourOperation::Create,
        (_, true) => NeighbourOperation::Update,
        (false, false) => NeighbourOperation::Apply,
    };
    let outcome = write(&args.group, operation, &[record]).await?;
    finish(&args.group, &args.wait, outcome).await
}

pub(super) async fn delete(args: &DeleteArgs) -> Result<()> {
    let mut records = Vec::with_capacity(args.keys.ip.len());
    for ip in &args.keys.ip {
        let key = NeighbourKey::new(args.keys.vni, *ip)?;
        records.push(NeighbourRecord { key, revision: 0, location: None });
    }
    let mut outcome = write(&args.group, NeighbourOperation::Delete, &records).await?;
    if args.ignore_missing {
        let missing = v1::NeighbourFailureReason::NotFound;
        outcome.failures.retain(|(_, failure)| failure.reason() != missing);
    }
    finish(&args.group, &args.wait, outcome).await
}

async fn write(
    group: &GroupArgs,
    operation: NeighbourOperation,
    records: &[NeighbourRecord],
) -> Result<Outcome> {
    let request = v1::WriteNeighboursRequest {
        group: group.group.to_string(),
        operation: operation.into(),
        neighbours: records.iter().map(Into::into).collect(),
        packed: Vec::new().into(),
    };
    let response =
        group.client().await?.write_neighbours(request).await.map_err(AdminError::from)?;
    let mut outcome = Outcome::default();
    let name = |index: u32| {
        let record = usize::try_from(index).ok().and_then(|index| records.get(index));
        record.map(|record| record.key.to_string()).unwrap_or_default()
    };
    outcome.add(response.into_inner(), name);
    Ok(outcome)
}

/// Waits for agents if requested, and prints the outcome.
async fn finish(group: &GroupArgs, wait: &WaitArgs, outcome: Outcome) -> Result<()> {
    let held = match wait.wait {
        true => Some(await_agents(group, wait, outcome.revision).await?),
        false => None,
    };
    let agents = held.as_ref().and_then(|held| held.groups.first());
    let connected =
        agents.map_or(0, |group| group.agents.iter().filter(|a| a.is_connected).count());
    if group.json {
        let failures: Vec<_> = outcome
            .failures
            .iter()
            .map(|(at, failure)| {
                serde_json::json!({
                    "at": at, "reason": reason(failure), "text": failure.text,
                })
            })
            .collect();
        let mut told = serde_json::json!({
            "group": group.group.as_str(),
            "revision": outcome.revision,
            "changed": outcome.changed,
            "unchanged": outcome.unchanged,
            "failures": failures,
        });
        if let Some(held) = &held {
            told["held"] = held.is_held.into();
            told["agents"] = connected.into();
        }
        println!("{told}");
    } else {
        let Outcome { revision, changed, unchanged, .. } = outcome;
        println!(
            "group {}: {changed} changed, {unchanged} unchanged, revision {revision}",
            group.group
        );
        if held.as_ref().is_some_and(|held| held.is_held) {
            println!("held by {connected} agents");
        }
    }
    if !outcome.failures.is_empty() {
        bail!("{}", failures(&outcome.failures));
    }
    if let Some(held) = held.filter(|held| !held.is_held) {
        bail!(
            "{} do not hold revision {} after {} s; look at them, or wait longer with --timeout-s",
            lagging(&held, outcome.revision),
            outcome.revision,
            wait.timeout_s
        );
    }
    Ok(())
}

async fn await_agents(
    group: &GroupArgs,
    wait: &WaitArgs,
    revision: u64,
) -> Result<v1::GetFabricStatusResponse> {
    let request = v1::GetFabricStatusRequest {
        group: group.group.to_string(),
        held_revision: revision,
        wait_ms: wait.timeout_s.saturating_mul(1000),
    };
    let held = group.client().await?.get_fabric_status(request).await;
    Ok(held.map_err(AdminError::from)?.into_inner())
}

/// The agents that lack a revision.
fn lagging(held: &v1::GetFabricStatusResponse, revision: u64) -> String {
    let agents = held.groups.iter().flat_map(|group| &group.agents);
    let lagging = agents.filter(|agent| {
        let has = agent.report.as_ref().map_or(0, |report| report.revision);
        agent.is_connected && has < revision
    });
    let names: Vec<_> = lagging.map(|agent| &*agent.instance).collect();
    let more = if names.len() > FAILURES_SHOWN { ", …" } else { "" };
    let shown = &names[..names.len().min(FAILURES_SHOWN)];
    format!("{} agents ({}{more})", names.len(), shown.join(", "))
}

fn failures(failures: &[(String, NeighbourFailure)]) -> String {
    let shown = failures.iter().take(FAILURES_SHOWN);
    let mut lines: Vec<_> = shown.map(|(at, failure)| format!("{at}: {}", failure.text)).collect();
    if failures.len() > FAILURES_SHOWN {
        lines.push(format!("and {} more", failures.len() - FAILURES_SHOWN));
    }
    lines.join("\n")
}

fn reason(failure: &NeighbourFailure) -> &'static str {
    match failure.reason() {
        v1::NeighbourFailureReason::Exists => "exists",
        v1::NeighbourFailureReason::NotFound => "not_found",
        v1::NeighbourFailureReason::Invalid => "invalid",
        v1::NeighbourFailureReason::Excess => "excess",
        v1::NeighbourFailureReason::Unspecified => "unknown",
    }
}
