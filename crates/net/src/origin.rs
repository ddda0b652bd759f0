//! The origin of a peer, as far as its address distinguishes it from others.

use std::net::{IpAddr, Ipv6Addr};

/// Bits of an address of IPv6 that name the subnet.
const SUBNET_BITS: u32 = 64;

/// What one peer can have addresses of: one of IPv4, or the subnet of one of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin(IpAddr);

impl Origin {
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            v4 @ IpAddr::V4(_) => Self(v4),
            IpAddr::V6(v6) => {
                let subnet = v6.to_bits() >> SUBNET_BITS << SUBNET_BITS;
                Self(Ipv6Addr::from_bits(subnet).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_one_peer_can_have_are_one_origin() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
