//! Which of the gateways that a joined network states are taken: those of the bundle stay unless
//! this network's operator lets them move, and none of them leads inside. Pure.

use std::net::SocketAddr;

use tollway_model::NetworkName;

use crate::addresses::AddressRefusal;
use crate::catalogue::Catalogue;

/// What is to be done about the gateways that a joined network states.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// These are to be stored, of which there is at least one. `None`: the known ones stay, since
    /// without any the network could never be reached again.
    pub(super) moved: Option<Vec<SocketAddr>>,
    /// How many are left out since they are not in the bundle.
    pub(super) not_in_bundle: usize,
    /// Those that are left out since they lead where none may.
    pub(super) refused: Vec<AddressRefusal>,
}

/// Decides about the gateways that `network` states. Those of its bundle may go and come back.
pub(super) fn decide(
    catalogue: &Catalogue,
    network: &NetworkName,
    stated: &[SocketAddr],
) -> Decision {
    let mut decision = Decision::default();
    let known = catalogue.find_peer(network).and_then(|peer| Some((peer, peer.trust()?)));
    let Some((peer, trust)) = known else { return decision };
    if *stated == *peer.gateways {
        return decision;
    }
    let mut taken = Vec::new();
    for address in stated {
        if !trust.follow_gateways && !trust.bundle_gateways.contains(address) {
            decision.not_in_bundle += 1;
            continue;
        }
        match catalogue.check_gateway(Some(trust), *address) {
            Ok(()) => taken.push(*address),
            Err(refusal) => decision.refused.push(refusal),
        }
    }
    let is_new = !taken.is_empty() && *taken != *peer.gateways;
    decision.moved = is_new.then_some(taken);
    decision
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message as _;
    use tollway_model::{Label, TrustDomain};
    use tollway_wire::v1;

    use super::*;
    use crate::catalogue::{Home, PinnedTrust};
    use crate::key::Key;
    use crate::options::RemoteCalls;

    const BUNDLE: &str = "10.2.0.1:15443";
    const SECOND: &str = "10.2.0.2:15443";

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    /// West, joined with east by a bundle that names [`BUNDLE`] and [`SECOND`].
    fn catalogue(follow_gateways: bool) -> Catalogue {
        let home = Home {
            network: label("west"),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: Vec::new(),
            remote_calls: RemoteCalls::Direct,
            egress: tollway_model::EgressDefault::Open,
            listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
            peer_addresses: Arc::from([]),
        };
        let mut catalogue = Catalogue::new(home, 0);
        let east = PinnedTrust {
            network: label("east"),
            trust_domain: TrustDomain::new("east.tollway").unwrap(),
            roots: vec![b"east root".to_vec()],
            joined_at_unix_s: 0,
            pending: false,
            follow_gateways,
            bundle_gateways: [BUNDLE, SECOND].map(|text| text.parse().unwrap()).to_vec(),
            is_accepted: true,
            revoked: Vec::new(),
        };
        catalogue.put(&Key::PeerTrust { network: label("east") }, &east.write(), 1).unwrap();
        let gateways = v1::Gateways {
            addresses: vec![east.bundle_gateways[0].into(), east.bundle_gateways[1].into()],
        };
        let key = Key::PeerGateways { network: label("east") };
        catalogue.put(&key, &gateways.encode_to_vec(), 2).unwrap();
        catalogue
    }

    /// `moved`: empty where the known ones stay.
    #[track_caller]
    fn check(follow: bool, stated: &[&str], moved: &[&str], not_in_bundle: usize, refused: usize) {
        let read = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let decision = decide(&catalogue(follow), &label("east"), &read(stated));
        let found = (decision.not_in_bundle, decision.refused.len());
        assert_eq!(decision.moved.clone().unwrap_or_default(), read(moved), "{stated:?}");
        assert_eq!(found, (not_in_bundle, refused), "{stated:?}: {decision:?}");
    }

    #[test]
    fn gateways_stay_those_of_the_bundle_unless_the_operator_lets_them_move() {
        let (public, inside) = ("203.0.113.7:15443", "127.0.0.1:6379");
        check(false, &[BUNDLE, SECOND], &[], 0, 0);
        check(false, &[], &[], 0, 0);
        check(false, &[BUNDLE], &[BUNDLE], 0, 0);
        check(false, &[public], &[], 1, 0);
        check(false, &[public, inside, SECOND], &[SECOND], 2, 0);
        check(true, &[], &[], 0, 0);
        check(true, &[public], &[public], 0, 0);
        check(true, &[public, BUNDLE], &[public, BUNDLE], 0, 0);
        check(true, &[inside], &[], 0, 1);
        check(true, &[inside, BUNDLE], &[BUNDLE], 0, 1);
        check(true, &["10.2.0.3:15443", public], &[public], 0, 1);
        check(true, &["10.0.0.1:15010"], &[], 0, 1);
    }

    #[test]
    fn an_address_inside_is_not_dialled_though_it_is_stored() {
        let mut catalogue = catalogue(true);
        let inside = ["127.0.0.1:6379", BUNDLE, "[::ffff:10.0.0.1]:15010"];
        let addresses = inside.iter().map(|text| text.parse::<SocketAddr>().unwrap().into());
        let gateways = v1::Gateways { addresses: addresses.collect() };
        let key = Key::PeerGateways { network: label("east") };
        catalogue.put(&key, &gateways.encode_to_vec(), 3).unwrap();
        let east = catalogue.find_peer(&label("east")).unwrap();
        assert_eq!(*catalogue.usable_gateways(east), [BUNDLE.parse().unwrap()]);
    }
}
