//! The rules by which connections reach linkerd2-proxy, in a namespace of the experiment's own,
//! with which they end.
//!
//! A proxy learns where a connection was going from the kernel's connection tracking, which costs
//! something for each packet. It is done for the connections that need it only: the caller's to
//! its proxy, and those to a proxy's inbound port. Everything else of the namespace, other
//! subjects' requests included, is exempt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tollway_net::netns::NetNs;

/// What is redirected and tracked in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Redirect {
    /// What callers call, and the port of their proxy on loopback.
    pub(super) called: BTreeMap<SocketAddr, u16>,
    /// The port that other proxies call, where there is one.
    pub(super) inbound_port: Option<u16>,
}

impl Redirect {
    /// A file for `nft`. Loading it again replaces what it has loaded before.
    pub(super) fn rules(&self) -> String {
        let asked = self.called.keys().map(SocketAddr::port).chain(self.inbound_port);
        let answering = self.called.values().copied().chain(self.inbound_port);
        let tracked = tracked("dport", asked) + &tracked("sport", answering);
        let mut rules = String::from("table ip tollway_linkerd\ndelete table ip tollway_linkerd\n");
        rules += "table ip tollway_linkerd {\n";
        for (chain, hook) in [("sent", "output"), ("received", "prerouting")] {
            // A `String` takes all that is written.
            let _ = write!(
                rules,
                "  chain {chain} {{\n    type filter hook {hook} priority -300;\n{tracked}    \
                 notrack\n  }}\n"
            );
        }
        // Nothing goes there: a rule that reads a connection's state makes the kernel track
        // connections.
        rules += "  chain tracking {\n    ct state new\n  }\n";
        rules += "  chain redirected {\n    type nat hook output priority -100;\n";
        for (address, to) in &self.called {
            let (ip, port) = (address.ip(), address.port());
            let _ = writeln!(rules, "    ip daddr {ip} tcp dport {port} redirect to :{to}");
        }
        rules + "  }\n}\n"
    }
}

fn tracked(field: &str, ports: impl Iterator<Item = u16>) -> String {
    let ports: BTreeSet<u16> = ports.collect();
    let listed: Vec<String> = ports.iter().map(u16::to_string).collect();
    if listed.is_empty() {
        return String::new();
    }
    format!("    tcp {field} {{ {} }} accept\n", listed.join(", "))
}

/// Whether connections can be redirected here, tried in a namespace made for it. Where none can
/// be made, the caller that needs one reports it.
pub(super) fn probe(nft: &Path) -> Result<(), String> {
    let Ok(namespace) = NetNs::create("probe") else { return Ok(()) };
    let example = Redirect {
        called: BTreeMap::from([(SocketAddr::from(([10, 201, 255, 1], 1)), 2)]),
        inbound_port: Some(3),
    };
    let tried = namespace.run(|| load(nft, &example.rules()));
    tried.map_err(|error| tollway_model::chain(&error))?
}

fn load(nft: &Path, rules: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{} cannot be run: {error}", nft.display());
    let mut command = Command::new(nft);
    command.args(["-f", "-"]).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(rules.as_bytes()) {
            // It has ended without reading all; its status has the reason.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            written => written.map_err(failed)?,
        }
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let first = complaint.lines().next().map_or_else(|| output.status.to_string(), str::to_owned);
    Err(format!("connections cannot be redirected here: nft: {first}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_called_is_redirected_and_only_that_is_tracked() {
        let redirect = Redirect {
            called: ["10.201.0.1:8080", "10.201.0.2:8081"]
                .map(|address| (address.parse().unwrap(), 41_000))
                .into(),
            inbound_port: Some(42_000),
        };
        let expected = "\
table ip tollway_linkerd
delete table ip tollway_linkerd
table ip tollway_linkerd {
  chain sent {
    type filter hook output priority -300;
    tcp dport { 8080, 8081, 42000 } accept
    tcp sport { 41000, 42000 } accept
    notrack
  }
  chain received {
    type filter hook prerouting priority -300;
    tcp dport { 8080, 8081, 42000 } accept
    tcp sport { 41000, 42000 } accept
    notrack
  }
  chain tracking {
    ct state new
  }
  chain redirected {
    type nat hook output priority -100;
    ip daddr 10.201.0.1 tcp dport 8080 redirect to :41000
    ip daddr 10.201.0.2 tcp dport 8081 redirect to :41000
  }
}
";
        assert_eq!(redirect.rules(), expected);
    }

    #[test]
    fn without_callers_nothing_is_redirected() {
        let rules = Redirect { inbound_port: Some(42_000), ..Redirect::default() }.rules();
        assert!(rules.contains("tcp dport { 42000 } accept"), "{rules}");
        assert!(!rules.contains("redirect to"), "{rules}");
    }

    #[test]
    fn a_program_that_is_not_nft_is_reported() {
        if let Err(error) = NetNs::create("test") {
            tollway_testkit::skip!("{error}");
        }
        let refused = probe(Path::new("/bin/false")).unwrap_err();
        assert!(refused.starts_with("connections cannot be redirected here: "), "{refused}");
        let missing = probe(Path::new("/no/such/nft")).unwrap_err();
        assert!(missing.starts_with("/no/such/nft cannot be run: "), "{missing}");
    }
}
