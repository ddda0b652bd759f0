//! The status of the forwarder of this machine, or of the agents of a group.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_control::AdminError;
use tollway_fabric::{Status, pins, read_status};
use tollway_model::Group;
use tollway_wire::v1;

use super::group::GroupArg;
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;

#[derive(Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    group: GroupArg,
    /// Ask the control plane which agents there are, and what they hold.
    #[arg(long)]
    agents: bool,
    /// Show which agents hold this revision [default: the group's newest].
    #[arg(long, value_name = "NUMBER", requires = "agents")]
    revision: Option<u64>,
    #[command(flatten)]
    store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(args: &StatusArgs) -> Result<()> {
    let group = &args.group.group;
    if args.agents {
        return block_on(agents(args))?;
    }
    if args.store.is_given() {
        bail!("--store is for --agents; without it the forwarder of this machine is shown");
    }
    let status = read_status(&pins::path_of(&group.to_lower())?)?;
    if args.json {
        print_json(group, &status);
    } else {
        print(group, &status);
    }
    Ok(())
}

async fn agents(args: &StatusArgs) -> Result<()> {
    let name = &args.group.group;
    let request = v1::GetFabricStatusRequest { group: name.to_string(), ..Default::default() };
    let mut client = args.store.admin().await?.neighbours();
    let answer = client.get_fabric_status(request).await.map_err(AdminError::from)?.into_inner();
    let Some(group) = answer.groups.first() else {
        bail!("the control plane knows no group {name}: nothing was written to it, ever");
    };
    let revision = args.revision.unwrap_or(group.revision);
    if args.json {
        print_agents_json(group, revision);
    } else {
        print_agents(group, revision);
    }
    Ok(())
}

/// The last report of an agent, compared with a revision.
struct Held<'a> {
    agent: &'a v1::FabricAgent,
    report: v1::FabricAgentReport,
    /// It is there, and everything up to the revision is in its table.
    holds: bool,
}

impl<'a> Held<'a> {
    fn of(agent: &'a v1::FabricAgent, revision: u64) -> Self {
        let report = agent.report.clone().unwrap_or_default();
        let holds = agent.is_connected && report.revision >= revision;
        Self { agent, report, holds }
    }

    fn word(&self) -> &'static str {
        match (self.agent.is_connected, self.holds) {
            (true, true) => "holds",
            (true, false) => "behind",
            (false, _) => "gone",
        }
    }

    /// To the second.
    fn since(&self) -> String {
        let seconds = i64::try_from(self.agent.since_unix_ms / 1000).unwrap_or_default();
        let since = OffsetDateTime::from_unix_timestamp(seconds).ok();
        since.and_then(|since| since.format(&Rfc3339).ok()).unwrap_or_default()
    }
}

fn print_agents(group: &v1::FabricGroup, revision: u64) {
    let agents: Vec<_> = group.agents.iter().map(|agent| Held::of(agent, revision)).collect();
    println!(
        "group {}: {} neighbours, revision {}; {} of {} agents hold revision {revision}",
        group.group,
        group.neighbours,
        group.revision,
        agents.iter().filter(|held| held.holds).count(),
        agents.len()
    );
    if agents.is_empty() {
        return;
    }
    println!(
        "{:<24} {:<6} {:>10} {:>10} {:>10} {:>9}  SINCE",
        "AGENT", "STATE", "REVISION", "NEIGHBOURS", "OF", "LAG ms"
    );
    for held in &agents {
        let Held { agent, report, .. } = held;
        println!(
            "{:<24} {:<6} {:>10} {:>10} {:>10} {:>9}  {}",
            agent.instance,
            held.word(),
            report.revision,
            report.entries,
            report.capacity,
            agent.lag_us / 1000,
            held.since()
        );
        for trouble in &report.troubles {
            println!("  {}", trouble.text);
        }
    }
}

fn print_agents_json(group: &v1::FabricGroup, revision: u64) {
    let agents: Vec<_> = group
        .agents
        .iter()
        .map(|agent| {
            let held = Held::of(agent, revision);
            let trouble = |trouble: &v1::FabricAgentTrouble| {
                json!({ "text": trouble.text, "count": trouble.count })
            };
            json!({
                "instance": agent.instance,
                "version": agent.version,
                "connected": agent.is_connected,
                "since": held.since(),
                "holds": held.holds,
                "revision": held.report.revision,
                "neighbours": held.report.entries,
                "capacity": held.report.capacity,
                "pending": held.report.pending,
                "lag_us": agent.lag_us,
                "full_lists": agent.full_lists,
                "resyncs": agent.resyncs,
                "troubles": held.report.troubles.iter().map(trouble).collect::<Vec<_>>(),
            })
        })
        .collect();
    let status = json!({
        "group": group.group,
        "revision": group.revision,
        "oldest_revision": group.oldest_revision,
        "neighbours": group.neighbours,
        "tombstones": group.tombstones,
        "asked_revision": revision,
        "agents": agents,
    });
    println!("{status}");
}

fn print(group: &Group, status: &Status) {
    println!("group {group}");
    for link in &status.links {
        println!("  program {link}");
    }
    println!(
        "  neighbours {} of {}, newest revision {}",
        status.neighbours, status.capacity, status.newest_revision
    );
    for (total, number) in status.totals.iter().filter(|(_, number)| *number > 0) {
        println!("  packets {} {number}", total.word());
    }
    for (vni, found) in &status.networks {
        println!(
            "  vni {vni}: forwarded {} ({} bytes), answered {}, missed {}, dropped {}",
            found.forwarded_packets,
            found.forwarded_bytes,
            found.answered,
            found.missed,
            found.dropped
        );
    }
}

fn print_json(group: &Group, status: &Status) {
    let packets: serde_json::Map<_, _> =
        status.totals.iter().map(|(total, number)| (total.word().into(), json!(number))).collect();
    let networks: Vec<_> = status
        .networks
        .iter()
        .map(|(vni, found)| {
            json!({
                "vni": vni,
                "forwarded_packets": found.forwarded_packets,
                "forwarded_bytes": found.forwarded_bytes,
                "answered": found.answered,
                "missed": found.missed,
                "dropped": found.dropped,
            })
        })
        .collect();
    let status = json!({
        "group": group.as_str(),
        "programs": status.links,
        "neighbours": status.neighbours,
        "capacity": status.capacity,
        "newest_revision": status.newest_revision,
        "packets": packets,
        "networks": networks,
    });
    println!("{status}");
}
