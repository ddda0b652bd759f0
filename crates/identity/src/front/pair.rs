//! A certificate with its chain, and the private key to it, as files hold them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::Error as TlsError;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use thiserror::Error;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::provider;
use crate::authority::system_time;
use crate::tls::span;

/// What begins a private key that needs a pass phrase.
const ENCRYPTED: &[&str] = &["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"];

/// Why a certificate and a key cannot be served. The text begins with the faulty item, so that the
/// file's name can precede it.
#[derive(Debug, Error)]
pub enum PairError {
    #[error("the certificate is not valid PEM: {0}")]
    CertificatePem(pem::Error),
    #[error("there is no certificate in it; it must hold PEM (`-----BEGIN CERTIFICATE-----`)")]
    NoCertificate,
    #[error("the certificate cannot be read; it is damaged or not X.509")]
    Malformed,
    #[error("the key is not valid PEM: {0}")]
    KeyPem(pem::Error),
    #[error("there is no private key in it; it must hold PEM (`-----BEGIN PRIVATE KEY-----`)")]
    NoKey,
    #[error(
        "the key is encrypted, and a pass phrase cannot be asked for; \
         decrypt it with `openssl pkey -in KEY -out PLAIN` and protect the file"
    )]
    KeyEncrypted,
    #[error("the key cannot be used: {0}; use RSA of at least 2048 bits, ECDSA or Ed25519")]
    Key(TlsError),
    #[error("the key is not that of the certificate; give the key that it was made for")]
    Mismatch,
    #[error(
        "the certificates stand in the wrong order: the key is that of number {number}; \
         put that one first and behind it those that lead to its root"
    )]
    Order { number: usize },
    #[error("the certificate has expired {ago} ago; renew it, or set this machine's clock")]
    Expired { ago: String },
    #[error("the certificate is not valid for another {until}; set this machine's clock")]
    NotYetValid { until: String },
}

/// A certificate, its chain and its key, that fit each other.
#[derive(Debug, Clone)]
pub struct FrontPair {
    certified: Arc<CertifiedKey>,
    names: Vec<String>,
    not_after: SystemTime,
}

impl FrontPair {
    /// Reads PEM; the certificate comes first, then what leads to its root. It must be valid at
    /// `now`.
    ///
    /// # Errors
    /// [`PairError`]; [`PairError::is_of_key`] distinguishes the two texts.
    pub fn from_pem(chain: &[u8], key: &[u8], now: SystemTime) -> Result<Self, PairError> {
        let chain = read_chain(chain)?;
        let leaf = chain.first().ok_or(PairError::NoCertificate)?;
        let (names, not_before, not_after) = read_leaf(leaf)?;
        let certified = certify(chain, read_key(key)?)?;
        let apart = |later: SystemTime, earlier| {
            span(later.duration_since(earlier).unwrap_or(Duration::ZERO))
        };
        if now > not_after {
            return Err(PairError::Expired { ago: apart(now, not_after) });
        }
        if now < not_before {
            return Err(PairError::NotYetValid { until: apart(not_before, now) });
        }
        Ok(Self { certified: Arc::new(certified), names, not_after })
    }

    /// The DNS names by which clients can ask for it, in lower case; a wildcard as `*.…`.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// When it expires.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    pub(super) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }
}

impl PairError {
    /// Whether the key's text is at fault, not the certificate's.
    #[must_use]
    pub fn is_of_key(&self) -> bool {
        match self {
            Self::KeyPem(_) | Self::NoKey | Self::KeyEncrypted | Self::Key(_) | Self::Mismatch => {
                true
            }
            Self::CertificatePem(_)
            | Self::NoCertificate
            | Self::Malformed
            | Self::Order { .. }
            | Self::Expired { .. }
            | Self::NotYetValid { .. } => false,
        }
    }
}

fn read_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PairError> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(PairError::CertificatePem)
}

fn read_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PairError> {
    let text = String::from_utf8_lossy(pem);
    if ENCRYPTED.iter().any(|mark| text.contains(mark)) {
        return Err(PairError::KeyEncrypted);
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let is_none = matches!(error, pem::Error::NoItemsFound);
        if is_none { PairError::NoKey } else { PairError::KeyPem(error) }
    })
}

fn read_leaf(
    leaf: &CertificateDer<'_>,
) -> Result<(Vec<String>, SystemTime, SystemTime), PairError> {
    let (_, certificate) = X509Certificate::from_der(leaf).map_err(|_| PairError::Malformed)?;
    let names = certificate.subject_alternative_name().map_err(|_| PairError::Malformed)?;
    let names = names.map(|extension| &extension.value.general_names);
    let dns = names.into_iter().flatten().filter_map(|name| {
        if let GeneralName::DNSName(dns) = name { Some(dns.to_ascii_lowercase()) } else { None }
    });
    let validity = certificate.validity();
    Ok((
        dns.collect(),
        system_time(validity.not_before.timestamp()),
        system_time(validity.not_after.timestamp()),
    ))
}

fn certify(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, PairError> {
    let key = provider().key_provider.load_private_key(key).map_err(PairError::Key)?;
    // The certificate may be of any version: servers show those that the TLS library does not verify.
    let fits = |certificate: &CertificateDer<'_>| match key.public_key() {
        Some(public) => {
            let read = X509Certificate::from_der(certificate);
            read.is_ok_and(|(_, certificate)| certificate.public_key().raw == &*public)
        }
        // It is not known whether they fit: then they may.
        None => true,
    };
    match chain.iter().position(fits) {
        Some(0) => Ok(CertifiedKey::new(chain, key)),
        Some(at) => Err(PairError::Order { number: at + 1 }),
        None => Err(PairError::Mismatch),
    }
}
