//! Host and port, as `Host` and request targets write them.

use std::net::Ipv6Addr;

use super::syntax::is_host_name;

/// A host with an optional port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Authority<'a> {
    /// As written; brackets included.
    host: &'a [u8],
    pub(super) port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// `None` if `bytes` is not one by [`is_authority`](super::syntax::is_authority).
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let end = host_end(bytes)?;
        let (host, port) = bytes.split_at(end);
        let port = match port.split_first() {
            None => None,
            Some((b':', digits)) => Some(parse_port(digits)?),
            Some(_) => return None,
        };
        Some(Self { host, port })
    }

    /// Whether both mean the same place: names compared without case, a missing port being
    /// `default_port`. A trailing dot makes a different name.
    pub(super) fn same_as(&self, other: &Self, default_port: u16) -> bool {
        let port = |authority: &Self| authority.port.unwrap_or(default_port);
        self.host.eq_ignore_ascii_case(other.host) && port(self) == port(other)
    }
}

fn host_end(bytes: &[u8]) -> Option<usize> {
    if bytes.first() == Some(&b'[') {
        let close = memchr::memchr(b']', bytes)?;
        std::str::from_utf8(&bytes[1..close]).ok()?.parse::<Ipv6Addr>().ok()?;
        return Some(close + 1);
    }
    let end = memchr::memchr(b':', bytes).unwrap_or(bytes.len());
    is_host_name(&bytes[..end]).then_some(end)
}

fn parse_port(digits: &[u8]) -> Option<u16> {
    if digits.is_empty() || digits.len() > 5 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let port = digits.iter().fold(0u32, |port, digit| port * 10 + u32::from(digit - b'0'));
    u16::try_from(port).ok().filter(|&port| port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_separated() {
        let check = |text: &str, expected: Option<(&str, Option<u16>)>| {
            let parsed = Authority::parse(text.as_bytes());
            let expected = expected.map(|(host, port)| Authority { host: host.as_bytes(), port });
            assert_eq!(parsed, expected, "{text}");
        };
        check("a", Some(("a", None)));
        check("Stock.Shop.east.mesh.:80", Some(("Stock.Shop.east.mesh.", Some(80))));
        check("my_app~1-x:65535", Some(("my_app~1-x", Some(65535))));
        check("10.0.0.1:00080", Some(("10.0.0.1", Some(80))));
        check("[::1]:8080", Some(("[::1]", Some(8080))));
        check("[::ffff:10.0.0.1]", Some(("[::ffff:10.0.0.1]", None)));
        for bad in [
            "",
            ":80",
            "a:",
            "a:0",
            "a:65536",
            "a:999999",
            "a:000080",
            "a:+1",
            "a:8a",
            "a:1:2",
            "a b",
            "a,b",
            "u@a",
            "a/",
            "a%41",
            "a\\b",
            "a\u{e9}",
            "[::1",
            "[::1]x",
            "[::1]:",
            "[fe80::1%25eth0]",
            "[1.2.3.4]",
            "[]",
            "::1",
            "a;b",
            "a?b",
            "a#b",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn case_and_the_default_port_do_not_make_another_place() {
        let same = |a: &str, b: &str| {
            let parse = |text: &'static str| Authority::parse(text.as_bytes()).unwrap();
            parse(a.to_owned().leak()).same_as(&parse(b.to_owned().leak()), 80)
        };
        assert!(same("A.mesh", "a.MESH:80"));
        assert!(same("a:0080", "a"));
        assert!(!same("a:81", "a"));
        assert!(!same("a.", "a"));
        assert!(!same("a", "b"));
    }
}
