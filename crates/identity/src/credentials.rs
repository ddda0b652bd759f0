//! The credentials of a process: its certificate and key, and the trust bundles.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use thiserror::Error;
use tollway_model::{Instance, ServiceName, SpiffeId, TrustDomain};

use crate::bundle::TrustBundles;
use crate::key::KeyPair;
use crate::peer::{PeerError, PeerIdentity, peer_identity};
use crate::tls::{KeyExchange, provider};

/// Why a certificate and a key cannot be used together.
#[derive(Debug, Error)]
pub enum CredentialsError {
    #[error("the own certificate cannot be used")]
    Certificate(#[source] PeerError),
    #[error("the own private key cannot be used")]
    Key(#[source] rustls::Error),
    #[error("the private key does not belong to the certificate of {spiffe_id}; renew it")]
    KeyMismatch { spiffe_id: SpiffeId },
    #[error("the trust bundles lack the own trust domain {trust_domain}")]
    NoOwnBundle { trust_domain: TrustDomain },
}

/// A certificate chain with its key, and the trust bundles that go with it. Clones are cheap.
///
/// It never changes: a renewed certificate or a new revision of trust is a new value, from which
/// new TLS configurations are made. Those share no session with the old ones, so no resumption
/// outlives a change of trust.
#[derive(Clone)]
pub struct Credentials {
    own: Arc<Own>,
    bundles: TrustBundles,
    clock: Arc<dyn TimeProvider>,
    key_exchange: KeyExchange,
}

struct Own {
    identity: PeerIdentity,
    certified: Arc<CertifiedKey>,
    /// PKCS#8. Secret.
    key: PrivateKeyDer<'static>,
}

impl Credentials {
    /// Puts together what was issued with the key it was issued for.
    ///
    /// # Errors
    /// [`CredentialsError`] when they do not belong together, or the bundles lack the own trust
    /// domain.
    pub fn new(
        key: &KeyPair,
        chain: Vec<CertificateDer<'static>>,
        bundles: TrustBundles,
    ) -> Result<Self, CredentialsError> {
        let identity = peer_identity(&chain).map_err(CredentialsError::Certificate)?;
        let signing_key = provider()
            .key_provider
            .load_private_key(key.pkcs8_der())
            .map_err(CredentialsError::Key)?;
        let certified = CertifiedKey::new(chain, signing_key);
        certified
            .keys_match()
            .map_err(|_| CredentialsError::KeyMismatch { spiffe_id: identity.spiffe.clone() })?;
        let own = Arc::new(Own { identity, certified: Arc::new(certified), key: key.pkcs8_der() });
        let clock: Arc<dyn TimeProvider> = Arc::new(DefaultTimeProvider);
        let key_exchange = KeyExchange::default();
        Self { own, bundles, clock, key_exchange }.with_own_bundle()
    }

    /// The same certificate under another revision of trust.
    ///
    /// # Errors
    /// [`CredentialsError::NoOwnBundle`].
    pub fn with_bundles(&self, bundles: TrustBundles) -> Result<Self, CredentialsError> {
        Self { bundles, ..self.clone() }.with_own_bundle()
    }

    /// Takes the time from `clock` in every TLS configuration made from this value.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn TimeProvider>) -> Self {
        self.clock = clock;
        self
    }

    /// Agrees so on the keys of every connection made from this value; by default
    /// [`KeyExchange::Hybrid`].
    #[must_use]
    pub fn with_key_exchange(mut self, key_exchange: KeyExchange) -> Self {
        self.key_exchange = key_exchange;
        self
    }

    pub(crate) fn key_exchange(&self) -> KeyExchange {
        self.key_exchange
    }

    #[must_use]
    pub fn spiffe_id(&self) -> &SpiffeId {
        &self.own.identity.spiffe
    }

    #[must_use]
    pub fn service(&self) -> &ServiceName {
        &self.own.identity.service
    }

    /// The instance the certificate names, if it names one.
    #[must_use]
    pub fn instance(&self) -> Option<&Instance> {
        self.own.identity.instance.as_ref()
    }

    /// Leaf first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.own.certified.cert
    }

    #[must_use]
    pub fn not_before(&self) -> SystemTime {
        self.own.identity.not_before
    }

    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.own.identity.not_after
    }

    #[must_use]
    pub fn bundles(&self) -> &TrustBundles {
        &self.bundles
    }

    /// Whether the own certificate has the name `server_name` that a caller asks for; `false` for a
    /// caller that names no server.
    #[must_use]
    pub fn answers_to(&self, server_name: Option<&str>) -> bool {
        server_name.is_some_and(|asked| {
            self.own.identity.dns_names.iter().any(|own| own.eq_ignore_ascii_case(asked))
        })
    }

    /// SHA-256 of the public key (`SubjectPublicKeyInfo`).
    #[must_use]
    pub fn key_hash(&self) -> [u8; 32] {
        self.own.identity.key_hash
    }

    pub(crate) fn key(&self) -> &PrivateKeyDer<'static> {
        &self.own.key
    }

    pub(crate) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.own.certified
    }

    pub(crate) fn clock(&self) -> &Arc<dyn TimeProvider> {
        &self.clock
    }

    fn with_own_bundle(self) -> Result<Self, CredentialsError> {
        let trust_domain = &self.spiffe_id().trust_domain;
        if self.bundles.get(trust_domain).is_none() {
            return Err(CredentialsError::NoOwnBundle { trust_domain: trust_domain.clone() });
        }
        Ok(self)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("identity", &self.own.identity)
            .field("trust_revision", &self.bundles.revision())
            .finish_non_exhaustive()
    }
}
