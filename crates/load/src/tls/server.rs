//! The echo server's side of TLS.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use super::{TlsError, files, provider};

/// Sessions of TLS 1.2 that the server remembers; those of 1.3 are in the clients' tickets.
const SESSIONS_LIMIT: usize = 1024;

/// A server that shows `certificate`, speaks HTTP/2 and HTTP/1.1, and, with `client_authorities`,
/// lets in only who shows a certificate of one of them.
pub(crate) fn server_config(
    certificate: &Path,
    key: &Path,
    client_authorities: Option<&Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let identity = files::identity(certificate, key)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?;
    let builder = match client_authorities {
        Some(path) => {
            let roots = Arc::new(files::authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(TlsError::ClientAuthorities)?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS_LIMIT);
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().map_err(TlsError::Library)?;
    Ok(Arc::new(config))
}
