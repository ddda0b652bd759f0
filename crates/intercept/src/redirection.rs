//! The network namespace of an app, in which nftables redirects what the app connects to.
//!
//! A namespace of the app's own has loopback alone, and each address leads there. So nothing leaves it but
//! what the sidecar takes and passes on, and nothing of the machine is changed. One that app and sidecar
//! share, such as that of a pod, stays as it is but for the redirection.

use std::io;

use rustix::net::netlink::NETFILTER;

use crate::netlink::{APPEND, Attributes, CREATE, Message, send};

/// Of a namespace that has just been made.
const LOOPBACK_DEVICE: u32 = 1;
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const TCP: u8 = 6;
const UDP: u8 = 17;
const PORT_OF_NAMES: u16 = 53;
/// The name of the table, and of its one chain.
const TABLE: &str = "tollway";

/// Where connections and questions for names of the app go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Redirection {
    pub(crate) listener: u16,
    pub(crate) names_udp: u16,
    pub(crate) names_tcp: u16,
    /// Ports of loopback at which the sidecar listens, in its own namespace.
    pub(crate) of_sidecar: Vec<u16>,
    /// The user of the sidecar where it shares the namespace: what it connects to itself is left alone.
    /// Such a namespace has devices and routes, and other chains.
    pub(crate) shared_with: Option<u32>,
    pub(crate) has_ipv6: bool,
}

impl Redirection {
    /// Has the kernel redirect in this thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn begin(&self) -> io::Result<()> {
        self.begin_for(IPV4)?;
        if self.has_ipv6
            && let Err(error) = self.begin_for(IPV6)
        {
            // Then nothing listens at an address of IPv6, and nothing leaves by one.
            tracing::warn!(%error, "the kernel does not redirect connections over IPv6");
        }
        Ok(())
    }

    fn begin_for(&self, family: u8) -> io::Result<()> {
        if self.shared_with.is_none() {
            send(None, &[route_to_loopback(family)])?;
        }
        send(Some(NETFILTER), &self.table(family))
    }

    /// The table of a family, with its chain and rules.
    fn table(&self, family: u8) -> Vec<Message> {
        const BEGIN: u16 = 0x10;
        const END: u16 = 0x11;
        let mut messages = vec![Message::around(BEGIN, &batch())];
        // One that is there goes first, so that doing it again changes nothing.
        for kind in [NEW_TABLE, DELETE_TABLE, NEW_TABLE] {
            let flags = if kind == NEW_TABLE { CREATE } else { 0 };
            messages.push(object(family, kind, flags, Attributes::default().text(1, TABLE)));
        }
        messages.push(object(family, NEW_CHAIN, CREATE, chain()));
        messages.extend(self.rules(family).iter().map(|rule| {
            let attributes = Attributes::default().text(1, TABLE).text(2, TABLE).nested(4, rule);
            object(family, NEW_RULE, CREATE | APPEND, attributes)
        }));
        messages.push(Message::around(END, &batch()));
        messages
    }

    /// What is redirected, in order; the first that fits counts.
    fn rules(&self, family: u8) -> Vec<Attributes> {
        let port = |transport, to, at| redirect(is_to_port(is_of(transport), to), at);
        let mut rules: Vec<_> =
            self.shared_with.map(|user| accept(is_of_user(user))).into_iter().collect();
        rules.extend([
            port(UDP, PORT_OF_NAMES, self.names_udp),
            port(TCP, PORT_OF_NAMES, self.names_tcp),
        ]);
        rules.extend(self.of_sidecar.iter().map(|of_sidecar| {
            let matches = is_to_port(is_to_loopback(is_of(TCP), family), *of_sidecar);
            redirect(matches, self.listener)
        }));
        rules.push(accept(is_to_loopback(Attributes::default(), family)));
        rules.push(redirect(is_of(TCP), self.listener));
        rules
    }
}

/// Finds out whether the kernel redirects, in this thread's network namespace, which is of no use after.
///
/// # Errors
/// The kernel's.
pub(crate) fn check() -> io::Result<()> {
    let (listener, names_udp, names_tcp) = (1, 1, 1);
    let of_sidecar = vec![1];
    let (has_ipv6, shared_with) = (false, None);
    Redirection { listener, names_udp, names_tcp, of_sidecar, shared_with, has_ipv6 }.begin()
}

/// Each address that has no other route is this host's.
fn route_to_loopback(family: u8) -> Message {
    const NEW_ROUTE: u16 = 24;
    const LOCAL_TABLE: u8 = 255;
    const STATIC: u8 = 4;
    const HOST: u8 = 254;
    const LOCAL: u8 = 2;
    let ipv6_loopback = std::net::Ipv6Addr::LOCALHOST.octets();
    let source: &[u8] = if family == IPV4 { &[127, 0, 0, 1] } else { &ipv6_loopback };
    let fixed = [family, 0, 0, 0, LOCAL_TABLE, STATIC, HOST, LOCAL, 0, 0, 0, 0];
    let attributes =
        Attributes::default().bytes(4, &LOOPBACK_DEVICE.to_ne_bytes()).bytes(7, source);
    Message::new(NEW_ROUTE, CREATE, &fixed, attributes)
}

const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
/// The part of netfilter that has the tables.
const TABLES: u8 = 10;

/// The fixed bytes of messages that go around others.
fn batch() -> [u8; 4] {
    [0, 0, 0, TABLES]
}

fn object(family: u8, kind: u16, flags: u16, attributes: Attributes) -> Message {
    let kind = (u16::from(TABLES) << 8) | kind;
    Message::new(kind, flags, &[family, 0, 0, 0], attributes)
}

/// Sees what the namespace sends, before it is routed.
fn chain() -> Attributes {
    const OUTPUT: u32 = 3;
    const PRIORITY: i32 = -100;
    const ACCEPT: u32 = 1;
    let hook = Attributes::default().number(1, OUTPUT).number(2, PRIORITY.cast_unsigned());
    let named = Attributes::default().text(1, TABLE).text(3, TABLE).nested(4, &hook);
    named.number(5, ACCEPT).text(7, "nat")
}

/// The register in which values are compared.
const REGISTER: u32 = 1;

fn expression(rule: Attributes, name: &str, data: &Attributes) -> Attributes {
    rule.nested(1, &Attributes::default().text(1, name).nested(2, data))
}

/// Compares the register.
fn is(rule: Attributes, value: &[u8]) -> Attributes {
    const EQUAL: u32 = 0;
    let value = Attributes::default().bytes(1, value);
    let data = Attributes::default().number(1, REGISTER).number(2, EQUAL).nested(3, &value);
    expression(rule, "cmp", &data)
}

fn is_of(transport: u8) -> Attributes {
    const TRANSPORT: u32 = 16;
    let data = Attributes::default().number(1, REGISTER).number(2, TRANSPORT);
    is(expression(Attributes::default(), "meta", &data), &[transport])
}

/// Whether a process of this user sends it.
fn is_of_user(user: u32) -> Attributes {
    const USER: u32 = 10;
    let data = Attributes::default().number(1, REGISTER).number(2, USER);
    is(expression(Attributes::default(), "meta", &data), &user.to_ne_bytes())
}

/// Reads bytes of a packet into the register: of the header of its network or its transport.
fn read(rule: Attributes, header: u32, offset: u32, length: u32) -> Attributes {
    let data = Attributes::default().number(1, REGISTER).number(2, header);
    expression(rule, "payload", &data.number(3, offset).number(4, length))
}

fn is_to_port(rule: Attributes, port: u16) -> Attributes {
    const OF_TRANSPORT: u32 = 2;
    is(read(rule, OF_TRANSPORT, 2, 2), &port.to_be_bytes())
}

fn is_to_loopback(rule: Attributes, family: u8) -> Attributes {
    const OF_NETWORK: u32 = 1;
    if family == IPV4 {
        return is(read(rule, OF_NETWORK, 16, 1), &[127]);
    }
    is(read(rule, OF_NETWORK, 24, 16), &std::net::Ipv6Addr::LOCALHOST.octets())
}

fn redirect(rule: Attributes, port: u16) -> Attributes {
    let value = Attributes::default().bytes(1, &port.to_be_bytes());
    let load = Attributes::default().number(1, REGISTER).nested(2, &value);
    let redirect = Attributes::default().number(1, REGISTER);
    expression(expression(rule, "immediate", &load), "redir", &redirect)
}

fn accept(rule: Attributes) -> Attributes {
    const VERDICT: u32 = 0;
    const ACCEPT: u32 = 1;
    let verdict = Attributes::default().nested(2, &Attributes::default().number(1, ACCEPT));
    let data = Attributes::default().number(1, VERDICT).nested(2, &verdict);
    expression(rule, "immediate", &data)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tollway_net::AppNetwork;

    use super::*;

    /// What the kernel has understood, as Debian's program prints it.
    #[test]
    fn the_kernel_has_the_rules_that_are_meant() {
        let nft = tollway_testkit::need_tool!("nft");
        let network = tollway_testkit::need_right!(AppNetwork::create("redirected"));
        let redirection = Redirection {
            listener: 5000,
            names_udp: 5001,
            names_tcp: 5002,
            of_sidecar: vec![3500, 50001],
            shared_with: None,
            has_ipv6: true,
        };
        let list = || {
            redirection.begin().unwrap();
            Command::new(&nft).args(["-nn", "list", "ruleset"]).output().unwrap()
        };
        let listed = network.namespace().run(list).unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let rules = |loopback: &str| {
            format!(
                "type nat hook output priority -100; policy accept;
                 udp dport 53 redirect to :5001
                 tcp dport 53 redirect to :5002
                 tcp dport 3500 {loopback} redirect to :5000
                 tcp dport 50001 {loopback} redirect to :5000
                 {loopback} accept
                 meta l4proto 6 redirect to :5000"
            )
        };
        let sorted = |text: &str| {
            let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        let tables: Vec<&str> = listed.split("table ").skip(1).collect();
        assert_eq!(tables.len(), 2, "{listed}");
        for (table, (family, loopback)) in
            tables.iter().zip([("ip", "ip daddr 127.0.0.0/8"), ("ip6", "ip6 daddr ::1")])
        {
            let frame = format!("{family} tollway {{ chain tollway {{ }} }}\n");
            assert_eq!(sorted(table), sorted(&(frame + &rules(loopback))), "{listed}");
        }
    }

    #[test]
    fn a_shared_namespace_spares_the_sidecar_and_doing_it_again_changes_nothing() {
        let nft = tollway_testkit::need_tool!("nft");
        let network = tollway_testkit::need_right!(AppNetwork::create("shared"));
        let redirection = Redirection {
            listener: 5000,
            names_udp: 5001,
            names_tcp: 5001,
            of_sidecar: Vec::new(),
            shared_with: Some(15_001),
            has_ipv6: false,
        };
        let list = || {
            redirection.begin().unwrap();
            redirection.begin().unwrap();
            let rules = Command::new(&nft).args(["-nn", "list", "ruleset"]).output().unwrap();
            let routes = Command::new("ip").args(["route", "show", "table", "all"]).output();
            (rules.stdout, routes.map(|routes| routes.stdout).unwrap_or_default())
        };
        let (rules, routes) = network.namespace().run(list).unwrap();
        let rules = String::from_utf8(rules).unwrap();
        let lines: Vec<&str> = rules.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "table ip tollway {",
                "chain tollway {",
                "type nat hook output priority -100; policy accept;",
                "meta skuid 15001 accept",
                "udp dport 53 redirect to :5001",
                "tcp dport 53 redirect to :5001",
                "ip daddr 127.0.0.0/8 accept",
                "meta l4proto 6 redirect to :5000",
                "}",
                "}",
            ]
        );
        let routes = String::from_utf8(routes).unwrap();
        assert!(!routes.contains("local default"), "{routes}");
    }
}
