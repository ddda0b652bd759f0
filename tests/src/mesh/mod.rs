//! Two networks of real processes on loopback, for the tests of the whole system.
//!
//! Each network has a control plane and a gateway on an address of its own; apps (echo servers)
//! have a sidecar each. Everything ends with the value that holds it.

pub mod chat;
pub mod http;
pub mod load;
pub mod memory;
pub mod tcp;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::{new_options, newest, program};
use tollway_testkit::{Process, Start, TempDir, retry_until};

/// Far more than anything here takes; a test that waits for it has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The networks `west`, where the callers are, and `east`, joined.
pub struct Mesh {
    pub west: Network,
    pub east: Network,
}

impl Mesh {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Both control planes get `options`.
    pub fn with(options: &[&str]) -> Self {
        let mesh = Self::not_joined(options);
        mesh.join();
        mesh
    }

    pub fn not_joined(options: &[&str]) -> Self {
        let west = Network::start("west", "127.0.1.1", options);
        let east = Network::start("east", "127.0.2.1", options);
        Self { west, east }
    }

    /// East exports a bundle, west accepts it.
    pub fn join(&self) {
        self.west.accept(&self.east);
    }
}

/// A control plane, a gateway, and the files of a network.
pub struct Network {
    pub control: Process,
    pub gateway: Process,
    pub control_address: SocketAddr,
    name: &'static str,
    ip: &'static str,
    options: Vec<String>,
    /// Its gateways only dial out.
    dials_out: bool,
    /// The most descriptors that its control plane may have, where that is not this process's limit.
    descriptors: Option<u32>,
    files: TempDir,
}

impl Network {
    pub fn start(name: &'static str, ip: &'static str, options: &[&str]) -> Self {
        Self::start_within(name, ip, options, None)
    }

    /// The same; its control plane may have so many descriptors.
    pub fn start_within(
        name: &'static str,
        ip: &'static str,
        options: &[&str],
        descriptors: Option<u32>,
    ) -> Self {
        Self::start_as(name, ip, options, descriptors, false)
    }

    /// A network whose gateways only dial out.
    pub fn start_dialling_out(name: &'static str, ip: &'static str) -> Self {
        Self::start_as(name, ip, &[], None, true)
    }

    fn start_as(
        name: &'static str,
        ip: &'static str,
        options: &[&str],
        descriptors: Option<u32>,
        dials_out: bool,
    ) -> Self {
        let files = TempDir::new().unwrap();
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let any = format!("{ip}:0");
        let control = start_control(name, &any, files.path(), &options, descriptors);
        let control_address = control.port("control").unwrap();
        let listen = (!dials_out).then_some(&*any);
        let gateway = start_gateway(files.path(), control_address, listen, &[]);
        Self { control, gateway, control_address, name, ip, options, dials_out, descriptors, files }
    }

    /// The other network exports a bundle, this one accepts it.
    pub fn accept(&self, other: &Self) {
        let (other_store, own) = (other.store(), self.store());
        let (other_store, own) = (other_store.to_str().unwrap(), own.to_str().unwrap());
        // A bundle names the network's gateways, and the control plane may not know of one yet.
        let exported = retry_until(PATIENCE, "a join bundle", || {
            tollway_try(["join", "export", "--store", other_store]).ok()
        });
        let bundle = other.files.path().join("bundle");
        tollway_net::secret_file::write(&bundle, exported.unwrap().as_ref()).unwrap();
        let bundle = bundle.to_str().unwrap();
        // Gateways come and go in these tests.
        let follow = new_options(&["--follow-gateways"]);
        let accept = [&["join", "accept"][..], &follow, &["--store", own, bundle]].concat();
        run(&accept).unwrap();
    }

    /// Runs a command on what its control plane stores; `input` is what `-` reads.
    pub fn command(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = Command::new(program())
            .args(arguments)
            .arg("--store")
            .arg(self.store())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// As [`Self::command`], which has to succeed; gives what it printed.
    #[track_caller]
    pub fn done(&self, arguments: &[&str], input: &str) -> String {
        let output = self.command(arguments, input);
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {reported}\n{input}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Puts policies in force; they are when it returns.
    #[track_caller]
    pub fn apply(&self, policies: &str) -> String {
        self.done(&["apply", "-f", "-", "--wait"], policies)
    }

    /// A second gateway.
    pub fn another_gateway(&self, options: &[&str]) -> Process {
        let any = format!("{}:0", self.ip);
        let listen = (!self.dials_out).then_some(&*any);
        start_gateway(self.files.path(), self.control_address, listen, options)
    }

    /// A gateway that listens there.
    pub fn gateway_at(&self, listen: &str, options: &[&str]) -> Process {
        start_gateway(self.files.path(), self.control_address, Some(listen), options)
    }

    /// Starts the control plane again at its address, over the store that it left.
    pub fn restart_control(&mut self) {
        let address = self.control_address.to_string();
        let files = self.files.path();
        self.control = start_control(self.name, &address, files, &self.options, self.descriptors);
    }

    /// Removes the files with tokens: from here on a process joins only with what it has.
    pub fn remove_tokens(&self) {
        for entry in std::fs::read_dir(self.files.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "token") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    /// Starts the gateway again, at its address if it has one.
    pub fn restart_gateway(&mut self) {
        let address = self.gateway.port("gateway").ok().map(|address| address.to_string());
        let listen = address.as_deref();
        self.gateway = start_gateway(self.files.path(), self.control_address, listen, &[]);
    }

    /// A sidecar without an app: it only calls.
    pub fn caller(&self, options: &[&str]) -> Sidecar {
        self.sidecar("caller", options)
    }

    /// An app of any protocol, and its sidecar.
    pub fn app(&self, app: &str, replica: &str, protocol: AppProtocol) -> App {
        self.app_with(app, replica, protocol, &[])
    }

    pub fn app_with(
        &self,
        app: &str,
        replica: &str,
        protocol: AppProtocol,
        options: &[&str],
    ) -> App {
        let echo = start_newest("echo")
            .args(["--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--name", replica])
            .start_listening()
            .unwrap();
        let listener = if protocol == AppProtocol::Tcp { "tcp" } else { "http" };
        let port = echo.port(listener).unwrap().port();
        let sidecar =
            self.sidecar(app, &[&app_options(&port.to_string(), protocol), options].concat());
        App { sidecar, echo, replica: replica.to_owned() }
    }

    /// The sidecar of an app that a test serves itself at a port of 127.0.0.1.
    pub fn sidecar_of(&self, app: &str, port: u16, protocol: AppProtocol) -> Sidecar {
        self.sidecar(app, &app_options(&port.to_string(), protocol))
    }

    /// A sidecar with options of its own.
    pub fn sidecar(&self, app: &str, options: &[&str]) -> Sidecar {
        self.sidecar_by(start_tollway("sidecar"), app, options)
    }

    /// The same, started by something around the program.
    pub fn sidecar_by(&self, start: Start, app: &str, options: &[&str]) -> Sidecar {
        self.sidecar_of_control(&self.control_address.to_string(), start, app, options)
    }

    /// The same, with its control plane behind other addresses.
    pub fn sidecar_of_control(
        &self,
        control: &str,
        start: Start,
        app: &str,
        options: &[&str],
    ) -> Sidecar {
        let token = token(self.files.path(), app, &["--app", app]);
        let process = start
            .args(["--app-id", app, "--control", control])
            .arg("--token-file")
            .arg(token)
            .args(["--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
            .args(["--outbound-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(options);
        let process = if options.contains(&"--inbound-listen") {
            process
        } else {
            process.args(["--inbound-listen", &format!("{}:0", self.ip)])
        };
        Sidecar { process: process.start_listening().unwrap() }
    }

    pub fn store(&self) -> PathBuf {
        store(self.files.path())
    }

    /// A file of this network that no process has.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }
}

/// An app's protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppProtocol {
    Http,
    H2c,
    Grpc,
    Tcp,
}

impl AppProtocol {
    fn word(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::H2c => "h2c",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }
}

/// A running sidecar.
pub struct Sidecar {
    pub process: Process,
}

impl Sidecar {
    pub fn http(&self) -> SocketAddr {
        self.process.port("http").unwrap()
    }

    pub fn grpc(&self) -> SocketAddr {
        self.process.port("grpc").unwrap()
    }

    pub fn outbound(&self) -> SocketAddr {
        self.process.port("outbound").unwrap()
    }

    /// The loopback port of the TCP service `name`.
    pub fn upstream(&self, name: &str) -> SocketAddr {
        self.process.port(&format!("upstream:{name}")).unwrap()
    }

    /// Waits until a call to `service` reaches its app.
    pub fn until_served(&self, service: &str) {
        let path = format!("/v1.0/invoke/{service}/method/healthz");
        let mut last = String::new();
        let served = retry_until(PATIENCE, &format!("{service} being served"), || {
            last = http::get(self.http(), &path);
            // An app of gRPC need not serve that path to be there.
            let answered =
                last.starts_with("HTTP/1.1 200") || last.contains("x-tollway-grpc-status");
            answered.then_some(())
        });
        assert!(served.is_ok(), "{service} is not served; the last answer was:\n{last}");
    }
}

/// An echo server and its sidecar.
pub struct App {
    pub sidecar: Sidecar,
    pub echo: Process,
    pub replica: String,
}

impl App {
    /// Ends both as a machine does that loses its power.
    pub fn kill(&mut self) {
        self.sidecar.process.kill().unwrap();
        self.echo.kill().unwrap();
    }
}

/// A counter of a sidecar or gateway, as Prometheus reads it.
pub fn counter(process: &Process, name: &str) -> u64 {
    process.metric(name).unwrap()
}

/// Waits until a counter has grown by `more` from what it is now.
///
/// # Panics
///
/// Where it has not within [`PATIENCE`].
#[track_caller]
pub fn until_counted(process: &Process, name: &str, more: u64) {
    let before = counter(process, name);
    let grown = || (counter(process, name) >= before + more).then_some(());
    retry_until(PATIENCE, name, grown).unwrap();
}

/// Runs a short command to its end and returns what it printed; it has to succeed.
pub fn tollway<const N: usize>(arguments: [&str; N]) -> String {
    tollway_try(arguments).unwrap()
}

pub fn tollway_try<const N: usize>(arguments: [&str; N]) -> Result<String, String> {
    run(&arguments)
}

fn run(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program()).args(arguments).output().unwrap();
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout).unwrap());
    }
    Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

pub fn start_tollway(command: &str) -> Start {
    Start::new(program()).arg(command).ready_within(PATIENCE)
}

/// The same, of the program that was built last whatever is measured: an app, or load.
pub fn start_newest(command: &str) -> Start {
    Start::new(newest()).arg(command).ready_within(PATIENCE)
}

fn start_control(
    name: &str,
    listen: &str,
    files: &Path,
    options: &[String],
    descriptors: Option<u32>,
) -> Process {
    let start = match descriptors {
        None => start_tollway("control"),
        Some(count) => Start::new("/bin/sh")
            .args(["-c", &format!("ulimit -n {count}; exec \"$0\" \"$@\""), program(), "control"])
            .ready_within(PATIENCE),
    };
    start
        .args(["--network", name, "--listen", listen, "--store"])
        .arg(store(files))
        // All networks of these tests are on this machine.
        .args(new_options(&["--peer-addresses", "127.0.0.0/8", "--peer-addresses", "10.0.0.0/8"]))
        .args(options)
        .start_listening()
        .unwrap()
}

/// One without an address to listen at only dials out.
fn start_gateway(
    files: &Path,
    control: SocketAddr,
    listen: Option<&str>,
    options: &[&str],
) -> Process {
    let inside = SocketAddr::new(control.ip(), 0).to_string();
    let listen = listen.map_or(vec!["--dial-out"], |listen| vec!["--listen", listen]);
    start_tollway("gateway")
        .args(["--control", &control.to_string()])
        .args(listen)
        .args(new_options(&["--inside-listen", &inside]))
        .arg("--token-file")
        .arg(token(files, "gateway", &["--gateway"]))
        .args(["--admin-listen", "127.0.0.1:0"])
        .args(options)
        .start_listening()
        .unwrap()
}

fn app_options(port: &str, protocol: AppProtocol) -> [&str; 4] {
    ["--app-port", port, "--app-protocol", protocol.word()]
}

/// Has the control plane make a token, into a file.
fn token(files: &Path, name: &str, scope: &[&str]) -> PathBuf {
    let output = Command::new(program())
        .args(["token", "create", "--store"])
        .arg(store(files))
        .args(new_options(&["--uses", "any"]))
        .args(scope)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = files.join(format!("{name}.token"));
    tollway_net::secret_file::write(&path, output.stdout.as_ref()).unwrap();
    path
}

fn store(files: &Path) -> PathBuf {
    files.join("store")
}
