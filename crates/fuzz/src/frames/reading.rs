//! Frames as etherparse reads them.

use std::net::IpAddr;

use etherparse::{
    ArpPacketSlice, EtherType, Ethernet2Slice, Icmpv6Slice, IpNumber, Ipv4HeaderSlice,
    Ipv6HeaderSlice, LinkSlice, NetSlice, SlicedPacket, TransportSlice, UdpHeader,
};
use tollway_fabric::layout::Mac;

/// A frame of VXLAN, by its headers.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) to_mac: Mac,
    pub(super) from_mac: Mac,
    pub(super) to: IpAddr,
    pub(super) from: IpAddr,
    pub(super) hops: u8,
    pub(super) to_port: u16,
    pub(super) from_port: u16,
    /// Whether the lengths of IP and UDP agree, and have a frame inside: the library that reads them takes a
    /// length of 0 for one that a larger header states.
    pub(super) is_whole: bool,
    pub(super) is_ip_sum_right: bool,
    /// Left out counts as right.
    pub(super) is_udp_sum_right: bool,
    pub(super) vni: u32,
    pub(super) inner: Vec<u8>,
}

const UDP_AND_VXLAN_BYTES: usize = 16;

/// `None` for what is no VXLAN: VLAN tags, options, fragments and extension headers are none.
pub(super) fn tunnel(frame: &[u8]) -> Option<Tunnel> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(LinkSlice::Ethernet2(link)) = &packet.link else { return None };
    let Some(TransportSlice::Udp(udp)) = &packet.transport else { return None };
    if !packet.link_exts.is_empty() {
        return None;
    }
    let header = UdpHeader { checksum: 0, ..udp.to_header() };
    let (from, to, hops, bytes, is_ip_sum_right, sum): (IpAddr, IpAddr, _, _, _, _) =
        match packet.net.as_ref()? {
            NetSlice::Ipv4(ip) => {
                let head = ip.header();
                if head.ihl() != 5 || head.protocol() != IpNumber::UDP {
                    return None;
                }
                let sum =
                    header.calc_checksum_ipv4_raw(head.source(), head.destination(), udp.payload());
                let is_right = head.to_header().calc_header_checksum() == head.header_checksum();
                let bytes = head.payload_len().ok()?;
                let (from, to) = (head.source_addr().into(), head.destination_addr().into());
                (from, to, head.ttl(), bytes, is_right, sum)
            }
            NetSlice::Ipv6(ip) => {
                let head = ip.header();
                if head.next_header() != IpNumber::UDP {
                    return None;
                }
                let sum =
                    header.calc_checksum_ipv6_raw(head.source(), head.destination(), udp.payload());
                let (from, to) = (head.source_addr().into(), head.destination_addr().into());
                (from, to, head.hop_limit(), head.payload_length(), true, sum)
            }
            NetSlice::Arp(_) => return None,
        };
    let (vxlan, inner) = udp.payload().split_first_chunk::<8>()?;
    let [flags, _, _, _, a, b, c, _] = *vxlan;
    if flags & 8 == 0 || inner.len() < 14 {
        return None;
    }
    Some(Tunnel {
        to_mac: link.destination(),
        from_mac: link.source(),
        to,
        from,
        hops,
        to_port: udp.destination_port(),
        from_port: udp.source_port(),
        is_whole: udp.length() == bytes && usize::from(bytes) >= UDP_AND_VXLAN_BYTES + 14,
        is_ip_sum_right,
        is_udp_sum_right: udp.checksum() == 0 || sum.ok() == Some(udp.checksum()),
        vni: u32::from_be_bytes([0, a, b, c]),
        inner: inner.to_vec(),
    })
}

/// What a guest sent.
pub(super) enum Guest {
    Packet {
        from: IpAddr,
        to: IpAddr,
        hops: u8,
        /// Whether its lengths fit and it goes to one guest.
        is_whole: bool,
        /// Of IPv6 neighbour discovery: type, target, and the option's hardware address.
        message: Option<(u8, IpAddr, Option<Mac>)>,
        /// Whether it is a solicitation, valid or not.
        solicits: bool,
    },
    Arp {
        operation: u16,
        sender: (Mac, IpAddr),
        target: (Mac, IpAddr),
    },
}

/// Who asks for the owner of an address.
pub(super) struct Question {
    pub(super) about: IpAddr,
    /// `None` while the asker looks for a duplicate.
    pub(super) from: Option<IpAddr>,
}

/// Who owns an address.
pub(super) struct Answer {
    pub(super) about: IpAddr,
    pub(super) mac: Mac,
    pub(super) to: IpAddr,
}

pub(super) fn guest(frame: &[u8]) -> Option<Guest> {
    let link = Ethernet2Slice::from_slice_without_fcs(frame).ok()?;
    let payload = link.payload_slice();
    match link.ether_type() {
        EtherType::IPV4 => {
            let ip = Ipv4HeaderSlice::from_slice(payload).ok()?;
            let to = ip.destination_addr();
            let total = usize::from(ip.total_len());
            let is_whole = (ip.slice().len()..=payload.len()).contains(&total);
            Some(Guest::Packet {
                from: ip.source_addr().into(),
                to: to.into(),
                hops: ip.ttl(),
                is_whole: is_whole && !to.is_multicast() && !to.is_broadcast(),
                message: None,
                solicits: false,
            })
        }
        EtherType::IPV6 => {
            let ip = Ipv6HeaderSlice::from_slice(payload).ok()?;
            let body = &payload[40..];
            let bytes = usize::from(ip.payload_length());
            let body = body.get(..bytes);
            let icmp = body.filter(|_| ip.next_header() == IpNumber::IPV6_ICMP);
            Some(Guest::Packet {
                from: ip.source_addr().into(),
                to: ip.destination_addr().into(),
                hops: ip.hop_limit(),
                is_whole: body.is_some() && !ip.destination_addr().is_multicast(),
                message: icmp.and_then(|body| message(body, &ip)),
                solicits: icmp.is_some_and(|body| body.first() == Some(&135)),
            })
        }
        EtherType::ARP => {
            let arp = ArpPacketSlice::from_slice(payload).ok()?.to_packet();
            let message = arp.try_eth_ipv4().ok()?;
            Some(Guest::Arp {
                operation: message.operation.0,
                sender: (message.sender_mac, message.sender_ipv4.into()),
                target: (message.target_mac, message.target_ipv4.into()),
            })
        }
        _ => None,
    }
}

/// A message of neighbour discovery whose checksum is right.
fn message(body: &[u8], ip: &Ipv6HeaderSlice<'_>) -> Option<(u8, IpAddr, Option<Mac>)> {
    let icmp = Icmpv6Slice::from_slice(body).ok()?;
    if !icmp.is_checksum_valid(ip.source(), ip.destination()) {
        return None;
    }
    let target: [u8; 16] = body.get(8..24)?.try_into().ok()?;
    let mac = match body.get(24..32) {
        Some([1 | 2, 1, mac @ ..]) => mac.try_into().ok(),
        _ => None,
    };
    Some((icmp.type_u8(), IpAddr::from(target), mac))
}

impl Guest {
    pub(super) fn question(&self) -> Option<Question> {
        match *self {
            Self::Packet { from, message: Some((135, about, _)), .. } => {
                let from = Some(from).filter(|from| !from.is_unspecified());
                Some(Question { about, from })
            }
            Self::Arp { operation: 1, sender, target } => {
                Some(Question { about: target.1, from: Some(sender.1) })
            }
            Self::Packet { .. } | Self::Arp { .. } => None,
        }
    }

    pub(super) fn answer(&self) -> Option<Answer> {
        match *self {
            Self::Packet { to, message: Some((136, about, Some(mac))), .. } => {
                Some(Answer { about, mac, to })
            }
            Self::Arp { operation: 2, sender, target } => {
                Some(Answer { about: sender.1, mac: sender.0, to: target.1 })
            }
            Self::Packet { .. } | Self::Arp { .. } => None,
        }
    }
}

/// Where a packet goes.
pub(super) fn destination(frame: &[u8]) -> Option<IpAddr> {
    match guest(frame)? {
        Guest::Packet { to, .. } => Some(to),
        Guest::Arp { .. } => None,
    }
}

/// The guest that a frame names as its sender.
pub(super) fn claimed_source(frame: &[u8]) -> Option<IpAddr> {
    match guest(frame)? {
        Guest::Packet { from, message: Some((135, ..)), .. } => {
            Some(from).filter(|from| !from.is_unspecified())
        }
        Guest::Packet { from, .. } => Some(from),
        Guest::Arp { sender, .. } => Some(sender.1).filter(|from| !from.is_unspecified()),
    }
}

/// Whether the checksum of an inner IPv4 header is right.
pub(super) fn ip4_sum(frame: &[u8]) -> bool {
    Ipv4HeaderSlice::from_slice(&frame[14..])
        .is_ok_and(|ip| ip.to_header().calc_header_checksum() == ip.header_checksum())
}
