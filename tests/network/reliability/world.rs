//! Two joined networks of real processes, each of which can be struck and started again as a
//! supervisor or an operator would.
//!
//! Network `near` has the caller; both have a control plane, two gateways, and two replicas of
//! an HTTP and a gRPC service, each with a sidecar of its own. One app serves both services of a
//! replica.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tollway_testkit::{Process, Start, TempDir, retry_until};
use tollway_tests::program;

use crate::reliability::caller::Stream;

/// Far more than anything here takes; what waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Of the two replicas of everything, the one that is struck.
pub(crate) const STRUCK: usize = 0;
pub(crate) const REPLICAS: [&str; 2] = ["a", "b"];

/// A process that keeps its addresses and its files when it is started again.
pub(crate) struct Part {
    pub(crate) name: String,
    arguments: Vec<String>,
    /// The names of the listeners in its ports file, and how they are set.
    listeners: Vec<(&'static str, &'static str)>,
    process: Process,
}

impl Part {
    /// Starts it; its listeners take free ports of `ip`, and the same ones ever after.
    fn start(
        name: String,
        arguments: &[&str],
        listeners: &[(&'static str, &'static str, &str)],
    ) -> Self {
        let free =
            listeners.iter().map(|(_, option, ip)| [(*option).to_owned(), format!("{ip}:0")]);
        let fixed: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        let process = start(fixed.iter().cloned().chain(free.flatten()));
        let listeners =
            listeners.iter().map(|(listener, option, _)| (*listener, *option)).collect();
        Self { name, arguments: fixed, listeners, process }
    }

    pub(crate) fn port(&self, listener: &str) -> SocketAddr {
        self.process.port(listener).unwrap()
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.process.metric(name).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// Waits for its end after SIGTERM; it must have ended in order.
    pub(crate) fn ended(&mut self) {
        let status = self.process.wait(PATIENCE).unwrap();
        assert!(status.success(), "{} ended with {status}:\n{}", self.name, self.process.log());
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Starts it again, at the addresses that it had.
    pub(crate) fn restart(&mut self) {
        let same = self.listeners.iter().map(|(listener, option)| {
            [(*option).to_owned(), self.process.port(listener).unwrap().to_string()]
        });
        self.process = start(self.arguments.iter().cloned().chain(same.flatten()));
    }
}

fn start(arguments: impl Iterator<Item = String>) -> Process {
    Start::new(program()).args(arguments).ready_within(PATIENCE).start_listening().unwrap()
}

/// An app and the sidecars of its two services.
pub(crate) struct Replica {
    pub(crate) app: Part,
    pub(crate) sidecars: Vec<Part>,
}

pub(crate) struct Network {
    pub(crate) control: Part,
    pub(crate) gateways: Vec<Part>,
    pub(crate) replicas: Vec<Replica>,
    name: &'static str,
    ip: &'static str,
    files: TempDir,
}

impl Network {
    fn start(name: &'static str, ip: &'static str, options: &[&str]) -> Self {
        let files = TempDir::new().unwrap();
        let store = text(&files.path().join("store"));
        let fixed = ["control", "--network", name, "--store", &store];
        let here = ["--peer-addresses", "127.0.0.0/8"];
        let arguments = [&fixed[..], &here, options].concat();
        let control =
            Part::start(format!("{name}/control"), &arguments, &[("control", "--listen", ip)]);
        let mut network =
            Self { control, gateways: Vec::new(), replicas: Vec::new(), name, ip, files };
        network.gateways = REPLICAS.map(|replica| network.gateway(replica)).into();
        network.replicas = REPLICAS.map(|replica| network.replica(replica)).into();
        network
    }

    fn gateway(&self, replica: &str) -> Part {
        let token = self.token(&format!("gateway-{replica}"), &["--gateway"]);
        let control = self.control.port("control").to_string();
        let arguments =
            ["gateway", "--control", &control, "--token-file", &token, "--instance", replica];
        let listeners = [
            ("gateway", "--listen", self.ip),
            ("inside", "--inside-listen", self.ip),
            ("admin", "--admin-listen", "127.0.0.1"),
        ];
        Part::start(format!("{}/gateway-{replica}", self.name), &arguments, &listeners)
    }

    fn replica(&self, replica: &str) -> Replica {
        let app = Part::start(
            format!("{}/app-{replica}", self.name),
            &["echo", "--name", replica],
            &[("http", "--http", "127.0.0.1")],
        );
        let port = app.port("http").port().to_string();
        let sidecar = |service: &str, protocol: &str| {
            let app = ["--app-port", &port, "--app-protocol", protocol, "--instance", replica];
            self.sidecar(service, replica, &app)
        };
        let sidecars = vec![sidecar("web", "http"), sidecar("rpc", "grpc")];
        Replica { app, sidecars }
    }

    fn sidecar(&self, service: &str, replica: &str, options: &[&str]) -> Part {
        let name = format!("{service}-{replica}");
        let token = self.token(&name, &["--app", service]);
        let control = self.control.port("control").to_string();
        let fixed = ["sidecar", "--app-id", service, "--control", &control, "--token-file", &token];
        let listeners = [
            ("http", "--http-listen", "127.0.0.1"),
            ("grpc", "--grpc-listen", "127.0.0.1"),
            ("outbound", "--outbound-listen", "127.0.0.1"),
            ("inbound", "--inbound-listen", self.ip),
            ("admin", "--admin-listen", "127.0.0.1"),
        ];
        let arguments = [&fixed[..], options].concat();
        Part::start(format!("{}/sidecar-{name}", self.name), &arguments, &listeners)
    }

    /// A join token in a file.
    fn token(&self, name: &str, scope: &[&str]) -> String {
        let store = self.store();
        let made =
            tollway(&[&["token", "create", "--uses", "any", "--store", &store], scope].concat())
                .unwrap();
        let path = self.files.path().join(format!("{name}.token"));
        tollway_net::secret_file::write(&path, made.as_ref()).unwrap();
        text(&path)
    }

    pub(crate) fn store(&self) -> String {
        text(&self.files.path().join("store"))
    }

    fn full_name(&self, service: &str) -> String {
        format!("{service}.default.{}", self.name)
    }
}

pub(crate) struct World {
    pub(crate) near: Network,
    pub(crate) far: Network,
    pub(crate) caller: Part,
}

impl World {
    /// `near_options` are for the control plane of the caller's network.
    pub(crate) fn start(near_options: &[&str]) -> Self {
        let far = Network::start("far", "127.0.4.1", &[]);
        let near = Network::start("near", "127.0.3.1", near_options);
        join(&far, &near);
        let caller = near.sidecar("caller", "1", &["--instance", "1"]);
        let world = Self { near, far, caller };
        world.until_whole();
        world
    }

    /// What the caller calls, at so many requests a second each.
    pub(crate) fn streams(&self, rate_rps: u32) -> Vec<Stream> {
        let stream = |name, service, is_grpc| Stream {
            name,
            listener: self.caller.port(if is_grpc { "grpc" } else { "http" }),
            service,
            is_grpc,
            rate_rps,
        };
        vec![
            stream("http far", "web.default.far", false),
            stream("http near", "web.default.near", false),
            stream("grpc far", "rpc.default.far", true),
            stream("grpc near", "rpc.default.near", true),
        ]
    }

    /// Waits until everything is as at the start: the caller's control plane answers, every replica
    /// answers, both networks have both gateways of each other.
    pub(crate) fn until_whole(&self) {
        let caller = self.caller.port("http");
        until("the caller hears its control plane", || {
            get(caller, "/v1.0/healthz/outbound").starts_with("HTTP/1.1 204")
        });
        for network in [&self.near, &self.far] {
            for gateway in &network.gateways {
                until(&format!("{} is registered", gateway.name), || {
                    get(gateway.port("admin"), "/readyz").starts_with("HTTP/1.1 2")
                });
            }
            let service = network.full_name("web");
            let path = format!("/v1.0/invoke/{service}/method/healthz");
            let mut missing = REPLICAS.map(|name| format!("x-echo-name: {name}\r\n")).to_vec();
            until(&format!("every replica of {service} answers"), || {
                let answer = get(caller, &path);
                missing.retain(|name| !answer.contains(name));
                missing.is_empty()
            });
        }
    }
}

/// `exporter` exports a bundle, `accepter` accepts it.
fn join(exporter: &Network, accepter: &Network) {
    let store = exporter.store();
    // A bundle names the network's gateways, and the control plane may not know of them yet.
    let bundle = retry_until(PATIENCE, "a join bundle", || {
        tollway(&["join", "export", "--follow-gateways", "--store", &store]).ok()
    });
    let path = exporter.files.path().join("bundle");
    tollway_net::secret_file::write(&path, bundle.unwrap().as_ref()).unwrap();
    let accept =
        ["join", "accept", "--follow-gateways", "--store", &accepter.store(), &text(&path)];
    tollway(&accept).unwrap();
}

/// Runs a short command to its end; gives what it printed, or what it complained of.
pub(crate) fn tollway(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program()).args(arguments).output().unwrap();
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout).unwrap());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    retry_until(PATIENCE, what, || is_so().then_some(())).unwrap();
}

/// The whole answer to a GET, or what came of it.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return String::new() };
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    // The output of a process that is being struck is not whole; the next read shows more.
    let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).into_owned()
}

fn text(path: &Path) -> String {
    path.to_str().expect("temporary directories have plain names").to_owned()
}
