//! What the programs and this crate share, byte for byte: `bpf/tables.h` in Rust.
//!
//! Values here have the kernel's form; addresses and names are checked before. Addresses are in
//! network order, numbers in the machine's.

#![allow(unsafe_code, reason = "the types are declared to be plain bytes")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::Pod;

/// The version of these layouts: part of the path under which tables are pinned, so that a
/// program never meets a table of another shape.
pub const VERSION: u32 = 2;

/// A hardware address.
pub type Mac = [u8; 6];

/// The largest number of a virtual network.
pub const MAX_VNI: u32 = 0x00ff_ffff;

const FAMILY_SHIFT: u32 = 24;

/// An address within a virtual network: the key of a neighbour. 20 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Address {
    space: u32,
    ip: [u8; 16],
}

impl Address {
    /// The key of `ip` in virtual network `vni`, of which the lower 24 bits count.
    #[must_use]
    pub fn new(vni: u32, ip: IpAddr) -> Self {
        let (family, ip) = match ip {
            IpAddr::V4(ip) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&ip.octets());
                (4, bytes)
            }
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        Self { space: (vni & MAX_VNI) | family << FAMILY_SHIFT, ip }
    }

    #[must_use]
    pub fn vni(&self) -> u32 {
        self.space & MAX_VNI
    }

    #[must_use]
    pub fn ip(&self) -> IpAddr {
        match (self.space >> FAMILY_SHIFT, self.ip) {
            (4, [a, b, c, d, ..]) => Ipv4Addr::new(a, b, c, d).into(),
            (_, bytes) => Ipv6Addr::from(bytes).into(),
        }
    }

    /// A report of the programs; `None` when it is none.
    #[must_use]
    pub fn from_report(bytes: &[u8]) -> Option<Self> {
        let (space, ip) = bytes.split_at_checked(4)?;
        Some(Self { space: u32::from_ne_bytes(space.try_into().ok()?), ip: ip.try_into().ok()? })
    }
}

/// The owner of an address and its host. 40 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Neighbour {
    pub mac: Mac,
    pub host_mac: Mac,
    /// The listing that brought it: what an older one brought and the newest did not is gone.
    pub round: u32,
    host_ip: [u8; 16],
    /// The store's revision of it.
    pub revision: u64,
}

impl Neighbour {
    #[must_use]
    pub fn new(mac: Mac, host_ip: IpAddr, host_mac: Mac, revision: u64) -> Self {
        Self { mac, host_mac, round: 0, host_ip: mapped(host_ip), revision }
    }

    #[must_use]
    pub fn host_ip(&self) -> IpAddr {
        Ipv6Addr::from(self.host_ip).to_canonical()
    }

    /// Whether both have the same content, apart from their origin.
    #[must_use]
    pub fn has_content_of(&self, other: &Self) -> bool {
        Self { round: 0, ..*self } == Self { round: 0, ..*other }
    }
}

/// Reports of missed addresses in a second that one sender can cause: a guest that lives where its
/// packets come from, or all else that a host sends.
pub const SENDER_MISSES_MAX: u32 = 64;

/// Reports of missed addresses in a second that the senders of one virtual network can cause
/// together, and those that cannot be shown to live where their packets come from.
pub const NETWORK_MISSES_MAX: u32 = 1024;

/// What becomes of a packet whose inner source does not live at its outer source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SourceCheck {
    /// Nothing is checked.
    Off,
    /// It is dropped where the table has another host for the inner source.
    #[default]
    Known,
    /// It is dropped where the table has no entry for the inner source, too.
    Strict,
}

/// Which packets the programs take, and what senders may cause. 48 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Of the device.
    pub mac: Mac,
    port: [u8; 2],
    address4: [u8; 4],
    address6: [u8; 16],
    several_devices: u32,
    quiet_ms: u32,
    source_check: u32,
    sender_misses: u32,
    network_misses: u32,
}

impl Settings {
    /// VXLAN to `port` at an address of a device with this `mac`; unspecified addresses are none.
    #[must_use]
    pub fn new(mac: Mac, port: u16, address4: Ipv4Addr, address6: Ipv6Addr) -> Self {
        Self {
            mac,
            port: port.to_be_bytes(),
            address4: address4.octets(),
            address6: address6.octets(),
            several_devices: 0,
            quiet_ms: 1000,
            source_check: SourceCheck::default() as u32,
            sender_misses: SENDER_MISSES_MAX,
            network_misses: NETWORK_MISSES_MAX,
        }
    }

    /// Packets may leave by another device than they arrived at: the table of links has it.
    #[must_use]
    pub fn with_several_devices(mut self) -> Self {
        self.several_devices = 1;
        self
    }

    /// How long a missed key is not reported again, ms; default 1,000.
    #[must_use]
    pub fn with_quiet_ms(mut self, quiet_ms: u32) -> Self {
        self.quiet_ms = quiet_ms;
        self
    }

    /// What becomes of packets with a source of another host; default [`SourceCheck::Known`].
    #[must_use]
    pub fn with_source_check(mut self, check: SourceCheck) -> Self {
        self.source_check = check as u32;
        self
    }

    /// How many reports of misses in a second one sender can cause, and the senders of one virtual
    /// network together; 0 for no limit. Default [`SENDER_MISSES_MAX`] and [`NETWORK_MISSES_MAX`].
    #[must_use]
    pub fn with_misses(mut self, of_sender: u32, of_network: u32) -> Self {
        (self.sender_misses, self.network_misses) = (of_sender, of_network);
        self
    }
}

/// A network that one of the forwarder's devices is in. 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The device's index.
    pub device: u32,
    /// The largest IP packet, bytes.
    pub mtu: u32,
    pub mac: Mac,
    unused: u16,
    address: [u8; 16],
}

impl Link {
    /// `address` is the forwarder's own in that network.
    #[must_use]
    pub fn new(device: u32, mtu: u32, mac: Mac, address: IpAddr) -> Self {
        Self { device, mtu, mac, unused: 0, address: mapped(address) }
    }
}

/// What was done with the packets of one virtual network. 40 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    pub forwarded_packets: u64,
    /// Of inner frames.
    pub forwarded_bytes: u64,
    /// ARP requests and neighbour solicitations.
    pub answered: u64,
    pub missed: u64,
    pub dropped: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.forwarded_packets += other.forwarded_packets;
        self.forwarded_bytes += other.forwarded_bytes;
        self.answered += other.answered;
        self.missed += other.missed;
        self.dropped += other.dropped;
    }
}

/// What happened to a packet for the forwarder: an index into the table of totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Total {
    Forwarded,
    AnsweredArp,
    AnsweredNd,
    Missed,
    /// Missed too, and the queue of reports was full.
    MissUnreported,
    Malformed,
    Unsupported,
    Flood,
    Expired,
    TooBig,
    NoLink,
    /// A fragment of the outer network: the kernel's.
    OuterFragment,
    /// Of a virtual network for which the table of counters had no room.
    Uncounted,
    /// Missed too, and its sender or network had caused as many reports as it may.
    MissLimited,
    /// Dropped: its inner source lives at another host.
    SourceForeign,
    /// Dropped: the table has no entry for its inner source.
    SourceUnknown,
    /// Let through, though the table has no entry for its inner source.
    SourceUnverified,
}

impl Total {
    pub const ALL: [Self; 17] = [
        Self::Forwarded,
        Self::AnsweredArp,
        Self::AnsweredNd,
        Self::Missed,
        Self::MissUnreported,
        Self::Malformed,
        Self::Unsupported,
        Self::Flood,
        Self::Expired,
        Self::TooBig,
        Self::NoLink,
        Self::OuterFragment,
        Self::Uncounted,
        Self::MissLimited,
        Self::SourceForeign,
        Self::SourceUnknown,
        Self::SourceUnverified,
    ];

    /// As metrics and `tollway fabric status` write it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::AnsweredArp => "answered_arp",
            Self::AnsweredNd => "answered_nd",
            Self::Missed => "missed",
            Self::MissUnreported => "miss_unreported",
            Self::Malformed => "malformed",
            Self::Unsupported => "unsupported",
            Self::Flood => "flood",
            Self::Expired => "expired",
            Self::TooBig => "too_big",
            Self::NoLink => "no_link",
            Self::OuterFragment => "outer_fragment",
            Self::Uncounted => "uncounted",
            Self::MissLimited => "miss_limited",
            Self::SourceForeign => "source_foreign",
            Self::SourceUnknown => "source_unknown",
            Self::SourceUnverified => "source_unverified",
        }
    }
}

/// An address as 16 bytes, IPv4 mapped.
#[must_use]
pub fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

macro_rules! plain {
    ($($name:ty: $bytes:literal),+) => {$(
        // SAFETY: the type is `repr(C)`, `Copy`, and of integers and arrays of them whose sizes add
        // up to its own, hence without padding: any bytes are a value and the reverse.
        unsafe impl Pod for $name {}
        const _: () = assert!(size_of::<$name>() == $bytes);
    )+};
}

plain!(Address: 20, Neighbour: 40, Settings: 48, Link: 32, Counters: 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went_in() {
        for ip in ["10.0.0.1", "0.0.0.0", "fd00::1", "::ffff:10.0.0.1", "::"] {
            let ip: IpAddr = ip.parse().unwrap();
            let key = Address::new(MAX_VNI, ip);
            assert_eq!((key.vni(), key.ip()), (MAX_VNI, ip));
        }
    }

    #[test]
    fn families_have_keys_of_their_own() {
        let v4 = Address::new(7, "10.0.0.1".parse().unwrap());
        let v6 = Address::new(7, "a00:1::".parse().unwrap());
        assert_ne!(v4, v6);
    }

    #[test]
    fn hosts_of_either_family_are_kept() {
        for ip in ["192.0.2.1", "2001:db8::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Neighbour::new([2; 6], ip, [4; 6], 9).host_ip(), ip);
        }
    }

    #[test]
    fn totals_stand_where_the_programs_count_them() {
        let header = include_str!("../bpf/tables.h");
        let names = header.split("enum total {").nth(1).unwrap().split('}').next().unwrap();
        let names: Vec<_> = names
            .lines()
            .filter_map(|line| line.trim().split_once(',').map(|(name, _)| name))
            .filter(|name| *name != "TOTALS")
            .map(|name| name.trim_start_matches("TOTAL_").to_lowercase())
            .collect();
        assert_eq!(names, Total::ALL.map(Total::word));
        for (place, total) in Total::ALL.into_iter().enumerate() {
            assert_eq!(total as usize, place);
        }
    }
}
