//! The TLS configuration of the HTTPS listener.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use crate::pem::{self, PemError};

/// Sessions of TLS 1.2 that the server stores; those of 1.3 are in the clients' tickets.
const SESSIONS_LIMIT: usize = 1024;

/// Why the listener's TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("the TLS library refuses the configuration")]
    Library(#[source] rustls::Error),
    #[error("these certificate authorities cannot be used to check clients")]
    ClientAuthorities(#[source] rustls::server::VerifierBuilderError),
}

/// A server with `certificate` that serves HTTP/2 and HTTP/1.1. With `client_authorities` it
/// accepts only clients with a certificate of one of them.
pub(crate) fn server_config(
    certificate: &Path,
    key: &Path,
    client_authorities: Option<&Path>,
) -> Result<Arc<ServerConfig>, ServerTlsError> {
    let identity = pem::identity(certificate, key)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(ServerTlsError::Library)?;
    let builder = match client_authorities {
        Some(path) => {
            let roots = Arc::new(pem::authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(ServerTlsError::ClientAuthorities)?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS_LIMIT);
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(ServerTlsError::Library)?;
    Ok(Arc::new(config))
}
