//! Starts what an adapter file describes: for each leg a process at the app, one at the caller, or
//! both, and before them their authority.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tollway_record::record::Tls;

use super::certificates::{Authorities, Identity};
use super::check::port_placeholder;
use super::file::{Deployment, Side};
use super::template::Meanings;
use super::{Pair, authority_name, part_name};
use crate::commands::CallerTls;
use crate::error::LabError;
use crate::experiment::{Ground, READY_LIMIT};
use crate::progress::{Event, Progress};
use crate::subject::{BACKGROUND, HOME, Leg, Route, StartedSubject, direct_url};
use tollway_net::ports_file::Ports;

/// Name of the one listener in the ports files that are written for the processes.
pub(super) const LISTEN: &str = "listen";
/// App names in certificates, as Tollway's own in the same scenario.
const CALLER: &str = "client";
const APP: &str = "echo";

/// Starts everything for these legs.
pub(super) fn start(
    pair: &Pair,
    ground: &mut Ground,
    legs: &[Leg],
    progress: &mut dyn Progress,
) -> Result<StartedSubject, LabError> {
    progress.report(&Event::Step(&format!("starting {}", pair.label)));
    let networks: BTreeSet<usize> = legs.iter().map(|leg| leg.network).chain([HOME]).collect();
    let identities = Identities::make(pair, ground, &networks)?;
    let mut start = Start { pair, identities, started: StartedSubject::default() };
    for leg in legs {
        let route = start.leg(ground, leg)?;
        start.started.routes.insert(*leg, route);
    }
    Ok(start.started)
}

/// The caller's identity, and the app's by network.
struct Identities {
    caller: Identity,
    apps: BTreeMap<usize, Identity>,
}

impl Identities {
    fn make(pair: &Pair, ground: &Ground, networks: &BTreeSet<usize>) -> Result<Self, LabError> {
        let names: Vec<String> = networks.iter().map(|n| ground.network(*n).name.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let dir = ground.file(&format!("{}-certificates", pair.label));
        // In the order of the networks, of which the caller's is the first.
        let authorities = Authorities::create(&dir, &names)?;
        let caller = authorities.issue(0, CALLER)?;
        let apps = networks.iter().enumerate();
        let apps = apps.map(|(index, network)| Ok((*network, authorities.issue(index, APP)?)));
        Ok(Self { caller, apps: apps.collect::<Result<_, LabError>>()? })
    }
}

/// One process to be started.
struct Part<'a> {
    side: &'a Side,
    program: &'a Path,
    network: usize,
    name: String,
    listen: SocketAddr,
    /// Values of its placeholders, in addition to those of every process.
    around: BTreeMap<String, String>,
}

/// What a side finds around it.
struct Around<'a> {
    upstream: SocketAddr,
    own: &'a Identity,
    peer: &'a Identity,
    authority: Option<&'a Asked>,
}

impl Around<'_> {
    fn values(&self) -> BTreeMap<String, String> {
        let shown = |path: &Path| path.display().to_string();
        let mut values = address_values("upstream", self.upstream);
        let mut set = |name: &str, value: String| values.insert(name.to_owned(), value);
        set("ca", shown(&self.own.ca));
        set("certificate", shown(&self.own.certificate));
        set("key", shown(&self.own.key));
        set("certificate_and_key", shown(&self.own.certificate_and_key));
        set("own_name", self.own.name.clone());
        set("own_id", self.own.id.clone());
        set("peer_name", self.peer.name.clone());
        set("peer_id", self.peer.id.clone());
        if let Some(authority) = self.authority {
            set("authority", authority.address.to_string());
            set("authority_dir", shown(&authority.dir));
        }
        values
    }
}

/// An authority that runs, as it is seen from one network.
struct Asked {
    address: SocketAddr,
    dir: PathBuf,
}

/// A process that was started.
struct Started {
    dir: PathBuf,
    /// The URL that the caller calls, if the file has one.
    url: Option<String>,
    headers: Vec<String>,
}

struct Start<'a> {
    pair: &'a Pair,
    identities: Identities,
    started: StartedSubject,
}

impl Start<'_> {
    fn leg(&mut self, ground: &mut Ground, leg: &Leg) -> Result<Route, LabError> {
        let Some(deployment) = self.pair.deployment(leg) else {
            let (subject, row) = (self.pair.label.clone(), leg.protocol.to_string());
            return Err(LabError::NoRoute { subject, row });
        };
        let mut roles = BTreeMap::new();
        let name = part_name(&self.pair.label, leg);
        let authority_name = authority_name(&name);
        let mut authority = None;
        if deployment.asks_authority {
            authority = self.authority(ground, leg, &authority_name)?;
            let process = ground.process(leg.network, &authority_name);
            roles.insert(BACKGROUND.to_owned(), vec![process]);
        }
        let mut entry = ground.app(HOME, &Leg { tls: Tls::Plain, ..*leg })?;
        let mut called = None;
        if let Some(side) = &deployment.app_side {
            let around = Around {
                upstream: ground.app(leg.network, &Leg { tls: Tls::Plain, ..*leg })?,
                own: &self.identities.apps[&leg.network],
                peer: &self.identities.caller,
                authority: authority.as_ref(),
            };
            let part = Part {
                side,
                program: &self.pair.program,
                network: leg.network,
                name: name.clone(),
                listen: ground.free_port(leg.network, false)?,
                around: around.values(),
            };
            called = Some(self.part(ground, &part)?);
            entry = ground.published(HOME, leg.network, &name)?;
            let role = if deployment.caller_side.is_some() { "app-sidecar" } else { "front" };
            roles.insert(role.to_owned(), vec![ground.process(leg.network, &name)]);
        }
        if let Some(side) = &deployment.caller_side {
            let to = &ground.network(leg.network).name;
            let name = format!("{name}-to-{to}");
            if let Some(asked) = &mut authority {
                asked.address = ground.published(HOME, leg.network, &authority_name)?;
            }
            let around = Around {
                upstream: entry,
                own: &self.identities.caller,
                peer: &self.identities.apps[&leg.network],
                authority: authority.as_ref(),
            };
            let part = Part {
                side,
                program: &self.pair.program,
                network: HOME,
                name: name.clone(),
                listen: ground.free_port(HOME, true)?,
                around: around.values(),
            };
            called = Some(self.part(ground, &part)?);
            entry = part.listen;
            roles.insert("client-sidecar".to_owned(), vec![ground.process(HOME, &name)]);
        }
        let (url, headers) = called.map_or_else(Default::default, |c| (c.url, c.headers));
        Ok(Route {
            url: url.unwrap_or_else(|| direct_url(leg.protocol, leg.tls, entry)),
            headers,
            caller_tls: self.caller_tls(leg),
            cgroup: None,
            hops: u32::try_from(deployment.sides().count()).unwrap_or(u32::MAX),
            tls: between(deployment, leg),
            app_tls: Tls::Plain,
            made_of: made_of(deployment).to_owned(),
            roles,
        })
    }

    /// Starts the authority of a leg, in the app's network; answers how that network's side sees
    /// it.
    fn authority(
        &mut self,
        ground: &mut Ground,
        leg: &Leg,
        name: &str,
    ) -> Result<Option<Asked>, LabError> {
        let Some(spec) = &self.pair.file.authority else { return Ok(None) };
        let part = Part {
            side: &spec.process,
            program: &self.pair.authority,
            network: leg.network,
            name: name.to_owned(),
            listen: ground.free_port(leg.network, false)?,
            around: BTreeMap::new(),
        };
        let started = self.part(ground, &part)?;
        Ok(Some(Asked { address: part.listen, dir: started.dir }))
    }

    /// What the caller needs where the first of the processes ends TLS.
    fn caller_tls(&self, leg: &Leg) -> Option<CallerTls> {
        let caller = &self.identities.caller;
        let own = match leg.tls {
            Tls::Plain => return None,
            Tls::Tls => None,
            Tls::Mtls => Some((caller.certificate.clone(), caller.key.clone())),
        };
        let server_name = self.identities.apps[&leg.network].name.clone();
        Some(CallerTls { ca: caller.ca.clone(), server_name, own })
    }

    /// Starts a process and waits until it listens.
    fn part(&mut self, ground: &mut Ground, part: &Part<'_>) -> Result<Started, LabError> {
        let process = ground.process(part.network, &part.name);
        let dir = ground.file(&process.replace('/', "-"));
        let write_failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| LabError::Write { path, source }
        };
        fs::create_dir_all(&dir).map_err(write_failed(&dir))?;
        let ports = free_ports(ground, part)?;
        let values = values(part, &dir, &ports);
        let meanings = Meanings { values: &values, texts: &self.pair.file.texts };
        let fill = |text: &str| {
            let failed = |source| LabError::Adapter { subject: self.pair.label.clone(), source };
            meanings.fill(text).map_err(failed)
        };
        let mut config = Vec::new();
        for (name, text) in &part.side.files {
            let (path, text) = (dir.join(name), fill(&text.value)?);
            fs::write(&path, &text).map_err(write_failed(&path))?;
            config.push((format!("{process}/{name}"), text));
        }
        let words = part.side.command.value.iter().map(|word| fill(word));
        let words: Vec<String> = words.collect::<Result<_, _>>()?;
        let url = match &part.side.url {
            Some(url) => Some(fill(&url.value)?),
            None => None,
        };
        let headers: Vec<String> =
            part.side.headers.value.iter().map(|line| fill(line)).collect::<Result<_, _>>()?;
        let (program, arguments) =
            words.split_first().map_or(("", &[][..]), |(p, a)| (p.as_str(), a));
        let spec = ground.spec(part.network, &part.name, Path::new(program)).args(arguments);
        ground.start(&spec)?;
        self.started.processes.push(process.clone());
        self.started.config.extend(config);
        if let Some(ready) = &part.side.ready
            && let Some(address) = ports.get(&ready.port.value)
        {
            let path = &ready.path.value;
            ground.wait_answering(&process, part.network, (*address, path), READY_LIMIT)?;
        }
        let listeners = Ports::from([(LISTEN.to_owned(), part.listen)]);
        ground.wait_listening(&process, part.network, &listeners, READY_LIMIT)?;
        Ok(Started { dir, url, headers })
    }
}

/// The values of a process's placeholders.
fn values(part: &Part<'_>, dir: &Path, ports: &Ports) -> BTreeMap<String, String> {
    let mut values = part.around.clone();
    values.extend(address_values("listen", part.listen));
    values.insert("program".to_owned(), part.program.display().to_string());
    values.insert("dir".to_owned(), dir.display().to_string());
    values.extend(ports.iter().map(|(name, at)| (port_placeholder(name), at.port().to_string())));
    values
}

/// The three placeholders of an address.
fn address_values(name: &str, address: SocketAddr) -> BTreeMap<String, String> {
    BTreeMap::from([
        (name.to_owned(), address.to_string()),
        (format!("{name}_ip"), address.ip().to_string()),
        (format!("{name}_port"), address.port().to_string()),
    ])
}

/// The further ports of a process, by their names.
fn free_ports(ground: &Ground, part: &Part<'_>) -> Result<Ports, LabError> {
    let names = part.side.ports.value.iter();
    names.map(|name| Ok((name.clone(), ground.free_port(part.network, true)?))).collect()
}

fn between(deployment: &Deployment, leg: &Leg) -> Tls {
    let pair = deployment.caller_side.is_some() && deployment.app_side.is_some();
    deployment.between_tls.unwrap_or(if pair { Tls::Mtls } else { leg.tls })
}

fn made_of(deployment: &Deployment) -> &'static str {
    match (&deployment.caller_side, &deployment.app_side) {
        (Some(_), Some(_)) => "sidecar–sidecar",
        (Some(_), None) => "sidecar",
        (None, _) => "proxy",
    }
}
