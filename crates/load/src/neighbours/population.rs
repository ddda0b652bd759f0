//! The neighbours of a run: made from numbers, each unique, in an order without a pattern.

use std::net::Ipv4Addr;

use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};

/// Most neighbours of one virtual network here: its addresses are those of 10.0.0.0/8.
pub const MAX_NEIGHBOURS: u64 = 1 << 24;

/// Odd, so that every number is met once; far from a power of two, so that its neighbours are far.
const SPREAD: u32 = 0x9e37_79b1;
/// How many hosts the neighbours are behind.
const HOSTS: u32 = 100_000;
/// The virtual network of the first round, and how many there are.
const FIRST_VNI: u32 = 1_000;
const VNIS: u32 = 1_000_000;

/// The neighbours of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Population {
    vni: Vni,
}

impl Population {
    /// Another one for each of the first million rounds, so that every neighbour is new.
    ///
    /// # Panics
    /// Never: the number is one of 24 bits.
    #[must_use]
    pub fn of_round(round: u32) -> Self {
        let vni = Vni::new(FIRST_VNI + round % VNIS).expect("less than 2^24");
        Self { vni }
    }

    /// The address of a neighbour by its number, of which 24 bits count.
    ///
    /// # Panics
    /// Never: a neighbour may have any address of 10.0.0.0/8.
    #[must_use]
    pub fn key(self, number: u32) -> NeighbourKey {
        let low = number.wrapping_mul(SPREAD) % (1 << 24);
        let ip = Ipv4Addr::from_bits(0x0a00_0000 + low);
        NeighbourKey::new(self.vni, ip.into()).expect("an address that a neighbour can have")
    }

    /// A neighbour by its number, as it is after `moves` moves from host to host.
    ///
    /// # Panics
    /// Never: hardware addresses are single ones, hosts in 172.16.0.0/12.
    #[must_use]
    pub fn record(self, number: u32, moves: u32) -> NeighbourRecord {
        let host = number.wrapping_add(moves) % HOSTS;
        let mac = |kind: u8, number: u32| {
            let [_, b, c, d] = number.to_be_bytes();
            Mac::new([2, kind, 0, b, c, d]).expect("a single address")
        };
        let host_ip = Ipv4Addr::from_bits(0xac10_0001 + host);
        let location = HostLocation::new(mac(1, number), host_ip.into(), mac(2, host));
        let location = Some(location.expect("an address that a host can have"));
        NeighbourRecord { key: self.key(number), revision: 0, location }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_neighbour_of_every_round_is_another_one() {
        let keys: HashSet<_> = (0..3)
            .flat_map(|round| {
                (0..50_000).map(move |number| Population::of_round(round).key(number))
            })
            .collect();
        assert_eq!(keys.len(), 150_000);
        let [first, second] = [0, 1].map(|number| Population::of_round(0).key(number));
        assert_eq!(first.to_string(), "vni 1000, 10.0.0.0");
        assert_eq!(second.to_string(), "vni 1000, 10.55.121.177");
    }

    #[test]
    fn a_neighbour_that_moves_is_behind_another_host() {
        let [before, after] = [0, 1].map(|moves| Population::of_round(0).record(5, moves));
        assert_eq!(before.key, after.key);
        let (before, after) = (before.location.unwrap(), after.location.unwrap());
        assert_eq!(before.mac, after.mac);
        assert!(before.host_ip() != after.host_ip() && before.host_mac != after.host_mac);
    }
}
