//! The first contact with the control plane, by a workload that holds a join token and nothing
//! else: the token pins the network's root, which the control plane shows in its chain.

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
use crate::token::JoinToken;

/// The dialler's configuration for the first contact. It shows no certificate, and goes on only
/// with the control plane of the token's network under the token's root. The server name to
/// dial is [`crate::control_dns_san`] of the token's network.
///
/// # Errors
/// [`TlsError`].
pub fn bootstrap_config(
    token: &JoinToken,
    alpn: &[&[u8]],
    key_exchange: KeyExchange,
) -> Result<Arc<ClientConfig>, TlsError> {
    bootstrap_config_at(token, alpn, key_exchange, Arc::new(DefaultTimeProvider))
}

/// As [`bootstrap_config`], with the time taken from `clock`.
///
/// # Errors
/// [`TlsError`].
pub fn bootstrap_config_at(
    token: &JoinToken,
    alpn: &[&[u8]],
    key_exchange: KeyExchange,
    clock: Arc<dyn TimeProvider>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = ClientConfig::builder_with_details(provider_for(key_exchange), clock)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedRoot { token: token.clone() }))
        .with_no_client_auth();
    config.alpn_protocols = owned(alpn);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Believes the control plane of one network, under the root a token pins.
#[derive(Debug)]
struct PinnedRoot {
    token: JoinToken,
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
        let name = control_dns_san(self.token.network());
        let root = intermediates
            .iter()
            .find(|certificate| self.token.pins(certificate))
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
