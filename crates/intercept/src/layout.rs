//! What the programs and this crate share, byte by byte as `bpf/intercept.bpf.c` has it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of an address and a port.
pub(crate) const PLACE_LENGTH: usize = 20;
/// Bytes of the settings.
pub(crate) const SETTINGS_LENGTH: usize = 24;
const IP_LENGTH: usize = 16;

/// Where the programs lead sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    /// The cookie of the network namespace in which the sidecar listens; 0 where it is not known.
    pub(crate) netns: u64,
    /// Port for connections.
    pub(crate) listener: u16,
    /// Ports for questions for names.
    pub(crate) names_udp: u16,
    pub(crate) names_tcp: u16,
    /// The port of the app that is opened on loopback alone; 0 for none.
    pub(crate) app_port: u16,
    /// The ports are open at `::1`, too.
    pub(crate) has_ipv6: bool,
    /// Connections out of the mesh are led to the sidecar, too.
    pub(crate) leads_all: bool,
}

impl Settings {
    pub(crate) fn bytes(self) -> [u8; SETTINGS_LENGTH] {
        let mut bytes = [0; SETTINGS_LENGTH];
        bytes[..8].copy_from_slice(&self.netns.to_ne_bytes());
        let ports = [self.listener, self.names_udp, self.names_tcp, self.app_port];
        for (to, port) in bytes[8..16].chunks_exact_mut(2).zip(ports) {
            to.copy_from_slice(&port.to_ne_bytes());
        }
        bytes[16] = u8::from(self.has_ipv6);
        bytes[17] = u8::from(self.leads_all);
        bytes
    }
}

/// An address in the form that the programs compare: IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn mapped(ip: IpAddr) -> [u8; IP_LENGTH] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

pub(crate) fn place(address: SocketAddr) -> [u8; PLACE_LENGTH] {
    let mut bytes = [0; PLACE_LENGTH];
    bytes[..IP_LENGTH].copy_from_slice(&mapped(address.ip()));
    bytes[IP_LENGTH..].copy_from_slice(&u32::from(address.port()).to_ne_bytes());
    bytes
}

pub(crate) fn address(place: [u8; PLACE_LENGTH]) -> SocketAddr {
    let [ip @ .., a, b, c, d] = place;
    let port = u32::from_ne_bytes([a, b, c, d]);
    let ip = IpAddr::V6(Ipv6Addr::from(ip)).to_canonical();
    // The programs write ports of 16 bits.
    SocketAddr::new(ip, u16::try_from(port).unwrap_or_default())
}

/// The key of a range: its bits of 128, and its address.
pub(crate) fn range_bits(ip: IpAddr, prefix_bits: u8) -> u32 {
    let before = if ip.is_ipv4() { 96 } else { 0 };
    before + u32::from(prefix_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in ["127.0.0.1:65535", "[2001:db8::1]:1", "240.1.2.3:80"] {
            let written: SocketAddr = text.parse().unwrap();
            assert_eq!(address(place(written)), written);
        }
    }

    #[test]
    fn an_address_of_ipv4_within_ipv6_is_the_same_place() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert_eq!(place(mapped), place("10.0.0.1:80".parse().unwrap()));
        assert_eq!(address(place(mapped)).to_string(), "10.0.0.1:80");
    }

    #[test]
    fn settings_lie_where_the_programs_read_them() {
        let settings = Settings {
            netns: 0x0102_0304_0506_0708,
            listener: 0x1112,
            names_udp: 0x2122,
            names_tcp: 0x3132,
            app_port: 0x4142,
            has_ipv6: true,
            leads_all: false,
        };
        let bytes = settings.bytes();
        assert_eq!(bytes[..8], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        assert_eq!(bytes[8..10], 0x1112_u16.to_ne_bytes());
        assert_eq!(bytes[14..16], 0x4142_u16.to_ne_bytes());
        assert_eq!(bytes[16..], [1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_range_of_ipv4_counts_the_bits_in_front_of_it() {
        assert_eq!(range_bits("10.0.0.0".parse().unwrap(), 8), 104);
        assert_eq!(range_bits("fd00::".parse().unwrap(), 8), 8);
    }
}
