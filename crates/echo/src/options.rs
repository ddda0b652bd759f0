//! Where an echo server listens and how it behaves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::EchoError;
use crate::faults::Faults;
use crate::tls::server_config;

/// Addresses and behaviour of a server.
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
    /// Sent with every answer as `x-echo-name`: distinguishes replicas.
    pub name: Option<String>,
    /// Number of actor types that it runs (`Echo`, `Echo1001`, …) as a sidecar calls them; 0: none.
    /// An actor answers with the body that it got.
    pub actor_types: u32,
    pub stall: Option<Stall>,
    /// Random faults of answers, unless a request asks for others.
    pub faults: Faults,
    /// Seed of the chances.
    pub seed: u64,
}

/// A port with TLS. Files are PEM.
#[derive(Clone, Debug)]
pub struct HttpsOptions {
    pub address: SocketAddr,
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients must show a certificate of one of these authorities.
    pub client_authorities: Option<PathBuf>,
}

/// The whole server stops now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// How long it stops.
    pub lasting: Duration,
    /// From one stop to the next, start to start.
    pub every: Duration,
}

impl HttpsOptions {
    pub(crate) fn config(&self) -> Result<Arc<rustls::ServerConfig>, EchoError> {
        let Self { certificate, key, client_authorities, .. } = self;
        Ok(server_config(certificate, key, client_authorities.as_deref())?)
    }
}

impl EchoOptions {
    /// Serves HTTP on `http` and nothing else.
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
    /// Equal to `http` unless a separate address is given.
    pub grpc: SocketAddr,
    pub tcp: Option<SocketAddr>,
    pub https: Option<SocketAddr>,
}

impl Ports {
    /// Writes the ports file.
    pub(crate) fn write(&self, path: &Path) -> Result<(), EchoError> {
        let Self { http, grpc, tcp, https } = *self;
        let named = [("http", Some(http)), ("grpc", Some(grpc)), ("tcp", tcp), ("https", https)];
        let ports = named.into_iter().filter_map(|(name, address)| Some((name, address?)));
        let failed = |source| EchoError::PortsFile { path: path.to_owned(), source };
        tollway_net::write_ports(path, ports).map_err(failed)
    }
}
