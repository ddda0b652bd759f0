//! TLS configurations: 1.3 only, AES-128-GCM first, certificates on both sides, no early data.
//!
//! Resumption: every configuration has a ticket key and a session store of its own, and each
//! [`Credentials`] value gets a new configuration. So a ticket ends with the certificate and with
//! the trust revision under which it was issued. It lives at most [`TICKET_LIFE_LIMIT`], and never
//! longer than the own certificate. The *peer's* certificate may end sooner: callers check
//! [`crate::PeerIdentity::valid_at`] after each handshake.
//!
//! A handshake whose peers share no ALPN protocol fails. A peer that offers none completes it, so
//! callers also check the negotiated protocol.

mod any;
mod app;
mod bootstrap;
mod p521;
mod public;
mod records;
mod refusal;
mod resume;
mod server_name;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig, version};
use thiserror::Error;
use tollway_model::{Instance, NetworkName, ServiceName, SpiffeId, TrustDomain};

use crate::authority::{control_dns_san, control_spiffe_id, home_control_dns_san};
use crate::credentials::Credentials;

pub use any::AnyCertificate;
pub use app::app_config;
pub use bootstrap::{bootstrap_config, bootstrap_config_at};
pub use p521::outside_provider;
pub use public::{
    ClientPair, RootsError, public_config, roots_in_file, roots_in_pem, system_roots,
};
pub use records::{FirstRecord, HelloRandom, client_hello_bytes, first_record};
pub use refusal::{
    Refusal, UNRECOGNIZED_NAME_RECORD, UPSTREAM_FAILED_RECORD, code_of, explain, span,
};
pub(crate) use refusal::{unwrapped, wrapped};
pub use resume::TICKET_LIFE_LIMIT;
use resume::{BoundedSessions, BoundedTickets};
pub use server_name::{ServerNameRead, ServerNameReader};
pub(crate) use verify::verify_either;
use verify::{AnyKnownPeer, ExactPeer, Grace, Requirement};

/// Why a TLS configuration could not be made.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("no trust bundle for {trust_domain}; join its network first")]
    UnknownTrustDomain { trust_domain: TrustDomain },
    #[error("`{name}` is not a DNS name")]
    ServerName { name: String, source: InvalidDnsNameError },
    #[error("the TLS library refuses the configuration")]
    Library(#[source] rustls::Error),
    #[error("the system gives no randomness for session tickets")]
    Randomness,
}

/// The peer that a dialler expects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Expected {
    pub spiffe: SpiffeId,
    /// The name that is dialled, and that the certificate must carry.
    pub dns_san: String,
}

impl Expected {
    /// Any replica of a service.
    #[must_use]
    pub fn service(service: &ServiceName, trust_domain: &TrustDomain) -> Self {
        Self { spiffe: service.spiffe_id(trust_domain), dns_san: service.dns_san() }
    }

    /// One replica of a service.
    #[must_use]
    pub fn instance(
        service: &ServiceName,
        instance: &Instance,
        trust_domain: &TrustDomain,
    ) -> Self {
        Self {
            spiffe: service.spiffe_id(trust_domain),
            dns_san: service.instance_dns_san(instance),
        }
    }

    /// The control plane of a network.
    #[must_use]
    pub fn control(network: &NetworkName, trust_domain: &TrustDomain) -> Self {
        Self { spiffe: control_spiffe_id(trust_domain), dns_san: control_dns_san(network) }
    }

    /// The control plane of the own network, dialled without a gateway in between.
    #[must_use]
    pub fn home_control(network: &NetworkName, trust_domain: &TrustDomain) -> Self {
        Self { spiffe: control_spiffe_id(trust_domain), dns_san: home_control_dns_san(network) }
    }

    /// The name to hand to the TLS connection.
    ///
    /// # Errors
    /// [`TlsError::ServerName`].
    pub fn server_name(&self) -> Result<ServerName<'static>, TlsError> {
        match ServerName::try_from(self.dns_san.clone()) {
            Ok(name @ ServerName::DnsName(_)) => Ok(name),
            Ok(_) | Err(_) => Err(TlsError::ServerName {
                name: self.dns_san.clone(),
                source: InvalidDnsNameError,
            }),
        }
    }
}

/// A dialler's configuration: it shows the own certificate, and goes on only if the other end's
/// chains to the bundle of `expected`'s trust domain, carries exactly that SPIFFE identity and
/// that DNS name, is meant for servers and is valid now.
///
/// Make one per expectation and keep it: sessions are resumed within one configuration only.
///
/// # Errors
/// [`TlsError`].
pub fn client_config(
    credentials: &Credentials,
    expected: &Expected,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let trust_domain = &expected.spiffe.trust_domain;
    let bundle = credentials
        .bundles()
        .get(trust_domain)
        .ok_or_else(|| TlsError::UnknownTrustDomain { trust_domain: trust_domain.clone() })?;
    expected.server_name()?;
    let verifier = ExactPeer::new(bundle.clone(), expected.clone());
    let shown = SingleCertAndKey::from(Arc::clone(credentials.certified()));
    let clock = Arc::clone(credentials.clock());
    let provider = provider_for(credentials.key_exchange());
    let mut config = ClientConfig::builder_with_details(provider, Arc::clone(&clock))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(shown));
    config.alpn_protocols = owned(alpn);
    config.resumption =
        Resumption::store(Arc::new(BoundedSessions::new(clock, credentials.not_after())));
    Ok(Arc::new(config))
}

/// The configuration of an inbound listener: a caller must show a certificate that chains to the
/// bundle of the trust domain it names, and must ask for one of the own certificate's names.
///
/// A wrong server name is refused with the alert `access_denied`, the only one that rustls offers
/// here. A caller that sends the precise alert finds it in [`UNRECOGNIZED_NAME_RECORD`].
///
/// # Errors
/// [`TlsError`].
pub fn server_config(
    credentials: &Credentials,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    let verifier = AnyKnownPeer::new(credentials.bundles().clone(), Requirement::Certificate);
    server_config_with(verifier, credentials, alpn)
}

/// As [`server_config`], but a caller without a certificate may come to join. One
/// that is shown is checked all the same. After the handshake [`crate::peer_identity`] returns
/// them apart ([`crate::PeerError::NoCertificate`]).
///
/// A certificate of the own trust domain that has ended at most `grace` ago completes the handshake,
/// too, so that it can be renewed. Callers recognise it by [`crate::PeerIdentity::ended_within`].
///
/// # Errors
/// [`TlsError`].
pub fn control_server_config(
    credentials: &Credentials,
    alpn: &[&[u8]],
    grace: Duration,
) -> Result<Arc<ServerConfig>, TlsError> {
    let trust_domain = credentials.spiffe_id().trust_domain.clone();
    let bundles = credentials.bundles().clone();
    let verifier = AnyKnownPeer::new(bundles, Requirement::CertificateIfShown)
        .with_grace(Grace { trust_domain, time: grace });
    server_config_with(verifier, credentials, alpn)
}

fn server_config_with(
    verifier: AnyKnownPeer,
    credentials: &Credentials,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, TlsError> {
    let clock = Arc::clone(credentials.clock());
    let tickets = BoundedTickets::new(Arc::clone(&clock), credentials.not_after())?;
    let provider = provider_for(credentials.key_exchange());
    let mut config = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Library)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(OwnNames(credentials.clone())));
    config.alpn_protocols = owned(alpn);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Arc::new(tickets);
    config.send_tls13_tickets = 1;
    Ok(Arc::new(config))
}

/// How two members of the mesh agree on the keys of a connection. If one of them is for
/// [`KeyExchange::Classical`], both use X25519.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyExchange {
    /// X25519MLKEM768: what is recorded today stays secret as long as one of X25519 and ML-KEM is
    /// unbroken. Its ClientHello is longer than one packet of most networks.
    #[default]
    Hybrid,
    /// X25519, or a curve of NIST's.
    Classical,
}

/// The cryptography of every mesh connection, apart from the agreement on keys.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    provider_for(KeyExchange::default())
}

/// The cryptography of mesh connections.
pub(crate) fn provider_for(key_exchange: KeyExchange) -> Arc<CryptoProvider> {
    static HYBRID: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| make_provider(vec![kx_group::X25519MLKEM768]));
    static CLASSICAL: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| make_provider(Vec::new()));
    Arc::clone(match key_exchange {
        KeyExchange::Hybrid => &HYBRID,
        KeyExchange::Classical => &CLASSICAL,
    })
}

/// With the groups `first`, and behind them those of any peer.
fn make_provider(first: Vec<&'static dyn SupportedKxGroup>) -> Arc<CryptoProvider> {
    let mut kx_groups = first;
    kx_groups.extend([kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1]);
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups,
        ..aws_lc_rs::default_provider()
    })
}

fn owned(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}

/// Shows the own certificate to those who ask for one of its names.
#[derive(Debug)]
struct OwnNames(Credentials);

impl ResolvesServerCert for OwnNames {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.answers_to(hello.server_name()).then(|| Arc::clone(self.0.certified()))
    }
}
