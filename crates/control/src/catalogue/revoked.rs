//! The identities of this network that an operator took back.

use std::collections::BTreeMap;

use prost::Message;
use tollway_identity::Revocations;
use tollway_model::{Instance, NetworkName, Revocation, ServiceName};
use tollway_wire::v1;

use super::Catalogue;
use crate::stored;

/// Since when and until when an identity is revoked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Span {
    pub(crate) since_unix_ms: u64,
    /// 0 for one that stays until it is taken back.
    pub(crate) until_unix_ms: u64,
}

/// What is revoked, with the set that answers quickly.
#[derive(Default, PartialEq, Debug)]
pub(super) struct Revoked {
    list: BTreeMap<Revocation, Span>,
    set: Revocations,
}

impl Revoked {
    /// A record that does not read back revokes all the same: the key names the identity.
    pub(super) fn put(&mut self, revocation: Revocation, value: &[u8]) {
        let stored = stored::Revocation::decode(value).unwrap_or_default();
        let span = Span {
            since_unix_ms: stored.revoked_at_unix_ms,
            until_unix_ms: stored.ends_at_unix_ms,
        };
        self.list.insert(revocation, span);
        self.set = Revocations::new(self.list.keys().cloned());
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, revocation: &Revocation) -> bool {
        let was_there = self.list.remove(revocation).is_some();
        self.set = Revocations::new(self.list.keys().cloned());
        was_there
    }
}

impl Catalogue {
    /// Whether the identity of a workload of this network was taken back.
    pub(crate) fn is_revoked(&self, service: &ServiceName, instance: &Instance) -> bool {
        self.revoked.set.covers(&service.namespace, &service.app, Some(instance))
    }

    /// This network's revocations, in order.
    pub(crate) fn revocations(&self) -> impl Iterator<Item = (&Revocation, Span)> {
        self.revoked.list.iter().map(|(revocation, span)| (revocation, *span))
    }

    /// Those of joined networks.
    pub(crate) fn foreign_revocations(&self) -> impl Iterator<Item = (&NetworkName, &Revocation)> {
        self.peers.iter().flat_map(|(network, peer)| {
            let revoked = peer.joined().map_or(&[][..], |trust| &trust.revoked);
            revoked.iter().map(move |revocation| (network, revocation))
        })
    }

    pub(super) fn revoked_identities(&self) -> Vec<v1::RevokedIdentity> {
        self.revoked.list.keys().map(Into::into).collect()
    }
}
