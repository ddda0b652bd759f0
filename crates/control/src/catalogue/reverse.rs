//! Networks that only dial out: they have no gateway that others could connect to. Their own gateways
//! open reverse connections to those of joined networks, which report those that they hold.

use std::net::SocketAddr;
use std::sync::Arc;

use tollway_model::{Instance, NetworkName};
use tollway_wire::{ADDRESSES_PER_GATEWAY_LIMIT, ConvertError, TRUST_DOMAINS_LIMIT, v1};

use super::{Catalogue, Gateway, Peer};
use crate::options::RemoteCalls;

/// Where workloads of this network dial for services of a joined one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) gateways: Arc<[SocketAddr]>,
    /// Gateways of the joined network behind those, if those are this network's own.
    pub(crate) beyond: Arc<[SocketAddr]>,
}

impl Gateway {
    /// Reads what a gateway announces.
    ///
    /// # Errors
    /// [`ConvertError`] for the first field that is wrong.
    pub(crate) fn read(stated: &v1::Gateway) -> Result<Self, ConvertError> {
        let limit = ADDRESSES_PER_GATEWAY_LIMIT;
        let addresses =
            |stated: &[v1::Address], field| tollway_wire::addresses(stated, field, limit);
        let (count, limit) = (stated.reaches.len(), TRUST_DOMAINS_LIMIT);
        if count > limit {
            return Err(ConvertError::TooMany { field: "reaches", count, limit });
        }
        let reaches = stated.reaches.iter().map(|network| tollway_wire::network_name(network));
        Ok(Self {
            instance: tollway_wire::instance(&stated.instance)?,
            outside: addresses(&stated.outside, "outside")?,
            inside: addresses(&stated.inside, "inside")?,
            reaches: reaches.collect::<Result<_, _>>()?,
        })
    }
}

impl Peer {
    /// Whether its gateways only dial out: its bundle names none, and none has come since.
    pub(crate) fn dials_out(&self) -> bool {
        self.gateways.is_empty()
            && self.trust().is_some_and(|trust| trust.bundle_gateways.is_empty())
    }
}

impl Catalogue {
    /// Where this network's own gateways are that others may connect to.
    pub(crate) fn outside_gateways(&self) -> impl Iterator<Item = SocketAddr> {
        self.gateways().flat_map(|gateway| gateway.outside.iter().copied())
    }

    /// How many addresses this network's gateways have beside one of them; one without any counts as one
    /// that has.
    pub(crate) fn addresses_beside(&self, instance: &Instance) -> usize {
        let others = self.gateways().filter(|gateway| gateway.instance != *instance);
        others.map(|gateway| gateway.outside.len().max(gateway.inside.len()).max(1)).sum()
    }

    /// Where workloads and the control plane of this network dial for `peer`, the joined network of
    /// this name.
    pub(crate) fn reach(&self, network: &NetworkName, peer: &Peer) -> Reach {
        let inside = self.gateways().filter(|gateway| !gateway.inside.is_empty());
        let none = || Arc::from([]);
        if peer.dials_out() {
            let holders = inside.filter(|gateway| gateway.reaches.contains(network));
            let gateways = holders.flat_map(|gateway| gateway.inside.iter().copied()).collect();
            return Reach { gateways, beyond: none() };
        }
        match self.home().remote_calls {
            RemoteCalls::Direct => Reach { gateways: self.usable_gateways(peer), beyond: none() },
            RemoteCalls::Gateway => Reach {
                gateways: inside.flat_map(|gateway| gateway.inside.iter().copied()).collect(),
                beyond: self.usable_gateways(peer),
            },
        }
    }

    /// Whether the ways to a network change with this network's own gateways.
    pub(super) fn goes_by_own_gateways(&self, network: &NetworkName) -> bool {
        self.home().remote_calls == RemoteCalls::Gateway
            || self.find_peer(network).is_some_and(Peer::dials_out)
    }
}
