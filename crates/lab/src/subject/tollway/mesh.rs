//! Starts the mesh of one variant: control planes, gateways and sidecars, networks joined.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollway_record::record::{Protocol, Tls};

use super::{Crossing, Mesh, haproxy_gateway};
use crate::commands::{
    self, CONTROL_PORT, Commands, GATEWAY_PORT, GRPC_PORT, HTTP_PORT, INBOUND_PORT, Sidecar,
    TokenRole,
};
use crate::error::LabError;
use crate::experiment::{Ground, READY_LIMIT};
use crate::progress::{Event, Progress};
use crate::subject::{HOME, Leg, Route, StartedSubject};
use tollway_net::ports_file::{self as ports, Ports};
use tollway_net::secret_file;

/// The one port a network opens, where it can be chosen freely; variants take the next ones.
const GATEWAY_LISTEN_PORT: u16 = 15_443;
/// How long a short command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// The app id of the caller, which serves nothing.
const CLIENT: &str = "client";
/// Our gateway behind another program.
const BEHIND: &str = "gateway-behind";

/// Starts the parts in the order they need each other, each step in all networks at once.
pub(super) fn start(
    mesh: &Mesh,
    ground: &mut Ground,
    legs: &[Leg],
    progress: &mut dyn Progress,
) -> Result<StartedSubject, LabError> {
    let mut start = Start::new(mesh, legs);
    progress.report(&Event::Step(&start.step("starting control planes")));
    start.check(ground)?;
    for network in start.meshes() {
        start.control(ground, network)?;
    }
    progress.report(&Event::Step(&start.step("starting gateways and sidecars")));
    for network in start.networks.clone() {
        start.data_plane(ground, network)?;
    }
    for process in start.started.processes.clone() {
        ground.wait_ports(&process, READY_LIMIT)?;
    }
    for network in start.meshes().into_iter().filter(|&network| network != HOME) {
        if mesh.crossing == Crossing::HaproxyGateway {
            start.haproxy(ground, network)?;
        }
        let name = ground.network(network).name.clone();
        progress.report(&Event::Step(&start.step(&format!("joining {name}"))));
        start.join(ground, network)?;
    }
    start.policies(ground)?;
    start.routes(ground)
}

struct Start<'a> {
    mesh: &'a Mesh,
    legs: &'a [Leg],
    /// The caller's, and those of callees.
    networks: BTreeSet<usize>,
    started: StartedSubject,
}

impl<'a> Start<'a> {
    fn new(mesh: &'a Mesh, legs: &'a [Leg]) -> Self {
        let networks = legs.iter().map(|leg| leg.network).chain([HOME]).collect();
        Self { mesh, legs, networks, started: StartedSubject::default() }
    }

    /// Without a gateway a network must be reachable as it is.
    fn check(&self, ground: &Ground) -> Result<(), LabError> {
        if self.mesh.crossing == Crossing::Flat && !ground.has_packets() {
            let subject = format!("tollway:{}", self.mesh.variant.name);
            return Err(LabError::NeedsPackets { subject });
        }
        Ok(())
    }

    /// The network whose control plane sees to a network.
    fn home(&self, network: usize) -> usize {
        if self.mesh.crossing == Crossing::Flat { HOME } else { network }
    }

    /// Networks with a control plane.
    fn meshes(&self) -> BTreeSet<usize> {
        self.networks.iter().map(|&network| self.home(network)).collect()
    }

    fn step(&self, step: &str) -> String {
        let suffix = self.mesh.suffix();
        if suffix.is_empty() { step.to_owned() } else { format!("{step} ({})", &suffix[1..]) }
    }

    /// The protocols that apps of a network are called with.
    fn protocols(&self, network: usize) -> BTreeSet<&'static str> {
        let here = self.legs.iter().filter(|leg| leg.network == network);
        here.map(|leg| app_id(leg.protocol)).collect()
    }

    fn process(&self, ground: &Ground, network: usize, part: &str) -> String {
        ground.process(network, &self.own(part))
    }

    fn own(&self, part: &str) -> String {
        format!("{part}{}", self.mesh.suffix())
    }

    fn store(&self, ground: &Ground, network: usize) -> PathBuf {
        ground
            .file(&format!("{}.store", self.process(ground, network, "control").replace('/', "-")))
    }

    fn control(&mut self, ground: &mut Ground, network: usize) -> Result<(), LabError> {
        let store = self.store(ground, network);
        let failed = |source| LabError::Write { path: store.clone(), source };
        fs::create_dir_all(&store).map_err(failed)?;
        let name = self.process(ground, network, "control");
        let ports_file = ground.ports_path(&name);
        let spec = ground.commands().control(ground.network(network), &store, &ports_file);
        ground.start(&spec.named(&name))?;
        self.started.processes.push(name);
        Ok(())
    }

    fn data_plane(&mut self, ground: &mut Ground, network: usize) -> Result<(), LabError> {
        let home = self.home(network);
        let name = self.process(ground, home, "control");
        let ports = ground.wait_ports(&name, READY_LIMIT)?;
        let bound = ports::port(&ground.ports_path(&name), &ports, CONTROL_PORT)?;
        let control = ground.network(home).reachable(bound);
        if self.meshes().len() > 1 {
            self.gateway(ground, network, control)?;
        }
        if network == HOME && !self.mesh.is_alone {
            self.sidecar(ground, network, control, CLIENT, None)?;
        }
        for app in self.protocols(network) {
            let leg =
                self.legs.iter().find(|leg| leg.network == network && app_id(leg.protocol) == app);
            let Some(&leg) = leg else { continue };
            let port = ground.app(network, &Leg { tls: Tls::Plain, ..leg })?.port();
            let app = self.app(ground, &leg);
            self.sidecar(ground, network, control, &app, Some((port, leg.protocol)))?;
        }
        Ok(())
    }

    fn gateway(
        &mut self,
        ground: &mut Ground,
        network: usize,
        control: SocketAddr,
    ) -> Result<(), LabError> {
        let published = self.mesh.gateway();
        let token_file = self.token(ground, network, TokenRole::Gateway, "gateway")?;
        let mut listen = self.gateway_listens(ground, network);
        let advertise = ground.advertised(network, &published, listen)?;
        let mut name = ground.process(network, &published);
        if self.is_behind(network) {
            // HAProxy listens at this one's address.
            listen.set_port(0);
            name = self.process(ground, network, BEHIND);
        }
        let ports_file = ground.ports_path(&name);
        let home = ground.network(network);
        let commands = ground.commands();
        let spec = commands.gateway(home, control, &token_file, listen, advertise, &ports_file);
        ground.start(&spec.named(&name))?;
        self.started.processes.push(name);
        Ok(())
    }

    fn gateway_listens(&self, ground: &Ground, network: usize) -> SocketAddr {
        let port = if ground.has_packets() { GATEWAY_LISTEN_PORT + self.mesh.index() } else { 0 };
        SocketAddr::new(ground.network(network).address, port)
    }

    /// Whether our gateway is behind another program in a network.
    fn is_behind(&self, network: usize) -> bool {
        self.mesh.crossing == Crossing::HaproxyGateway && network != HOME
    }

    /// HAProxy where calls enter a network, once it can know who is in there.
    fn haproxy(&mut self, ground: &mut Ground, network: usize) -> Result<(), LabError> {
        let failed = |why| LabError::MissingProgram { subject: "haproxy".to_owned(), why };
        let program = haproxy_gateway::program().map_err(failed)?;
        let mut listen = self.gateway_listens(ground, network);
        if listen.port() == 0 {
            listen = ground.free_port(network, false)?;
        }
        let bound = |process: &str, name: &str| {
            let path = ground.ports_path(process);
            let ports = ports::read(&path)?.unwrap_or_default();
            Ok::<_, LabError>(ground.network(network).reachable(ports::port(&path, &ports, name)?))
        };
        let gateway = bound(&self.process(ground, network, BEHIND), GATEWAY_PORT)?;
        let mut services = BTreeMap::new();
        for leg in self.legs.iter().filter(|leg| leg.network == network) {
            let sidecar = format!("sidecar-{}", self.app(ground, leg));
            let sidecar = self.process(ground, network, &sidecar);
            services.insert(self.service(ground, leg), bound(&sidecar, INBOUND_PORT)?);
        }
        let name = ground.process(network, &self.mesh.gateway());
        let path = ground.file(&format!("{}.cfg", name.replace('/', "-")));
        let text = haproxy_gateway::config(listen, &services, gateway);
        fs::write(&path, &text).map_err(|source| LabError::Write { path: path.clone(), source })?;
        self.started.config.insert(format!("{name}/haproxy.cfg"), text);
        let spec = ground.spec(network, &self.mesh.gateway(), &program).args(["-db", "-f"]);
        ground.start(&spec.args([path]))?;
        self.started.processes.push(name.clone());
        let listeners = Ports::from([(GATEWAY_PORT.to_owned(), listen)]);
        ground.wait_listening(&name, network, &listeners, READY_LIMIT)
    }

    fn sidecar(
        &mut self,
        ground: &mut Ground,
        network: usize,
        control: SocketAddr,
        app_id: &str,
        app: Option<(u16, Protocol)>,
    ) -> Result<(), LabError> {
        let token_file = self.token(ground, network, TokenRole::App(app_id), app_id)?;
        let part = self.own(&format!("sidecar-{app_id}"));
        let name = ground.process(network, &part);
        let ports_file = ground.ports_path(&name);
        let token_file = &token_file;
        let is_called = app.is_none() || self.mesh.is_alone;
        let upstreams = if is_called { self.tcp_services(ground) } else { Vec::new() };
        let sidecar =
            Sidecar { name: part, app_id, control, token_file, app, upstreams, ports_file };
        if self.mesh.duties.intercepted && app.is_none() {
            let file = cgroup_file(ground, &name);
            ground.start(&ground.commands().intercepted(
                ground.network(network),
                &sidecar,
                &file,
            ))?;
            self.started.processes.push(name);
            return Ok(());
        }
        let former = self.mesh.former.iter().flatten().next();
        let former = former.map(|program| Commands { program: program.clone() });
        let commands = former.as_ref().unwrap_or(ground.commands());
        let mut spec = commands.sidecar(ground.network(network), &sidecar);
        if let Some(ratio) = self.mesh.duties.trace_ratio {
            let collector = ground.sink(network)?;
            let endpoint = format!("http://{collector}/status/200");
            spec = spec.args(["--trace-endpoint", &endpoint, "--trace-protocol", "http"]);
            spec = spec.args(["--trace-ratio", &ratio.to_string()]);
        }
        if self.mesh.duties.access_log {
            let log = ground.file(&format!("{}.access", name.replace('/', "-")));
            spec = spec.args(["--access-log".into(), log.into_os_string()]);
        }
        if self.mesh.duties.pooled {
            spec = spec.args(["--mesh-protocol", "http1"]);
        }
        if let Some(most) = self.mesh.duties.most_connections {
            spec = spec.args(["--limit", &format!("mesh_connections={most}")]);
        }
        ground.start(&spec)?;
        self.started.processes.push(name);
        Ok(())
    }

    /// Callees of plain TCP.
    fn tcp_services(&self, ground: &Ground) -> Vec<String> {
        let legs = self.legs.iter().filter(|leg| leg.protocol == Protocol::Tcp);
        legs.map(|leg| self.service(ground, leg)).collect()
    }

    /// Has the control plane make a token and writes it to a file.
    fn token(
        &self,
        ground: &Ground,
        network: usize,
        role: TokenRole<'_>,
        name: &str,
    ) -> Result<PathBuf, LabError> {
        let home = self.home(network);
        let store = self.store(ground, home);
        let spec = ground.commands().token(ground.network(home), &store, role);
        let token = ground.run(&spec, COMMAND_LIMIT)?;
        let network = &ground.network(network).name;
        let path = ground.file(&format!("{network}-{}.token", self.own(name)));
        write_secret(&path, token.trim())?;
        Ok(path)
    }

    /// Joins a network with the caller's: one exports, the other accepts.
    fn join(&self, ground: &Ground, network: usize) -> Result<(), LabError> {
        let exporter = ground.network(network);
        let export = ground.commands().join_export(exporter, &self.store(ground, network));
        let bundle = ground.run(&export, COMMAND_LIMIT)?;
        let path = ground.file(&format!("{}{}.join", exporter.name, self.mesh.suffix()));
        write_secret(&path, &bundle)?;
        let store = self.store(ground, HOME);
        let accept = ground.commands().join_accept(ground.network(HOME), &store, &path);
        ground.run(&accept, COMMAND_LIMIT)?;
        Ok(())
    }

    /// One policy in each callee's network, which allows exactly the lab's requests; or the routes and
    /// traffic policies of its services.
    fn policies(&mut self, ground: &Ground) -> Result<(), LabError> {
        if self.mesh.duties.policy {
            let caller = ground.network(HOME).name.clone();
            let networks = self.legs.iter().map(|leg| self.home(leg.network));
            for network in networks.collect::<BTreeSet<_>>() {
                self.apply(ground, network, "policy", policy(&caller))?;
            }
        }
        // A case that it does not carry has no leg.
        if self.mesh.duties.steered && !self.legs.is_empty() {
            let apps = self.legs.iter().map(|leg| self.app(ground, leg));
            let texts: Vec<String> =
                apps.collect::<BTreeSet<_>>().iter().map(|a| steering(a)).collect();
            self.apply(ground, HOME, "steering", texts.join("---\n"))?;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        ground: &Ground,
        network: usize,
        what: &str,
        text: String,
    ) -> Result<(), LabError> {
        let name = &ground.network(network).name;
        let path = ground.file(&format!("{name}.{what}.yaml"));
        fs::write(&path, &text).map_err(|source| LabError::Write { path: path.clone(), source })?;
        let store = self.store(ground, network);
        let spec = ground.commands().apply(ground.network(network), &store, &path);
        ground.run(&spec, COMMAND_LIMIT)?;
        self.started.config.insert(format!("{name}/{what}"), text);
        Ok(())
    }

    fn routes(mut self, ground: &Ground) -> Result<StartedSubject, LabError> {
        for leg in self.legs {
            let service = self.service(ground, leg);
            let called = self.process(ground, HOME, &format!("sidecar-{}", self.caller(leg)));
            let ports_file = ground.ports_path(&called);
            let ports = ports::read(&ports_file)?.unwrap_or_default();
            let port = match leg.protocol {
                Protocol::Http1 | Protocol::Http2 => HTTP_PORT.to_owned(),
                Protocol::GrpcUnary | Protocol::GrpcStream => GRPC_PORT.to_owned(),
                Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => {
                    commands::upstream_port(&service)
                }
            };
            let (url, headers, cgroup) = if self.mesh.duties.intercepted {
                let path = cgroup_file(ground, &called);
                let failed = |source| LabError::Read { path: path.clone(), source };
                let cgroup = fs::read_to_string(&path).map_err(failed)?;
                let url = commands::named_url(leg.protocol, &service);
                (url, Vec::new(), Some(cgroup.trim_end().into()))
            } else {
                let api = ports::port(&ports_file, &ports, &port)?;
                let (url, headers) = commands::mesh_url(leg.protocol, api, &service);
                (url, headers, None)
            };
            let crosses = self.home(leg.network) != HOME;
            let (hops, made_of) = match (self.mesh.is_alone, crosses) {
                (true, _) => (1, "sidecar"),
                (false, false) => (2, "sidecar–sidecar"),
                (false, true) => (3, "sidecar–gateway–sidecar"),
            };
            let route = Route {
                url,
                headers,
                caller_tls: None,
                cgroup,
                hops,
                tls: Tls::Mtls,
                app_tls: Tls::Plain,
                made_of: made_of.to_owned(),
                roles: self.roles(ground, leg),
            };
            self.started.routes.insert(*leg, route);
        }
        Ok(self.started)
    }

    /// The app id whose sidecar a leg's caller uses.
    fn caller(&self, leg: &Leg) -> &'static str {
        if self.mesh.is_alone { app_id(leg.protocol) } else { CLIENT }
    }

    /// The callee's app id: one per protocol, since a workload declares one; and one per network
    /// where several have one mesh.
    fn app(&self, ground: &Ground, leg: &Leg) -> String {
        let id = app_id(leg.protocol);
        if self.home(leg.network) == leg.network {
            return id.to_owned();
        }
        format!("{id}-{}", ground.network(leg.network).name)
    }

    /// The callee's full name.
    fn service(&self, ground: &Ground, leg: &Leg) -> String {
        let network = &ground.network(self.home(leg.network)).name;
        format!("{}.default.{network}", self.app(ground, leg))
    }

    fn roles(&self, ground: &Ground, leg: &Leg) -> BTreeMap<String, Vec<String>> {
        let sidecar = |network, app: &str| self.process(ground, network, &format!("sidecar-{app}"));
        let mut controls = vec![self.process(ground, HOME, "control")];
        let of_app = vec![sidecar(leg.network, &self.app(ground, leg))];
        let mut roles = match self.mesh.is_alone {
            true => vec![("sidecar", of_app)],
            false => {
                vec![("client-sidecar", vec![sidecar(HOME, CLIENT)]), ("app-sidecar", of_app)]
            }
        };
        if self.home(leg.network) != HOME {
            roles.push(("gateway", vec![ground.process(leg.network, &self.mesh.gateway())]));
            controls.push(self.process(ground, leg.network, "control"));
            if self.is_behind(leg.network) {
                controls.push(self.process(ground, leg.network, BEHIND));
            }
        }
        roles.push(("control-planes", controls));
        roles.into_iter().map(|(role, processes)| (role.to_owned(), processes)).collect()
    }
}

/// Where the file is named by which processes enter the cgroup of an intercepted caller.
fn cgroup_file(ground: &Ground, process: &str) -> PathBuf {
    ground.file(&format!("{}.cgroup", process.replace('/', "-")))
}

fn app_id(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 | Protocol::Http2 => "echo",
        Protocol::GrpcUnary | Protocol::GrpcStream => "echo-grpc",
        Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => "echo-tcp",
    }
}

/// Names caller, methods and paths, as a careful team would.
fn policy(caller_network: &str) -> String {
    format!(
        "apiVersion: tollway.dev/v1\nkind: Policy\nmetadata: {{name: lab, namespace: default}}\n\
         spec:\n  target: {{app: \"*\"}}\n  allow:\n    - from: [{CLIENT}.default.{caller_network}]\n      \
         methods: [GET, POST]\n      paths: [/echo, /size, /tollway.lab.v1.Echo/*]\n"
    )
}

/// A route whose first rule looks at path and header and whose second one takes the lab's requests, a rule
/// about outliers, and a limit that the lab does not reach.
fn steering(app: &str) -> String {
    format!(
        "apiVersion: tollway.dev/v1\nkind: Route\nmetadata: {{name: {app}, namespace: default}}\n\
         spec:\n  service: {app}\n  rules:\n    - name: canary\n      matches:\n        \
         - path: {{prefix: /next}}\n          headers: [{{name: x-canary, value: \"1\"}}]\n      \
         backends: [{{service: {app}}}]\n    - name: others\n      backends: [{{service: {app}}}]\n\
         ---\napiVersion: tollway.dev/v1\nkind: TrafficPolicy\n\
         metadata: {{name: {app}, namespace: default}}\nspec:\n  target: {{app: {app}}}\n  \
         outlier: {{consecutiveFailures: 5, ejection: 30s}}\n  \
         rate: {{caller: {{requests: 1000000}}}}\n"
    )
}

fn write_secret(path: &Path, text: &str) -> Result<(), LabError> {
    let written = secret_file::write(path, text.as_bytes());
    written.map_err(|source| LabError::Write { path: path.into(), source })
}
