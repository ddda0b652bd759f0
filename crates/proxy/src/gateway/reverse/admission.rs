//! Who may open reverse connections to a gateway: gateways of a joined network that only dials out, for
//! that network and no other. Pure.

use thiserror::Error;
use tollway_identity::{GATEWAY_APP, PeerIdentity, SYSTEM_NAMESPACE};
use tollway_model::NetworkName;

/// Reverse connections of one network that wait for a connection to carry; further ones are refused.
pub(super) const REVERSE_PER_NETWORK_LIMIT: usize = 1_024;

/// A joined network, as far as this matters.
#[derive(Clone, Copy)]
pub(super) struct Joined<'a> {
    pub(super) network: &'a NetworkName,
    pub(super) dials_out: bool,
    /// How many of its reverse connections wait.
    pub(super) waiting: usize,
}

/// Why a reverse connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(super) enum Refused {
    #[error("it is no gateway")]
    NoGateway,
    #[error("its network is not joined")]
    NotJoined,
    #[error("its network has gateways that can be dialled")]
    CanBeDialled,
    #[error("{REVERSE_PER_NETWORK_LIMIT} of its network wait already")]
    TooMany,
}

/// The network to which a reverse connection of the peer is a way. `joined`: what is known of the network
/// whose trust domain the peer has proven.
pub(super) fn decide(
    peer: &PeerIdentity,
    joined: Option<Joined<'_>>,
) -> Result<NetworkName, Refused> {
    let service = &peer.service;
    let is_gateway = service.namespace.as_str().eq_ignore_ascii_case(SYSTEM_NAMESPACE)
        && service.app.as_str().eq_ignore_ascii_case(GATEWAY_APP);
    if !is_gateway {
        return Err(Refused::NoGateway);
    }
    let joined = joined.ok_or(Refused::NotJoined)?;
    if service.network != *joined.network {
        return Err(Refused::NotJoined);
    }
    if !joined.dials_out {
        return Err(Refused::CanBeDialled);
    }
    if joined.waiting >= REVERSE_PER_NETWORK_LIMIT {
        return Err(Refused::TooMany);
    }
    Ok(joined.network.clone())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tollway_model::{Label, ServiceName, TrustDomain};

    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn peer(app: &str, namespace: &str) -> PeerIdentity {
        let service =
            ServiceName { app: label(app), namespace: label(namespace), network: label("plant") };
        PeerIdentity {
            spiffe: service.spiffe_id(&TrustDomain::default_for(&label("plant"))),
            service,
            dns_names: Vec::new(),
            instance: None,
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
            key_hash: [0; 32],
            serial: Vec::new(),
        }
    }

    #[test]
    fn only_gateways_of_a_joined_network_that_only_dials_out_are_a_way_to_it() {
        let (plant, cloud) = (label("plant"), label("cloud"));
        let joined = |waiting| Joined { network: &plant, dials_out: true, waiting };
        let gateway = peer(GATEWAY_APP, SYSTEM_NAMESPACE);
        assert_eq!(decide(&gateway, Some(joined(0))), Ok(plant.clone()));
        let last = joined(REVERSE_PER_NETWORK_LIMIT - 1);
        assert_eq!(decide(&gateway, Some(last)), Ok(plant.clone()));
        let full = joined(REVERSE_PER_NETWORK_LIMIT);
        assert_eq!(decide(&gateway, Some(full)), Err(Refused::TooMany));
        for (app, namespace) in
            [("press", "default"), (GATEWAY_APP, "default"), ("control", SYSTEM_NAMESPACE)]
        {
            let refused = decide(&peer(app, namespace), Some(joined(0)));
            assert_eq!(refused, Err(Refused::NoGateway), "{app}.{namespace}");
        }
        assert_eq!(decide(&gateway, None), Err(Refused::NotJoined));
        let other = Joined { network: &cloud, ..joined(0) };
        assert_eq!(decide(&gateway, Some(other)), Err(Refused::NotJoined));
        let dialled = Joined { dials_out: false, ..joined(0) };
        assert_eq!(decide(&gateway, Some(dialled)), Err(Refused::CanBeDialled));
    }
}
