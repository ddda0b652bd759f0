//! The gateways of a joined network, as a gateway of this one sees them: which of them takes the
//! next connection of a workload that may not dial out itself.

use std::net::SocketAddr;
use std::time::Instant;

use super::rotation::Rotation;

/// The gateways of one joined network.
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

    /// Passes an address over until then. One that is not listed any more is not remembered.
    pub(super) fn back_off(&mut self, address: SocketAddr, until: Instant) {
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
        let mut gateways = RemoteGateways::default();
        assert_eq!(gateways.pick(Instant::now()), None);
        gateways.replace(vec![address(1), address(2)]);
        let picked: Vec<_> = (0..6).filter_map(|_| gateways.pick(Instant::now())).collect();
        for gateway in [address(1), address(2)] {
            assert_eq!(picked.iter().filter(|picked| **picked == gateway).count(), 3);
        }
    }

    #[test]
    fn one_that_does_not_answer_is_passed_over_while_others_do() {
        let (mut gateways, now) = (RemoteGateways::default(), Instant::now());
        gateways.replace(vec![address(1), address(2)]);
        gateways.back_off(address(1), now + Duration::from_secs(1));
        for _ in 0..4 {
            assert_eq!(gateways.pick(now), Some(address(2)));
        }
        let later = now + Duration::from_secs(2);
        assert!((0..2).any(|_| gateways.pick(later) == Some(address(1))));
        gateways.back_off(address(2), now + Duration::from_secs(1));
        assert!(gateways.pick(now).is_some());
        gateways.replace(vec![address(2)]);
        assert_eq!(gateways.pick(now), Some(address(2)));
    }
}
