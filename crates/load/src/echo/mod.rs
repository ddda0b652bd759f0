//! The echo servers: something to load that costs little and behaves as asked.
//!
//! One port speaks HTTP/1.1 and HTTP/2 with prior knowledge, gRPC included; another echoes TCP.
//! One thread, one loop, memory bounded by connections. It is a target for tests and
//! measurements, not a server for hostile networks: idle connections are kept for ever.

mod faults;
mod firings;
mod h1;
mod h2;
mod messages;
mod peer;
mod routes;
mod server;
mod source;
mod timers;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollway_http::{Fields, RequestHead};

pub use self::faults::{Choices, ChoicesError, Faults, percent};
use self::firings::Firings;
pub use self::messages::{EchoMessage, StreamSummary};
pub use self::routes::UNARY_PATH;
use self::routes::{Plan, act, plan};
pub use self::server::EchoServer;
use self::timers::Timers;
use crate::arrival::SplitMix64;
use crate::error::EchoError;
use crate::stop::Stop;
use crate::tls::server_config;

/// A connection is not read, and nothing is generated for it, while this much waits to be sent.
const HIGH_WATER_BYTES: usize = 256 * 1024;
/// Largest message of a call whose request must be whole before it is answered.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Connections at once; further ones wait in the backlog.
const MAX_CONNECTIONS: usize = 20_000;

/// Where to listen and how to behave.
#[derive(Clone, Debug)]
pub struct EchoOptions {
    /// HTTP/1.1 and HTTP/2 with prior knowledge.
    pub http: SocketAddr,
    /// Another port for the same protocols; gRPC is served on the first as well.
    pub grpc: Option<SocketAddr>,
    pub tcp: Option<SocketAddr>,
    /// The HTTP protocols behind TLS.
    pub https: Option<HttpsOptions>,
    /// Written when all listen: `{"http": "ip:port", "grpc": "ip:port", "tcp":
    /// "ip:port", "https": "ip:port"}`, the last two where they are served.
    pub ports_file: Option<PathBuf>,
    /// Sent with every answer as `x-echo-name`: tells replicas apart.
    pub name: Option<String>,
    /// Runs actors of so many types, `Echo`, `Echo1001` and so on, as a sidecar calls them: they say
    /// what is said to them.
    pub actor_types: u32,
    pub stall: Option<Stall>,
    /// What happens to answers by chance, where a request does not ask for something else.
    pub faults: Faults,
    /// Of the chances.
    pub seed: u64,
}

/// A port with TLS, and what is shown there. Files are PEM.
#[derive(Clone, Debug)]
pub struct HttpsOptions {
    pub address: SocketAddr,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients must show a certificate of one of these authorities.
    pub client_authorities: Option<PathBuf>,
}

/// The whole server stands still now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    pub lasting: Duration,
    /// From the beginning of one to the beginning of the next.
    pub every: Duration,
}

impl HttpsOptions {
    fn config(&self) -> Result<Arc<rustls::ServerConfig>, EchoError> {
        let Self { certificate, key, client_authorities, .. } = self;
        Ok(server_config(certificate, key, client_authorities.as_deref())?)
    }
}

impl EchoOptions {
    /// HTTP on `http`, nothing else.
    #[must_use]
    pub fn new(http: SocketAddr) -> Self {
        Self {
            http,
            grpc: None,
            tcp: None,
            https: None,
            ports_file: None,
            name: None,
            actor_types: 0,
            stall: None,
            faults: Faults::default(),
            seed: 1,
        }
    }
}

/// Where the servers listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    pub http: SocketAddr,
    /// The same as `http` unless another was asked for.
    pub grpc: SocketAddr,
    pub tcp: Option<SocketAddr>,
    pub https: Option<SocketAddr>,
}

impl Ports {
    /// Writes the ports file.
    fn write(&self, path: &Path) -> Result<(), EchoError> {
        let Self { http, grpc, tcp, https } = *self;
        let named = [("http", Some(http)), ("grpc", Some(grpc)), ("tcp", tcp), ("https", https)];
        let ports = named.into_iter().filter_map(|(name, address)| Some((name, address?)));
        let failed = |source| EchoError::PortsFile { path: path.to_owned(), source };
        tollway_net::write_ports(path, ports).map_err(failed)
    }
}

/// Listens, writes the ports file and serves until `stop` is requested; then answers what is
/// under way and returns.
pub fn serve_echo(options: &EchoOptions, stop: &Stop) -> Result<(), EchoError> {
    let server = EchoServer::bind(options)?;
    if let Some(path) = &options.ports_file {
        server.ports().write(path)?;
    }
    server.run(stop)
}

/// What all connections share.
struct Site {
    pattern: Arc<[u8]>,
    name: Option<String>,
    actor_types: u32,
    firings: Firings,
    faults: Faults,
    random: RefCell<SplitMix64>,
}

impl Site {
    fn plan(&self, head: &RequestHead) -> Plan {
        if self.actor_types > 0
            && let Some(plan) = act(head)
        {
            return plan;
        }
        plan(head, &self.faults, &mut self.random.borrow_mut())
    }

    fn sign(&self, fields: &mut Fields) {
        if let Some(name) = &self.name {
            fields.push(b"x-echo-name", name.as_bytes());
        }
    }
}
