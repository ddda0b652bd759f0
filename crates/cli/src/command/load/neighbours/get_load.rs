//! `tollway load neighbours get`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use tollway_echo::Stop;
use tollway_load::ReadyTls;
use tollway_load::neighbours::{GetOptions, MAX_NEIGHBOURS, Population, get_neighbours};
use tollway_wire::v1::GetNeighboursRequest;
use tollway_wire::v1::neighbours_client::NeighboursClient;

use super::agent_options::AgentArgs;
use crate::async_runtime::block_on;
use crate::command::load::duration::duration;
use crate::command::load::progress::run_and_report;
use crate::command::load::result_output::OutputArgs;

// In two lines, for narrow terminals: clap does not break a usage.
#[derive(Args)]
#[command(override_usage = "tollway load neighbours get [OPTIONS] --group <GROUP>\n       \
    --entries <COUNT>")]
pub(super) struct GetArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// Neighbours of the group that are looked up: of the first round that `tollway load
    /// neighbours write` wrote there, as many as it had.
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=MAX_NEIGHBOURS as i64)
    )]
    entries: u32,
    /// The number of another round.
    #[arg(hide_short_help = true, long, value_name = "NUMBER", default_value_t = 0)]
    round: u32,
    /// Connections, each of an agent with one question at a time.
    #[arg(short = 'c', long, value_name = "COUNT", default_value_t = 16)]
    agents: usize,
    /// Look-ups per second of all agents together, in open loop; without it each starts the next
    /// when it has its answer.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// How long to measure.
    #[arg(short = 'z', long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Load before the measured time.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    warm_up: Duration,
    /// Time for one answer.
    #[arg(hide_short_help = true, long, default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// Seed of the arrivals.
    #[arg(hide_short_help = true, long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: &GetArgs, stop: Stop) -> Result<ExitCode> {
    args.output.check(false)?;
    let (tls, control) = block_on(prepare(args))??;
    let options = GetOptions {
        group: args.agent.group.clone(),
        control,
        tls,
        agents: args.agents,
        rate_rps: args.rate,
        entries: args.entries,
        round: args.round,
        lasting: args.duration,
        warm_up: args.warm_up,
        timeout: args.timeout,
        seed: args.seed,
        keep: args.output.keep(),
        command_line: std::env::args().collect(),
    };
    run_and_report(&args.output, stop, |watch| Ok(get_neighbours(&options, watch)?))
}

/// Gets an identity, and checks that the neighbours are there.
async fn prepare(args: &GetArgs) -> Result<(ReadyTls, SocketAddr)> {
    let mesh = args.agent.member.join(&args.agent.group, None).await?;
    let population = Population::of_round(args.round);
    let last = population.key(args.entries - 1);
    let question = GetNeighboursRequest {
        group: args.agent.group.to_lower(),
        keys: vec![(&population.key(0)).into(), (&last).into()],
    };
    let mut client = NeighboursClient::new(mesh.connect().await?);
    let found = client.get_neighbours(question).await?.into_inner();
    let found = tollway_model::neighbour::packed::records(&found.packed).count();
    if found < if args.entries == 1 { 1 } else { 2 } {
        bail!(
            "the group {} lacks neighbours that are to be looked up, such as {last}; write them \
             with `tollway load neighbours write --entries {}`",
            args.agent.group,
            args.entries
        );
    }
    let (server_name, config) = mesh.control_tls()?;
    let addresses = args.agent.member.control().addresses(args.timeout).await?;
    let control = tollway_dial::reachable(&addresses[..], args.timeout).await?;
    Ok((ReadyTls { config, server_name }, control))
}
