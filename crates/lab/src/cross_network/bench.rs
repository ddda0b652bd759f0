//! Everything the scenario needs, running: networks, links, apps, probes and, for the subject
//! `tollway`, the mesh. Dropping it stops all of it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tollway_record::record::{LinkKind, Protocol, RttUs, Topology as Place};

use super::DemoOptions;
use super::mesh::Mesh;
use crate::cancel::Cancel;
use crate::commands::{self, Commands, GATEWAY_PORT, GRPC_PORT, HTTP_PORT};
use crate::error::LabError;
use crate::link_command::{DirectionReport, LinkReport};
use crate::ping::{PingPlan, Responder, ping};
use crate::plan::{Placement, SubjectKind};
use crate::ports::{self, Ports};
use crate::process::Supervisor;
use crate::progress::{Event, Progress};
use crate::topology::{Isolation, LinkSpec, Network, Published, Topology};

/// How long any one process may take to bind its listeners.
pub(super) const READY_LIMIT: Duration = Duration::from_secs(20);
/// The network of the caller.
pub(super) const HOME: usize = 0;

const PING: &str = "ping";
const ECHO_HTTP: &str = "echo-http";
const ECHO_GRPC: &str = "echo-grpc";
/// The published name of a gateway.
pub(super) const GATEWAY: &str = "gateway";

pub(super) struct Bench<'a> {
    pub(super) options: &'a DemoOptions,
    pub(super) commands: Commands,
    pub(super) supervisor: Supervisor,
    pub(super) topology: Topology,
    /// Placement of each network: index 0 is the caller's own.
    places: Vec<Place>,
    mesh: Option<Mesh>,
    probes: Vec<(usize, Responder)>,
}

/// How a cell's requests are addressed.
pub(super) struct Call {
    pub(super) url: String,
    pub(super) headers: Vec<String>,
}

impl<'a> Bench<'a> {
    pub(super) fn start(
        dir: &Path,
        options: &'a DemoOptions,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Self, LabError> {
        progress.told(&Event::Step(&networks_step(&options.isolation)));
        let places = places(&options.workload.placements);
        let names: Vec<&str> = places.iter().map(|&place| network_name(place)).collect();
        let topology = Topology::create(&options.isolation, &names, links(options, &places))?;
        let mut bench = Self {
            options,
            commands: Commands { program: options.binary.clone() },
            supervisor: Supervisor::new(dir, cancel),
            topology,
            places,
            mesh: None,
            probes: Vec::new(),
        };
        bench.start_links_and_apps()?;
        if options.workload.subjects.contains(&SubjectKind::Tollway) {
            bench.mesh = Some(Mesh::start(&mut bench, progress)?);
        }
        progress.told(&Event::Step("making the first calls"));
        bench.first_calls(cancel)?;
        Ok(bench)
    }

    /// The index of the network where the called app is.
    pub(super) fn network_of(&self, placement: &Placement) -> usize {
        self.places.iter().position(|&place| place == placement.topology).unwrap_or(HOME)
    }

    pub(super) fn network(&self, index: usize) -> &Network {
        &self.topology.networks[index]
    }

    pub(super) fn ports(&self, network: usize, process: &str) -> Result<Ports, LabError> {
        let path = self.supervisor.ports_path(&format!("{}/{process}", self.network(network).name));
        Ok(ports::read(&path)?.unwrap_or_default())
    }

    /// How the caller's network calls the app in `network`.
    pub(super) fn call(
        &self,
        network: usize,
        protocol: Protocol,
        subject: SubjectKind,
    ) -> Result<Call, LabError> {
        if let (SubjectKind::Tollway, Some(mesh)) = (subject, &self.mesh) {
            let (url, headers) = mesh.call(&self.network(network).name, protocol);
            return Ok(Call { url, headers });
        }
        let name = if protocol == Protocol::GrpcUnary { ECHO_GRPC } else { ECHO_HTTP };
        let app = self.topology.address_from(&self.supervisor, HOME, network, name)?;
        Ok(Call { url: commands::direct_url(protocol, app), headers: Vec::new() })
    }

    /// Round trips from the caller's network to another, microseconds.
    pub(super) fn ping(&self, network: usize) -> Result<Vec<f64>, LabError> {
        let to = self.topology.address_from(&self.supervisor, HOME, network, PING)?;
        let rtt = self.topology.link_to(network).map_or(Duration::ZERO, |link| link.rtt);
        let times = self.network(HOME).run(|| ping(to, PingPlan::over(rtt)))??;
        Ok(times.iter().map(|time| time.as_secs_f64() * 1e6).collect())
    }

    /// What the record says about the link to a network.
    pub(super) fn link(
        &self,
        network: usize,
        probes_us: &[f64],
    ) -> Option<tollway_record::record::Link> {
        let spec = self.topology.link_to(network)?;
        Some(tollway_record::record::Link {
            kind: if self.topology.has_packets() { LinkKind::Tun } else { LinkKind::Relay },
            rtt_asked_us: Some(spec.rtt.as_secs_f64() * 1e6),
            rtt_measured_us: RttUs::from_probes(probes_us)?,
            jitter_us: spec.jitter.as_secs_f64() * 1e6,
            loss_pct: spec.loss * 100.0,
            rate_bps: spec.rate_bps,
        })
    }

    /// The running processes that take part in a cell's requests, by their role.
    pub(super) fn roles(
        &self,
        network: usize,
        protocol: Protocol,
        subject: SubjectKind,
    ) -> BTreeMap<&'static str, Vec<u32>> {
        let name = &self.network(network).name;
        let mut roles = BTreeMap::from([("app", vec![format!("{name}/echo")])]);
        if network != HOME {
            roles.insert("link", vec![self.topology.link_name(network)]);
        }
        if subject == SubjectKind::Tollway {
            roles.extend(Mesh::roles(self, network, protocol));
        }
        let pids = |names: Vec<String>| {
            names.iter().filter_map(|name| self.supervisor.pid(name)).collect::<Vec<u32>>()
        };
        roles.into_iter().map(|(role, names)| (role, pids(names))).collect()
    }

    /// Stops everything in reverse order. Returns what did not go as it should.
    pub(super) fn stop(mut self) -> Vec<String> {
        self.stop_probes();
        let links: Vec<usize> = (1..self.places.len()).collect();
        let names: Vec<String> = links.iter().map(|&to| self.topology.link_name(to)).collect();
        let mut complaints = self.supervisor.stop();
        for name in names {
            let path = self.supervisor.ports_path(&name).with_extension("counts");
            let report = fs::read_to_string(path).ok();
            let report = report.and_then(|text| serde_json::from_str::<LinkReport>(&text).ok());
            complaints.extend(report.and_then(|report| link_complaint(&name, &report)));
        }
        complaints
    }

    fn start_links_and_apps(&mut self) -> Result<(), LabError> {
        let networks = 0..self.topology.networks.len();
        let published = networks.clone().flat_map(|network| self.published(network)).collect();
        self.topology.start_links(&mut self.supervisor, &self.commands, published)?;
        for network in networks.clone() {
            let network = &self.topology.networks[network];
            let ports_file = self.supervisor.ports_path(&format!("{}/echo", network.name));
            self.supervisor.start(&self.commands.echo(network, &ports_file))?;
        }
        for index in networks {
            let network = &self.topology.networks[index];
            self.supervisor.wait_ports(&format!("{}/echo", network.name), READY_LIMIT)?;
            let listen = SocketAddr::new(network.address, 0);
            let responder = network.run(|| Responder::start(listen))??;
            let ports = Ports::from([(PING.to_owned(), responder.address())]);
            ports::write(&self.supervisor.ports_path(&format!("{}/{PING}", network.name)), &ports)?;
            self.probes.push((index, responder));
        }
        Ok(())
    }

    /// What of a network is called from others.
    fn published(&self, network: usize) -> Vec<Published> {
        let name = &self.network(network).name;
        let of = |process: &str, published, port| Published {
            network,
            name: published,
            ports_file: self.supervisor.ports_path(&format!("{name}/{process}")),
            port,
        };
        let mut all = vec![
            of(PING, PING, PING),
            of("echo", ECHO_HTTP, HTTP_PORT),
            of("echo", ECHO_GRPC, GRPC_PORT),
        ];
        if self.options.workload.subjects.contains(&SubjectKind::Tollway) {
            all.push(of(GATEWAY, GATEWAY, GATEWAY_PORT));
        }
        all
    }

    fn stop_probes(&mut self) {
        for (network, responder) in self.probes.drain(..) {
            // Fails only when no thread can be started; the probe then ends with the process.
            let _ = self.topology.networks[network].run(|| responder.stop());
        }
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        self.stop_probes();
    }
}

fn networks_step(isolation: &Isolation) -> String {
    match isolation {
        Isolation::Namespaces => "making networks (network namespaces, links over TUN)".into(),
        Isolation::Loopback { reason } => {
            format!("making networks on loopback with delaying relays, since: {reason}")
        }
    }
}

/// The caller's own network first, whether or not it is measured.
fn places(placements: &[Placement]) -> Vec<Place> {
    let others = placements.iter().map(|p| p.topology).filter(|&t| t != Place::SameNetwork);
    std::iter::once(Place::SameNetwork).chain(others).collect()
}

fn links(options: &DemoOptions, places: &[Place]) -> Vec<LinkSpec> {
    let placements = &options.workload.placements;
    let link = |(to, place): (usize, &Place)| {
        let placement = placements.iter().find(|p| p.topology == *place)?;
        Some(LinkSpec {
            to,
            rtt: placement.rtt,
            jitter: options.jitter.min(placement.rtt / 2),
            loss: options.loss,
            rate_bps: None,
            seed: options.seed.wrapping_add(to as u64),
        })
    };
    places.iter().enumerate().skip(1).filter_map(link).collect()
}

fn network_name(place: Place) -> &'static str {
    match place {
        Place::SameNetwork => "west",
        Place::OtherNetwork => "near",
        Place::OtherRegion => "far",
    }
}

fn link_complaint(name: &str, report: &LinkReport) -> Option<String> {
    let both = [report.left_to_right, report.right_to_left];
    let sum = |count: fn(&DirectionReport) -> u64| both.iter().map(count).sum::<u64>();
    let (overflowed, refused) = (sum(|d| d.overflowed_packets), sum(|d| d.refused_packets));
    (overflowed + refused > 0).then(|| {
        format!(
            "{name} dropped packets nobody asked it to: {overflowed} found its queue full, \
             {refused} were not taken by the other end"
        )
    })
}
