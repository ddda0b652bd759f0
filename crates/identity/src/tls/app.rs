//! TLS to the app of a sidecar, for apps that accept nothing else. It proves no identity: the
//! process at the app's address is the app, as without TLS.

use std::sync::Arc;

use rustls::{ClientConfig, version};

use super::any::AnyCertificate;
use super::p521::outside_provider;
use super::{TlsError, owned};

/// A client's configuration towards the app of a sidecar; it takes any certificate. Never use it for
/// a peer that must be authenticated.
///
/// # Errors
/// [`TlsError::Library`].
pub fn app_config(alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = outside_provider();
    let verifier = AnyCertificate::new(&provider);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = owned(alpn);
    Ok(Arc::new(config))
}
