//! Command lines of what keeps, follows and loads a table of neighbours.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::Commands;
use crate::process::Spec;
use crate::topology::Network;

/// An agent of the fabric to start.
#[derive(Debug, Clone, Copy)]
pub struct FabricAgent<'a> {
    pub group: &'a str,
    pub devices: &'a [String],
    /// How programs meet packets, where it is not what suits the devices.
    pub mode: Option<&'static str>,
    pub control: SocketAddr,
    pub token_file: &'a Path,
    pub capacity: u32,
    pub journal: &'a Path,
    pub marks_file: &'a Path,
}

/// Rounds of writes.
#[derive(Debug, Clone, Copy)]
pub struct NeighbourWrites<'a> {
    pub group: &'a str,
    pub store: &'a Path,
    pub entries: u32,
    pub rounds: u32,
    /// Numbers of rounds that have other neighbours.
    pub first_round: u32,
    /// Move so many that are there instead.
    pub moved: Option<u32>,
    pub pace: WritePace,
    /// Agents without a table that follow, by which right.
    pub followers: Option<(u32, SocketAddr, &'a Path)>,
}

/// When a round of writes begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePace {
    /// When the one before is over.
    AtOnce,
    /// So long after the agents held the one before.
    Settled(Duration),
    /// So long after the beginning of the one before.
    Every(Duration),
}

/// Agents that look neighbours up.
#[derive(Debug, Clone, Copy)]
pub struct NeighbourGets<'a> {
    pub group: &'a str,
    pub control: SocketAddr,
    pub token_file: &'a Path,
    /// That there are.
    pub entries: u32,
    pub agents: u32,
    /// Of all together; in closed loop without.
    pub rate_per_s: Option<f64>,
    pub lasting: Duration,
    pub warm_up: Duration,
    pub seed: u64,
}

/// One neighbour, as an operator writes it.
#[derive(Debug, Clone, Copy)]
pub struct Neighbour<'a> {
    pub vni: u32,
    pub ip: &'a str,
    pub mac: &'a str,
    pub host_ip: &'a str,
    pub host_mac: &'a str,
}

/// Packets that a forwarder is loaded with.
#[derive(Debug, Clone, Copy)]
pub struct Packets<'a> {
    pub device: &'a str,
    pub to_mac: &'a str,
    pub from: &'a str,
    pub to: &'a str,
    pub vni: u32,
    pub flows: u32,
    pub frame_bytes: u16,
    pub count_at: &'a str,
    /// A file of a network namespace.
    pub count_in: &'a str,
    pub count_by: CountPacketsBy<'a>,
    pub lasting: Duration,
    pub warm_up: Duration,
}

/// What counts packets where they come out.
#[derive(Debug, Clone, Copy)]
pub enum CountPacketsBy<'a> {
    Xdp,
    Tc,
    /// The program that this pinned link holds there gives its place.
    XdpInPlaceOf(&'a Path),
}

impl Commands {
    #[must_use]
    pub fn fabric_agent(&self, network: &Network, agent: &FabricAgent<'_>) -> Spec {
        let devices = agent.devices.iter().flat_map(|device| ["--device", device]);
        self.spec(network, "agent", ["fabric", "agent", "--group", agent.group])
            .args(devices)
            .args(agent.mode.iter().flat_map(|mode| ["--mode", mode]))
            .args(["--control", &agent.control.to_string()])
            .args(["--capacity", &agent.capacity.to_string(), "--audit-every-s", "0"])
            .args(["--instance", "agent-1"])
            .args([OsString::from("--token-file"), agent.token_file.into()])
            .args([OsString::from("--journal"), agent.journal.into()])
            .args([OsString::from("--marks-file"), agent.marks_file.into()])
    }

    /// Puts one neighbour into a table, or in the place of another one.
    #[must_use]
    pub fn neighbour(
        &self,
        network: &Network,
        (group, store): (&str, &Path),
        neighbour: &Neighbour<'_>,
    ) -> Spec {
        self.spec(network, "apply", ["neighbours", "apply", "--group", group])
            .args([OsString::from("--store"), store.into()])
            .args(["--vni", &neighbour.vni.to_string(), "--ip", neighbour.ip])
            .args(["--mac", neighbour.mac, "--host-ip", neighbour.host_ip])
            .args(["--host-mac", neighbour.host_mac])
    }

    /// Prints the result of packets that a forwarder was loaded with.
    #[must_use]
    pub fn packets(&self, network: &Network, packets: &Packets<'_>) -> Spec {
        let spec = self
            .spec(network, "load", ["load", "packets", "--json", "-", "--quiet"])
            .args(["--device", packets.device, "--to-mac", packets.to_mac])
            .args(["--from", packets.from, "--to", packets.to])
            .args(["--vni", &packets.vni.to_string(), "--flows", &packets.flows.to_string()])
            .args(["--size", &packets.frame_bytes.to_string()])
            .args(["--count-at", packets.count_at, "--count-in", packets.count_in])
            .args(["--duration", &in_us(packets.lasting), "--warm-up", &in_us(packets.warm_up)]);
        match packets.count_by {
            CountPacketsBy::Xdp => spec.args(["--count-by", "xdp"]),
            CountPacketsBy::Tc => spec.args(["--count-by", "tc"]),
            CountPacketsBy::XdpInPlaceOf(pin) => {
                spec.args([OsString::from("--in-place-of"), pin.into()])
            }
        }
    }

    /// Prints what the kernel's table of a group holds.
    #[must_use]
    pub fn fabric_status(&self, network: &Network, group: &str) -> Spec {
        self.spec(network, "status", ["fabric", "status", "--json", "--group", group])
    }

    /// Prints the result of rounds of writes.
    #[must_use]
    pub fn neighbour_writes(&self, network: &Network, writes: &NeighbourWrites<'_>) -> Spec {
        let numbers = [writes.entries, writes.rounds, writes.first_round];
        let numbers = numbers.map(|number| number.to_string());
        let mut spec = self
            .spec(network, "write", ["load", "neighbours", "write", "--json", "-"])
            .args(["--group", writes.group, "--entries", &numbers[0], "--rounds", &numbers[1]])
            .args(["--first-round", &numbers[2]])
            .args([OsString::from("--store"), writes.store.into()]);
        if let Some(moved) = writes.moved {
            spec = spec.args(["--moved", &moved.to_string()]);
        }
        if let Some((count, control, token_file)) = writes.followers {
            spec = spec
                .args(["--agents", &count.to_string(), "--control", &control.to_string()])
                .args([OsString::from("--token-file"), token_file.into()]);
        }
        match writes.pace {
            WritePace::AtOnce => spec,
            WritePace::Settled(pause) => spec.args(["--wait", "--pause", &in_us(pause)]),
            WritePace::Every(every) => spec.args(["--every", &in_us(every)]),
        }
    }

    /// Prints the result of agents that look neighbours up.
    #[must_use]
    pub fn neighbour_gets(&self, network: &Network, gets: &NeighbourGets<'_>) -> Spec {
        let spec = self
            .spec(network, "get", ["load", "neighbours", "get", "--json", "-"])
            .args(["--group", gets.group, "--entries", &gets.entries.to_string()])
            .args(["--control", &gets.control.to_string()])
            .args([OsString::from("--token-file"), gets.token_file.into()])
            .args(["--agents", &gets.agents.to_string(), "--seed", &gets.seed.to_string()])
            .args(["--duration", &in_us(gets.lasting), "--warm-up", &in_us(gets.warm_up)])
            .args(["--quiet"]);
        match gets.rate_per_s {
            Some(rate_per_s) => spec.args(["--rate", &rate_per_s.to_string()]),
            None => spec,
        }
    }

    /// Prints the result of rounds in which the whole group is listed into a table.
    #[must_use]
    pub fn neighbour_lists(
        &self,
        network: &Network,
        group: &str,
        (control, token_file): (SocketAddr, &Path),
        (rounds, capacity): (u32, u32),
    ) -> Spec {
        let (rounds, capacity) = (rounds.to_string(), capacity.to_string());
        self.spec(network, "list", ["load", "neighbours", "list", "--json", "-"])
            .args(["--group", group, "--rounds", &rounds, "--capacity", &capacity])
            .args(["--control", &control.to_string()])
            .args([OsString::from("--token-file"), token_file.into()])
    }
}

/// In the form of the commands' options.
fn in_us(time: Duration) -> String {
    format!("{}us", time.as_micros())
}
