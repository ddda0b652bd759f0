//! IP addresses that others state: what each of them leads to, and the ranges that an operator
//! allows.
//!
//! Several forms of IPv6 stand for an IPv4 address, and a router or the kernel leads them there.
//! Each of them is judged by that address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// What an address leads to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AddressKind {
    /// One host of the internet.
    Public,
    /// One host of a private network: RFC 1918, unique local, shared, reserved for tests, or of a
    /// tunnel.
    Private,
    LinkLocal,
    /// The machine of the process that dials.
    Loopback,
    /// No single host: unspecified, multicast, broadcast or reserved.
    NoHost,
}

impl AddressKind {
    /// The kind of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

impl fmt::Display for AddressKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "a public address",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "a loopback address",
            Self::NoHost => "not the address of one host",
        })
    }
}

fn of_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        [0 | 224..=255, ..] => AddressKind::NoHost,
        [127, ..] => AddressKind::Loopback,
        [169, 254, ..] => AddressKind::LinkLocal,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => {
            AddressKind::Private
        }
        [192, 0, 0, _] | [198, 18 | 19, ..] => AddressKind::Private,
        _ => AddressKind::Public,
    }
}

fn of_v6(address: Ipv6Addr) -> AddressKind {
    if let Some(inner) = inner_v4(address) {
        return of_v4(inner);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressKind::Loopback,
        // Unspecified, or an IPv4 address in a form that is out of use.
        [0, 0, 0, 0, 0, 0, _, _] | [0xff00..=0xffff, ..] => AddressKind::NoHost,
        [0xfe80..=0xfebf, ..] => AddressKind::LinkLocal,
        // Unique local and site local; local translation, Teredo, discard.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..]
        | [0x64, 0xff9b, 1, ..]
        | [0x2001, 0, ..]
        | [0x100, 0, 0, 0, ..] => AddressKind::Private,
        _ => AddressKind::Public,
    }
}

/// The IPv4 address to which an IPv6 address leads.
fn inner_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        // Mapped, translated (RFC 7915), NAT64, 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(v4(high, low)),
        // ISATAP.
        [.., 0 | 0x200, 0x5efe, high, low] => Some(v4(high, low)),
        _ => None,
    }
}

/// The address to which an address leads: an IPv4 address in the form of IPv6 as IPv4.
#[must_use]
pub fn plain_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => inner_v4(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// A range of addresses, `10.2.0.0/16`; one address is a range of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressRange {
    first: IpAddr,
    prefix: u8,
}

/// Why a text is no range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressRangeError {
    #[error("it must be a range of addresses such as 10.2.0.0/16 or fd00:2::/32")]
    Form,
    #[error("the prefix of {0} has at most {1} bits")]
    Prefix(IpAddr, u8),
    #[error("{0} is not the first address of its range; write {1}")]
    NotFirst(IpAddr, AddressRange),
}

impl AddressRange {
    /// Whether an address is in the range, or leads to one that is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let in_range = |address| masked(address, self.prefix) == Some(self.first);
        in_range(address) || in_range(plain_address(address))
    }

    /// Whether a connection from an address is from the range. Unlike [`Self::contains`] it looks at no
    /// IPv4 address that an IPv6 address leads to: its owner chooses the last bits of it, and so that
    /// one. Only the form that the kernel gives IPv4 on a socket of IPv6 counts as IPv4.
    #[must_use]
    pub fn has_source(&self, address: IpAddr) -> bool {
        let in_range = |address| masked(address, self.prefix) == Some(self.first);
        in_range(address) || in_range(address.to_canonical())
    }

    /// Its first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The bits that all its addresses begin with.
    #[must_use]
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The range of one address.
    #[must_use]
    pub fn one(address: IpAddr) -> Self {
        Self { first: address, prefix: bits(address) }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first address of the range with that prefix; `None` for a prefix that is too long.
fn masked(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    let host = bits(address).checked_sub(prefix)?;
    Some(match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(host.into()).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(host.into()).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    })
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| AddressRangeError::Form)?;
        let Some(prefix) = prefix else { return Ok(Self::one(address)) };
        let prefix: u8 = prefix.parse().map_err(|_| AddressRangeError::Form)?;
        let first = masked(address, prefix)
            .ok_or_else(|| AddressRangeError::Prefix(address, bits(address)))?;
        let range = Self { first, prefix };
        if first == address { Ok(range) } else { Err(AddressRangeError::NotFirst(address, range)) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_judged_by_what_it_leads_to() {
        use AddressKind::{LinkLocal, Loopback, NoHost, Private, Public};
        for (address, kind) in [
            ("203.0.113.7", Public),
            ("1.1.1.1", Public),
            ("172.15.0.1", Public),
            ("172.32.0.1", Public),
            ("0.0.0.0", NoHost),
            ("0.1.2.3", NoHost),
            ("224.0.0.1", NoHost),
            ("239.255.255.255", NoHost),
            ("240.0.0.1", NoHost),
            ("255.255.255.255", NoHost),
            ("127.0.0.1", Loopback),
            ("127.255.255.254", Loopback),
            ("169.254.169.254", LinkLocal),
            ("10.0.0.1", Private),
            ("172.16.0.1", Private),
            ("172.31.255.255", Private),
            ("192.168.0.1", Private),
            ("100.64.0.1", Private),
            ("192.0.0.8", Private),
            ("198.18.0.1", Private),
            ("::", NoHost),
            ("::1", Loopback),
            ("::7f00:1", NoHost),
            ("ff02::1", NoHost),
            ("fe80::1", LinkLocal),
            ("febf::1", LinkLocal),
            ("fec0::1", Private),
            ("fc00::1", Private),
            ("fdff::1", Private),
            ("2001:4860::1", Public),
            ("2001:db8::1", Public),
            // IPv4 in the form of IPv6.
            ("::ffff:127.0.0.1", Loopback),
            ("::ffff:10.0.0.1", Private),
            ("::ffff:203.0.113.7", Public),
            ("::ffff:0.0.0.0", NoHost),
            ("::ffff:0:127.0.0.1", Loopback),
            ("64:ff9b::127.0.0.1", Loopback),
            ("64:ff9b::169.254.169.254", LinkLocal),
            ("64:ff9b::203.0.113.7", Public),
            ("64:ff9b:1::1", Private),
            ("2002:7f00:1::", Loopback),
            ("2002:a00:1::1", Private),
            ("2002:cb00:7107::1", Public),
            ("2001:0:4136:e378::1", Private),
            ("fe80::5efe:127.0.0.1", Loopback),
            ("2001:db8::200:5efe:10.0.0.1", Private),
        ] {
            assert_eq!(AddressKind::of(address.parse().unwrap()), kind, "{address}");
        }
    }

    #[test]
    fn the_kind_of_an_address_is_named_in_messages() {
        let text = |address: &str| AddressKind::of(address.parse().unwrap()).to_string();
        assert_eq!(text("203.0.113.7"), "a public address");
        assert_eq!(text("10.0.0.1"), "a private address");
        assert_eq!(text("fe80::1"), "a link-local address");
        assert_eq!(text("::1"), "a loopback address");
        assert_eq!(text("224.0.0.1"), "not the address of one host");
    }

    /// The harm: a stranger takes an address that is free to take and stands for one of the range.
    #[test]
    fn a_source_is_of_a_range_by_its_own_address() {
        let has = |range: &str, source: &str| {
            range.parse::<AddressRange>().unwrap().has_source(source.parse().unwrap())
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.0/8", "::ffff:10.0.0.1") && !has("10.0.0.0/8", "::ffff:11.0.0.1"));
        assert!(has("::ffff:10.0.0.0/104", "::ffff:10.0.0.1"));
        assert!(has("fd00::/8", "fd00::1") && !has("fd00::/8", "2001:db8::1"));
        for other in
            ["2001:db8::5efe:10.0.0.1", "2002:a00:1::1", "64:ff9b::10.0.0.1", "::ffff:0:10.0.0.1"]
        {
            assert!(!has("10.0.0.0/8", other), "{other}");
            assert!("10.0.0.0/8".parse::<AddressRange>().unwrap().contains(other.parse().unwrap()));
        }
        assert!(has("0.0.0.0/0", "203.0.113.7") && !has("0.0.0.0/0", "2001:db8::1"));
        assert!(has("::/0", "2001:db8::1"));
    }

    #[test]
    fn a_range_contains_its_addresses_in_every_form() {
        let contains = |range: &str, address: &str| {
            range.parse::<AddressRange>().unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("10.2.0.0/16", "10.2.255.255"));
        assert!(contains("10.2.0.0/16", "::ffff:10.2.0.1"));
        assert!(!contains("10.2.0.0/16", "10.3.0.0"));
        assert!(!contains("10.2.0.0/16", "2001:db8::1"));
        assert!(contains("127.0.0.1", "127.0.0.1"));
        assert!(!contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("0.0.0.0/0", "203.0.113.7"));
        assert!(contains("::/0", "2001:db8::1"));
        assert!(contains("fd00:2::/32", "fd00:2::7"));
        assert!(contains("64:ff9b::/96", "64:ff9b::10.0.0.1"));
        assert!(contains("2001:db8::/127", "2001:db8::1"));
        assert!(!contains("2001:db8::/127", "2001:db8::2"));
    }

    #[test]
    fn ranges_are_read_as_they_are_written() {
        for text in ["10.2.0.0/16", "0.0.0.0/0", "127.0.0.1/32", "fd00:2::/32", "::/0"] {
            let range: AddressRange = text.parse().unwrap();
            assert_eq!(range.to_string(), text);
            assert_eq!(format!("{}/{}", range.first(), range.prefix()), text);
        }
        let refused = |text: &str| text.parse::<AddressRange>().unwrap_err().to_string();
        let form = "it must be a range of addresses such as 10.2.0.0/16 or fd00:2::/32";
        for text in ["", "/8", "10.0.0.0/", "10.0.0.0/-1", "10.0.0/8", "host/8", "10.0.0.0/8/8"] {
            assert_eq!(refused(text), form, "{text}");
        }
        assert_eq!(refused("10.0.0.0/33"), "the prefix of 10.0.0.0 has at most 32 bits");
        assert_eq!(
            refused("10.2.3.4/16"),
            "10.2.3.4 is not the first address of its range; write 10.2.0.0/16"
        );
    }
}
