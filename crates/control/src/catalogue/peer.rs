//! What is known of one joined network.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use prost::Message;
use tollway_identity::{BundleError, CertificateDer, TrustBundle};
use tollway_model::{AppProtocol, Label, NetworkName, Revocation, TrustDomain};
use tollway_wire::{ConvertError, GATEWAYS_PER_NETWORK_LIMIT, ROOTS_PER_TRUST_DOMAIN_LIMIT, v1};

use super::RecordError;
use crate::stored;

#[derive(Clone, Debug)]
pub(crate) struct Peer {
    trust: Option<PinnedTrust>,
    /// Where its gateways listen for other networks, as stored: what of it may be used is
    /// [`super::Catalogue::usable_gateways`].
    pub(crate) gateways: Arc<[SocketAddr]>,
    pub(crate) link: stored::PeerLink,
    /// Its revision up to which its aggregates were applied.
    pub(crate) cursor: u64,
    /// By namespace and app.
    pub(crate) services: BTreeMap<(Label, Label), Aggregate>,
}

/// What was pinned when the network was joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PinnedTrust {
    /// As that network spells it.
    pub(crate) network: NetworkName,
    pub(crate) trust_domain: TrustDomain,
    /// DER.
    pub(crate) roots: Vec<Vec<u8>>,
    pub(crate) joined_at_unix_s: u64,
    pub(crate) pending: bool,
    /// Its gateways may move without a new bundle.
    pub(crate) follow_gateways: bool,
    /// The gateways of its bundle.
    pub(crate) bundle_gateways: Vec<SocketAddr>,
    /// This network's operator has accepted that bundle, and so named these gateways; else the other
    /// network has presented it.
    pub(crate) is_accepted: bool,
    /// The identities that it took back.
    pub(crate) revoked: Vec<Revocation>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Aggregate {
    pub(crate) ready_replicas: u32,
    /// Ready or not.
    pub(crate) registered_replicas: u32,
    pub(crate) protocol: AppProtocol,
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            trust: None,
            gateways: Arc::from([]),
            link: stored::PeerLink::default(),
            cursor: 0,
            services: BTreeMap::new(),
        }
    }
}

/// Whether callers of the network see a difference; the cursor is none.
impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.trust == other.trust && self.gateways == other.gateways && self.link == other.link
    }
}

impl Peer {
    pub(super) fn set_trust(&mut self, trust: PinnedTrust) {
        self.trust = Some(trust);
    }

    pub(super) fn forget_trust(&mut self) {
        self.trust = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default() && self.services.is_empty()
    }

    /// What was pinned, also while the other side has not agreed yet.
    pub(crate) fn trust(&self) -> Option<&PinnedTrust> {
        self.trust.as_ref()
    }

    /// What was pinned, once both sides agreed.
    pub(crate) fn joined(&self) -> Option<&PinnedTrust> {
        self.trust.as_ref().filter(|trust| !trust.pending)
    }

    pub(super) fn put_service(&mut self, stated: v1::Aggregate) -> Result<(), ConvertError> {
        let (namespace, app, aggregate) = Aggregate::read(&stated)?;
        self.services.insert((namespace, app), aggregate);
        Ok(())
    }
}

impl Aggregate {
    /// Namespace, app and numbers of an aggregate that was not removed.
    pub(crate) fn read(stated: &v1::Aggregate) -> Result<(Label, Label, Self), ConvertError> {
        let namespace = tollway_wire::label(&stated.namespace, "namespace")?;
        let app = tollway_wire::label(&stated.app, "app")?;
        let protocol = tollway_wire::protocol(stated.protocol)?;
        let v1::Aggregate { ready_replicas, registered_replicas, .. } = *stated;
        Ok((namespace, app, Self { ready_replicas, registered_replicas, protocol }))
    }
}

impl PinnedTrust {
    /// Whether TLS can use these roots. What is stored reaches every workload, and one root that
    /// cannot be read would take all trust with it.
    pub(crate) fn check(&self) -> Result<(), BundleError> {
        self.bundle().map(|_| ())
    }

    /// When the last of the roots ends.
    pub(crate) fn roots_end(&self) -> Option<SystemTime> {
        self.bundle().ok()?.roots_end()
    }

    fn bundle(&self) -> Result<TrustBundle, BundleError> {
        let roots = self.roots.iter().map(|root| CertificateDer::from(root.clone())).collect();
        TrustBundle::new(self.network.clone(), self.trust_domain.clone(), roots)
    }

    pub(crate) fn read(value: &[u8]) -> Result<Self, RecordError> {
        let stored = stored::PeerTrust::decode(value)?;
        let count = stored.roots.len();
        if count > ROOTS_PER_TRUST_DOMAIN_LIMIT {
            let limit = ROOTS_PER_TRUST_DOMAIN_LIMIT;
            return Err(ConvertError::TooMany { field: "roots", count, limit }.into());
        }
        Ok(Self {
            network: tollway_wire::network_name(&stored.network)?,
            trust_domain: tollway_wire::trust_domain(&stored.trust_domain)?,
            roots: stored.roots,
            joined_at_unix_s: stored.joined_at_unix_s,
            pending: stored.pending,
            follow_gateways: stored.follow_gateways,
            bundle_gateways: tollway_wire::addresses(
                &stored.bundle_gateways,
                "bundle_gateways",
                GATEWAYS_PER_NETWORK_LIMIT,
            )?,
            is_accepted: stored.is_accepted,
            revoked: tollway_wire::revocations(&stored.revoked)?,
        })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        stored::PeerTrust {
            network: self.network.as_str().to_owned(),
            trust_domain: self.trust_domain.to_string(),
            roots: self.roots.clone(),
            joined_at_unix_s: self.joined_at_unix_s,
            pending: self.pending,
            follow_gateways: self.follow_gateways,
            bundle_gateways: self.bundle_gateways.iter().map(|place| (*place).into()).collect(),
            is_accepted: self.is_accepted,
            revoked: self.revoked.iter().map(Into::into).collect(),
        }
        .encode_to_vec()
    }
}
