//! `tollway load neighbours list`: the agent of `tollway fabric agent`, with a table of the kernel
//! that no device uses, listed again and again on one connection.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_echo::Stop;
use tollway_fabric::agent::{Agent, AgentOptions};
use tollway_fabric::layout::Settings;
use tollway_fabric::marks::{Mark, marks};
use tollway_fabric::{KernelTable, Programs, VXLAN_PORT};
use tollway_load::{forget_peak, process_cpu};
use tollway_net::let_start_go;
use tollway_record::neighbours::{Doing, Round, Stage};
use tollway_wire::v1::GetNeighboursRequest;
use tollway_wire::v1::neighbours_client::NeighboursClient;
use tonic::transport::Channel;

use super::agent_options::AgentArgs;
use super::rounds_output::{RoundsOutputArgs, started_at};
use crate::command::fabric::CapacityArg;

/// How long a listing may take.
const LISTED_WITHIN: Duration = Duration::from_secs(120);
/// Interval at which a wait checks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

// In two lines, for narrow terminals: clap does not break a usage.
#[derive(Args)]
#[command(override_usage = "tollway load neighbours list [OPTIONS]\n       \
    --group <GROUP>")]
pub(super) struct ListArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// How often.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    rounds: u32,
    #[command(flatten)]
    capacity: CapacityArg,
    #[command(flatten)]
    output: RoundsOutputArgs,
}

pub(super) async fn run(args: &ListArgs, stop: &Stop) -> Result<()> {
    let started_at = started_at()?;
    let mut table = new_table(args.capacity.capacity)?;
    let mesh = args.agent.member.join(&args.agent.group, None).await?;
    let channel = mesh.connect().await?;
    // The connection is made, and has carried something, before anything is measured.
    let nothing = GetNeighboursRequest { group: args.agent.group.to_lower(), ..Default::default() };
    NeighboursClient::new(channel.clone()).get_neighbours(nothing).await?;
    // What it took to begin is over; an agent that runs lets it go too.
    let_start_go();
    forget_peak();
    let (mut rounds, mut entries) = (Vec::new(), None);
    for _ in 0..args.rounds {
        if stop.is_requested() {
            break;
        }
        table.clear().context("cannot empty the table")?;
        let Some((mark, round)) = list_once(args, &table, &channel, stop).await? else { break };
        if *entries.get_or_insert(mark.entries) != mark.entries {
            bail!("the group {} changes meanwhile; list one that does not", args.agent.group);
        }
        rounds.push(round);
    }
    args.output.write_result(
        started_at,
        Doing::List,
        &args.agent.group,
        entries.unwrap_or(0),
        rounds,
    )
}

/// A table as a forwarder's; the programs that would read it are not put on any device.
fn new_table(capacity: u32) -> Result<KernelTable> {
    let (v4, v6) = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let mut programs = Programs::load(&Settings::new([2; 6], VXLAN_PORT, v4, v6), capacity, None)?;
    Ok(KernelTable::new(programs.neighbours()?))
}

/// Has an agent take the whole group into the empty table; `None` when it was stopped.
async fn list_once(
    args: &ListArgs,
    table: &KernelTable,
    channel: &Channel,
    stop: &Stop,
) -> Result<Option<(Mark, Round)>> {
    let (sender, told) = marks();
    let options = AgentOptions {
        group: args.agent.group.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        capacity: args.capacity.capacity.into(),
        audit_every: None,
        marks: Some(sender),
    };
    let table = table.share().context("cannot share the table")?;
    let agent = Agent::new(options, None, table)?;
    let mut progress = agent.programmer().progress();
    let (_nobody, misses) = tokio::sync::mpsc::channel(1);
    let stop = stop.clone();
    let mark = tokio::task::spawn_blocking(move || first_mark(&told, &stop));
    let cpu = process_cpu();
    let mark = tokio::select! {
        ended = agent.run(async || Ok::<_, std::convert::Infallible>(channel.clone()), misses) => {
            ended?;
            bail!("the agent has ended");
        }
        mark = async {
            let mark = mark.await.context("the wait for a mark broke off")??;
            // With the sweep and the count at its end, a listing is over.
            if mark.is_some() {
                progress.wait_for(|progress| progress.listings > 0).await?;
            }
            anyhow::Ok(mark)
        } => mark?,
    };
    let cpu_us = process_cpu().saturating_sub(cpu).as_secs_f64() * 1e6;
    let Some(mark) = mark else { return Ok(None) };
    if mark.readable_ns == 0 {
        bail!("the last neighbour of the group is not in the table; give it a greater --capacity");
    }
    let mut round =
        Round { began_ns: mark.asked_ns, cpu_us, revision: mark.revision, ..Round::default() };
    round.stages_us = [
        (Stage::Sent, mark.sent_ns),
        (Stage::Received, mark.received_ns),
        (Stage::Programmed, mark.programmed_ns),
        (Stage::Total, mark.readable_ns),
    ]
    .map(|(stage, at_ns)| (stage, round.since_us(at_ns)))
    .into();
    Ok(Some((mark, round)))
}

/// The mark of a listing's end; `None` when the wait is to end before.
fn first_mark(told: &Receiver<Mark>, stop: &Stop) -> Result<Option<Mark>> {
    let began = Instant::now();
    loop {
        match told.recv_timeout(LOOK_EVERY) {
            Ok(mark) if mark.is_listing => return Ok(Some(mark)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Ok(_) | Err(RecvTimeoutError::Timeout) if stop.is_requested() => return Ok(None),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
        if began.elapsed() > LISTED_WITHIN {
            bail!(
                "the group was not listed within {} s; is the control plane well?",
                LISTED_WITHIN.as_secs()
            );
        }
    }
}
