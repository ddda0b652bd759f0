//! Neighbours for tests.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni, inner_ip};

/// The key of the neighbour of this number.
pub(super) fn key(number: u32) -> NeighbourKey {
    let ip = Ipv4Addr::from(0x0a00_0000 + number);
    NeighbourKey::new(Vni::new(7).unwrap(), ip.into()).unwrap()
}

/// A location on the host of this number.
pub(super) fn location(host: u8) -> HostLocation {
    let mac = |kind| Mac::new([2, kind, 0, 0, 0, host]).unwrap();
    HostLocation::new(mac(1), Ipv4Addr::new(192, 0, 2, host).into(), mac(2)).unwrap()
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_filter("nobody's address", |ip| inner_ip(*ip).is_ok())
}

fn any_mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_filter_map("nobody's hardware address", |octets| Mac::new(octets).ok())
}

fn any_location() -> impl Strategy<Value = HostLocation> {
    (any_mac(), any_ip(), any_mac())
        .prop_map(|(mac, ip, host)| HostLocation::new(mac, ip, host).unwrap())
}

/// A record of any kind.
pub(super) fn any_record() -> impl Strategy<Value = NeighbourRecord> {
    let key = (0_u32..1 << 24, any_ip())
        .prop_map(|(vni, ip)| NeighbourKey::new(Vni::new(vni).unwrap(), ip).unwrap());
    (key, any::<u64>(), proptest::option::of(any_location()))
        .prop_map(|(key, revision, location)| NeighbourRecord { key, revision, location })
}
