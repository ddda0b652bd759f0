//! An address without a listener, for as long as a test needs it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

/// A TCP port that is bound and not listened on: a dial is refused, and no other process can take
/// the port while this value lives. (A port that was only looked up and released may be in use by
/// the time a test dials it.)
#[derive(Debug)]
pub struct ClosedPort {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl ClosedPort {
    /// Takes any free port of `ip`, an address of this machine.
    pub fn on(ip: impl Into<IpAddr>) -> Result<Self> {
        let ip = ip.into();
        let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket(family, SocketType::STREAM, None).context("could not make a socket")?;
        bind(&socket, &SocketAddr::new(ip, 0)).with_context(|| format!("could not bind {ip}:0"))?;
        let name = getsockname(&socket).context("a bound socket has no address")?;
        let address = SocketAddr::try_from(name).context("a TCP socket has another address")?;
        Ok(Self { address, _socket: socket })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_closed_port_refuses_connections_and_other_listeners() {
        let closed = ClosedPort::on(Ipv4Addr::LOCALHOST).unwrap();
        let refused = TcpStream::connect(closed.address()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(closed.address()).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
}
