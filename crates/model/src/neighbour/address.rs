//! The numbers a neighbour is made of, and which of them can be right.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use thiserror::Error;

/// Largest number of a virtual network: VXLAN has 24 bits for it (RFC 7348).
const VNI_LIMIT: u32 = (1 << 24) - 1;

/// Why an address or a number was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    #[error("{0} is not a vni; it has 24 bits: 0 to {VNI_LIMIT}")]
    Vni(u64),
    #[error("`{0}` is not a hardware address; write six hexadecimal octets: 02:00:00:00:00:01")]
    MacText(String),
    #[error("{0} is a group or broadcast address; a neighbour and its host have one of their own")]
    MacGroup(Mac),
    #[error("00:00:00:00:00:00 is nobody's hardware address")]
    MacZero,
    #[error("{ip} is {what}; {whose} has an address of its own")]
    Ip { ip: IpAddr, what: &'static str, whose: &'static str },
    #[error("{ip} is an IPv4 address within IPv6; write {as_v4}")]
    Mapped { ip: IpAddr, as_v4: Ipv4Addr },
}

/// The number of a virtual network, 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Vni(u32);

impl Vni {
    /// # Errors
    /// [`AddressError::Vni`] when it needs more than 24 bits.
    pub fn new(number: u32) -> Result<Self, AddressError> {
        if number > VNI_LIMIT {
            return Err(AddressError::Vni(u64::from(number)));
        }
        Ok(Self(number))
    }

    /// From its three octets, the highest first.
    #[must_use]
    pub fn from_octets([high, middle, low]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, high, middle, low]))
    }

    /// Its three octets, the highest first.
    #[must_use]
    pub fn octets(self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();
        [high, middle, low]
    }

    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hardware address (EUI-48) of one interface: neither all zeros nor a group's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac([u8; 6]);

impl Mac {
    /// # Errors
    /// [`AddressError`] when no single interface can have it.
    pub fn new(octets: [u8; 6]) -> Result<Self, AddressError> {
        if octets[0] & 1 != 0 {
            return Err(AddressError::MacGroup(Self(octets)));
        }
        if octets == [0; 6] {
            return Err(AddressError::MacZero);
        }
        Ok(Self(octets))
    }

    #[must_use]
    pub fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for Mac {
    type Err = AddressError;

    /// Reads six octets of two hexadecimal digits, all with `:` or all with `-` between them.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let malformed = || AddressError::MacText(text.to_owned());
        let between = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(between);
        for octet in &mut octets {
            let part = parts.next().ok_or_else(malformed)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(malformed());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| malformed())?;
        }
        if parts.next().is_some() {
            return Err(malformed());
        }
        Self::new(octets)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Checks the address of a neighbour inside its virtual network.
///
/// # Errors
/// [`AddressError`] when no neighbour can have it.
pub fn inner_ip(ip: IpAddr) -> Result<IpAddr, AddressError> {
    one_of_its_own(ip, "a neighbour")
}

/// Checks the outer address of a host.
///
/// # Errors
/// [`AddressError`] when no host can have it.
pub fn host_ip(ip: IpAddr) -> Result<IpAddr, AddressError> {
    one_of_its_own(ip, "a host")
}

fn one_of_its_own(ip: IpAddr, whose: &'static str) -> Result<IpAddr, AddressError> {
    // One address has one form: these would name the same neighbour twice.
    if let IpAddr::V6(v6) = ip
        && let Some(as_v4) = v6.to_ipv4_mapped()
    {
        return Err(AddressError::Mapped { ip, as_v4 });
    }
    let what = match ip {
        _ if ip.is_unspecified() => "the address of none",
        _ if ip.is_multicast() => "a multicast address",
        _ if ip.is_loopback() => "a loopback address",
        IpAddr::V4(Ipv4Addr::BROADCAST) => "the broadcast address",
        IpAddr::V4(_) | IpAddr::V6(_) => return Ok(ip),
    };
    Err(AddressError::Ip { ip, what, whose })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_ip(text: &str, refusal: Option<&str>) {
        let refused = inner_ip(text.parse().unwrap()).err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), refusal);
    }

    #[test]
    fn a_neighbour_has_an_address_of_its_own() {
        check_ip("10.0.0.1", None);
        check_ip("169.254.1.1", None);
        check_ip("fe80::1", None);
        check_ip("2001:db8::7", None);
        check_ip(
            "0.0.0.0",
            Some("0.0.0.0 is the address of none; a neighbour has an address of its own"),
        );
        check_ip(
            "255.255.255.255",
            Some("255.255.255.255 is the broadcast address; a neighbour has an address of its own"),
        );
        check_ip(
            "ff02::1",
            Some("ff02::1 is a multicast address; a neighbour has an address of its own"),
        );
        check_ip("::1", Some("::1 is a loopback address; a neighbour has an address of its own"));
        check_ip(
            "::ffff:10.0.0.1",
            Some("::ffff:10.0.0.1 is an IPv4 address within IPv6; write 10.0.0.1"),
        );
    }

    #[track_caller]
    fn check_mac(text: &str, shown: Result<&str, &str>) {
        let read = text.parse::<Mac>();
        let found = read.map(|mac| mac.to_string()).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), shown);
    }

    #[test]
    fn a_hardware_address_is_one_interfaces() {
        check_mac("02:00:5E:00:00:01", Ok("02:00:5e:00:00:01"));
        check_mac("02-00-5e-00-00-01", Ok("02:00:5e:00:00:01"));
        check_mac("00:00:00:00:00:00", Err("00:00:00:00:00:00 is nobody's hardware address"));
        check_mac(
            "ff:ff:ff:ff:ff:ff",
            Err(
                "ff:ff:ff:ff:ff:ff is a group or broadcast address; a neighbour and its host have one of their own",
            ),
        );
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "02:00-00:00:00:1",
            "0+:00:00:00:00:01",
        ] {
            check_mac(
                text,
                Err(&format!(
                    "`{text}` is not a hardware address; write six hexadecimal octets: 02:00:00:00:00:01"
                )),
            );
        }
    }

    #[test]
    fn a_vni_has_24_bits() {
        assert_eq!(Vni::new(0x00ab_cdef).unwrap().octets(), [0xab, 0xcd, 0xef]);
        assert_eq!(Vni::from_octets([0xab, 0xcd, 0xef]).number(), 0x00ab_cdef);
        let refused = Vni::new(1 << 24).unwrap_err().to_string();
        assert_eq!(refused, "16777216 is not a vni; it has 24 bits: 0 to 16777215");
    }
}
