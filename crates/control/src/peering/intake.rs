//! Stores what a joined network sends, each response in one transaction that commits only while the
//! network is still joined.

use std::collections::HashSet;

use prost::Message as _;
use tollway_model::NetworkName;
use tollway_store::{Expected, KeyRange, Transaction};
use tollway_wire::{GATEWAYS_PER_NETWORK_LIMIT, v1};
use tracing::{debug, info};

use super::joined::{JoinedNetwork, LinkError, PEER_SERVICES_LIMIT};
use crate::catalogue::{PeerAggregate, PinnedTrust};
use crate::connected::is_version;
use crate::key::{Key, MESH_PREFIX};
use crate::stored;

const PAGE_ENTRIES: usize = 1_000;

/// Puts the responses of one stream into the store.
pub(super) struct Intake<'a> {
    joined: &'a JoinedNetwork,
    trust: PinnedTrust,
    /// Services in the snapshot that is being received.
    snapshot: Option<HashSet<bytes::Bytes>>,
    /// The whole snapshot has been received.
    in_step: bool,
    /// The version of the other control plane; empty until it is received.
    version: String,
}

impl<'a> Intake<'a> {
    pub(super) fn new(joined: &'a JoinedNetwork, trust: PinnedTrust) -> Self {
        Self { joined, trust, snapshot: None, in_step: false, version: String::new() }
    }

    pub(super) async fn apply(&mut self, response: v1::FollowResponse) -> Result<(), LinkError> {
        if response.snapshot_start {
            self.snapshot = Some(HashSet::new());
        }
        let mut change = self.guarded().await?;
        self.plan_trust(response.trust.as_ref(), &mut change)?;
        if let Some(gateways) = &response.gateways {
            change = self.plan_gateways(gateways, change)?;
        }
        for stated in &response.services {
            change = self.plan_service(stated, change)?;
        }
        if response.snapshot_end {
            change = self.plan_sweep(change).await?;
        }
        if self.snapshot.is_none() && !change.ops.is_empty() {
            let cursor = stored::PeerCursor { revision: response.revision };
            change =
                change.put(self.key(|network| Key::PeerCursor { network }), cursor.encode_to_vec());
        }
        if !change.ops.is_empty() {
            let revision = self.joined.peering.store.transact(change).await?;
            debug!(network = %self.joined.network, revision, theirs = response.revision, "applied");
            self.joined.peering.hub.visible(revision).await;
        }
        if !response.version.is_empty() && is_version(&response.version) {
            self.version = response.version;
        }
        if self.snapshot.is_none() && !self.in_step {
            self.in_step = true;
            self.mark_reachable().await?;
        }
        Ok(())
    }

    /// A transaction that happens only while the network is joined as it is now.
    async fn guarded(&self) -> Result<Transaction, LinkError> {
        let key = self.key(|network| Key::PeerTrust { network });
        let entry = self.joined.peering.store.get(&key).await?.ok_or(LinkError::NotJoined)?;
        Ok(Transaction::new().when(key, Expected::Revision(entry.revision)))
    }

    fn plan_trust(
        &mut self,
        stated: Option<&v1::TrustBundle>,
        change: &mut Transaction,
    ) -> Result<(), LinkError> {
        let Some(stated) = stated else { return Ok(()) };
        let Some(changed) = changed_trust(&self.trust, stated)? else { return Ok(()) };
        self.trust = changed;
        let roots = self.trust.roots.len();
        info!(network = %self.joined.network, roots, "a joined network changed its roots");
        let key = self.key(|network| Key::PeerTrust { network });
        let planned = std::mem::take(change).put(key, self.trust.write());
        *change = planned.put(Key::Trust.encode(), bytes::Bytes::new());
        Ok(())
    }

    fn plan_gateways(
        &self,
        stated: &v1::Gateways,
        change: Transaction,
    ) -> Result<Transaction, LinkError> {
        let read =
            tollway_wire::addresses(&stated.addresses, "gateways", GATEWAYS_PER_NETWORK_LIMIT)?;
        // Without gateways it could never be reached again: the last known ones stay.
        let known = self.joined.ask(|peer| peer.gateways.clone()).unwrap_or_else(|| [].into());
        if read.is_empty() || *read == *known {
            return Ok(change);
        }
        let key = self.key(|network| Key::PeerGateways { network });
        Ok(change.put(key, stated.encode_to_vec()))
    }

    fn plan_service(
        &mut self,
        stated: &v1::Aggregate,
        change: Transaction,
    ) -> Result<Transaction, LinkError> {
        let namespace = tollway_wire::label(&stated.namespace, "namespace")?;
        let app = tollway_wire::label(&stated.app, "app")?;
        let name = (namespace.clone(), app.clone());
        let key = self.key(|network| Key::PeerService { network, namespace, app });
        if stated.removed {
            return Ok(change.delete(key));
        }
        let (_, _, aggregate) = PeerAggregate::read(stated)?;
        if let Some(seen) = &mut self.snapshot {
            seen.insert(key.clone());
        }
        let (known, count) = self
            .joined
            .ask(|peer| (peer.services.get(&name).copied(), peer.services.len()))
            .ok_or(LinkError::NotJoined)?;
        if known == Some(aggregate) {
            return Ok(change);
        }
        let stated_now = self.snapshot.as_ref().map_or(0, HashSet::len);
        if known.is_none() && count.max(stated_now) >= PEER_SERVICES_LIMIT {
            return Err(LinkError::TooManyServices);
        }
        Ok(change.put(key, stated.encode_to_vec()))
    }

    /// Ends the snapshot: what it did not state has gone.
    async fn plan_sweep(&mut self, mut change: Transaction) -> Result<Transaction, LinkError> {
        let seen = self.snapshot.take().unwrap_or_default();
        let network = self.joined.network.to_lower();
        let range = KeyRange::prefix(format!("{MESH_PREFIX}peer/{network}/service/"));
        let mut after: Option<bytes::Bytes> = None;
        loop {
            let page =
                self.joined.peering.store.list(&range, after.as_deref(), PAGE_ENTRIES).await?;
            for entry in page.entries.iter().filter(|entry| !seen.contains(&entry.key)) {
                change = change.delete(entry.key.clone());
                if change.ops.len() >= PAGE_ENTRIES {
                    self.joined.peering.store.transact(change).await?;
                    change = self.guarded().await?;
                }
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more {
                return Ok(change);
            }
        }
    }

    async fn mark_reachable(&self) -> Result<(), LinkError> {
        let heard = stored::PeerLink {
            reachable: true,
            last_error: String::new(),
            version: self.version.clone(),
        };
        if self.joined.ask(|peer| peer.link == heard) == Some(true) {
            return Ok(());
        }
        info!(network = %self.joined.network, "a joined network's control plane answers");
        self.joined.store_link(heard).await
    }

    fn key(&self, of: impl FnOnce(NetworkName) -> Key) -> bytes::Bytes {
        of(self.joined.network.clone()).encode()
    }
}

/// What to pin from now on, if `stated` differs from what is pinned.
fn changed_trust(
    pinned: &PinnedTrust,
    stated: &v1::TrustBundle,
) -> Result<Option<PinnedTrust>, LinkError> {
    let domain = pinned.trust_domain.to_string();
    if stated.trust_domain != domain {
        let found = stated.trust_domain.clone();
        return Err(LinkError::TrustDomainChanged { pinned: domain, found });
    }
    if stated.roots == pinned.roots {
        return Ok(None);
    }
    let changed = PinnedTrust { roots: stated.roots.clone(), ..pinned.clone() };
    changed.check()?;
    Ok(Some(changed))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use tollway_identity::{Authority, CERTIFICATE_BYTES_LIMIT};
    use tollway_model::{Label, TrustDomain};

    use super::*;

    fn root() -> Vec<u8> {
        let network = Label::new("east").unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let domain = TrustDomain::default_for(&network);
        Authority::create(&domain, &network, now).unwrap().root_der().to_vec()
    }

    fn pinned(root: &[u8]) -> PinnedTrust {
        PinnedTrust {
            network: Label::new("east").unwrap(),
            trust_domain: TrustDomain::new("east.tollway").unwrap(),
            roots: vec![root.to_vec()],
            joined_at_unix_s: 0,
            pending: false,
        }
    }

    fn stated(trust_domain: &str, roots: Vec<Vec<u8>>) -> v1::TrustBundle {
        v1::TrustBundle { trust_domain: trust_domain.into(), roots, network: "east".into() }
    }

    #[test]
    fn roots_follow_the_joined_network() {
        let (one, two) = (root(), root());
        let pinned = pinned(&one);
        let same = changed_trust(&pinned, &stated("east.tollway", vec![one.clone()])).unwrap();
        assert_eq!(same, None);
        let both = stated("east.tollway", vec![one.clone(), two.clone()]);
        let changed = changed_trust(&pinned, &both).unwrap().unwrap();
        assert_eq!(changed, PinnedTrust { roots: vec![one, two], ..pinned });
    }

    #[test]
    fn roots_that_no_workload_could_read_are_refused() {
        let pinned = pinned(&root());
        let refusal = |roots| {
            let refused = changed_trust(&pinned, &stated("east.tollway", roots)).unwrap_err();
            assert!(matches!(refused, LinkError::Roots(_)), "{refused:?}");
        };
        refusal(vec![]);
        refusal(vec![root(); 9]);
        refusal(vec![root(), b"no certificate".to_vec()]);
        refusal(vec![vec![0x30; CERTIFICATE_BYTES_LIMIT + 1]]);
    }

    #[test]
    fn the_trust_domain_stays_the_one_that_was_pinned() {
        let one = root();
        let refused = changed_trust(&pinned(&one), &stated("west.tollway", vec![one.clone()]));
        assert!(matches!(refused, Err(LinkError::TrustDomainChanged { .. })), "{refused:?}");
    }
}
