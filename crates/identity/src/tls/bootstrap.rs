//! The first contact with the control plane, by a workload that trusts nothing but a pin of the
//! network's root, as its join token has one: the control plane shows that root in its chain.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{ClientConfig, Error, version};

use super::refusal::{Refusal, from_webpki};
use super::verify::{read_peer, signatures_of_the_library, verify_name, verify_server_to};
use super::{KeyExchange, TlsError, owned, provider_for};
use crate::authority::{control_dns_san, control_spiffe_id};
use crate::pin::RootPin;

/// The dialler's configuration for the first contact. It shows no certificate, and goes on only
/// with the control plane of the pin's network under its root. The server name to dial is
/// [`crate::control_dns_san`] of that network.
///
/// # Errors
/// [`TlsError`].
pub fn bootstrap_config(
    pin: &RootPin,
    alpn: &[&[u8]],
    key_exchange: KeyExchange,
) -> Result<Arc<ClientConfig>, TlsError> {
    bootstrap_config_at(pin, alpn, key_exchange, Arc::new(DefaultTimeProvider))
}

/// As [`bootstrap_config`], with the time taken from `clock`.
///
/// # Errors
/// [`TlsError`].
pub fn bootstrap_config_at(
    pin: &RootPin,
    alpn: &[&[u8]],
    key_exchange: KeyExchange,
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = ClientConfig::builder_with_details(provider_for(key_exchange), clock)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedRoot { pin: pin.clone() }))
        .with_no_client_auth();
    config.alpn_protocols = owned(alpn);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Believes the control plane of one network, under a root that is pinned.
#[derive(Debug)]
struct PinnedRoot {
    pin: RootPin,
}

impl ServerCertVerifier for PinnedRoot {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let peer = read_peer(leaf, intermediates)?;
        let name = control_dns_san(self.pin.network());
        let root = intermediates
            .iter()
            .find(|certificate| self.pin.pins(certificate))
            .ok_or_else(|| Refusal::NotThePinnedRoot { name: name.clone() })?;
        let anchor = webpki::anchor_from_trusted_cert(root).map_err(from_webpki)?;
        if peer.spiffe != control_spiffe_id(&peer.spiffe.trust_domain) {
            return Err(Refusal::NotControl { found: peer.spiffe }.into());
        }
        verify_name(&name, &peer)?;
        verify_server_to(&[anchor], leaf, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures_of_the_library!();
}
