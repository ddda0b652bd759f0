//! Which addresses others may state: workloads at their registration, and joined networks for their
//! gateways. Pure.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;
use tollway_model::{AddressKind, AddressRange, plain_address};

/// Where a registration comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The peer of the connection is the process itself, or its NAT.
    Direct(IpAddr),
    /// A gateway may be in between: the address of the peer is then the gateway's.
    Relayed,
}

/// Why an address is refused.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum AddressRefusal {
    #[error("{0} is {kind}; state one at which connections arrive", kind = AddressKind::NoHost)]
    NoHost(SocketAddr),
    #[error(
        "{0} is a link-local address of IPv6, which leads elsewhere from every machine; state one that others can connect to"
    )]
    Zone(SocketAddr),
    #[error("{0} is an address of this network itself; state one of the other network's gateways")]
    Own(SocketAddr),
    #[error(
        "{address} is on the machine of an own gateway or the own control plane; if that is meant, start the control plane that refuses it with --peer-addresses {range}"
    )]
    OwnMachine { address: SocketAddr, range: AddressRange },
    #[error(
        "{address} is {kind}; if that is meant, start the control plane that refuses it with --peer-addresses {range}"
    )]
    Kind { address: SocketAddr, kind: AddressKind, range: AddressRange },
    #[error(
        "the workload states {stated}, and its registration comes from {from}; set --advertise to an address of that machine, or start the control plane with --workload-addresses {range}"
    )]
    NotTheOrigin { stated: SocketAddr, from: IpAddr, range: AddressRange },
    #[error(
        "the workload states {stated}, and its registration comes through a gateway; connect to the control plane directly, or start it with --workload-addresses {range}"
    )]
    Relayed { stated: SocketAddr, range: AddressRange },
}

/// Checks where a workload accepts calls: at the address that its registration comes from, at
/// loopback if that comes over loopback, or in `allowed`.
pub(crate) fn check_workload(
    stated: SocketAddr,
    origin: Origin,
    allowed: &[AddressRange],
) -> Result<(), AddressRefusal> {
    check_host(stated)?;
    if allowed.iter().any(|range| range.contains(stated.ip())) {
        return Ok(());
    }
    let range = AddressRange::one(plain_address(stated.ip()));
    match origin {
        Origin::Direct(from) if is_same_machine(stated.ip(), from) => Ok(()),
        Origin::Direct(from) => Err(AddressRefusal::NotTheOrigin { stated, from, range }),
        Origin::Relayed => Err(AddressRefusal::Relayed { stated, range }),
    }
}

fn is_same_machine(stated: IpAddr, from: IpAddr) -> bool {
    let is_loopback = |address| AddressKind::of(address) == AddressKind::Loopback;
    plain_address(stated) == plain_address(from) || (is_loopback(stated) && is_loopback(from))
}

/// Checks that an address is that of one host, the same from every machine.
pub(crate) fn check_host(stated: SocketAddr) -> Result<(), AddressRefusal> {
    let is_plain = plain_address(stated.ip()).is_ipv6();
    if is_plain && AddressKind::of(stated.ip()) == AddressKind::LinkLocal {
        return Err(AddressRefusal::Zone(stated));
    }
    if AddressKind::of(stated.ip()) == AddressKind::NoHost {
        return Err(AddressRefusal::NoHost(stated));
    }
    Ok(())
}

/// Checks a gateway that the operator of this network has named, by the bundle that was accepted. It may
/// be in a private network. A bundle is a file that others have written, so it leads to this machine only
/// where the control plane listens there alone, and to no other process on its link, such as a metadata
/// server, unless `allowed` has the address.
///
/// `own`: where the own gateways and the own control plane listen; `listen`: the latter alone.
pub(crate) fn check_named_gateway(
    stated: SocketAddr,
    own: impl Iterator<Item = SocketAddr>,
    listen: SocketAddr,
    allowed: &[AddressRange],
) -> Result<(), AddressRefusal> {
    check_other_network(stated, own)?;
    let ip = plain_address(stated.ip());
    let kind = AddressKind::of(ip);
    let may_be_named = match kind {
        AddressKind::Public | AddressKind::Private => true,
        AddressKind::Loopback => AddressKind::of(listen.ip()) == AddressKind::Loopback,
        AddressKind::LinkLocal | AddressKind::NoHost => false,
    };
    if may_be_named || allowed.iter().any(|range| range.contains(stated.ip())) {
        return Ok(());
    }
    Err(AddressRefusal::Kind { address: stated, kind, range: range_of(ip, kind) })
}

/// Checks that an address is one host's, and none of `own`.
fn check_other_network(
    stated: SocketAddr,
    mut own: impl Iterator<Item = SocketAddr>,
) -> Result<(), AddressRefusal> {
    check_host(stated)?;
    let plain = |address: SocketAddr| (plain_address(address.ip()), address.port());
    if own.any(|own| plain(own) == plain(stated)) {
        return Err(AddressRefusal::Own(stated));
    }
    Ok(())
}

/// Checks a gateway that a joined network states: a public address that none of `own` has, or one in
/// `allowed`.
pub(crate) fn check_peer_gateway(
    stated: SocketAddr,
    own: impl Iterator<Item = SocketAddr> + Clone,
    allowed: &[AddressRange],
) -> Result<(), AddressRefusal> {
    check_other_network(stated, own.clone())?;
    let ip = plain_address(stated.ip());
    if allowed.iter().any(|range| range.contains(stated.ip())) {
        return Ok(());
    }
    let kind = AddressKind::of(ip);
    let (address, range) = (stated, range_of(ip, kind));
    if kind != AddressKind::Public {
        return Err(AddressRefusal::Kind { address, kind, range });
    }
    if own.into_iter().any(|own| plain_address(own.ip()) == ip) {
        return Err(AddressRefusal::OwnMachine { address, range });
    }
    Ok(())
}

/// The range to allow for one address: of loopback all of it, since that is one machine.
fn range_of(address: IpAddr, kind: AddressKind) -> AddressRange {
    let loopback = "127.0.0.0/8".parse().ok().filter(|_| kind == AddressKind::Loopback);
    loopback.filter(|_| address.is_ipv4()).unwrap_or_else(|| AddressRange::one(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<AddressRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn outcome(result: Result<(), AddressRefusal>) -> &'static str {
        match result {
            Ok(()) => "taken",
            Err(AddressRefusal::NoHost(_)) => "no host",
            Err(AddressRefusal::Zone(_)) => "zone",
            Err(AddressRefusal::Own(_)) => "own",
            Err(AddressRefusal::OwnMachine { .. }) => "own machine",
            Err(AddressRefusal::Kind { .. }) => "kind",
            Err(AddressRefusal::NotTheOrigin { .. }) => "not the origin",
            Err(AddressRefusal::Relayed { .. }) => "relayed",
        }
    }

    #[test]
    fn a_workload_is_where_its_registration_comes_from() {
        for (stated, from, allowed, expected) in [
            ("10.0.0.7:1", "10.0.0.7", &[][..], "taken"),
            ("10.0.0.7:1", "::ffff:10.0.0.7", &[], "taken"),
            ("[::ffff:10.0.0.7]:1", "10.0.0.7", &[], "taken"),
            ("[fd00::7]:1", "fd00::7", &[], "taken"),
            ("[fd00::8]:1", "fd00::7", &[], "not the origin"),
            ("10.0.0.8:1", "10.0.0.7", &[], "not the origin"),
            ("10.0.0.8:1", "10.0.0.7", &["10.0.0.0/24"], "taken"),
            ("10.0.1.8:1", "10.0.0.7", &["10.0.0.0/24"], "not the origin"),
            ("127.0.0.1:1", "127.0.0.1", &[], "taken"),
            ("127.0.2.1:1", "127.0.0.1", &[], "taken"),
            ("[::1]:1", "127.0.0.1", &[], "taken"),
            ("127.0.0.1:1", "::1", &[], "taken"),
            ("127.0.0.1:1", "10.0.0.7", &[], "not the origin"),
            ("[::1]:1", "10.0.0.7", &[], "not the origin"),
            ("[64:ff9b::127.0.0.1]:1", "10.0.0.7", &[], "not the origin"),
            ("[2002:7f00:1::]:1", "10.0.0.7", &[], "not the origin"),
            ("169.254.169.254:1", "10.0.0.7", &[], "not the origin"),
            ("0.0.0.0:1", "0.0.0.0", &["0.0.0.0/0"], "no host"),
            ("0.0.0.1:1", "127.0.0.1", &["0.0.0.0/0"], "no host"),
            ("[::]:1", "::1", &["::/0"], "no host"),
            ("[::ffff:0.0.0.0]:1", "127.0.0.1", &["::/0"], "no host"),
            ("224.0.0.1:1", "127.0.0.1", &["0.0.0.0/0"], "no host"),
            ("255.255.255.255:1", "127.0.0.1", &["0.0.0.0/0"], "no host"),
            ("[ff02::1]:1", "::1", &["::/0"], "no host"),
            ("10.0.0.7:1", "relayed", &[], "relayed"),
            ("127.0.0.1:1", "relayed", &[], "relayed"),
            ("10.0.0.7:1", "relayed", &["10.0.0.0/8"], "taken"),
        ] {
            let origin = from.parse().map_or(Origin::Relayed, Origin::Direct);
            let checked = check_workload(stated.parse().unwrap(), origin, &ranges(allowed));
            assert_eq!(outcome(checked), expected, "{stated} from {from} with {allowed:?}");
        }
    }

    #[test]
    fn a_joined_network_leads_nowhere_inside() {
        let own = ["192.0.2.1:15443", "10.9.0.1:15443"].map(|own| own.parse().unwrap());
        for (stated, allowed, expected) in [
            ("203.0.113.7:15443", &[][..], "taken"),
            ("[2001:db8::7]:15443", &[], "taken"),
            ("[::ffff:203.0.113.7]:15443", &[], "taken"),
            ("127.0.0.1:6379", &[], "kind"),
            ("[::1]:6379", &[], "kind"),
            ("[::ffff:127.0.0.1]:6379", &[], "kind"),
            ("[64:ff9b::127.0.0.1]:6379", &[], "kind"),
            ("[2002:7f00:1::]:6379", &[], "kind"),
            ("10.0.0.5:6379", &[], "kind"),
            ("[2002:a00:5::1]:6379", &[], "kind"),
            ("192.168.1.1:80", &[], "kind"),
            ("169.254.169.254:80", &[], "kind"),
            ("[fe80::1]:80", &[], "zone"),
            ("[fe80::1]:80", &["fe80::/10"], "zone"),
            ("[fd00::1]:80", &[], "kind"),
            ("0.0.0.0:6379", &["0.0.0.0/0"], "no host"),
            ("[::]:6379", &["::/0"], "no host"),
            ("224.0.0.1:80", &["0.0.0.0/0"], "no host"),
            ("255.255.255.255:80", &["0.0.0.0/0"], "no host"),
            ("127.0.0.1:16443", &["127.0.0.0/8"], "taken"),
            ("[::ffff:127.0.0.1]:16443", &["127.0.0.0/8"], "taken"),
            ("10.2.0.1:15443", &["10.2.0.0/16"], "taken"),
            ("10.3.0.1:15443", &["10.2.0.0/16"], "kind"),
            // Where this network listens itself.
            ("192.0.2.1:15443", &["192.0.2.0/24"], "own"),
            ("[::ffff:192.0.2.1]:15443", &["192.0.2.0/24"], "own"),
            ("192.0.2.1:22", &[], "own machine"),
            ("10.9.0.1:22", &[], "kind"),
            ("192.0.2.1:16443", &["192.0.2.1/32"], "taken"),
            ("10.9.0.1:15443", &["10.0.0.0/8"], "own"),
        ] {
            let stated = stated.parse().unwrap();
            let checked = check_peer_gateway(stated, own.into_iter(), &ranges(allowed));
            assert_eq!(outcome(checked), expected, "{stated} with {allowed:?}");
        }
    }

    #[test]
    fn what_the_operator_has_named_may_be_inside_but_not_the_own_gateway() {
        let own = ["127.0.0.1:15443".parse().unwrap()];
        let (here, elsewhere) = ("127.0.0.1:15010", "10.0.0.1:15010");
        for (stated, listen, allowed, expected) in [
            ("10.0.0.5:15443", elsewhere, &[][..], "taken"),
            ("[fd00::5]:15443", elsewhere, &[], "taken"),
            ("203.0.113.7:15443", elsewhere, &[], "taken"),
            ("127.0.0.1:16443", here, &[], "taken"),
            ("127.0.0.1:16443", "[::1]:15010", &[], "taken"),
            ("[::1]:16443", here, &[], "taken"),
            ("127.0.0.1:16443", elsewhere, &[], "kind"),
            ("127.0.0.1:16443", "0.0.0.0:15010", &[], "kind"),
            ("127.0.0.1:16443", "[::]:15010", &[], "kind"),
            ("[::ffff:127.0.0.1]:16443", elsewhere, &[], "kind"),
            ("[64:ff9b::127.0.0.1]:16443", elsewhere, &[], "kind"),
            ("[::1]:16443", elsewhere, &[], "kind"),
            ("127.0.0.1:16443", elsewhere, &["127.0.0.0/8"], "taken"),
            ("169.254.169.254:80", here, &[], "kind"),
            ("[::ffff:169.254.169.254]:80", elsewhere, &[], "kind"),
            ("169.254.7.7:80", elsewhere, &["169.254.7.0/24"], "taken"),
            ("[fe80::1]:80", elsewhere, &["fe80::/10"], "zone"),
            ("127.0.0.1:15443", here, &["127.0.0.0/8"], "own"),
            ("[::ffff:127.0.0.1]:15443", here, &[], "own"),
            ("0.0.0.0:15443", here, &["0.0.0.0/0"], "no host"),
            ("[ff02::1]:15443", here, &[], "no host"),
        ] {
            let (at, listen) = (stated.parse().unwrap(), listen.parse().unwrap());
            let checked = check_named_gateway(at, own.into_iter(), listen, &ranges(allowed));
            assert_eq!(outcome(checked), expected, "{stated} at {listen} with {allowed:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_setting() {
        let (stated, from) = ("10.0.0.8:50002".parse().unwrap(), "10.0.0.7".parse().unwrap());
        let refused = check_workload(stated, Origin::Direct(from), &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the workload states 10.0.0.8:50002, and its registration comes from 10.0.0.7; set --advertise to an address of that machine, or start the control plane with --workload-addresses 10.0.0.8/32"
        );
        let stated = "127.0.0.1:16443".parse().unwrap();
        let refused = check_peer_gateway(stated, std::iter::empty(), &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "127.0.0.1:16443 is a loopback address; if that is meant, start the control plane that refuses it with --peer-addresses 127.0.0.0/8"
        );
    }
}
