//! What leads to a server: a listener alone, or two sidecars one behind the other.

use std::net::SocketAddr;

use tollway_testkit::{Process, TempDir, TlsRelay};

use super::servers::Server;
use crate::listeners::listener::POOLED;
use crate::listeners::tls_listener::HTTP1;
use tollway_tests::network::{FRONT, Network, STOCK, front, tollway, until_status};
use tollway_tests::tls_client::trusting;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chain {
    /// Through the inbound listener of a sidecar, as a peer with the caller's protocol.
    Mesh,
    Front,
    /// Through the outbound port of another sidecar, and HTTP/2 between the two.
    Sidecars,
    /// Through two sidecars with a pool of HTTP/1.1 between.
    PooledSidecars,
}

impl Chain {
    pub(crate) const ALL: [Self; 4] =
        [Self::Mesh, Self::Front, Self::Sidecars, Self::PooledSidecars];
}

/// Every chain of hops before a server.
pub(crate) struct Behind {
    _network: Option<Network>,
    _processes: Vec<Process>,
    _relays: Vec<TlsRelay>,
    _files: Option<TempDir>,
    /// Where callers of the wanted protocol come in, in plain text.
    pub(crate) address: SocketAddr,
    /// Every chain for callers of HTTP/1.1.
    pub(crate) http1: SocketAddr,
}

impl Behind {
    pub(crate) fn start(way: Chain, alpn: &[u8], server: &Server) -> Self {
        Self::start_to(way, alpn, server.address)
    }

    pub(crate) fn start_to(way: Chain, alpn: &[u8], server: SocketAddr) -> Self {
        let behind = match way {
            Chain::Front => Self::front(alpn, server),
            Chain::Mesh => Self::mesh(alpn, server),
            Chain::Sidecars => Self::sidecars(server, &[]),
            Chain::PooledSidecars => Self::sidecars(server, POOLED),
        };
        until_status(behind.http1, &format!("GET /warm HTTP/1.1\r\nhost: {STOCK}\r\n\r\n"), 200);
        behind
    }

    fn front(alpn: &[u8], server: SocketAddr) -> Self {
        let (files, process) = front(tollway(), &format!("http://{server}"), &[]);
        let port = process.port("front").unwrap();
        let relay = |alpn| TlsRelay::start(port, FRONT, trusting(None, alpn)).unwrap();
        let relays = vec![relay(HTTP1), relay(alpn)];
        Self::of((None, vec![process]), relays, Some(files))
    }

    fn mesh(alpn: &[u8], server: SocketAddr) -> Self {
        let network = Network::start("west");
        let stock = stock(&network, server, &[]);
        let port = stock.port("inbound").unwrap();
        let relays = vec![
            network.relay(port, "web", "stock", HTTP1),
            network.relay(port, "web", "stock", alpn),
        ];
        Self::of((Some(network), vec![stock]), relays, None)
    }

    fn of(
        (network, processes): (Option<Network>, Vec<Process>),
        relays: Vec<TlsRelay>,
        files: Option<TempDir>,
    ) -> Self {
        let [http1, address] = [0, 1].map(|at| relays[at].address());
        Self {
            _network: network,
            _processes: processes,
            _relays: relays,
            _files: files,
            address,
            http1,
        }
    }

    fn sidecars(server: SocketAddr, options: &[&str]) -> Self {
        let network = Network::start("west");
        let stock = stock(&network, server, options);
        let web = network.sidecar("web", options);
        let address = web.port("outbound").unwrap();
        Self {
            _network: Some(network),
            _processes: vec![stock, web],
            _relays: Vec::new(),
            _files: None,
            address,
            http1: address,
        }
    }
}

fn stock(network: &Network, server: SocketAddr, options: &[&str]) -> Process {
    let (ip, port) = (server.ip().to_string(), server.port().to_string());
    let app = ["--app-address", &ip, "--app-port", &port];
    network.sidecar("stock", &[&app, options].concat())
}
