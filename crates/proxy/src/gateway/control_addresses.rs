//! Where a gateway's own control plane is: the address that takes the next connection to it.

use std::net::SocketAddr;
use std::time::Instant;

use super::rotation::Rotation;

/// The addresses of a control plane, in their order.
#[derive(Debug)]
pub(super) struct ControlAddresses {
    addresses: Vec<SocketAddr>,
    rotation: Rotation,
}

impl ControlAddresses {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, rotation: Rotation::default() }
    }

    pub(super) fn replace(&mut self, addresses: Vec<SocketAddr>) {
        self.rotation.retain(|address| addresses.contains(address));
        self.addresses = addresses;
    }

    /// The first that has not failed lately: where several are given, one serves and others stand by.
    pub(super) fn pick(&self, now: Instant) -> Option<SocketAddr> {
        let is_passed_over = |address: &&SocketAddr| self.rotation.is_passed_over(**address, now);
        self.addresses.iter().min_by_key(is_passed_over).copied()
    }

    /// Passes an address over until then. One that is not listed is not remembered.
    pub(super) fn back_off(&mut self, address: SocketAddr, until: Instant) {
        if self.addresses.contains(&address) {
            self.rotation.back_off(address, until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_address_that_has_not_failed_lately_is_taken() {
        let [first, second, other] = [1, 2, 3].map(|port| ([192, 0, 2, 1], port).into());
        let (mut control, now) = (ControlAddresses::new(vec![first, second]), Instant::now());
        assert_eq!(control.pick(now), Some(first));
        control.back_off(first, now + Duration::from_secs(1));
        control.back_off(other, now + Duration::from_secs(1));
        assert_eq!((control.pick(now), control.rotation.passed_over()), (Some(second), 1));
        control.back_off(second, now + Duration::from_secs(1));
        assert_eq!(control.pick(now), Some(first), "all have failed");
        assert_eq!(control.pick(now + Duration::from_secs(1)), Some(first));
        control.replace(vec![other]);
        assert_eq!((control.pick(now), control.rotation.passed_over()), (Some(other), 0));
        control.replace(Vec::new());
        assert_eq!(control.pick(now), None);
    }
}
