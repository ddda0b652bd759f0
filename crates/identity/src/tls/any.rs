//! A verifier that takes any certificate, for a peer whose identity does not matter.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Takes every certificate whose owner proves that it has the key, as `curl -k` does. The signature
/// of the handshake is verified, so a handshake costs as much as with a checked certificate; but not with
/// a certificate that cannot be read for its key, such as one of X.509 version 1: nothing would follow
/// from it, as any other could be shown.
#[derive(Debug)]
pub struct AnyCertificate(WebPkiSupportedAlgorithms);

impl AnyCertificate {
    /// A verifier with the signature algorithms of `provider`.
    #[must_use]
    pub fn new(provider: &CryptoProvider) -> Arc<Self> {
        Arc::new(Self(provider.signature_verification_algorithms))
    }
}

impl ServerCertVerifier for AnyCertificate {
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
        forgive(verify_tls12_signature(message, certificate, signed, &self.0))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        forgive(verify_tls13_signature(message, certificate, signed, &self.0))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

fn forgive(
    verified: Result<HandshakeSignatureValid, Error>,
) -> Result<HandshakeSignatureValid, Error> {
    match verified {
        Err(Error::InvalidCertificate(error)) if error != CertificateError::BadSignature => {
            Ok(HandshakeSignatureValid::assertion())
        }
        verified => verified,
    }
}
