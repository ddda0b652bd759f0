//! Whose connections a gateway leads to other networks: those at its inside listener that come from
//! addresses of its own network. Nothing is decrypted here, so the address is all there is to judge.

use std::net::{IpAddr, SocketAddr};

use tollway_model::AddressRange;

use crate::interception::is_private;

/// The addresses of a gateway's own network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Insiders(Vec<AddressRange>);

impl Insiders {
    /// The addresses in these ranges; without any, those that networks use inside.
    pub(crate) fn of(ranges: Vec<AddressRange>) -> Self {
        Self(ranges)
    }

    /// Whether a connection from there is from within. One whose source is not known is not.
    pub(crate) fn have(&self, source: Option<SocketAddr>) -> bool {
        let Some(ip) = source.map(|source| source.ip()) else { return false };
        match self.0.is_empty() {
            true => is_used_inside(ip),
            false => self.0.iter().any(|range| range.has_source(ip)),
        }
    }
}

/// Whether an address is private (RFC 1918), shared (RFC 6598), unique local, link-local or loopback. The
/// internet leads no packets back to it.
fn is_used_inside(ip: IpAddr) -> bool {
    let is_link_local = match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    is_private(ip) || is_link_local || ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn have(ranges: &[&str], ip: &str) -> bool {
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Insiders::of(ranges).have(Some(SocketAddr::new(ip.parse().unwrap(), 40_000)))
    }

    #[test]
    fn addresses_that_networks_use_inside_are_those_of_the_own_network() {
        for (first, last, beside) in [
            ("10.0.0.0", "10.255.255.255", ["9.255.255.255", "11.0.0.0"]),
            ("172.16.0.0", "172.31.255.255", ["172.15.255.255", "172.32.0.0"]),
            ("192.168.0.0", "192.168.255.255", ["192.167.255.255", "192.169.0.0"]),
            ("100.64.0.0", "100.127.255.255", ["100.63.255.255", "100.128.0.0"]),
            ("169.254.0.0", "169.254.255.255", ["169.253.255.255", "169.255.0.0"]),
            ("127.0.0.0", "127.255.255.255", ["126.255.255.255", "128.0.0.0"]),
            ("fc00::", "fdff::ffff", ["fbff::ffff", "fe00::"]),
            ("fe80::", "febf::ffff", ["fe7f::ffff", "fec0::"]),
            ("::1", "::1", ["::", "::2"]),
        ] {
            assert!(have(&[], first) && have(&[], last), "{first}");
            assert!(!beside.iter().any(|ip| have(&[], ip)), "{beside:?}");
        }
        assert!(have(&[], "::ffff:10.0.0.1") && !have(&[], "::ffff:203.0.113.7"));
        assert!(!have(&[], "203.0.113.7") && !have(&[], "2001:db8::5efe:10.0.0.1"));
        assert!(!Insiders::default().have(None));
    }

    #[test]
    fn ranges_take_the_place_of_them() {
        let ranges = ["203.0.113.0/24", "2001:db8::/32"];
        assert!(have(&ranges, "203.0.113.7") && have(&ranges, "::ffff:203.0.113.7"));
        assert!(have(&ranges, "2001:db8::1"));
        assert!(!have(&ranges, "10.0.0.1") && !have(&ranges, "127.0.0.1"));
        assert!(!Insiders::of(vec!["0.0.0.0/0".parse().unwrap()]).have(None));
    }
}
