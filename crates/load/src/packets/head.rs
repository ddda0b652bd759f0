//! What all packets of a run have in common, and the parameters of the kernel's program.

use std::net::Ipv4Addr;

use tollway_net::device::Device;

/// Headers, and four bytes of payload: the shortest frame.
pub const HEAD_BYTES: usize = 96;
const WORDS: usize = HEAD_BYTES / 8;

const ETHERNET_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const VXLAN_BYTES: usize = 8;
/// Where the inner IPv4 header begins.
const INNER_IP_AT: usize = ETHERNET_BYTES + IP_BYTES + UDP_BYTES + VXLAN_BYTES + ETHERNET_BYTES;

const VXLAN_PORT: u16 = 4789;
/// Says that there is a vni.
const VXLAN_FLAGS: u8 = 0x08;
const UDP: u8 = 17;
const HOPS: u8 = 64;
/// The sender of the packets, which is not in the table.
const GUEST: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 1);
const GUEST_MAC: [u8; 6] = [0x0a, 0, 0, 0, 0, 1];
const GUEST_PORTS: [u16; 2] = [1111, 2222];

/// The headers around the guests' frames; the hardware address they come from is the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    pub to_mac: [u8; 6],
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    /// Of 24 bits.
    pub vni: u32,
}

/// `struct plan` of `bpf/packets.bpf.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    head: [u64; WORDS],
    device: u32,
    flows: u32,
    /// The checksum's sum over the inner IPv4 header without its destination.
    inner_sum: u32,
    unused: u32,
}

// SAFETY: numbers alone, without padding: 12 × 8 bytes and 4 × 4.
#[allow(unsafe_code, reason = "aya asks for the promise that every byte has a value")]
unsafe impl aya::Pod for Plan {}

pub(super) fn plan(device: &Device, outer: &Outer, flows: u32, frame_bytes: usize) -> Plan {
    let head = head(device.mac, outer, frame_bytes);
    let inner_sum = sum(&head[INNER_IP_AT..INNER_IP_AT + IP_BYTES]);
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(head.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Plan { head: words, device: device.index, flows, inner_sum, unused: 0 }
}

/// A frame's beginning, without what the program writes: the outer source port, the inner
/// destination and its hardware address, the inner header's checksum.
fn head(from_mac: [u8; 6], outer: &Outer, frame_bytes: usize) -> [u8; HEAD_BYTES] {
    let mut at = 0;
    let mut all = [0; HEAD_BYTES];
    let mut put = |bytes: &[u8]| {
        all[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    let mut left = frame_bytes - ETHERNET_BYTES;
    ethernet(&mut put, outer.to_mac, from_mac);
    let mut ip = ip(left, outer.from, outer.to);
    let outer_sum = !(sum(&ip) as u16);
    ip[10..12].copy_from_slice(&outer_sum.to_be_bytes());
    put(&ip);
    left -= IP_BYTES;
    udp(&mut put, [0, VXLAN_PORT], left);
    put(&[VXLAN_FLAGS, 0, 0, 0]);
    put(&(outer.vni << 8).to_be_bytes());
    ethernet(&mut put, [0; 6], GUEST_MAC);
    left -= UDP_BYTES + VXLAN_BYTES + ETHERNET_BYTES;
    put(&self::ip(left, GUEST, Ipv4Addr::UNSPECIFIED));
    udp(&mut put, GUEST_PORTS, left - IP_BYTES);
    all
}

fn ethernet(put: &mut impl FnMut(&[u8]), to: [u8; 6], from: [u8; 6]) {
    put(&to);
    put(&from);
    put(&[0x08, 0x00]);
}

/// A header without its checksum, of a packet of so many bytes.
fn ip(bytes: usize, from: Ipv4Addr, to: Ipv4Addr) -> [u8; IP_BYTES] {
    let mut header = [0; IP_BYTES];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    header[8] = HOPS;
    header[9] = UDP;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    header
}

/// Without a checksum, which IPv4 leaves open.
fn udp(put: &mut impl FnMut(&[u8]), [from, to]: [u16; 2], bytes: usize) {
    for half in [from, to, bytes as u16, 0] {
        put(&half.to_be_bytes());
    }
}

/// Of halves in network order, folded.
fn sum(header: &[u8]) -> u32 {
    let halves = header.as_chunks::<2>().0;
    let sum: u32 = halves.iter().map(|half| u32::from(u16::from_be_bytes(*half))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTER: Outer = Outer {
        to_mac: [2, 0, 0, 0, 0, 9],
        from: Ipv4Addr::new(10, 1, 0, 2),
        to: Ipv4Addr::new(10, 1, 0, 1),
        vni: 1000,
    };

    #[test]
    fn lengths_of_the_headers_agree_with_the_frame() {
        let head = head([2, 0, 0, 0, 0, 8], &OUTER, 114);
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        assert_eq!(half(16), 100, "the outer packet");
        assert_eq!(half(36), VXLAN_PORT);
        assert_eq!(half(38), 80, "the outer datagram");
        assert_eq!(head[42..50], [8, 0, 0, 0, 0, 3, 0xe8, 0], "vni 1000");
        assert_eq!(half(66), 50, "the inner packet");
        assert_eq!(half(88), 30, "the inner datagram");
    }

    #[test]
    fn a_header_with_its_checksum_sums_up_to_ones() {
        let head = head([2, 0, 0, 0, 0, 8], &OUTER, HEAD_BYTES);
        assert_eq!(sum(&head[14..34]), 0xffff);
    }
}
