//! Reads neighbours: some, all of a group, or as they change.

use std::io::{self, BufWriter, Write as _};

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_control::{AdminError, NeighboursClient};
use tollway_model::neighbour::packed::unpack;
use tollway_model::{NeighbourKey, NeighbourRecord, Vni};
use tollway_wire::v1;
use tollway_wire::v1::watch_neighbours_request::Request;

use super::arguments::{GroupArgs, KeysArgs, vni};
use super::columns::{self, Shown};
use crate::async_runtime::shutdown_or_hangup;

// In two lines, for narrow terminals: clap does not break a usage.
#[derive(Args)]
#[command(override_usage = "tollway neighbours get [OPTIONS] --group <GROUP>\n       \
    --vni <VNI> <IP>...")]
pub(super) struct GetArgs {
    #[command(flatten)]
    keys: KeysArgs,
    #[command(flatten)]
    pub(super) group: GroupArgs,
}

#[derive(Args)]
pub(super) struct ListArgs {
    /// Only those of this virtual network.
    #[arg(long, value_parser = vni)]
    vni: Option<Vni>,
    /// At most so many [default: all].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    pub(super) group: GroupArgs,
}

#[derive(Args)]
pub(super) struct WatchArgs {
    /// Only what changes from now on.
    #[arg(long)]
    changes_only: bool,
    #[command(flatten)]
    pub(super) group: GroupArgs,
}

pub(super) async fn get(args: &GetArgs) -> Result<()> {
    let mut keys = Vec::with_capacity(args.keys.ip.len());
    for ip in &args.keys.ip {
        keys.push(NeighbourKey::new(args.keys.vni, *ip)?);
    }
    let request = v1::GetNeighboursRequest {
        group: args.group.group.to_string(),
        keys: keys.iter().map(Into::into).collect(),
    };
    let found =
        args.group.client().await?.get_neighbours(request).await.map_err(AdminError::from)?;
    let records = read(&found.get_ref().packed)?;
    let mut out = BufWriter::new(io::stdout().lock());
    if !args.group.json {
        writeln!(out, "{}", columns::TITLES)?;
    }
    for record in &records {
        columns::line(&mut out, &Shown::of(record), args.group.json)?;
    }
    out.flush()?;
    let is_there = |key: &&NeighbourKey| records.iter().any(|record| record.key == **key);
    let missing: Vec<_> =
        keys.iter().filter(|key| !is_there(key)).map(ToString::to_string).collect();
    if !missing.is_empty() {
        bail!("there is no neighbour {} in the group {}", missing.join("; "), args.group.group);
    }
    Ok(())
}

pub(super) async fn list(args: &ListArgs) -> Result<()> {
    let request = v1::ListNeighboursRequest {
        group: args.group.group.to_string(),
        vni: args.vni.map(Vni::number),
        after: None,
        limit: args.limit.unwrap_or(0),
    };
    let mut pages = args
        .group
        .client()
        .await?
        .list_neighbours(request)
        .await
        .map_err(AdminError::from)?
        .into_inner();
    let mut out = BufWriter::new(io::stdout().lock());
    if !args.group.json {
        writeln!(out, "{}", columns::TITLES)?;
    }
    while let Some(page) = pages.message().await.map_err(AdminError::from)? {
        for record in read(&page.packed)? {
            columns::line(&mut out, &Shown::of(&record), args.group.json)?;
        }
    }
    Ok(out.flush()?)
}

pub(super) async fn watch(args: &WatchArgs) -> Result<()> {
    let mut client = args.group.client().await?;
    let group = args.group.group.to_string();
    let mut start = v1::WatchNeighboursStart {
        group: group.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    // The output stream without its end, which would be read as ours.
    let (said, saying) = tokio::sync::mpsc::channel(1);
    if args.changes_only {
        (start.from_revision, start.table) = now(&mut client, &group).await?;
    }
    let start = v1::WatchNeighboursRequest { request: Some(Request::Start(start)) };
    said.send(start).await.context("the watch cannot begin")?;
    let saying = tokio_stream::wrappers::ReceiverStream::new(saying);
    let mut told = client.watch_neighbours(saying).await.map_err(AdminError::from)?.into_inner();
    let end = shutdown_or_hangup()?;
    tokio::pin!(end);
    let mut out = io::stdout().lock();
    if !args.group.json {
        writeln!(out, "{}", columns::TITLES)?;
    }
    let mut marked = 0;
    loop {
        let message = tokio::select! {
            message = told.message() => message.map_err(AdminError::from)?,
            () = &mut end => return Ok(()),
        };
        let Some(message) = message else { bail!("the control plane ended the watch") };
        if let Some(compacted) = message.compacted {
            columns::compacted(&mut out, &compacted, args.group.json)?;
        }
        for record in read(&message.packed)? {
            columns::line(&mut out, &Shown::of(&record), args.group.json)?;
        }
        if message.revision > marked {
            marked = message.revision;
            columns::mark(&mut out, marked, args.group.json)?;
        }
        out.flush()?;
    }
}

/// The revision that a group has, and of which table.
async fn now(client: &mut NeighboursClient, group: &str) -> Result<(u64, u64)> {
    let request = v1::GetNeighboursRequest { group: group.to_owned(), keys: Vec::new() };
    let found = client.get_neighbours(request).await.map_err(AdminError::from)?.into_inner();
    Ok((found.revision, found.table))
}

fn read(packed: &[u8]) -> Result<Vec<NeighbourRecord>> {
    unpack(packed).context("the control plane's answer")
}
