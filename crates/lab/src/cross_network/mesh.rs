//! The mesh of the scenario: control planes, gateways and sidecars of all networks, joined.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollway_record::record::Protocol;

use super::bench::{Bench, GATEWAY, HOME, READY_LIMIT};
use crate::commands::{self, CONTROL_PORT, GRPC_PORT, HTTP_PORT, Sidecar, TokenRole};
use crate::error::LabError;
use crate::ports;
use crate::progress::{Event, Progress};

/// The one port a network opens, where it can be chosen freely.
const GATEWAY_LISTEN_PORT: u16 = 15_443;
/// How long a short command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// The app id of the caller, which serves nothing.
const CLIENT: &str = "client";

pub(super) struct Mesh {
    client_http: SocketAddr,
    client_grpc: SocketAddr,
}

impl Mesh {
    /// Starts the parts in the order they need each other, each step in all networks at once.
    pub(super) fn start(
        bench: &mut Bench<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Self, LabError> {
        let networks: Vec<usize> = (0..bench.topology.networks.len()).collect();
        progress.told(&Event::Step("starting control planes"));
        for &network in &networks {
            start_control(bench, network)?;
        }
        progress.told(&Event::Step("starting gateways and sidecars"));
        for &network in &networks {
            start_data_plane(bench, network)?;
        }
        for &network in &networks {
            for process in data_plane(bench, network) {
                bench.supervisor.wait_ports(&process, READY_LIMIT)?;
            }
        }
        for &network in networks.iter().filter(|&&network| network != HOME) {
            let name = bench.network(network).name.clone();
            progress.told(&Event::Step(&format!("joining {name}")));
            join(bench, network)?;
        }
        let ports_file = bench.supervisor.ports_path(&sidecar_process(bench, HOME, CLIENT));
        let ports = bench.ports(HOME, &sidecar_name(CLIENT))?;
        Ok(Self {
            client_http: ports::port(&ports_file, &ports, HTTP_PORT)?,
            client_grpc: ports::port(&ports_file, &ports, GRPC_PORT)?,
        })
    }

    /// URL and headers to call the app of a network through the caller's sidecar.
    pub(super) fn call(&self, network: &str, protocol: Protocol) -> (String, Vec<String>) {
        let api = if protocol == Protocol::GrpcUnary { self.client_grpc } else { self.client_http };
        commands::mesh_url(protocol, api, &service(network, protocol))
    }

    /// Names of the processes of the mesh that a request passes, by role, and of the control
    /// planes beside it.
    pub(super) fn roles(
        bench: &Bench<'_>,
        network: usize,
        protocol: Protocol,
    ) -> BTreeMap<&'static str, Vec<String>> {
        let mut controls = vec![process(bench, HOME, "control")];
        let mut roles = BTreeMap::from([
            ("client-sidecar", vec![sidecar_process(bench, HOME, CLIENT)]),
            ("app-sidecar", vec![sidecar_process(bench, network, app_id(protocol))]),
        ]);
        if network != HOME {
            roles.insert("gateway", vec![process(bench, network, GATEWAY)]);
            controls.push(process(bench, network, "control"));
        }
        roles.insert("control-planes", controls);
        roles
    }
}

/// The full name of the app that speaks `protocol` in a network.
pub(super) fn service(network: &str, protocol: Protocol) -> String {
    format!("{}.default.{network}", app_id(protocol))
}

/// One app per protocol: a workload declares one.
fn app_id(protocol: Protocol) -> &'static str {
    if protocol == Protocol::GrpcUnary { "echo-grpc" } else { "echo" }
}

fn start_control(bench: &mut Bench<'_>, network: usize) -> Result<(), LabError> {
    let store = store(bench, network);
    fs::create_dir_all(&store).map_err(|source| LabError::Write { path: store.clone(), source })?;
    let ports_file = bench.supervisor.ports_path(&process(bench, network, "control"));
    let spec = bench.commands.control(bench.network(network), &store, &ports_file);
    bench.supervisor.start(&spec)?;
    Ok(())
}

fn start_data_plane(bench: &mut Bench<'_>, network: usize) -> Result<(), LabError> {
    let control = process(bench, network, "control");
    let ports = bench.supervisor.wait_ports(&control, READY_LIMIT)?;
    let path = bench.supervisor.ports_path(&control);
    let control = bench.network(network).reachable(ports::port(&path, &ports, CONTROL_PORT)?);
    start_gateway(bench, network, control)?;
    if network == HOME {
        start_sidecar(bench, network, control, CLIENT, None)?;
    }
    let echo = bench.ports(network, "echo")?;
    let echo_file = bench.supervisor.ports_path(&process(bench, network, "echo"));
    for protocol in bench.options.workload.protocols.clone() {
        let port = if protocol == Protocol::GrpcUnary { GRPC_PORT } else { HTTP_PORT };
        let port = ports::port(&echo_file, &echo, port)?.port();
        start_sidecar(bench, network, control, app_id(protocol), Some((port, protocol)))?;
    }
    Ok(())
}

fn start_gateway(
    bench: &mut Bench<'_>,
    network: usize,
    control: SocketAddr,
) -> Result<(), LabError> {
    let token_file = token(bench, network, TokenRole::Gateway, GATEWAY)?;
    let home = bench.network(network);
    let port = if bench.topology.has_packets() { GATEWAY_LISTEN_PORT } else { 0 };
    let listen = SocketAddr::new(home.address, port);
    let advertise = bench.topology.advertised(&bench.supervisor, network, GATEWAY, listen)?;
    let ports_file = bench.supervisor.ports_path(&process(bench, network, GATEWAY));
    let spec = bench.commands.gateway(home, control, &token_file, listen, advertise, &ports_file);
    bench.supervisor.start(&spec)?;
    Ok(())
}

fn start_sidecar(
    bench: &mut Bench<'_>,
    network: usize,
    control: SocketAddr,
    app_id: &str,
    app: Option<(u16, Protocol)>,
) -> Result<(), LabError> {
    let token_file = token(bench, network, TokenRole::App(app_id), app_id)?;
    let ports_file = bench.supervisor.ports_path(&sidecar_process(bench, network, app_id));
    let name = sidecar_name(app_id);
    let sidecar = Sidecar { name, app_id, control, token_file: &token_file, app, ports_file };
    let spec = bench.commands.sidecar(bench.network(network), &sidecar);
    bench.supervisor.start(&spec)?;
    Ok(())
}

/// Has the control plane make a token and writes it to a file.
fn token(
    bench: &Bench<'_>,
    network: usize,
    role: TokenRole<'_>,
    name: &str,
) -> Result<PathBuf, LabError> {
    let spec = bench.commands.token(bench.network(network), &store(bench, network), role);
    let token = bench.supervisor.run(&spec, COMMAND_LIMIT)?;
    let path = file(bench, &format!("{}-{name}.token", bench.network(network).name));
    write_secret(&path, token.trim())?;
    Ok(path)
}

/// Joins a network with the caller's: one exports, the other accepts.
fn join(bench: &Bench<'_>, network: usize) -> Result<(), LabError> {
    let exporter = bench.network(network);
    let export = bench.commands.join_export(exporter, &store(bench, network));
    let bundle = bench.supervisor.run(&export, COMMAND_LIMIT)?;
    let path = file(bench, &format!("{}.join", exporter.name));
    write_secret(&path, &bundle)?;
    let accept = bench.commands.join_accept(bench.network(HOME), &store(bench, HOME), &path);
    bench.supervisor.run(&accept, COMMAND_LIMIT)?;
    Ok(())
}

fn write_secret(path: &Path, text: &str) -> Result<(), LabError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| LabError::Write { path: path.into(), source })
}

/// All processes of a network that carry traffic.
fn data_plane(bench: &Bench<'_>, network: usize) -> Vec<String> {
    let client = (network == HOME).then_some(CLIENT);
    let apps = bench.options.workload.protocols.iter().map(|&protocol| app_id(protocol));
    let sidecars = client.into_iter().chain(apps).map(|app| sidecar_process(bench, network, app));
    std::iter::once(process(bench, network, GATEWAY)).chain(sidecars).collect()
}

fn process(bench: &Bench<'_>, network: usize, part: &str) -> String {
    format!("{}/{part}", bench.network(network).name)
}

fn sidecar_process(bench: &Bench<'_>, network: usize, app_id: &str) -> String {
    process(bench, network, &sidecar_name(app_id))
}

fn sidecar_name(app_id: &str) -> String {
    format!("sidecar-{app_id}")
}

fn store(bench: &Bench<'_>, network: usize) -> PathBuf {
    file(bench, &format!("{}.store", bench.network(network).name))
}

fn file(bench: &Bench<'_>, name: &str) -> PathBuf {
    bench.supervisor.dir().join(name)
}
