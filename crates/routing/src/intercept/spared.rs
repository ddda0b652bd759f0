//! What interception leaves alone, and further names for services, as a user writes them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use tollway_model::{AddressRange, Label};

use super::NAME_BYTES;

/// Connections that go where the app wants them, past the sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spared {
    /// To a port of any address.
    Port(u16),
    Range(AddressRange),
}

impl Spared {
    /// The port, if it is one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Port(port) => Some(*port),
            Self::Range(_) => None,
        }
    }

    fn contains(&self, address: SocketAddr) -> bool {
        match self {
            Self::Port(port) => *port == address.port(),
            Self::Range(range) => range.contains(address.ip()),
        }
    }

    /// The first address of the range and the bits of its prefix, if it is one.
    #[must_use]
    pub fn range(&self) -> Option<(IpAddr, u8)> {
        match self {
            Self::Port(_) => None,
            Self::Range(range) => Some((range.first(), range.prefix())),
        }
    }
}

impl FromStr for Spared {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().ok().filter(|port| *port != 0).map(Self::Port);
            return port.ok_or_else(|| "a port is a number from 1 to 65535".to_owned());
        }
        let range = text.parse::<AddressRange>().map(Self::Range);
        range.map_err(|error| format!("it is neither a port nor a range of addresses: {error}"))
    }
}

impl fmt::Display for Spared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => port.fmt(f),
            Self::Range(range) => range.fmt(f),
        }
    }
}

/// Connections out of the mesh with which the sidecar has nothing to do but to pass them on, where the
/// kernel cannot lead them past it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeftAlone {
    spared: Vec<Spared>,
    all: bool,
}

impl LeftAlone {
    /// Those to `spared`, or all of them.
    #[must_use]
    pub fn new(spared: Vec<Spared>, all: bool) -> Self {
        Self { spared, all }
    }

    /// Whether one to this address is left alone. Loopback always is.
    #[must_use]
    pub fn contains(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let address = SocketAddr::new(ip, address.port());
        self.all || ip.is_loopback() || self.spared.iter().any(|spared| spared.contains(address))
    }
}

/// A host name that stands for a service: `NAME=SERVICE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alias {
    pub name: String,
    /// `app[.namespace[.network]]`.
    pub service: String,
}

impl FromStr for Alias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "use NAME=SERVICE, as postgres=db.shop.east";
        let (name, service) = text.split_once('=').ok_or(form)?;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(is_part) {
            return Err(format!("`{name}` is not a host name; {form}"));
        }
        let labels: Vec<&str> = service.split('.').collect();
        if labels.len() > 3 {
            return Err(format!("`{service}` has {} parts; {form}", labels.len()));
        }
        for label in labels {
            Label::new(label).map_err(|error| error.to_string())?;
        }
        Ok(Self { name: name.to_owned(), service: service.to_owned() })
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_left_alone_by_its_port_or_its_range() {
        let spared = ["5432", "10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap());
        let some = LeftAlone::new(spared.to_vec(), false);
        let contains = |of: &LeftAlone, text: &str| of.contains(text.parse().unwrap());
        for text in [
            "192.0.2.1:5432",
            "10.1.2.3:80",
            "[::ffff:10.1.2.3]:80",
            "[fd12::1]:80",
            "127.0.0.2:80",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert!(contains(&some, text), "{text}");
        }
        for text in ["192.0.2.1:80", "[2001:db8::1]:5433"] {
            assert!(!contains(&some, text), "{text}");
            assert!(contains(&LeftAlone::new(Vec::new(), true), text), "{text}");
        }
        assert!(!contains(&LeftAlone::default(), "10.1.2.3:80"));
        assert!(contains(&LeftAlone::default(), "127.0.0.1:80"));
    }

    #[test]
    fn a_port_or_a_range_is_left_alone() {
        for text in ["5432", "10.0.0.0/8", "fd00::/8", "192.0.2.1/32"] {
            let read: Spared = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
        let one: Spared = "192.0.2.1".parse().unwrap();
        assert_eq!(one.to_string(), "192.0.2.1/32");
        for text in ["0", "70000", "", "db", "10.0.0.1/8", "10.0.0.0/33"] {
            assert!(text.parse::<Spared>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_alias_is_a_host_name_and_a_service() {
        let read: Alias = "db.internal=db.shop".parse().unwrap();
        assert_eq!(read, Alias { name: "db.internal".into(), service: "db.shop".into() });
        assert_eq!(read.to_string(), "db.internal=db.shop");
        for (text, words) in [
            ("db", "use NAME=SERVICE"),
            ("=db", "not a host name"),
            ("a b=db", "not a host name"),
            ("a=b.c.d.e", "4 parts"),
            ("a=", "empty"),
        ] {
            let error = text.parse::<Alias>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
