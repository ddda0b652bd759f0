//! Ports for programs that cannot report where they listen.

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first and the last port that the kernel gives to those who ask for any.
const GIVEN_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// A free TCP port of `ip`, for a program that needs the number before it starts.
///
/// Between this call and the program's the port is not taken by chance: the kernel gives it to no
/// process that binds port 0, and no two calls of this process return the same. Another process may
/// bind exactly this one. A program that can report its port should get port 0.
///
/// # Errors
///
/// None of the ports can be bound, as `ip` is not of this machine or all are taken.
pub fn free_port(ip: IpAddr) -> Result<SocketAddr> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let ports = never_given(&std::fs::read_to_string(GIVEN_PORTS).unwrap_or_default());
    let span = u32::from(ports.end - ports.start);
    // Processes that are started one after another begin in different places.
    let begin = std::process::id().wrapping_mul(101);
    let mut refused = Error::from(ErrorKind::AddrInUse);
    for _ in 0..span {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let offset = u16::try_from(begin.wrapping_add(call) % span).unwrap_or_default();
        let address = SocketAddr::new(ip, ports.start + offset);
        match TcpListener::bind(address) {
            Ok(_) => return Ok(address),
            Err(error) if error.kind() == ErrorKind::AddrInUse => refused = error,
            // For example an address that is not local: no port of it can be bound.
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// Ports that the kernel does not give to those who ask for any, by the text of [`GIVEN_PORTS`], and
/// that no program is known for.
fn never_given(given: &str) -> Range<u16> {
    const BELOW: u16 = 20_000;
    const ABOVE: u16 = 61_000;
    let mut bounds = given.split_whitespace().filter_map(|bound| bound.parse().ok());
    let (first, last) = (bounds.next().unwrap_or(32_768), bounds.next().unwrap_or(ABOVE - 1));
    if first > BELOW {
        BELOW..first
    } else if last < u16::MAX - 1 {
        last.max(ABOVE - 1) + 1..u16::MAX
    } else {
        // All are given: whichever, then.
        BELOW..u16::MAX
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn free_ports_can_be_bound_and_differ() {
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let free: BTreeSet<_> = (0..100).map(|_| free_port(localhost).unwrap()).collect();
        assert_eq!(free.len(), 100);
        let given = never_given(&std::fs::read_to_string(GIVEN_PORTS).unwrap());
        for address in free {
            assert!(given.contains(&address.port()), "{address} of {given:?}");
            TcpListener::bind(address).unwrap();
        }
    }

    #[test]
    fn a_port_that_is_taken_is_passed_over() {
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let held: Vec<_> =
            (0..20).map(|_| TcpListener::bind(free_port(localhost).unwrap()).unwrap()).collect();
        let taken: BTreeSet<_> = held.iter().map(|held| held.local_addr().unwrap()).collect();
        assert_eq!(taken.len(), held.len());
    }

    #[test]
    fn an_address_of_another_machine_has_no_free_port() {
        let error = free_port([192, 0, 2, 1].into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn free_ports_are_outside_the_kernels_own_range() {
        assert_eq!(never_given("32768\t60999\n"), 20_000..32_768);
        assert_eq!(never_given("1024 60999"), 61_000..65_535);
        assert_eq!(never_given("1024 64000"), 64_001..65_535);
        assert_eq!(never_given("1024 65535"), 20_000..65_535);
        assert_eq!(never_given(""), 20_000..32_768, "no such file");
    }
}
