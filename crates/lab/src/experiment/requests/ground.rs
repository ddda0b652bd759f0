//! The ground of subjects: networks, apps, and the means to start processes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollway_record::record::{Protocol, Tls};

use crate::commands::{CallerTls, Commands, GRPC_PORT, HTTP_PORT, HTTPS_PORT, TCP_PORT};
use crate::error::LabError;
use crate::process::{ProcessError, Spec, Supervisor};
use crate::subject::{HOME, Identity, Leg, Listener};
use crate::topology::{Network, Published, Topology};
use tollway_net::ports_file::{self as ports, Ports};

/// How long any one process may take to bind its listeners.
pub const READY_LIMIT: Duration = Duration::from_secs(20);

/// How long one question whether a process is ready may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Names of what the lab itself publishes in each network.
pub(super) const PING: &str = "ping";
pub(super) const ECHO: &str = "echo";
pub(super) const ECHO_TLS: &str = "echo-tls";
pub(super) const ECHO_MTLS: &str = "echo-mtls";
const SINK: &str = "sink";

/// What a subject may use. Network [`HOME`] is the caller's.
pub struct Ground {
    pub(super) commands: Commands,
    pub(super) supervisor: Supervisor,
    pub(super) topology: Topology,
    /// Where a case needs TLS between caller and callee.
    pub(super) tls: Option<AppTls>,
}

/// Identities where caller and app use TLS themselves.
pub(super) struct AppTls {
    pub(super) caller: Identity,
    /// By network.
    pub(super) apps: Vec<Identity>,
}

impl Ground {
    /// Command lines of the binary under measurement.
    #[must_use]
    pub fn commands(&self) -> &Commands {
        &self.commands
    }

    #[must_use]
    pub fn network(&self, index: usize) -> &Network {
        &self.topology.networks[index]
    }

    /// Whether networks are namespaces with packet links; else all share one loopback.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.topology.has_packets()
    }

    /// The full name of a process of a network: `west/gateway`.
    #[must_use]
    pub fn process(&self, network: usize, part: &str) -> String {
        format!("{}/{part}", self.network(network).name)
    }

    /// A process of any program in a network, to be given its arguments.
    #[must_use]
    pub fn spec(&self, network: usize, part: &str, program: &Path) -> Spec {
        Spec::new(self.process(network, part), program)
            .within(self.network(network).namespace.as_ref())
    }

    /// Starts a process that runs until the lab stops it.
    pub fn start(&mut self, spec: &Spec) -> Result<u32, ProcessError> {
        self.supervisor.start(spec)
    }

    /// Runs a short command to its end and returns what it printed.
    pub fn run(&self, spec: &Spec, limit: Duration) -> Result<String, ProcessError> {
        self.supervisor.run(spec, limit)
    }

    /// Where the process of that name should write its ports file.
    #[must_use]
    pub fn ports_path(&self, process: &str) -> PathBuf {
        self.supervisor.ports_path(process)
    }

    /// Waits for the ports file of a started process.
    pub fn wait_ports(&mut self, process: &str, limit: Duration) -> Result<Ports, ProcessError> {
        self.supervisor.wait_ports(process, limit)
    }

    /// Waits until a process that writes no ports file accepts connections, and writes it for it.
    pub fn wait_listening(
        &mut self,
        process: &str,
        network: usize,
        listeners: &Ports,
        limit: Duration,
    ) -> Result<(), LabError> {
        for &address in listeners.values() {
            let network = self.topology.networks[network].clone();
            self.supervisor.wait_for(process, "a listener", limit, || {
                let connected = network.run(|| TcpStream::connect(address));
                Ok(connected.is_ok_and(|stream| stream.is_ok()).then_some(()))
            })?;
        }
        Ok(ports::write(&self.ports_path(process), listeners)?)
    }

    /// Waits until a process answers 200 to a GET of a page, over plain HTTP.
    pub(crate) fn wait_answering(
        &mut self,
        process: &str,
        network: usize,
        (address, path): (SocketAddr, &str),
        limit: Duration,
    ) -> Result<(), LabError> {
        let network = self.topology.networks[network].clone();
        let answered =
            self.supervisor.wait_for(process, "an answer that it is ready", limit, || {
                let answered = network.run(|| answers_well(address, path).unwrap_or(false));
                Ok(answered.unwrap_or(false).then_some(()))
            });
        Ok(answered?)
    }

    /// A file in the working directory, for stores, configuration and logs.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.supervisor.dir().join(name)
    }

    /// An address of a network that nothing listens on, for configurations that must name it
    /// beforehand. `on_loopback` takes loopback, which only the network's own processes reach.
    pub fn free_port(&self, network: usize, on_loopback: bool) -> Result<SocketAddr, LabError> {
        let network = self.network(network);
        let ip = if on_loopback { [127, 0, 0, 1].into() } else { network.address };
        let free = network.run(|| tollway_net::free_port(ip))?;
        free.map_err(|source| LabError::FreePort { network: network.name.clone(), source })
    }

    /// The app that a leg's requests are for, as seen from a network.
    pub fn app(&self, from: usize, leg: &Leg) -> Result<SocketAddr, LabError> {
        let name = format!("{ECHO}-{}", self.app_name(leg));
        self.topology.address_from(&self.supervisor, from, leg.network, &name)
    }

    /// The app's process that answers a leg.
    pub(super) fn app_process(&self, leg: &Leg) -> String {
        let part = match leg.tls {
            Tls::Plain => ECHO,
            Tls::Tls => ECHO_TLS,
            Tls::Mtls => ECHO_MTLS,
        };
        self.process(leg.network, part)
    }

    /// With what the caller secures its connections where the app itself ends the leg's TLS.
    #[must_use]
    pub fn app_tls(&self, leg: &Leg) -> Option<CallerTls> {
        let known = self.tls.as_ref().filter(|_| leg.tls != Tls::Plain)?;
        let own = (known.caller.certificate.clone(), known.caller.key.clone());
        Some(CallerTls {
            ca: known.caller.ca.clone(),
            server_name: known.apps.get(leg.network)?.name.clone(),
            own: (leg.tls == Tls::Mtls).then_some(own),
        })
    }

    /// The certificate under which the app of a network answers, where a case needs TLS.
    #[must_use]
    pub(crate) fn app_identity(&self, network: usize) -> Option<&Identity> {
        self.tls.as_ref()?.apps.get(network)
    }

    /// Which of the app's listeners a leg is for: `http`, `grpc`, `tcp`, `tls`, `mtls`.
    #[must_use]
    pub fn app_name(&self, leg: &Leg) -> &'static str {
        match (leg.tls, leg.protocol) {
            (Tls::Tls, _) => "tls",
            (Tls::Mtls, _) => "mtls",
            (Tls::Plain, Protocol::GrpcUnary | Protocol::GrpcStream) => GRPC_PORT,
            (Tls::Plain, Protocol::Http1 | Protocol::Http2) => HTTP_PORT,
            (Tls::Plain, Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan) => TCP_PORT,
        }
    }

    /// A listener that a subject published, as seen from a network.
    pub fn published(
        &self,
        from: usize,
        network: usize,
        name: &str,
    ) -> Result<SocketAddr, LabError> {
        self.topology.address_from(&self.supervisor, from, network, name)
    }

    /// Where other networks reach a published listener that will be bound to `fixed`.
    pub fn advertised(
        &self,
        network: usize,
        name: &str,
        fixed: SocketAddr,
    ) -> Result<SocketAddr, LabError> {
        self.topology.advertised(&self.supervisor, network, name, fixed)
    }

    /// An address to which processes of a network may send data that no process reads, such as
    /// spans. Started at the first call; its cost is no subject's.
    pub fn sink(&mut self, network: usize) -> Result<SocketAddr, LabError> {
        let name = self.process(network, SINK);
        let path = self.ports_path(&name);
        if self.supervisor.pid(&name).is_none() {
            let spec = self.commands.echo(self.network(network), &path).named(&name);
            self.start(&spec)?;
            self.wait_ports(&name, READY_LIMIT)?;
        }
        let ports = ports::read(&path)?.unwrap_or_default();
        Ok(self.network(network).reachable(ports::port(&path, &ports, HTTP_PORT)?))
    }

    /// What of a network is called from others: the app, the probe's end, and subjects' listeners.
    pub(super) fn listeners(&self, network: usize, subjects: &[Listener]) -> Vec<Published> {
        let of = |name: String, process: &str, port| Published {
            network,
            name,
            ports_file: self.ports_path(&self.process(network, process)),
            port,
        };
        let own = vec![
            of(PING.into(), PING, PING),
            of(format!("{ECHO}-{HTTP_PORT}"), ECHO, HTTP_PORT),
            of(format!("{ECHO}-{GRPC_PORT}"), ECHO, GRPC_PORT),
            of(format!("{ECHO}-{TCP_PORT}"), ECHO, TCP_PORT),
            of(format!("{ECHO}-tls"), ECHO_TLS, HTTPS_PORT),
            of(format!("{ECHO}-mtls"), ECHO_MTLS, HTTPS_PORT),
        ];
        let theirs = subjects.iter().map(|l| of(l.name.clone(), &l.process, l.port));
        own.into_iter().chain(theirs).collect()
    }

    /// Ids of running processes by name; those that ended are left out.
    pub(super) fn pids(&self, names: &[String]) -> Vec<u32> {
        names.iter().filter_map(|name| self.supervisor.pid(name)).collect()
    }

    pub(super) fn home(&self) -> &Network {
        self.network(HOME)
    }
}

/// Whether the page is there, with the status 200.
fn answers_well(address: SocketAddr, path: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut status = [0; b"HTTP/1.1 200 ".len()];
    stream.read_exact(&mut status)?;
    Ok(status == *b"HTTP/1.1 200 ")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_process_is_ready_when_its_page_answers_200() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for answer in ["HTTP/1.1 404 Not Found\r\n\r\n", "", "HTTP/1.1 200 OK\r\n\r\n"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = Vec::new();
                // All of it: what is left unread resets the connection, and the answer with it.
                while !asked.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    asked.extend(byte);
                }
                assert!(asked.starts_with(b"GET /ready HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert!(!answers_well(address, "/ready").unwrap());
        // What ends the connection without an answer is asked again.
        assert!(answers_well(address, "/ready").is_err());
        assert!(answers_well(address, "/ready").unwrap());
        server.join().unwrap();
        assert!(answers_well(address, "/ready").is_err());
    }
}
