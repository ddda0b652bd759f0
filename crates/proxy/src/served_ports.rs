//! Ports of the app beside its own that Services of a cluster lead to. The control plane states them; a
//! caller names one in the protocol that it offers in its TLS handshake.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tollway_model::{AppProtocol, ServedPort};

use crate::exchange::AppPort;
use crate::tls::Carried;

/// The ports, and what the app speaks at each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ServedPorts(BTreeMap<u16, AppProtocol>);

impl ServedPorts {
    pub(crate) fn new(ports: &[ServedPort]) -> Self {
        Self(ports.iter().map(|of| (of.port, of.protocol)).collect())
    }

    /// A port for requests, at an app that is reached at `ip`; `None` if it is not served, or takes bytes.
    pub(crate) fn for_requests(&self, port: u16, ip: IpAddr) -> Option<AppPort> {
        let is_h2 = match self.0.get(&port)? {
            AppProtocol::Http => false,
            AppProtocol::H2c | AppProtocol::Grpc => true,
            AppProtocol::Tcp => return None,
        };
        Some(AppPort { address: SocketAddr::new(ip, port), is_h2 })
    }

    /// A port for bytes; `None` if it is not served, or takes requests.
    pub(crate) fn for_bytes(&self, port: u16, ip: IpAddr) -> Option<SocketAddr> {
        let is_of_bytes = *self.0.get(&port)? == AppProtocol::Tcp;
        is_of_bytes.then_some(SocketAddr::new(ip, port))
    }

    /// What callers may offer to be led to them.
    pub(crate) fn carried(&self) -> impl Iterator<Item = Carried> {
        self.0.iter().flat_map(|(port, protocol)| Carried::all_of(*protocol, Some(*port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_takes_what_its_protocol_stands_for() {
        let port = |port, protocol| ServedPort { port, protocol };
        let ports = ServedPorts::new(&[
            port(80, AppProtocol::Http),
            port(7070, AppProtocol::Grpc),
            port(5432, AppProtocol::Tcp),
        ]);
        let ip = IpAddr::from([10, 1, 0, 7]);
        let requests = |port| ports.for_requests(port, ip).map(|of| (of.address.port(), of.is_h2));
        assert_eq!(
            [80, 7070, 5432, 81].map(requests),
            [Some((80, false)), Some((7070, true)), None, None]
        );
        let bytes = [80, 5432, 81].map(|port| ports.for_bytes(port, ip));
        assert_eq!(bytes, [None, Some(SocketAddr::from(([10, 1, 0, 7], 5432))), None]);
        let offered: Vec<_> = ports.carried().map(|of| of.name()).collect();
        let offered: Vec<_> = offered.iter().map(|name| String::from_utf8_lossy(name)).collect();
        assert_eq!(
            offered,
            ["h2:80", "http/1.1:80", "tollway-tcp/1:5432", "h2:7070", "http/1.1:7070"]
        );
    }
}
