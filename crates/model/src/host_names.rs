//! The host names by which a server on this machine may be called.
//!
//! A web page may be served under a name whose owner changes its address to that of this machine. The
//! browser then takes the server here for the page's own, and sends and reads what the page asks for.
//! So a server that takes no password looks at the name by which it is called.

use std::net::IpAddr;

/// Ends of names that the public DNS does not delegate: containers and this mesh use them.
const PRIVATE_ENDS: [&str; 5] = [".localhost", ".mesh", ".internal", ".svc", ".cluster.local"];

/// Admits every name.
const ANY: &str = "*";

/// Names that are admitted beside addresses and those that no owner of a public name has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// `*` among them admits every name.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        Self(names)
    }

    /// Whether a server may be called by the host of `authority`, a host with or without a port. No host
    /// is admitted: every browser sends one.
    #[must_use]
    pub fn admit(&self, authority: &[u8]) -> bool {
        if authority.is_empty() {
            return true;
        }
        let Ok(authority) = std::str::from_utf8(authority) else { return false };
        let host = host_of(authority);
        is_private(host) || self.0.iter().any(|name| name == ANY || name.eq_ignore_ascii_case(host))
    }
}

/// Without port, brackets and the dot of the root.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) | None => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

/// An address, or a name that no one on the internet can own: one without a dot, or with a private end.
fn is_private(host: &str) -> bool {
    let has_end = |end: &str| {
        let begin = host.len().checked_sub(end.len());
        begin.and_then(|begin| host.get(begin..)).is_some_and(|last| last.eq_ignore_ascii_case(end))
    };
    let is_bare = !host.is_empty() && !host.contains(['.', ':', '@']);
    is_bare || host.parse::<IpAddr>().is_ok() || PRIVATE_ENDS.into_iter().any(has_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_without_a_public_owner_are_admitted() {
        let names = HostNames::new(vec!["api.shop.example".to_owned()]);
        for host in [
            "",
            "127.0.0.1",
            "127.0.0.1:3500",
            "10.0.0.7:3500",
            "[::1]:3500",
            "[fe80::1]",
            "localhost",
            "LOCALHOST:3500",
            "localhost.:3500",
            "web.localhost:3500",
            "my-sidecar:3500",
            "stock.shop.east.mesh",
            "host.docker.internal:3500",
            "web-dapr.shop.svc.cluster.local:3500",
            "web-dapr.shop.svc:3500",
            "API.shop.example:3500",
            "api.shop.example.",
        ] {
            assert!(names.admit(host.as_bytes()), "{host}");
        }
        for host in [
            "rebind.evil.example:3500",
            "127.0.0.1.evil.example",
            "127.0.0.1:3500.evil.example",
            "localhost.evil.example:3500",
            "evil.example.:3500",
            "127.0.0.256",
            "a:b",
            ":80",
            "127.0.0.1:80@evil",
            "evil@localhost",
            "mesh.example",
            "\u{e9}.example",
        ] {
            assert!(!names.admit(host.as_bytes()), "{host}");
        }
        assert!(!names.admit(b"\xff.example") && !HostNames::default().admit(b"api.shop.example"));
        assert!(HostNames::new(vec!["*".to_owned()]).admit(b"rebind.evil.example:3500"));
    }
}
