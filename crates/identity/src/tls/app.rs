//! TLS to the app beside a sidecar: encrypted for apps that speak nothing else, and no proof of
//! who they are. Who answers at the app's address is the app, as without TLS.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version};

use super::{TlsError, owned, provider};

/// A dialler's configuration towards the app of a sidecar, which takes any certificate. Never for
/// somebody who is to be known.
///
/// # Errors
/// [`TlsError::Library`].
pub fn app_config(alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(TlsError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyApp(algorithms)))
        .with_no_client_auth();
    config.alpn_protocols = owned(alpn);
    Ok(Arc::new(config))
}

/// Believes every certificate whose owner has its key.
#[derive(Debug)]
struct AnyApp(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyApp {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
