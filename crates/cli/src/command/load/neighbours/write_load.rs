//! `tollway load neighbours write`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_echo::Stop;
use tollway_load::neighbours::{Followers, MAX_NEIGHBOURS, Pace, WriteOptions, write_neighbours};
use tollway_model::Group;
use tollway_proxy::mesh::MeshClient;
use tollway_record::neighbours::Doing;

use super::rounds_output::{RoundsOutputArgs, started_at};
use crate::command::access::StoreArg;
use crate::command::fabric::MemberArgs;
use crate::command::load::duration::duration;
use crate::command::neighbours::group;

// In two lines, for narrow terminals: clap does not break a usage.
#[derive(Args)]
#[command(override_usage = "tollway load neighbours write [OPTIONS]\n       \
    --group <GROUP> --entries <COUNT>")]
pub(super) struct WriteArgs {
    /// The group of neighbours.
    #[arg(short = 'g', long, value_parser = group)]
    group: Group,
    #[command(flatten)]
    store: StoreArg,
    /// Neighbours of a round.
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=MAX_NEIGHBOURS as i64)
    )]
    entries: u32,
    /// How often; each round has neighbours of its own.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    rounds: u32,
    /// Number of the first round, to have others than an earlier run.
    #[arg(hide_short_help = true, long, value_name = "NUMBER", default_value_t = 0)]
    first_round: u32,
    /// Instead of writing new neighbours, move those of the first round, which an earlier run has
    /// written, from host to host: so many are there.
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=MAX_NEIGHBOURS as i64)
    )]
    moved: Option<u32>,
    /// Begin each round when every connected agent of the group holds the one before.
    #[arg(long)]
    wait: bool,
    /// Between two rounds.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pause: Duration,
    /// From the beginning of a round to that of the next; one that is late counts from when it was
    /// to begin.
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["wait", "pause"])]
    every: Option<Duration>,
    /// Have so many agents without a table follow, each with a certificate and a connection of its
    /// own: a round has then the stage `received` too, the last agent's.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=1_000)
    )]
    agents: u32,
    #[command(flatten)]
    member: MemberArgs,
    #[command(flatten)]
    output: RoundsOutputArgs,
}

pub(super) async fn run(args: &WriteArgs, stop: &Stop) -> Result<()> {
    let started_at = started_at()?;
    let mut client = args.store.admin().await?.neighbours();
    let options = WriteOptions {
        group: args.group.clone(),
        entries: args.entries,
        rounds: args.rounds,
        first_round: args.first_round,
        moved: args.moved,
        pace: match args.every {
            Some(every) => Pace::Every(every),
            None if args.wait => Pace::Settled(args.pause),
            None => Pace::Pause(args.pause),
        },
    };
    let (_members, mut followers) = follow(args).await?;
    let rounds = write_neighbours(&mut client, &options, &mut followers, stop).await?;
    args.output.write_result(started_at, Doing::Write, &args.group, args.entries.into(), rounds)
}

/// Starts the agents, and waits until each has the whole group; they follow as long as what they
/// joined with is there.
async fn follow(args: &WriteArgs) -> Result<(Vec<MeshClient>, Followers)> {
    let (mut members, mut channels) = (Vec::new(), Vec::new());
    for _ in 0..args.agents {
        let member = args.member.join(&args.group, None).await?;
        channels.push(member.connect().await?);
        members.push(member);
    }
    let mut followers = Followers::start(&args.group, channels);
    followers.hold(1).await?;
    Ok((members, followers))
}
