//! The gateways of a joined network, as a gateway of this one sees them: which of them takes the
//! next connection of a workload that may not dial out itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

/// The way into a joined network.
#[derive(Default, Debug)]
pub(super) struct WayInto {
    gateways: Vec<SocketAddr>,
    /// Relays from here to each address.
    relays: HashMap<SocketAddr, usize>,
    /// Addresses that did not answer, and until when others are preferred.
    resting: HashMap<SocketAddr, Instant>,
    turn: usize,
}

impl WayInto {
    /// The control plane tells of gateways; what is remembered of those that stay is kept.
    pub(super) fn replace(&mut self, gateways: Vec<SocketAddr>) {
        self.resting.retain(|address, _| gateways.contains(address));
        self.gateways = gateways;
    }

    /// The gateway with the fewest relays, the next one in turn among equals; one that rests
    /// only if all do.
    pub(super) fn pick(&mut self, now: Instant) -> Option<SocketAddr> {
        self.turn = self.turn.wrapping_add(1);
        let (turn, count) = (self.turn, self.gateways.len());
        let in_turn = (0..count).map(|step| self.gateways[(turn + step) % count]);
        in_turn.min_by_key(|address| {
            let rests = self.resting.get(address).is_some_and(|until| *until > now);
            (rests, self.relays.get(address).copied().unwrap_or(0))
        })
    }

    /// One relay more to an address.
    pub(super) fn count(&mut self, address: SocketAddr) {
        *self.relays.entry(address).or_default() += 1;
    }

    /// One relay less to an address.
    pub(super) fn uncount(&mut self, address: SocketAddr) {
        let Some(count) = self.relays.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            self.relays.remove(&address);
        }
    }

    /// Prefers others for a while. Addresses that are told of no more are not remembered.
    pub(super) fn rest(&mut self, address: SocketAddr, until: Instant) {
        if self.gateways.contains(&address) {
            self.resting.insert(address, until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn connections_are_spread_over_the_gateways() {
        let mut way = WayInto::default();
        assert_eq!(way.pick(Instant::now()), None);
        way.replace(vec![address(1), address(2)]);
        for _ in 0..6 {
            let picked = way.pick(Instant::now()).unwrap();
            way.count(picked);
        }
        assert_eq!(way.relays, HashMap::from([(address(1), 3), (address(2), 3)]));
        way.uncount(address(2));
        assert_eq!(way.pick(Instant::now()), Some(address(2)));
    }

    #[test]
    fn one_that_does_not_answer_is_passed_over_while_others_do() {
        let (mut way, now) = (WayInto::default(), Instant::now());
        way.replace(vec![address(1), address(2)]);
        way.rest(address(1), now + Duration::from_secs(1));
        for _ in 0..4 {
            way.count(address(2));
            assert_eq!(way.pick(now), Some(address(2)));
        }
        assert_eq!(way.pick(now + Duration::from_secs(2)), Some(address(1)));
        way.rest(address(2), now + Duration::from_secs(1));
        assert!(way.pick(now).is_some());
        way.replace(vec![address(2)]);
        assert_eq!(way.pick(now), Some(address(2)));
    }
}
