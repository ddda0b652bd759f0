//! Stores what a joined network sends, each time in one transaction that commits only while the
//! network is still joined. Changes are gathered ([`super::pace`]): what is stated again and again
//! is stored once, as it was stated last.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::time::Instant;
use tollway_model::{Label, NetworkName, ProbeSecret};
use tollway_store::{Expected, KeyRange, Transaction};
use tollway_wire::{GATEWAYS_PER_NETWORK_LIMIT, SERVICES_PER_RESPONSE_LIMIT, v1};
use tracing::{debug, info, warn};

use super::admission::check_trust_bytes;
use super::joined::{Gateways, JoinedNetwork, LinkError, PEER_SERVICES_LIMIT, encode_gateways};
use super::pace::{Interval, PEER_REVOCATIONS_WITHIN, PEER_SERVICES_WITHIN, ReadPace, cost};
use crate::catalogue::{PeerAggregate, PinnedTrust};
use crate::connected::is_version;
use crate::key::{Key, MESH_PREFIX};
use crate::stored;

const PAGE_ENTRIES: usize = 1_000;

/// What lasts longer than one stream of a joined network: how fast it may change things, and what
/// it changed too fast.
pub(super) struct Pending {
    read: ReadPace,
    roots: Interval,
    revoked: Interval,
    services: Interval,
    /// Roots and revoked identities that were stated and are not stored yet.
    trust: Option<v1::TrustBundle>,
    gateways: Option<Vec<SocketAddr>>,
    /// The operator was warned of what waits, or of gateways that are refused.
    warned_of_roots: bool,
    warned_of_gateways: bool,
}

impl Pending {
    /// With this time from one change of roots to the next.
    pub(super) fn new(roots: Duration) -> Self {
        Self {
            read: ReadPace::new(),
            roots: Interval::new(roots),
            revoked: Interval::new(PEER_REVOCATIONS_WITHIN),
            services: Interval::new(PEER_SERVICES_WITHIN),
            trust: None,
            gateways: None,
            warned_of_roots: false,
            warned_of_gateways: false,
        }
    }

    /// Whether the roots of `changed`, and its revoked identities, may be stored now. What is the same
    /// may be.
    fn may_take(&self, pinned: &PinnedTrust, changed: &PinnedTrust) -> (bool, bool) {
        (
            changed.roots == pinned.roots || self.roots.may_change(),
            changed.revoked == pinned.revoked || self.revoked.may_change(),
        )
    }

    /// When something of the trust that was stated may be stored.
    fn trust_at(&self, pinned: &PinnedTrust) -> Option<Instant> {
        let stated = self.trust.as_ref()?;
        // What cannot be used, or is the same, is settled at once.
        let Ok(Some(changed)) = changed_trust(pinned, stated) else { return Some(Instant::now()) };
        let roots = (changed.roots != pinned.roots).then(|| self.roots.next_at());
        let revoked = (changed.revoked != pinned.revoked).then(|| self.revoked.next_at());
        roots.into_iter().chain(revoked).min()
    }
}

/// What a transaction settles of what was pending, once it has committed.
#[derive(Default)]
struct Settled {
    trust: bool,
    /// What is pinned from now on, if it changes.
    pinned: Option<PinnedTrust>,
    roots_changed: bool,
    revoked_changed: bool,
    gateways: bool,
}

/// Puts the responses of one stream into the store.
pub(super) struct Intake<'a> {
    joined: &'a JoinedNetwork,
    pending: &'a mut Pending,
    trust: PinnedTrust,
    /// Services that were stated and are not stored yet.
    stated: BTreeMap<(Label, Label), v1::Aggregate>,
    /// The revision that all of it has.
    revision: u64,
    /// Services in the snapshot that is being received.
    snapshot: Option<HashSet<Bytes>>,
    /// The snapshot has been received, and what it did not state is to go.
    sweeps: bool,
    /// The whole snapshot has been received.
    in_step: bool,
    /// Something was taken in since the last time that something was stored.
    is_fresh: bool,
    /// The version of the other control plane; empty until it is received.
    version: String,
    /// With what its gateways are probed, if it was received.
    probe_secret: Option<ProbeSecret>,
}

impl<'a> Intake<'a> {
    pub(super) fn new(
        joined: &'a JoinedNetwork,
        trust: PinnedTrust,
        pending: &'a mut Pending,
    ) -> Self {
        Self {
            joined,
            pending,
            trust,
            stated: BTreeMap::new(),
            revision: 0,
            snapshot: None,
            sweeps: false,
            in_step: false,
            is_fresh: false,
            version: String::new(),
            probe_secret: None,
        }
    }

    /// When the next response may be read.
    pub(super) fn read_at(&self) -> Instant {
        self.pending.read.next_at()
    }

    /// When [`Self::store`] has something to do.
    pub(super) fn store_at(&self) -> Option<Instant> {
        // A response that is full waits as well, or the same services could be stored with each of them.
        let is_much = self.stated.len() > SERVICES_PER_RESPONSE_LIMIT;
        let is_bulk = !self.in_step || self.snapshot.is_some() || self.sweeps || is_much;
        if self.is_fresh && is_bulk {
            return Some(Instant::now());
        }
        let services = (!self.stated.is_empty()).then(|| self.pending.services.next_at());
        let trust = self.pending.trust_at(&self.trust);
        let gateways = self.pending.gateways.as_ref().map(|_| self.joined.next_move_at());
        [services, trust, gateways].into_iter().flatten().min()
    }

    /// Takes a response in. It is stored by [`Self::store`].
    pub(super) fn take(&mut self, response: v1::FollowResponse) -> Result<(), LinkError> {
        let is_state = response.snapshot_start || response.trust.is_some();
        self.pending.read.spend(cost(response.services.len(), is_state));
        if response.snapshot_start {
            self.snapshot = Some(HashSet::new());
        }
        if let Some(stated) = response.trust {
            // What cannot be used ends the stream, whenever it would be stored.
            if let Some(changed) = changed_trust(&self.trust, &stated)? {
                self.note_held_roots(&changed);
            }
            self.pending.trust = Some(stated);
        }
        if let Some(stated) = response.gateways {
            let limit = GATEWAYS_PER_NETWORK_LIMIT;
            let read = tollway_wire::addresses(&stated.addresses, "gateways", limit)?;
            if self.joined.holds_gateways(&read) {
                self.joined.peering.counts.gateways_held.add(1);
            }
            self.pending.gateways = Some(read);
        }
        for stated in response.services {
            self.take_service(stated)?;
        }
        if response.snapshot_end {
            self.sweeps = self.snapshot.is_some();
        }
        self.revision = response.revision;
        self.is_fresh = true;
        if !response.version.is_empty() && is_version(&response.version) {
            self.version = response.version;
        }
        if let Some(secret) = tollway_wire::probe_secret(&response.probe_secret)? {
            self.probe_secret = Some(secret);
        }
        Ok(())
    }

    /// Counts roots that came too soon, and warns of them once until they are settled.
    fn note_held_roots(&mut self, changed: &PinnedTrust) {
        let (may_change, _) = self.pending.may_take(&self.trust, changed);
        if !may_change && !std::mem::replace(&mut self.pending.warned_of_roots, true) {
            self.joined.peering.counts.roots_held.add(1);
            warn!(network = %self.joined.network, "a joined network changed its roots again too soon; the last change is taken in time");
        }
    }

    fn take_service(&mut self, stated: v1::Aggregate) -> Result<(), LinkError> {
        let namespace = tollway_wire::label(&stated.namespace, "namespace")?;
        let app = tollway_wire::label(&stated.app, "app")?;
        if !stated.removed {
            PeerAggregate::read(&stated)?;
            if let Some(seen) = &mut self.snapshot {
                let network = self.joined.network.clone();
                let key =
                    Key::PeerService { network, namespace: namespace.clone(), app: app.clone() };
                seen.insert(key.encode());
            }
        }
        self.stated.insert((namespace, app), stated);
        Ok(())
    }

    /// Stores what was taken in and may change now.
    pub(super) async fn store(&mut self) -> Result<(), LinkError> {
        self.is_fresh = false;
        let mut settled = Settled::default();
        let mut change = self.guarded().await?;
        change = self.plan_trust(change, &mut settled)?;
        change = self.plan_gateways(change, &mut settled);
        let stores_services = !self.stated.is_empty();
        change = self.plan_services(change)?;
        if std::mem::take(&mut self.sweeps) {
            change = self.plan_sweep(change).await?;
        }
        // What waits must be stated again to a control plane that has restarted meanwhile.
        let waits = self.pending.trust.is_some() && !settled.trust;
        if self.snapshot.is_none() && !waits && !change.ops.is_empty() {
            let cursor = stored::PeerCursor { revision: self.revision };
            change =
                change.put(self.key(|network| Key::PeerCursor { network }), cursor.encode_to_vec());
        }
        if !change.ops.is_empty() {
            let revision = self.joined.peering.store.transact(change).await?;
            debug!(network = %self.joined.network, revision, theirs = self.revision, "applied");
            self.joined.peering.hub.visible(revision).await;
        }
        if stores_services {
            self.pending.services.changed();
        }
        self.settle(settled);
        if self.snapshot.is_none() && !self.in_step {
            self.in_step = true;
            self.mark_heard().await?;
        }
        Ok(())
    }

    fn settle(&mut self, settled: Settled) {
        let Settled { trust, pinned, roots_changed, revoked_changed, gateways } = settled;
        if let Some(pinned) = pinned {
            self.trust = pinned;
        }
        if trust {
            self.pending.trust = None;
            self.pending.warned_of_roots = false;
        }
        if roots_changed {
            self.pending.roots.changed();
        }
        if revoked_changed {
            self.pending.revoked.changed();
        }
        if gateways {
            self.pending.gateways = None;
        }
    }

    /// The revision up to which everything is stored; `None` while something of it waits.
    pub(super) fn stored(&self) -> Option<u64> {
        self.stated.is_empty().then_some(self.revision)
    }

    /// A transaction that happens only while the network is joined as it is now.
    async fn guarded(&mut self) -> Result<Transaction, LinkError> {
        let key = self.key(|network| Key::PeerTrust { network });
        let entry = self.joined.peering.store.get(&key).await?.ok_or(LinkError::NotJoined)?;
        self.trust = PinnedTrust::read(&entry.value).map_err(|_| LinkError::NotJoined)?;
        Ok(Transaction::new().when(key, Expected::Revision(entry.revision)))
    }

    fn plan_trust(
        &mut self,
        change: Transaction,
        settled: &mut Settled,
    ) -> Result<Transaction, LinkError> {
        let Some(stated) = &self.pending.trust else { return Ok(change) };
        let network = &self.joined.network;
        let Some(mut changed) = changed_trust(&self.trust, stated)? else {
            settled.trust = true;
            return Ok(change);
        };
        // What is revoked cannot wait for as long as roots can.
        let (roots, revoked) = self.pending.may_take(&self.trust, &changed);
        if !roots {
            changed.roots.clone_from(&self.trust.roots);
        }
        if !revoked {
            changed.revoked.clone_from(&self.trust.revoked);
        }
        settled.trust = roots && revoked;
        settled.roots_changed = changed.roots != self.trust.roots;
        settled.revoked_changed = changed.revoked != self.trust.revoked;
        if !settled.roots_changed && !settled.revoked_changed {
            return Ok(change);
        }
        let at = self.joined.peering.hub.read(|catalogue| {
            check_trust_bytes(catalogue, &changed.network, (&changed.roots, &changed.revoked))
                .map(|()| catalogue.trust_revision())
        });
        let at = at.map_err(|bytes| LinkError::TooManyRoots { bytes })?;
        if settled.roots_changed {
            let roots = changed.roots.len();
            warn!(%network, roots, "a joined network changed its roots; ask its operator if that is not expected");
        }
        if settled.revoked_changed {
            let revoked = changed.revoked.len();
            info!(%network, revoked, "a joined network changed its revoked identities");
        }
        let key = self.key(|network| Key::PeerTrust { network });
        let trust = Key::Trust.encode();
        // Two networks that change their roots side by side must not exceed the bytes of both.
        let planned = change.when(trust.clone(), Expected::Revision(at));
        let planned = planned.put(key, changed.write()).put(trust, Bytes::new());
        settled.pinned = Some(changed);
        Ok(planned)
    }

    fn plan_gateways(&mut self, change: Transaction, settled: &mut Settled) -> Transaction {
        let Some(stated) = &self.pending.gateways else { return change };
        let taken = match self.joined.decide_gateways(stated, &mut self.pending.warned_of_gateways)
        {
            Gateways::Keep => {
                settled.gateways = true;
                return change;
            }
            Gateways::Later => return change,
            Gateways::Move(taken) => taken,
        };
        settled.gateways = true;
        let key = self.key(|network| Key::PeerGateways { network });
        change.put(key, encode_gateways(&taken))
    }

    fn plan_services(&mut self, mut change: Transaction) -> Result<Transaction, LinkError> {
        let stated = std::mem::take(&mut self.stated);
        let mut added = 0;
        for ((namespace, app), stated) in stated {
            let name = (namespace.clone(), app.clone());
            let key = self.key(|network| Key::PeerService { network, namespace, app });
            if stated.removed {
                change = change.delete(key);
                continue;
            }
            let (_, _, aggregate) = PeerAggregate::read(&stated)?;
            let (known, count) = self
                .joined
                .ask(|peer| (peer.services.get(&name).copied(), peer.services.len()))
                .ok_or(LinkError::NotJoined)?;
            if known == Some(aggregate) {
                continue;
            }
            if known.is_none() {
                added += 1;
                let stated_now = self.snapshot.as_ref().map_or(0, HashSet::len);
                if (count + added).max(stated_now) > PEER_SERVICES_LIMIT {
                    return Err(LinkError::TooManyServices);
                }
            }
            change = change.put(key, stated.encode_to_vec());
        }
        Ok(change)
    }

    /// Ends the snapshot: what it did not state has gone.
    async fn plan_sweep(&mut self, mut change: Transaction) -> Result<Transaction, LinkError> {
        let seen = self.snapshot.take().unwrap_or_default();
        let network = self.joined.network.to_lower();
        let range = KeyRange::prefix(format!("{MESH_PREFIX}peer/{network}/service/"));
        let mut after: Option<Bytes> = None;
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

    /// Its control plane answers, and all that it has stated is stored.
    async fn mark_heard(&self) -> Result<(), LinkError> {
        if self.joined.ask(|peer| peer.link.last_error.is_empty()) == Some(false) {
            info!(network = %self.joined.network, "a joined network's control plane answers");
        }
        let change = |link: &mut stored::PeerLink| {
            link.last_error.clear();
            link.version.clone_from(&self.version);
            if let Some(secret) = &self.probe_secret {
                link.probe_secret = secret.as_bytes().to_vec();
            }
        };
        self.joined.change_link(change).await
    }

    fn key(&self, of: impl FnOnce(NetworkName) -> Key) -> Bytes {
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
    let revoked = tollway_wire::revocations(&stated.revoked)?;
    if stated.roots == pinned.roots && revoked == pinned.revoked {
        return Ok(None);
    }
    let changed = PinnedTrust { roots: stated.roots.clone(), revoked, ..pinned.clone() };
    changed.check()?;
    Ok(Some(changed))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tollway_identity::{Authority, CERTIFICATE_BYTES_LIMIT};
    use tollway_model::{Label, TrustDomain};

    use tollway_wire::REVOCATIONS_PER_TRUST_DOMAIN_LIMIT;

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
            follow_gateways: false,
            bundle_gateways: Vec::new(),
            is_accepted: false,
            revoked: Vec::new(),
        }
    }

    fn stated(trust_domain: &str, roots: Vec<Vec<u8>>) -> v1::TrustBundle {
        let network = "east".into();
        v1::TrustBundle { trust_domain: trust_domain.into(), roots, network, revoked: Vec::new() }
    }

    fn revoked(app: &str) -> v1::RevokedIdentity {
        let (app, namespace) = (app.to_owned(), "default".to_owned());
        v1::RevokedIdentity { app, namespace, instance: String::new() }
    }

    #[test]
    fn revoked_identities_follow_the_joined_network_up_to_a_limit() {
        let one = root();
        let pinned = pinned(&one);
        let with =
            |revoked| v1::TrustBundle { revoked, ..stated("east.tollway", vec![one.clone()]) };
        let changed = changed_trust(&pinned, &with(vec![revoked("stock")])).unwrap().unwrap();
        assert_eq!(changed.revoked[0].to_string(), "stock.default");
        assert_eq!(changed_trust(&changed, &with(vec![revoked("Stock")])).unwrap(), None);
        let restored = changed_trust(&changed, &with(Vec::new())).unwrap().unwrap();
        assert_eq!(restored, pinned);
        let many = REVOCATIONS_PER_TRUST_DOMAIN_LIMIT + 1;
        let many = (0..many).map(|number| revoked(&format!("app-{number}"))).collect();
        assert!(changed_trust(&pinned, &with(many)).is_err());
        assert!(changed_trust(&pinned, &with(vec![revoked("no label")])).is_err());
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
