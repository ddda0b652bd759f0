//! Trust bundles: the roots of each trust domain, and the identities of it that were taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use thiserror::Error;
use tollway_model::{ErrorCode, NetworkName, TrustDomain};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority::system_time;
use crate::peer::{CERTIFICATE_BYTES_LIMIT, PeerIdentity};
use crate::revocations::Revocations;
use crate::tls::verify_either;

/// Most roots of one trust domain. A rotation needs two; the rest is a reserve.
pub const ROOTS_LIMIT: usize = 8;
/// Most trust domains known at once.
pub const TRUST_DOMAINS_LIMIT: usize = 1024;

/// Why a bundle was refused.
#[derive(Debug, Error)]
pub enum BundleError {
    #[error("the bundle of {trust_domain} has {count} roots; it needs 1 to {ROOTS_LIMIT}")]
    RootCount { trust_domain: TrustDomain, count: usize },
    #[error("root {index} of the bundle of {trust_domain} is not a certificate")]
    Root { trust_domain: TrustDomain, index: usize, source: webpki::Error },
    #[error(
        "root {index} of the bundle of {trust_domain} has {bytes} bytes; at most {CERTIFICATE_BYTES_LIMIT} are read"
    )]
    RootTooLarge { trust_domain: TrustDomain, index: usize, bytes: usize },
    #[error("there are two bundles for {trust_domain}; keep one")]
    Duplicate { trust_domain: TrustDomain },
    #[error(
        "the trust domains {first} and {second} both claim the network {network}; a network has one"
    )]
    NetworkClaimedTwice { network: NetworkName, first: TrustDomain, second: TrustDomain },
    #[error("there are {count} trust domains; at most {TRUST_DOMAINS_LIMIT} are possible")]
    TooMany { count: usize },
}

/// The roots of one trust domain, and the one network whose names they may vouch for.
#[derive(Clone)]
pub struct TrustBundle {
    network: NetworkName,
    trust_domain: TrustDomain,
    roots: Arc<[CertificateDer<'static>]>,
    anchors: Arc<[TrustAnchor<'static>]>,
    revoked: Revocations,
}

/// Why a peer whose certificate was good is believed no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Distrust {
    #[error("its network is trusted no more")]
    Network,
    #[error("its identity was revoked")]
    Revoked,
    #[error("the root that signed its certificate is trusted no more")]
    Root,
}

impl Distrust {
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Network | Self::Root => ErrorCode::ForeignAuthority,
            Self::Revoked => ErrorCode::IdentityRevoked,
        }
    }
}

impl TrustBundle {
    /// # Errors
    /// [`BundleError`] when there are no or too many roots, or one is not a certificate.
    pub fn new(
        network: NetworkName,
        trust_domain: TrustDomain,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<Self, BundleError> {
        if roots.is_empty() || roots.len() > ROOTS_LIMIT {
            return Err(BundleError::RootCount { trust_domain, count: roots.len() });
        }
        if let Some(index) = roots.iter().position(|root| root.len() > CERTIFICATE_BYTES_LIMIT) {
            let bytes = roots[index].len();
            return Err(BundleError::RootTooLarge { trust_domain, index, bytes });
        }
        let anchor = |(index, root): (usize, &CertificateDer<'static>)| {
            webpki::anchor_from_trusted_cert(root).map(|anchor| anchor.to_owned()).map_err(
                |source| BundleError::Root { trust_domain: trust_domain.clone(), index, source },
            )
        };
        let anchors = roots.iter().enumerate().map(anchor).collect::<Result<_, _>>()?;
        let revoked = Revocations::default();
        Ok(Self { network, trust_domain, roots: roots.into(), anchors, revoked })
    }

    /// The same roots, without the identities in `revoked`.
    #[must_use]
    pub fn with_revoked(self, revoked: Revocations) -> Self {
        Self { revoked, ..self }
    }

    /// Whether the identity of a peer of this trust domain was taken back.
    #[must_use]
    pub fn revokes(&self, peer: &PeerIdentity) -> bool {
        self.revoked.covers(&peer.spiffe.namespace, &peer.spiffe.app, peer.instance.as_ref())
    }

    #[must_use]
    pub fn network(&self) -> &NetworkName {
        &self.network
    }

    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    #[must_use]
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// When the last of the roots ends; `None` where one cannot be read as a certificate.
    #[must_use]
    pub fn roots_end(&self) -> Option<SystemTime> {
        let end = |root: &CertificateDer<'_>| {
            let (_, parsed) = X509Certificate::from_der(root).ok()?;
            Some(system_time(parsed.validity().not_after.timestamp()))
        };
        self.roots.iter().map(end).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    pub(crate) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }
}

impl PartialEq for TrustBundle {
    fn eq(&self, other: &Self) -> bool {
        self.network == other.network
            && self.trust_domain == other.trust_domain
            && self.roots == other.roots
            && self.revoked == other.revoked
    }
}
impl Eq for TrustBundle {}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustBundle")
            .field("network", &self.network)
            .field("trust_domain", &self.trust_domain)
            .field("roots", &self.roots.len())
            .field("revoked", &self.revoked.iter().count())
            .finish()
    }
}

/// Every trust domain that is believed, each for its own names only. Clones are cheap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrustBundles {
    revision: u64,
    by_domain: Arc<BTreeMap<TrustDomain, TrustBundle>>,
}

impl TrustBundles {
    /// The bundles as of `revision`, which grows with every change of trust.
    ///
    /// # Errors
    /// [`BundleError`] when a trust domain or a network appears twice, or there are too many.
    pub fn new(
        revision: u64,
        bundles: impl IntoIterator<Item = TrustBundle>,
    ) -> Result<Self, BundleError> {
        let mut by_domain = BTreeMap::new();
        let mut by_network: BTreeMap<NetworkName, TrustDomain> = BTreeMap::new();
        for bundle in bundles {
            let trust_domain = bundle.trust_domain.clone();
            if by_domain.contains_key(&trust_domain) {
                return Err(BundleError::Duplicate { trust_domain });
            }
            if let Some(first) = by_network.insert(bundle.network.clone(), trust_domain.clone()) {
                return Err(BundleError::NetworkClaimedTwice {
                    network: bundle.network,
                    first,
                    second: trust_domain,
                });
            }
            by_domain.insert(trust_domain, bundle);
        }
        if by_domain.len() > TRUST_DOMAINS_LIMIT {
            return Err(BundleError::TooMany { count: by_domain.len() });
        }
        Ok(Self { revision, by_domain: Arc::new(by_domain) })
    }

    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn get(&self, trust_domain: &TrustDomain) -> Option<&TrustBundle> {
        self.by_domain.get(trust_domain)
    }

    /// Whether a peer whose certificate was good at its handshake is believed still.
    ///
    /// # Errors
    /// [`Distrust`].
    pub fn judge(&self, peer: &PeerIdentity) -> Result<(), Distrust> {
        let bundle = self.get(&peer.spiffe.trust_domain).ok_or(Distrust::Network)?;
        if bundle.revokes(peer) { Err(Distrust::Revoked) } else { Ok(()) }
    }

    /// The trust domains, of those that are still trusted, of which `former` has a root that these bundles
    /// have not.
    #[must_use]
    pub fn without_roots_of(&self, former: &Self) -> BTreeSet<TrustDomain> {
        let lacks_one = |present: &&TrustBundle| {
            let before = former.get(&present.trust_domain);
            before.is_some_and(|of| of.roots.iter().any(|root| !present.roots.contains(root)))
        };
        self.iter().filter(lacks_one).map(|bundle| bundle.trust_domain.clone()).collect()
    }

    /// Whether the certificates of a peer, leaf first, lead to a root of its trust domain at `now`: for
    /// connections that were made while there were other roots. It verifies signatures.
    ///
    /// # Errors
    /// [`Distrust`].
    pub fn judge_chain(
        &self,
        peer: &PeerIdentity,
        certificates: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<(), Distrust> {
        let bundle = self.get(&peer.spiffe.trust_domain).ok_or(Distrust::Network)?;
        let (leaf, intermediates) = certificates.split_first().ok_or(Distrust::Root)?;
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(since);
        verify_either(bundle, leaf, intermediates, now).map_err(|_| Distrust::Root)
    }

    /// In order of trust domain.
    pub fn iter(&self) -> impl Iterator<Item = &TrustBundle> {
        self.by_domain.values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use tollway_model::{Label, Revocation};

    use super::*;
    use crate::authority::Authority;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn root() -> CertificateDer<'static> {
        let (domain, now) =
            (TrustDomain::new("x").unwrap(), UNIX_EPOCH + Duration::from_secs(1 << 30));
        Authority::create(&domain, &label("x"), now).unwrap().root_der().clone()
    }

    fn bundle(network: &str, domain: &str) -> TrustBundle {
        TrustBundle::new(label(network), TrustDomain::new(domain).unwrap(), vec![root()]).unwrap()
    }

    #[test]
    fn a_bundle_needs_a_few_roots_that_are_certificates() {
        let domain = TrustDomain::new("west.tollway").unwrap();
        let refuse = |roots| TrustBundle::new(label("west"), domain.clone(), roots).unwrap_err();
        assert!(matches!(refuse(Vec::new()), BundleError::RootCount { count: 0, .. }));
        let many = vec![root(); ROOTS_LIMIT + 1];
        assert!(matches!(refuse(many), BundleError::RootCount { count: 9, .. }));
        let long = vec![root(), CertificateDer::from(vec![0x30; CERTIFICATE_BYTES_LIMIT + 1])];
        assert!(matches!(refuse(long), BundleError::RootTooLarge { index: 1, .. }));
        let longest = vec![root(), CertificateDer::from(vec![0x30; CERTIFICATE_BYTES_LIMIT])];
        assert!(matches!(refuse(longest), BundleError::Root { index: 1, .. }));
        let many = vec![root(); ROOTS_LIMIT];
        assert!(TrustBundle::new(label("west"), domain.clone(), many).is_ok());
        let junk = vec![root(), CertificateDer::from(vec![0x30, 0])];
        assert!(matches!(refuse(junk), BundleError::Root { index: 1, .. }));
    }

    #[test]
    fn a_bundle_that_differs_in_anything_is_another() {
        let one = bundle("west", "w");
        assert_eq!(one, one.clone());
        let revoked = Revocations::new([Revocation {
            namespace: label("shop"),
            app: label("stock"),
            instance: None,
        }]);
        for other in [
            TrustBundle { network: label("east"), ..one.clone() },
            TrustBundle { trust_domain: TrustDomain::new("e").unwrap(), ..one.clone() },
            TrustBundle { roots: vec![root(), root()].into(), ..one.clone() },
            one.clone().with_revoked(revoked.clone()),
        ] {
            assert_ne!(one, other);
        }
        let shown = format!("{:?}", one.with_revoked(revoked));
        assert!(shown.contains("roots: 1, revoked: 1"), "{shown}");
    }

    #[test]
    fn a_bundle_ends_with_the_last_of_its_roots() {
        let at = |seconds| {
            let (domain, now) = (TrustDomain::new("x").unwrap(), Duration::from_secs(seconds));
            let authority = Authority::create(&domain, &label("x"), UNIX_EPOCH + now).unwrap();
            authority.root_der().clone()
        };
        let of = |roots| {
            let bundle = TrustBundle::new(label("x"), TrustDomain::new("x").unwrap(), roots);
            bundle.unwrap().roots_end().unwrap()
        };
        let (early, late) = (at(1 << 30), at((1 << 30) + 86_400));
        let day = of(vec![late.clone()]).duration_since(of(vec![early.clone()])).unwrap();
        assert_eq!(day, Duration::from_hours(24));
        assert_eq!(of(vec![late.clone(), early]), of(vec![late]));
    }

    #[test]
    fn domains_and_networks_stand_once() {
        let both = TrustBundles::new(3, [bundle("west", "w"), bundle("east", "e")]).unwrap();
        assert_eq!(both.revision(), 3);
        assert_eq!(both.iter().count(), 2);
        assert!(both.get(&TrustDomain::new("w").unwrap()).is_some());
        assert!(both.get(&TrustDomain::new("n").unwrap()).is_none());
        let twice = TrustBundles::new(1, [bundle("west", "w"), bundle("east", "w")]);
        assert!(matches!(twice, Err(BundleError::Duplicate { .. })));
        let claimed = TrustBundles::new(1, [bundle("west", "w"), bundle("West", "e")]);
        assert!(matches!(claimed, Err(BundleError::NetworkClaimedTwice { .. })));
    }

    #[test]
    fn the_number_of_trust_domains_is_bounded() {
        let one = bundle("n", "d");
        let many = (0..=TRUST_DOMAINS_LIMIT).map(|number| TrustBundle {
            network: label(&format!("n{number}")),
            trust_domain: TrustDomain::new(&format!("d{number}")).unwrap(),
            ..one.clone()
        });
        let refused = TrustBundles::new(1, many.clone());
        assert!(matches!(refused, Err(BundleError::TooMany { count: 1025 })));
        assert!(TrustBundles::new(1, many.skip(1)).is_ok());
    }
}
