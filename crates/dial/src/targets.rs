//! Where a server is, as an operator writes it: addresses, names with any number of addresses, and
//! services of the DNS, with commas between them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::finding::{Finding, Found, Position};
use crate::race::ADDRESSES_LIMIT;
use crate::{DialError, Missed, Unreached, srv};

/// Entries of one list.
const TARGETS_LIMIT: usize = 16;
/// Time for names, once an address is known: what is found later is not waited for.
const NAMES_WITHIN: Duration = Duration::from_secs(1);
/// What an entry begins with that names a service.
const SRV: &str = "srv:";

/// Where one server is: one address or several, of which any will do. `HOST:PORT`, where the host is a
/// name or an IP address (an IPv6 address in brackets), or `srv:_SERVICE._tcp.DOMAIN`, the SRV records of
/// a name; several with commas between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Targets(Vec<Target>);

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Target {
    /// A name, or an address that needs the system to be read, such as one with a zone.
    Host(String, u16),
    Address(SocketAddr),
    /// A name with SRV records, as `_tollway._tcp.example.org`.
    Service(String),
}

/// What cannot be read as [`Targets`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TargetsError {
    #[error("`{text}` is no address; write HOST:PORT, or srv:_SERVICE._tcp.DOMAIN")]
    Entry { text: String },
    #[error("`{text}` has no port of 1 to 65535; write HOST:PORT")]
    Port { text: String },
    #[error("`{text}` is an IPv6 address; write it in brackets, [ADDRESS]:PORT")]
    Brackets { text: String },
    #[error("`{text}` names no service; write srv:_SERVICE._tcp.DOMAIN")]
    Service { text: String },
    #[error("there are {count} addresses; write at most {TARGETS_LIMIT}")]
    TooMany { count: usize },
}

impl FromStr for Targets {
    type Err = TargetsError;

    fn from_str(text: &str) -> Result<Self, TargetsError> {
        let count = text.split(',').count();
        if count > TARGETS_LIMIT {
            return Err(TargetsError::TooMany { count });
        }
        text.split(',').map(|entry| entry.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Target {
    type Err = TargetsError;

    fn from_str(text: &str) -> Result<Self, TargetsError> {
        let given = || text.to_owned();
        if let Some(name) = text.strip_prefix(SRV) {
            let name = srv::is_service(name).then(|| name.to_owned());
            return name.map(Self::Service).ok_or(TargetsError::Service { text: given() });
        }
        let bare = text.split_once('%').map_or(text, |(address, _)| address);
        if bare.parse::<Ipv6Addr>().is_ok() {
            return Err(TargetsError::Brackets { text: given() });
        }
        let (host, port) = text.rsplit_once(':').ok_or(TargetsError::Port { text: given() })?;
        let port = port.parse::<u16>().ok().filter(|port| *port != 0);
        let port = port.ok_or(TargetsError::Port { text: given() })?;
        let wrong = || TargetsError::Entry { text: given() };
        if let Some(inner) = host.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(wrong)?;
            if let Ok(address) = inner.parse::<Ipv6Addr>() {
                return Ok(Self::Address((address, port).into()));
            }
            // The system knows which device a zone is.
            let (address, zone) = inner.split_once('%').ok_or_else(wrong)?;
            let is_zone = !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_graphic());
            let is_zoned = is_zone && address.parse::<Ipv6Addr>().is_ok();
            return is_zoned.then(|| Self::Host(inner.to_owned(), port)).ok_or_else(wrong);
        }
        match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => Ok(Self::Address((address, port).into())),
            Ok(IpAddr::V6(_)) => Err(TargetsError::Brackets { text: given() }),
            Err(_) if is_host(host) => Ok(Self::Host(host.to_owned(), port)),
            Err(_) => Err(wrong()),
        }
    }
}

/// Whether a text can be the name of a host.
fn is_host(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    // What ends with a number is an IPv4 address, which it is not.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= 253
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_some_and(is_number)
}

fn is_label(label: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=63).contains(&label.len()) && label.bytes().all(is_plain)
}

impl From<SocketAddr> for Targets {
    fn from(address: SocketAddr) -> Self {
        Self(vec![Target::Address(address)])
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, target) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "," })?;
            match target {
                Target::Host(host, port) if host.contains('%') => write!(f, "[{host}]:{port}")?,
                Target::Host(host, port) => write!(f, "{host}:{port}")?,
                Target::Address(address) => write!(f, "{address}")?,
                Target::Service(name) => write!(f, "{SRV}{name}")?,
            }
        }
        Ok(())
    }
}

impl Targets {
    /// The address, where there can be no other.
    #[must_use]
    pub fn only(&self) -> Option<SocketAddr> {
        match self.0.as_slice() {
            [Target::Address(address)] => Some(*address),
            _ => None,
        }
    }

    /// Whether an entry is a name, whose addresses may change.
    #[must_use]
    pub fn have_names(&self) -> bool {
        self.0.iter().any(|target| !matches!(target, Target::Address(_)))
    }

    /// The addresses now, in the order in which they are tried: that of the entries; of a service that of
    /// its records. Each once, and at most [`ADDRESSES_LIMIT`]. What is not found in time is left out.
    ///
    /// # Errors
    /// With every entry's reason, if none is found.
    pub async fn addresses(&self, within: Duration) -> Result<Vec<SocketAddr>, Unreached> {
        let mut finding = self.find();
        let mut until = Instant::now() + within;
        let (mut found, mut missed) = (Vec::new(), Vec::new());
        while !finding.is_over() {
            match timeout_at(until, finding.next()).await {
                Ok(Some(Found::Addresses(position, addresses))) => {
                    if found.is_empty() {
                        until = until.min(Instant::now() + NAMES_WITHIN);
                    }
                    found.push((position, addresses));
                }
                Ok(Some(Found::Nothing(at, error))) => {
                    missed.push(Missed { at, error: DialError::Resolve(error) });
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
        if found.is_empty() {
            let late = finding.unfinished();
            missed.extend(late.map(|at| Missed { at, error: DialError::Timeout { within } }));
            return Err(Unreached { missed });
        }
        found.sort_by_key(|(position, _)| *position);
        let mut all = Vec::new();
        for address in found.into_iter().flat_map(|(_, addresses)| addresses) {
            if !all.contains(&address) && all.len() < ADDRESSES_LIMIT {
                all.push(address);
            }
        }
        Ok(all)
    }

    /// Looks for the addresses of every entry.
    pub(crate) fn find(&self) -> Finding {
        let mut finding = Finding::default();
        for (at, target) in self.0.iter().enumerate() {
            let position = Position::entry(at);
            match target.clone() {
                Target::Address(address) => finding.add_known(position, vec![address]),
                Target::Host(host, port) => finding.add_host(position, host, port),
                Target::Service(name) => finding.add_service(position, name),
            }
        }
        finding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<Targets>().unwrap_err().to_string()
    }

    #[test]
    fn lists_are_read_and_written() {
        for text in [
            "127.0.0.1:15010",
            "control.example.org:15010,[2001:db8::1]:15010",
            "srv:_tollway._tcp.example.org,10.0.0.1:1",
            "[fe80::1%eth0]:15010",
            "control_1.example.org.:1",
        ] {
            assert_eq!(text.parse::<Targets>().unwrap().to_string(), text);
        }
        let spaced: Targets = "a:1, b:2".parse().unwrap();
        assert_eq!(spaced.to_string(), "a:1,b:2");
    }

    #[test]
    fn what_is_no_list_of_addresses_is_refused_with_what_to_write() {
        for text in ["", "host", "host:", "host:70000", "host:0", "10.0.0.1", "a:1,,b:2", "a:1,"] {
            assert!(refused(text).contains("has no port of 1 to 65535; write HOST:PORT"), "{text}");
        }
        for text in [":1", "a b:1", "[::1:15010", "[a]:1", "a/b:1", "300.0.0.1:1", "http://a:1"] {
            let refused = refused(text);
            assert!(refused.contains("is no address; write HOST:PORT, or srv:"), "{refused}");
        }
        for text in ["::1", "2001:db8::1:15010", "fe80::1%eth0", "1:2:3:4:5:6:7:8:15010"] {
            assert!(refused(text).contains("write it in brackets, [ADDRESS]:PORT"), "{text}");
        }
        for text in ["srv:", "srv:a..b", "srv:tollway.example.org", "srv:_a._udp.b", "srv:_a._tcp"]
        {
            assert!(refused(text).contains("names no service; write srv:_SERVICE._tcp"), "{text}");
        }
        let many = vec!["a:1"; TARGETS_LIMIT + 1].join(",");
        assert_eq!(refused(&many), "there are 17 addresses; write at most 16");
    }

    #[tokio::test]
    async fn addresses_come_once_each_in_the_order_of_the_list() {
        let targets: Targets = "10.0.0.1:1,10.0.0.2:2,[::1]:3,10.0.0.1:1".parse().unwrap();
        let found = targets.addresses(Duration::from_secs(1)).await.unwrap();
        let found: Vec<_> = found.iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["10.0.0.1:1", "10.0.0.2:2", "[::1]:3"]);
        assert!(!targets.have_names() && targets.only().is_none());
        let one: Targets = "10.0.0.1:1".parse().unwrap();
        assert_eq!(one.only(), Some("10.0.0.1:1".parse().unwrap()));
        assert!("localhost:1".parse::<Targets>().unwrap().have_names());
    }

    #[tokio::test]
    async fn the_zone_of_an_address_is_that_of_the_device() {
        let targets: Targets = "[fe80::1%lo]:7".parse().unwrap();
        let found = targets.addresses(Duration::from_secs(20)).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "[fe80::1%1]:7");
    }

    #[tokio::test]
    async fn a_name_that_is_not_found_is_left_out_while_there_is_another() {
        let within = Duration::from_secs(20);
        let targets: Targets = "no-such-host.invalid:1,10.0.0.2:2".parse().unwrap();
        assert_eq!(targets.addresses(within).await.unwrap(), ["10.0.0.2:2".parse().unwrap()]);
        let none: Targets = "no-such-host.invalid:1".parse().unwrap();
        let missed = none.addresses(within).await.unwrap_err();
        assert!(missed.to_string().starts_with("no-such-host.invalid:1: "), "{missed}");
    }
}
