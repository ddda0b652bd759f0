//! The gateways of a joined network, as a gateway of this one sees them: which of them takes the
//! next connection of a workload that may not dial out itself.

use std::net::SocketAddr;
use std::time::Instant;

use super::rotation::Rotation;

/// The way into a joined network.
#[derive(Default, Debug)]
pub(super) struct RemoteGateways {
    gateways: Vec<SocketAddr>,
    rotation: Rotation,
}

impl RemoteGateways {
    /// Replaces the gateways by those that the control plane has sent; backoffs of those that stay remain.
    pub(super) fn replace(&mut self, gateways: Vec<SocketAddr>) {
        self.rotation.retain(|address| gateways.contains(address));
        self.gateways = gateways;
    }

    /// The next gateway; one in backoff only if all are. Not the one with the fewest connections,
    /// since callers that replace theirs have the old ones for a while.
    pub(super) fn pick(&mut self, now: Instant) -> Option<SocketAddr> {
        let rotated = self.rotation.next(self.gateways.len()).map(|index| self.gateways[index]);
        rotated.min_by_key(|address| self.rotation.is_passed_over(*address, now))
    }

    /// Prefers others for a while. Addresses that are not listed any more are not remembered.
    pub(super) fn rest(&mut self, address: SocketAddr, until: Instant) {
        if self.gateways.contains(&address) {
            self.rotation.back_off(address, until);
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
        let mut way = RemoteGateways::default();
        assert_eq!(way.pick(Instant::now()), None);
        way.replace(vec![address(1), address(2)]);
        let picked: Vec<_> = (0..6).filter_map(|_| way.pick(Instant::now())).collect();
        for gateway in [address(1), address(2)] {
            assert_eq!(picked.iter().filter(|picked| **picked == gateway).count(), 3);
        }
    }

    #[test]
    fn one_that_does_not_answer_is_passed_over_while_others_do() {
        let (mut way, now) = (RemoteGateways::default(), Instant::now());
        way.replace(vec![address(1), address(2)]);
        way.rest(address(1), now + Duration::from_secs(1));
        for _ in 0..4 {
            assert_eq!(way.pick(now), Some(address(2)));
        }
        let later = now + Duration::from_secs(2);
        assert!((0..2).any(|_| way.pick(later) == Some(address(1))));
        way.rest(address(2), now + Duration::from_secs(1));
        assert!(way.pick(now).is_some());
        way.replace(vec![address(2)]);
        assert_eq!(way.pick(now), Some(address(2)));
    }
}
