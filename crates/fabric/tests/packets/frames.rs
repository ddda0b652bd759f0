//! Frames written down from the standards, checksums computed from the start: what goes into the
//! programs, and what is to come out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) type Mac = [u8; 6];

pub(crate) const VXLAN_PORT: u16 = 4789;
const ETHERTYPE_IP4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IP6: u16 = 0x86dd;

/// The headers around an inner frame.
#[derive(Clone, Debug)]
pub(crate) struct Outer {
    pub(crate) to_mac: Mac,
    pub(crate) from_mac: Mac,
    pub(crate) to: IpAddr,
    pub(crate) from: IpAddr,
    pub(crate) hops: u8,
    pub(crate) from_port: u16,
    pub(crate) to_port: u16,
    /// Whether the UDP checksum is there.
    pub(crate) summed: bool,
    /// Flags and offset, of IPv4.
    pub(crate) fragment: u16,
    pub(crate) vni: u32,
    pub(crate) vxlan_flags: u8,
}

impl Outer {
    pub(crate) fn around(&self, inner: &[u8]) -> Vec<u8> {
        let mut vxlan = vec![self.vxlan_flags, 0, 0, 0];
        vxlan.extend((self.vni << 8).to_be_bytes());
        vxlan.extend(inner);
        let udp = udp(self.from, self.to, self.from_port, self.to_port, &vxlan, self.summed);
        let (kind, packet) = match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (ETHERTYPE_IP4, ip4(from, to, 17, self.hops, self.fragment, &udp))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                (ETHERTYPE_IP6, ip6(from, to, 17, self.hops, &udp))
            }
            other => panic!("no packet goes {other:?}"),
        };
        ethernet(self.to_mac, self.from_mac, kind, &packet)
    }
}

pub(crate) fn ethernet(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

pub(crate) fn ip4(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    ttl: u8,
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend(u16::try_from(20 + payload.len()).unwrap().to_be_bytes());
    header.extend([0x12, 0x34]);
    header.extend(fragment.to_be_bytes());
    header.extend([ttl, protocol, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [header, payload.to_vec()].concat()
}

pub(crate) fn ip6(from: Ipv6Addr, to: Ipv6Addr, next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    header.extend([next, hops]);
    header.extend(from.octets());
    header.extend(to.octets());
    [header, payload.to_vec()].concat()
}

pub(crate) fn udp(
    from: IpAddr,
    to: IpAddr,
    from_port: u16,
    to_port: u16,
    payload: &[u8],
    summed: bool,
) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let mut datagram = Vec::new();
    datagram.extend(from_port.to_be_bytes());
    datagram.extend(to_port.to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    if summed {
        let sum = match checksum(&[&pseudo_header(from, to, 17, datagram.len()), &datagram]) {
            0 => 0xffff,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    datagram
}

/// A frame to a guest, with a UDP datagram in it.
pub(crate) fn guest_frame(
    to_mac: Mac,
    from_mac: Mac,
    from: IpAddr,
    to: IpAddr,
    hops: u8,
) -> Vec<u8> {
    let datagram = udp(from, to, 1111, 2222, b"a payload of odd length", true);
    guest_packet(to_mac, from_mac, from, to, hops, 0, &datagram)
}

/// A frame to a guest; `fragment` is for IPv4.
pub(crate) fn guest_packet(
    to_mac: Mac,
    from_mac: Mac,
    from: IpAddr,
    to: IpAddr,
    hops: u8,
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let packet = ip4(from, to, 17, hops, fragment, payload);
            ethernet(to_mac, from_mac, ETHERTYPE_IP4, &packet)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ethernet(to_mac, from_mac, ETHERTYPE_IP6, &ip6(from, to, 17, hops, payload))
        }
        other => panic!("no packet goes {other:?}"),
    }
}

/// An ARP message within its frame. `operation`: 1 request, 2 reply.
pub(crate) fn arp(
    frame: (Mac, Mac),
    operation: u16,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
) -> Vec<u8> {
    let mut message = vec![0, 1, 8, 0, 6, 4];
    message.extend(operation.to_be_bytes());
    message.extend(sender.0);
    message.extend(sender.1.octets());
    message.extend(target.0);
    message.extend(target.1.octets());
    ethernet(frame.0, frame.1, ETHERTYPE_ARP, &message)
}

/// A message of neighbour discovery within its frame. `kind`: 135 solicitation, 136 advertisement.
pub(crate) fn neighbour_message(
    frame: (Mac, Mac),
    way: (Ipv6Addr, Ipv6Addr),
    kind: u8,
    flags: u32,
    target: Ipv6Addr,
    options: &[u8],
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(flags.to_be_bytes());
    message.extend(target.octets());
    message.extend(options);
    let pseudo = pseudo_header(way.0.into(), way.1.into(), 58, message.len());
    let sum = checksum(&[&pseudo, &message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ethernet(frame.0, frame.1, ETHERTYPE_IP6, &ip6(way.0, way.1, 58, 255, &message))
}

/// The option that carries a hardware address: 1 the source's, 2 the target's.
pub(crate) fn mac_option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1][..], &mac].concat()
}

/// The multicast group for solicitations of an address.
pub(crate) fn solicited_group(ip: Ipv6Addr) -> (Mac, Ipv6Addr) {
    let [.., a, b, c] = ip.octets();
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c];
    group[12] = 0xff;
    ([0x33, 0x33, 0xff, a, b, c], group.into())
}

fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, bytes: usize) -> Vec<u8> {
    let length = u32::try_from(bytes).unwrap();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = u16::try_from(length).unwrap().to_be_bytes();
            [&from.octets()[..], &to.octets(), &[0, protocol], &length].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = length.to_be_bytes();
            [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, protocol]].concat()
        }
        other => panic!("no packet goes {other:?}"),
    }
}

/// The Internet checksum over parts, of which all but the last are even.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
