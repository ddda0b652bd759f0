//! Key pairs: made here, never leave the process except by the owner's request.

use std::fmt;

use rcgen::CertificateParams;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use thiserror::Error;

/// Why a key could not be made or read.
#[derive(Debug, Error)]
pub enum KeyError {
    #[error("cannot generate a key pair")]
    Generate(#[source] rcgen::Error),
    #[error("cannot read the private key; it must be PKCS#8, EC P-256, P-384 or Ed25519")]
    Read(#[source] rcgen::Error),
    #[error("cannot sign the certificate request")]
    Request(#[source] rcgen::Error),
}

/// An EC P-256 key pair. `Debug` hides the private half.
pub struct KeyPair(rcgen::KeyPair);

impl KeyPair {
    /// A fresh key pair.
    ///
    /// # Errors
    /// [`KeyError::Generate`] when the system has no randomness to give.
    pub fn generate() -> Result<Self, KeyError> {
        rcgen::KeyPair::generate().map(Self).map_err(KeyError::Generate)
    }

    /// Reads a PKCS#8 document.
    ///
    /// # Errors
    /// [`KeyError::Read`].
    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, KeyError> {
        rcgen::KeyPair::try_from(der).map(Self).map_err(KeyError::Read)
    }

    /// Reads a PKCS#8 document in PEM.
    ///
    /// # Errors
    /// [`KeyError::Read`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        rcgen::KeyPair::from_pem(pem).map(Self).map_err(KeyError::Read)
    }

    /// The private key as PKCS#8. Secret.
    #[must_use]
    pub fn pkcs8_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }

    /// The private key as PKCS#8 in PEM. Secret.
    #[must_use]
    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// A certificate request (PKCS#10) that proves possession of the private key. It has no names:
    /// the authority decides them.
    ///
    /// # Errors
    /// [`KeyError::Request`].
    pub fn csr_der(&self) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(&self.0).map_err(KeyError::Request)?;
        Ok(request.der().to_vec())
    }

    pub(crate) fn into_inner(self) -> rcgen::KeyPair {
        self.0
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("algorithm", self.0.algorithm()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_form_and_hides_in_debug() {
        let key = KeyPair::generate().unwrap();
        let again = KeyPair::from_pem(&key.to_pem()).unwrap();
        assert_eq!(key.pkcs8_der(), again.pkcs8_der());
        let secret = key.to_pem();
        let line = secret.lines().nth(1).unwrap();
        assert!(!format!("{key:?}").contains(line));
        assert!(!format!("{key:?}").contains("key_pair"));
    }

    #[test]
    fn bytes_that_are_no_key_are_refused() {
        assert!(matches!(KeyPair::from_pkcs8_der(b"\x30\x03\x02\x01\x00"), Err(KeyError::Read(_))));
        assert!(matches!(KeyPair::from_pem("nonsense"), Err(KeyError::Read(_))));
    }
}
