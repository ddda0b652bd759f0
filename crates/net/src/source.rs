//! Connections from an address of one's choice.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::bind;

use crate::option::bind_without_port;

/// Has a TCP socket connect from `address`; the kernel chooses the port when it connects, one that
/// is free for that destination. A socket that is bound the usual way holds its port against all
/// destinations, also for a minute after it was closed: after 28,000 connections the machine has
/// none left.
///
/// # Errors
/// When the address is not this machine's, or the socket is connected or bound.
pub fn bind_source(socket: impl AsFd, address: IpAddr) -> io::Result<()> {
    bind_without_port(&socket)?;
    Ok(bind(socket, &SocketAddr::new(address, 0))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, connect, getsockname, socket};
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn the_port_is_chosen_when_it_connects() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind_source(&socket, from).unwrap();
        let own = || SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
        assert_eq!(own(), SocketAddr::new(from, 0));
        connect(&socket, &listener.local_addr().unwrap()).unwrap();
        assert_eq!(own().ip(), from);
        assert_ne!(own().port(), 0);
    }

    #[test]
    fn an_address_of_another_machine_is_refused() {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let error = bind_source(&socket, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
