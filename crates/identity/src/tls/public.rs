//! TLS to servers outside the mesh: HTTP endpoints, collectors, databases. They have ordinary
//! certificates, of an authority that the system or the user trusts.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, Error, RootCertStore};

use super::owned;

/// The certificate and key that a client shows.
pub type ClientPair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificate authorities that this system trusts; empty when it has none.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// A client's configuration towards servers with a certificate of `roots`, over TLS 1.2 or 1.3. It
/// shows `pair` to servers that ask for a certificate.
///
/// # Errors
/// When the certificate and the key do not belong together.
pub fn public_config(
    roots: RootCertStore,
    alpn: &[&[u8]],
    pair: Option<ClientPair>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match pair {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = owned(alpn);
    Ok(config)
}
