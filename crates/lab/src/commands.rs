//! Every command line the lab starts, in one place: the contract with the `tollway` binary.

mod neighbours;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollway_record::record::Protocol;
use tollway_record::throughput::Direction;

use crate::actors::ActorTimers;
use crate::link_command::LinkArgs;
use crate::process::Spec;
use crate::relay::RelayArgs;
use crate::scenario::{Handshakes, MessagesSpec, Spacing};
use crate::subject::{Identity, LinkerdControlArgs};
use crate::topology::Network;

pub use neighbours::{
    CountPacketsBy, FabricAgent, Neighbour, NeighbourGets, NeighbourWrites, Packets, WritePace,
};

/// Where the lab's networks are; those that are joined may be in the same range.
const NETWORKS: [&str; 2] = ["127.0.0.0/8", "10.201.0.0/16"];
/// Names of listeners in ports files.
pub const CONTROL_PORT: &str = "control";
pub const GATEWAY_PORT: &str = "gateway";
pub const FRONT_PORT: &str = "front";
pub const HTTP_PORT: &str = "http";
pub const GRPC_PORT: &str = "grpc";
pub const INBOUND_PORT: &str = "inbound";
pub const HTTPS_PORT: &str = "https";
pub const TCP_PORT: &str = "tcp";

/// Writes where its sidecar listens, and how its own cgroup is entered.
const INTERCEPTED_APP: &str = r#"
at=$(awk '/ - cgroup2 / { print $5; exit }' /proc/self/mountinfo)
echo "$at$(sed -n s/^0:://p /proc/self/cgroup)/cgroup.procs" > "$2" &&
printf '{"http":"127.0.0.1:%s"}' "$DAPR_HTTP_PORT" > "$1.part" && mv "$1.part" "$1" &&
exec sleep infinity
"#;

/// Builds the processes of one binary.
#[derive(Debug, Clone)]
pub struct Commands {
    pub program: PathBuf,
}

/// A sidecar to start.
#[derive(Debug, Clone)]
pub struct Sidecar<'a> {
    /// Name of its process.
    pub name: String,
    pub app_id: &'a str,
    pub control: SocketAddr,
    pub token_file: &'a Path,
    /// The sidecar's app; a mere caller has none.
    pub app: Option<(u16, Protocol)>,
    /// Services of plain TCP that it opens a port for each, named [`upstream_port`].
    pub upstreams: Vec<String>,
    pub ports_file: PathBuf,
}

/// One run of the load generator.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    pub protocol: Protocol,
    pub url: String,
    pub headers: Vec<String>,
    /// For a URL of TLS.
    pub tls: Option<CallerTls>,
    pub arrival: LoadArrival,
    pub connections: u32,
    /// Requests in flight at once on one connection, where the protocol allows it.
    pub streams: Option<u32>,
    /// Of streams of messages.
    pub messages: MessagesSpec,
    /// For a new connection with each request.
    pub handshakes: Option<Handshakes>,
    /// Actors have timers, and are not called.
    pub timers: Option<ActorTimers>,
    pub duration: Duration,
    pub warm_up: Duration,
    pub payload_bytes: u32,
    /// The method, where it is not the usual one.
    pub method: Option<&'static str>,
    /// The body, instead of `payload_bytes`.
    pub body: Option<&'static str>,
    pub seed: u64,
    pub json: PathBuf,
}

/// When a load generator sends.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadArrival {
    /// Requests per second.
    Open(f64, Spacing),
    Closed,
    /// Bytes over raw TCP, as many as go.
    Flow(Direction),
    /// At the highest rate that holds the conditions, by trials of this length.
    Search {
        slo: Vec<String>,
        trial: Duration,
    },
}

/// With what a caller secures its connections, and what it expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerTls {
    /// Roots that it believes (PEM).
    pub ca: PathBuf,
    /// Name that the server must have.
    pub server_name: String,
    /// Its own certificate and key (PEM), where it has one.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Commands {
    #[must_use]
    pub fn control(&self, network: &Network, store: &Path, ports_file: &Path) -> Spec {
        self.control_over(network, [OsString::from("--store"), store.into()], ports_file)
    }

    /// A control plane with its store in etcd, and its admin socket in `admin_dir`.
    #[must_use]
    pub fn control_over_etcd(
        &self,
        network: &Network,
        (etcd, admin_dir): (SocketAddr, &Path),
        ports_file: &Path,
    ) -> Spec {
        let store = format!("etcd://{etcd}/tollway");
        let admin = [OsString::from("--admin-dir"), admin_dir.into()];
        let storage = [OsString::from("--store"), store.into()].into_iter().chain(admin);
        self.control_over(network, storage, ports_file)
    }

    fn control_over(
        &self,
        network: &Network,
        storage: impl IntoIterator<Item = OsString>,
        ports_file: &Path,
    ) -> Spec {
        self.spec(network, "control", ["control", "--network", &network.name])
            .args(storage)
            .args(NETWORKS.iter().flat_map(|range| ["--peer-addresses", range]))
            // A former sidecar does not show that it reaches the control plane directly.
            .args(NETWORKS.iter().flat_map(|range| ["--workload-addresses", range]))
            // A load comes as many agents or workloads, and all with one certificate.
            .args(["--max-instance-connections", "1000"])
            .args(["--listen", &any_port(network.address)])
            .args(ports_args(ports_file))
    }

    /// Prints a token.
    #[must_use]
    pub fn token(&self, network: &Network, store: &Path, role: TokenRole<'_>) -> Spec {
        let name = match role {
            TokenRole::App(app) => format!("token-{app}"),
            TokenRole::Gateway => "token-gateway".into(),
            TokenRole::Fabric(_) => "token-fabric".into(),
        };
        let spec =
            self.spec(network, &name, ["token", "create", "--store"]).args([OsString::from(store)]);
        // Its replicas and its restarts have one token.
        let spec = spec.args(["--uses", "any"]);
        match role {
            TokenRole::App(app) => spec.args(["--app", app]),
            TokenRole::Gateway => spec.args(["--gateway"]),
            TokenRole::Fabric(group) => spec.args(["--fabric", group]),
        }
    }

    #[must_use]
    pub fn gateway(
        &self,
        network: &Network,
        control: SocketAddr,
        token_file: &Path,
        listen: SocketAddr,
        advertise: SocketAddr,
        ports_file: &Path,
    ) -> Spec {
        self.spec(network, "gateway", ["gateway", "--control", &control.to_string()])
            .args([OsString::from("--token-file"), token_file.into()])
            .args(["--listen", &listen.to_string(), "--advertise", &advertise.to_string()])
            .args(["--admin-listen", &any_port(IpAddr::from([127, 0, 0, 1]))])
            .args(ports_args(ports_file))
    }

    #[must_use]
    pub fn sidecar(&self, network: &Network, sidecar: &Sidecar<'_>) -> Spec {
        let local = any_port(IpAddr::from([127, 0, 0, 1]));
        let spec = self
            .spec(network, &sidecar.name, ["sidecar", "--app-id", sidecar.app_id])
            .args(["--control", &sidecar.control.to_string()])
            .args([OsString::from("--token-file"), sidecar.token_file.into()])
            .args(["--admin-listen", &local, "--http-listen", &local, "--grpc-listen", &local])
            .args(["--outbound-listen", &local, "--inbound-listen", &any_port(network.address)])
            .args(ports_args(&sidecar.ports_file));
        let spec = sidecar
            .upstreams
            .iter()
            .fold(spec, |spec, service| spec.args(["--upstream", &format!("0={service}")]));
        match sidecar.app {
            Some((port, protocol)) => {
                let protocol = app_protocol(protocol);
                spec.args(["--app-port", &port.to_string(), "--app-protocol", protocol])
            }
            None => spec,
        }
    }

    /// A mere caller whose connections are intercepted: its app writes the ports file, and `cgroup_file`
    /// with the path of the file by which other processes enter its cgroup, and waits.
    #[must_use]
    pub fn intercepted(
        &self,
        network: &Network,
        sidecar: &Sidecar<'_>,
        cgroup_file: &Path,
    ) -> Spec {
        let local = any_port(IpAddr::from([127, 0, 0, 1]));
        self.spec(network, &sidecar.name, ["run", "--app-id", sidecar.app_id, "--intercept=bpf"])
            .args(["--control", &sidecar.control.to_string()])
            .args([OsString::from("--token-file"), sidecar.token_file.into()])
            .args(["--admin-listen", &local, "--inbound-listen", &any_port(network.address)])
            .args(["--", "sh", "-c", INTERCEPTED_APP, "sh"])
            .args([sidecar.ports_file.as_path(), cgroup_file])
    }

    #[must_use]
    pub fn echo(&self, network: &Network, ports_file: &Path) -> Spec {
        let listen = any_port(network.listen_ip);
        self.spec(network, "echo", ["echo", "--http", &listen, "--grpc", &listen])
            .args(["--tcp", &listen])
            .args(ports_args(ports_file))
    }

    /// An app that also runs actors of so many types, `Echo`, `Echo1001` and so on.
    #[must_use]
    pub fn echo_actors(&self, network: &Network, ports_file: &Path, types: u32) -> Spec {
        self.echo(network, ports_file).args(["--actors", "--actor-types", &types.to_string()])
    }

    /// An app behind TLS; with `mutual` it requires its callers' certificates, from the same
    /// authorities.
    #[must_use]
    pub(crate) fn echo_tls(
        &self,
        network: &Network,
        process: &str,
        app: &Identity,
        mutual: bool,
        ports_file: &Path,
    ) -> Spec {
        let unused = any_port(IpAddr::from([127, 0, 0, 1]));
        let spec = self
            .spec(network, process, ["echo", "--http", &unused])
            .args(["--https", &any_port(network.listen_ip)]);
        serving(spec, app, mutual, ports_file)
    }

    /// A front of `app` that shows the certificate of `identity`; with `mutual` it demands those of
    /// its callers, of the same authorities.
    #[must_use]
    pub(crate) fn front(
        &self,
        network: &Network,
        process: &str,
        identity: &Identity,
        mutual: bool,
        app: SocketAddr,
        ports_file: &Path,
    ) -> Spec {
        let spec = self
            .spec(network, process, ["front", "--to", &format!("http://{app}")])
            .args(["--listen", &any_port(network.address)])
            .args(["--admin-listen", &any_port(IpAddr::from([127, 0, 0, 1]))]);
        serving(spec, identity, mutual, ports_file)
    }

    /// Prints the join bundle of the network.
    #[must_use]
    pub fn join_export(&self, network: &Network, store: &Path) -> Spec {
        self.spec(network, "join-export", ["join", "export", "--store"]).args([store])
    }

    #[must_use]
    pub fn join_accept(&self, network: &Network, store: &Path, bundle: &Path) -> Spec {
        let stem = bundle.file_stem().unwrap_or_default().to_string_lossy();
        self.spec(network, &format!("join-accept-{stem}"), ["join", "accept", "--store"])
            .args([store, bundle])
    }

    /// Takes a file of policies over and waits until every sidecar has.
    #[must_use]
    pub fn apply(&self, network: &Network, store: &Path, file: &Path) -> Spec {
        self.spec(network, "apply", ["apply", "--wait", "-f"])
            .args([file])
            .args([OsString::from("--store"), store.into()])
    }

    #[must_use]
    pub fn load(&self, network: &Network, name: &str, load: &Load) -> Spec {
        if let Some(timers) = &load.timers {
            return self.timers(network, name, load, timers);
        }
        let kind = match load.protocol {
            Protocol::Http1 | Protocol::Http2 => "http",
            Protocol::GrpcUnary | Protocol::GrpcStream => "grpc",
            Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => "tcp",
        };
        let spec = self
            .spec(network, name, ["load", kind, &load.url])
            .args(["--warm-up", &milliseconds(load.warm_up)])
            .args(arrival_args(load))
            .args(protocol_args(load));
        let spec = load.tls.iter().fold(spec, |spec, tls| spec.args(caller_tls_args(tls)));
        load.headers
            .iter()
            .fold(spec, |spec, header| spec.args(["-H", header]))
            .args([OsString::from("--json"), load.json.clone().into()])
    }

    fn timers(&self, network: &Network, name: &str, load: &Load, timers: &ActorTimers) -> Spec {
        let state = timers.writes_state.then_some("--state");
        self.spec(network, name, ["load", "timers", &load.url, "--app", &timers.app])
            .args(["--kind", timers.kind, "--actors", &timers.actors.to_string()])
            .args(["--every", &milliseconds(timers.every)])
            .args(state)
            .args(["--connections", &load.connections.to_string()])
            .args(["--duration", &milliseconds(load.duration)])
            .args(["--warm-up", &milliseconds(load.warm_up)])
            .args([OsString::from("--json"), load.json.clone().into()])
    }

    /// A link between two networks; its process works in both and belongs to neither.
    #[must_use]
    pub fn link(&self, name: &str, args: &LinkArgs) -> Spec {
        Spec::new(name, &self.program).args(["lab", "link"]).args(args.to_args())
    }

    #[must_use]
    pub fn relay(&self, name: &str, args: &RelayArgs) -> Spec {
        Spec::new(name, &self.program).args(["lab", "relay"]).args(args.to_args())
    }

    #[must_use]
    pub fn linkerd_control(
        &self,
        network: &Network,
        name: &str,
        args: &LinkerdControlArgs,
    ) -> Spec {
        self.spec(network, name, ["lab", "linkerd-control"]).args(args.to_args())
    }

    fn spec<const N: usize>(&self, network: &Network, name: &str, args: [&str; N]) -> Spec {
        let name = format!("{}/{name}", network.name);
        Spec::new(name, &self.program).within(network.namespace.as_ref()).args(args)
    }
}

/// A server with the certificate of `identity`; with `mutual` it requires its clients', from the
/// same authorities.
fn serving(spec: Spec, identity: &Identity, mutual: bool, ports_file: &Path) -> Spec {
    let spec = spec
        .args([OsString::from("--cert"), identity.certificate.clone().into()])
        .args([OsString::from("--key"), identity.key.clone().into()])
        .args(ports_args(ports_file));
    if mutual {
        spec.args([OsString::from("--client-ca"), identity.ca.clone().into()])
    } else {
        spec
    }
}

fn arrival_args(load: &Load) -> Vec<String> {
    let duration = milliseconds(load.duration);
    let (connections, seed) = (load.connections.to_string(), load.seed.to_string());
    let mut args = match &load.arrival {
        LoadArrival::Flow(direction) => {
            let mut args = words(["--duration", &duration, "--parallel", &connections]);
            args.extend(direction_flag(*direction).map(str::to_owned));
            args.extend(payload_args(load));
            return args;
        }
        LoadArrival::Closed => words(["--duration", &duration]),
        LoadArrival::Search { slo, trial } => {
            let mut args = words(["--max-rate", "--step-time", &milliseconds(*trial)]);
            args.extend(slo.iter().flat_map(|condition| words(["--slo", condition])));
            args
        }
        LoadArrival::Open(rate_rps, spacing) => {
            let mut args = words(["--duration", &duration, "--rate", &rate_rps.to_string()]);
            if *spacing != Spacing::default() {
                args.extend(words(["--spacing", &spacing.word()]));
            }
            args
        }
    };
    args.extend(words(["--connections", &connections, "--seed", &seed]));
    args.extend(payload_args(load));
    args.extend(load.method.iter().flat_map(|method| words(["--method", method])));
    args.extend(load.handshakes.iter().flat_map(|kind| words(["--handshakes", kind.as_str()])));
    if load.protocol == Protocol::Tcp {
        args.push("--ping-pong".to_owned());
    }
    args
}

fn direction_flag(direction: Direction) -> Option<&'static str> {
    match direction {
        Direction::Send => None,
        Direction::Receive => Some("--reverse"),
        Direction::Both => Some("--bidir"),
    }
}

/// TCP without a size takes the load generator's own, since it cannot send nothing.
fn payload_args(load: &Load) -> Vec<String> {
    if (load.protocol, load.payload_bytes) == (Protocol::Tcp, 0) {
        return Vec::new();
    }
    if let Some(body) = load.body {
        return words(["--data", body]);
    }
    words(["--payload-size", &load.payload_bytes.to_string()])
}

fn protocol_args(load: &Load) -> Vec<String> {
    let mut args = match load.protocol {
        Protocol::Http1 | Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => return Vec::new(),
        Protocol::Http2 => words(["--http2"]),
        Protocol::GrpcUnary => Vec::new(),
        Protocol::GrpcStream => {
            let MessagesSpec { kind, per_stream, in_flight } = load.messages;
            let (per_stream, in_flight) = (per_stream.to_string(), in_flight.to_string());
            let kind = kind.as_str();
            words(["--stream", kind, "--messages", &per_stream, "--in-flight", &in_flight])
        }
    };
    args.extend(load.streams.iter().flat_map(|n| words(["--streams", &n.to_string()])));
    args
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// The owner of a join token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRole<'a> {
    App(&'a str),
    Gateway,
    /// Agents of a group.
    Fabric(&'a str),
}

/// Name, in a sidecar's ports file, of the port of a plain TCP service.
#[must_use]
pub fn upstream_port(service: &str) -> String {
    format!("upstream:{service}")
}

/// How to call `service` (`echo.default.near`) through the caller's sidecar, whose port for it is
/// `api`: URL and headers.
#[must_use]
pub fn mesh_url(protocol: Protocol, api: SocketAddr, service: &str) -> (String, Vec<String>) {
    if matches!(protocol, Protocol::GrpcUnary | Protocol::GrpcStream) {
        return (api.to_string(), vec![format!("dapr-app-id: {service}")]);
    }
    if protocol == Protocol::Tcp {
        return (api.to_string(), Vec::new());
    }
    (format!("http://{api}/v1.0/invoke/{service}/method/echo"), Vec::new())
}

/// How a caller whose connections are intercepted calls a service.
#[must_use]
pub fn named_url(protocol: Protocol, service: &str) -> String {
    match protocol {
        Protocol::Http1 | Protocol::Http2 => format!("http://{service}.mesh/echo"),
        Protocol::GrpcUnary
        | Protocol::GrpcStream
        | Protocol::Tcp
        | Protocol::Icmp
        | Protocol::Vxlan => format!("{service}.mesh:80"),
    }
}

fn app_protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "http",
        Protocol::Http2 => "h2c",
        Protocol::GrpcUnary | Protocol::GrpcStream => "grpc",
        Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => "tcp",
    }
}

fn any_port(ip: IpAddr) -> String {
    SocketAddr::new(ip, 0).to_string()
}

fn caller_tls_args(tls: &CallerTls) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec![
        "--cacert".into(),
        tls.ca.clone().into(),
        "--server-name".into(),
        (&tls.server_name).into(),
    ];
    if let Some((certificate, key)) = &tls.own {
        args.extend(["--cert".into(), certificate.into(), "--key".into(), key.into()]);
    }
    args
}

fn ports_args(path: &Path) -> [OsString; 2] {
    ["--ports-file".into(), path.into()]
}

fn milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}
