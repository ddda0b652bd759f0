//! Everything that an experiment with requests needs, running: networks, links, apps, probes and the
//! subjects. Dropping it stops all of it. Its loads are in `load`, the first calls in `first_call`.

mod first_call;
mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tollway_record::record::{Limits, Link, LinkKind, RttUs, Tls};

use super::ground::{AppTls, ECHO, ECHO_MTLS, ECHO_TLS, Ground, PING, READY_LIMIT};
use super::plan::{Cell, Plan};
use super::prepare::{Prepared, PreparedSubject};
use crate::actors::ActorsSpec;
use crate::cancel::Cancel;
use crate::cgroup::Cgroups;
use crate::commands::Commands;
use crate::error::LabError;
use crate::experiment::ExperimentOptions;
use crate::link_command::{DirectionReport, LinkReport};
use crate::ping::{PingPlan, Responder, ping};
use crate::process::Supervisor;
use crate::progress::{Event, Progress};
use crate::scenario::{Scenario, Start};
use crate::subject::{Authorities, BACKGROUND, HOME, Identity, Leg, Route, StartedSubject};
use crate::topology::{Isolation, LinkSpec, Topology};
use tollway_net::ports_file::{self as ports, Ports};

/// All processes of an experiment with requests.
pub(super) struct Bench<'a> {
    scenario: &'a Scenario,
    /// Of the loads; each run adds its block.
    seed: u64,
    subjects: &'a [PreparedSubject],
    ground: Ground,
    /// What each subject has to carry.
    legs: Vec<Vec<Leg>>,
    /// Each combination of actors, leg and subject, once.
    actors: Vec<(usize, Leg, ActorsSpec)>,
    /// The subjects, in their order.
    started: Vec<StartedSubject>,
    cgroups: Option<Cgroups>,
    /// Command lines of everything that was ever started, by process.
    command_lines: BTreeMap<String, String>,
    probes: Vec<(usize, Responder)>,
    cancel: Cancel,
}

impl<'a> Bench<'a> {
    pub(super) fn start(
        dir: &Path,
        (scenario, options): (&'a Scenario, &ExperimentOptions),
        prepared: &'a Prepared<'_>,
        cancel: &Cancel,
        progress: &mut dyn Progress,
    ) -> Result<Self, LabError> {
        progress.report(&Event::Step(&networks_step(&options.isolation)));
        let names: Vec<&str> =
            scenario.networks.iter().map(|network| network.name.value.as_str()).collect();
        let links = links(scenario, options.seed);
        let topology = Topology::create(&options.isolation, &names, links)?;
        let commands = Commands { program: options.binary.clone() };
        let supervisor = Supervisor::new(dir, cancel);
        let mut bench = Self {
            scenario,
            seed: options.seed,
            subjects: &prepared.subjects,
            ground: Ground { commands, supervisor, topology, tls: None },
            legs: legs(&prepared.plan, prepared.subjects.len()),
            actors: actors(&prepared.plan),
            started: Vec::new(),
            cgroups: None,
            command_lines: BTreeMap::new(),
            probes: Vec::new(),
            cancel: cancel.clone(),
        };
        bench.start_links_and_apps()?;
        bench.start_subjects(progress)?;
        if prepared.plan.cells.iter().any(|cell| cell.limits.is_some()) {
            bench.cgroups = Some(Cgroups::new()?);
        }
        Ok(bench)
    }

    /// Restarts the subjects if the scenario requires that in each block.
    pub(super) fn begin_round(
        &mut self,
        is_first: bool,
        progress: &mut dyn Progress,
    ) -> Result<(), LabError> {
        if is_first || self.scenario.start == Start::Once {
            return Ok(());
        }
        for started in std::mem::take(&mut self.started).iter().rev() {
            self.ground.supervisor.stop_named(&started.processes);
        }
        self.start_subjects(progress)
    }

    fn start_subjects(&mut self, progress: &mut dyn Progress) -> Result<(), LabError> {
        for (prepared, legs) in self.subjects.iter().zip(&self.legs) {
            let started = prepared.subject.start(&mut self.ground, legs, progress)?;
            self.started.push(started);
        }
        self.command_lines.extend(self.ground.supervisor.command_lines());
        progress.report(&Event::Step("making the first calls"));
        self.first_calls(&self.cancel.clone())
    }

    /// How the caller reaches the callee in a cell.
    pub(super) fn route(&self, cell: &Cell) -> Result<&Route, LabError> {
        let subject = &self.subjects[cell.subject];
        self.started[cell.subject].routes.get(&cell.leg).ok_or_else(|| LabError::NoRoute {
            subject: subject.label.clone(),
            row: cell.id.clone(),
        })
    }

    /// All subjects with the legs that they carry.
    fn services(&self) -> Vec<(usize, Leg)> {
        let each = self.legs.iter().enumerate();
        each.flat_map(|(subject, legs)| legs.iter().map(move |leg| (subject, *leg))).collect()
    }

    /// The running processes that take part in a cell's requests, by their role.
    pub(super) fn roles(&self, cell: &Cell) -> Result<BTreeMap<String, Vec<u32>>, LabError> {
        let mut roles: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let route = self.route(cell)?;
        for (role, names) in &route.roles {
            roles.insert(role.clone(), self.ground.pids(names));
        }
        let network = cell.leg.network;
        let app = self.ground.app_process(&Leg { tls: route.app_tls, ..cell.leg });
        roles.insert("app".to_owned(), self.ground.pids(&[app]));
        if network != HOME {
            let link = self.ground.topology.link_name(network);
            roles.insert("link".to_owned(), self.ground.pids(&[link]));
        }
        Ok(roles)
    }

    /// Processes of the cell's subject that work for its requests: those that limits and pinning
    /// are for.
    pub(super) fn working(&self, cell: &Cell) -> Result<Vec<(String, Vec<u32>)>, LabError> {
        let roles = &self.route(cell)?.roles;
        let working = roles.iter().filter(|(role, _)| role.as_str() != BACKGROUND);
        Ok(working.map(|(role, names)| (role.clone(), self.ground.pids(names))).collect())
    }

    /// Puts limits on the cell's subject, or takes them off again.
    pub(super) fn limit(&mut self, cell: &Cell, limits: Option<&Limits>) -> Result<(), LabError> {
        let working = self.working(cell)?;
        let Some(cgroups) = &mut self.cgroups else { return Ok(()) };
        for pid in working.into_iter().flat_map(|(_, pids)| pids) {
            cgroups.limit(pid, limits)?;
        }
        Ok(())
    }

    pub(super) fn cgroups(&self) -> Option<&Cgroups> {
        self.cgroups.as_ref()
    }

    /// Ids of running processes by name; those that ended are left out.
    pub(super) fn pids(&self, names: &[String]) -> Vec<u32> {
        self.ground.pids(names)
    }

    /// The lab and everything that it has started, with a load generator.
    pub(super) fn own_processes(&self, load: Option<u32>) -> Vec<u32> {
        let all = self.ground.supervisor.command_lines();
        let started = all.keys().filter_map(|name| self.ground.supervisor.pid(name));
        started.chain(load).chain([std::process::id()]).collect()
    }

    /// # Errors
    /// If a process has ended before it was stopped.
    pub(super) fn check_alive(&mut self) -> Result<(), LabError> {
        Ok(self.ground.supervisor.check_alive()?)
    }

    /// Command lines of everything that was ever started, by process.
    pub(super) fn command_lines(&self) -> &BTreeMap<String, String> {
        &self.command_lines
    }

    /// The subjects as they run, in their order.
    pub(super) fn started(&self) -> &[StartedSubject] {
        &self.started
    }

    /// Round trips from the caller's network to another, microseconds.
    pub(super) fn ping(&self, network: usize) -> Result<Vec<f64>, LabError> {
        let ground = &self.ground;
        let to = ground.topology.address_from(&ground.supervisor, HOME, network, PING)?;
        let rtt = ground.topology.link_to(network).map_or(Duration::ZERO, |link| link.rtt);
        let times = ground.home().run(|| ping(to, PingPlan::over(rtt)))??;
        Ok(times.iter().map(|time| time.as_secs_f64() * 1e6).collect())
    }

    /// The record's data on the link to a network.
    pub(super) fn link(&self, network: usize, probes_us: &[f64]) -> Option<Link> {
        let spec = self.ground.topology.link_to(network)?;
        let packets = self.ground.topology.has_packets();
        Some(Link {
            kind: if packets { LinkKind::Tun } else { LinkKind::Relay },
            rtt_asked_us: Some(spec.rtt.as_secs_f64() * 1e6),
            rtt_measured_us: RttUs::from_probes(probes_us)?,
            jitter_us: spec.jitter.as_secs_f64() * 1e6,
            loss_pct: spec.loss * 100.0,
            rate_bps: spec.rate_bps,
        })
    }

    /// Stops everything in reverse order. Returns a sentence for each part that did not end as it
    /// should, or dropped packets that it should not.
    pub(super) fn stop(mut self) -> Vec<String> {
        self.stop_probes();
        let topology = &self.ground.topology;
        let links = 1..topology.networks.len();
        let names: Vec<String> = links.map(|to| topology.link_name(to)).collect();
        let mut complaints = self.ground.supervisor.stop();
        for name in names {
            let path = self.ground.ports_path(&name).with_extension("counts");
            let report = fs::read_to_string(path).ok();
            let report = report.and_then(|text| serde_json::from_str::<LinkReport>(&text).ok());
            complaints.extend(report.and_then(|report| link_complaint(&name, &report)));
        }
        complaints
    }

    fn start_links_and_apps(&mut self) -> Result<(), LabError> {
        let networks = 0..self.ground.topology.networks.len();
        let mut published = Vec::new();
        for network in networks.clone() {
            let name = &self.ground.network(network).name;
            let listeners: Vec<_> =
                self.subjects.iter().flat_map(|s| s.subject.published(name)).collect();
            published.extend(self.ground.listeners(network, &listeners));
        }
        let Ground { topology, supervisor, commands, .. } = &mut self.ground;
        topology.start_links(supervisor, commands, published)?;
        for network in networks.clone() {
            let name = self.ground.process(network, ECHO);
            let ports_file = self.ground.ports_path(&name);
            let (commands, home) = (&self.ground.commands, self.ground.network(network));
            let of_network = self.actors.iter().filter(|(_, leg, _)| leg.network == network);
            let spec = match of_network.map(|(_, _, actors)| actors.app_types()).max() {
                Some(types) => commands.echo_actors(home, &ports_file, types),
                None => commands.echo(home, &ports_file),
            };
            self.ground.start(&spec)?;
        }
        self.start_apps_behind_tls()?;
        for index in networks {
            let name = self.ground.process(index, ECHO);
            self.ground.wait_ports(&name, READY_LIMIT)?;
            let network = self.ground.network(index);
            let listen = SocketAddr::new(network.address, 0);
            let responder = network.run(|| Responder::start(listen))??;
            let ports = Ports::from([(PING.to_owned(), responder.address())]);
            let path = self.ground.ports_path(&self.ground.process(index, PING));
            ports::write(&path, &ports)?;
            self.probes.push((index, responder));
        }
        Ok(())
    }

    /// One for each kind of TLS that a leg needs.
    fn start_apps_behind_tls(&mut self) -> Result<(), LabError> {
        let legs = self.legs.iter().flatten().filter(|leg| leg.tls != Tls::Plain);
        let wanted: BTreeSet<(usize, Tls)> = legs.map(|leg| (leg.network, leg.tls)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let networks = &self.ground.topology.networks;
        let names: Vec<&str> = networks.iter().map(|network| network.name.as_str()).collect();
        let authorities = Authorities::create(&self.ground.file("app-tls"), &names)?;
        let apps = (0..names.len()).map(|network| authorities.issue(network, ECHO));
        let apps = apps.collect::<Result<Vec<Identity>, _>>()?;
        let caller = authorities.issue(HOME, "caller")?;
        for (network, tls) in wanted {
            let mutual = tls == Tls::Mtls;
            let part = if mutual { ECHO_MTLS } else { ECHO_TLS };
            let name = self.ground.process(network, part);
            let ports_file = self.ground.ports_path(&name);
            let home = self.ground.network(network);
            let spec =
                self.ground.commands.echo_tls(home, part, &apps[network], mutual, &ports_file);
            self.ground.start(&spec)?;
            self.ground.wait_ports(&name, READY_LIMIT)?;
        }
        self.ground.tls = Some(AppTls { caller, apps });
        Ok(())
    }

    fn stop_probes(&mut self) {
        for (network, responder) in self.probes.drain(..) {
            // Fails only when no thread can be started; the probe then ends with the process.
            let _ = self.ground.network(network).run(|| responder.stop());
        }
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        self.stop_probes();
        // Before its groups are removed, which must be empty.
        self.ground.supervisor.stop();
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

fn legs(plan: &Plan, subjects: usize) -> Vec<Vec<Leg>> {
    let mut legs = vec![BTreeSet::new(); subjects];
    for cell in &plan.cells {
        legs[cell.subject].insert(cell.leg);
    }
    legs.into_iter().map(|legs| legs.into_iter().collect()).collect()
}

fn actors(plan: &Plan) -> Vec<(usize, Leg, ActorsSpec)> {
    let mut asked = Vec::new();
    for cell in &plan.cells {
        let Some(actors) = cell.actors else { continue };
        if !asked.contains(&(cell.subject, cell.leg, actors)) {
            asked.push((cell.subject, cell.leg, actors));
        }
    }
    asked
}

fn links(scenario: &Scenario, seed: u64) -> Vec<LinkSpec> {
    let link = |(to, network): (usize, &crate::scenario::NetworkSpec)| {
        let spec = network.link?;
        Some(LinkSpec {
            to,
            rtt: Duration::from_micros(spec.rtt_us),
            jitter: Duration::from_micros(spec.jitter_us),
            loss: spec.loss_pct / 100.0,
            rate_bps: spec.rate_bps,
            seed: seed.wrapping_add(to as u64),
        })
    };
    scenario.networks.iter().enumerate().filter_map(link).collect()
}

fn link_complaint(name: &str, report: &LinkReport) -> Option<String> {
    let both = [report.left_to_right, report.right_to_left];
    let sum = |count: fn(&DirectionReport) -> u64| both.iter().map(count).sum::<u64>();
    let (overflowed, refused) = (sum(|d| d.overflowed_packets), sum(|d| d.refused_packets));
    (overflowed + refused > 0).then(|| {
        format!(
            "{name} dropped packets beyond its loss: {overflowed} found its queue full, \
             {refused} were not taken by the other end"
        )
    })
}
