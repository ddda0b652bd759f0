//! Reads certificates and keys from PEM files.

use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Why a PEM file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    #[error("{path:?} cannot be read as PEM; does it hold a {what}?")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("{path:?} holds no {what}")]
    Empty { what: &'static str, path: PathBuf },
    #[error("the certificate in {path:?} and its key cannot be used")]
    Identity {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// Every certificate of a file of authorities.
///
/// # Errors
/// [`PemError::File`] and [`PemError::Empty`].
pub fn authorities(path: &Path) -> Result<RootCertStore, PemError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(path)?);
    if roots.is_empty() {
        return Err(PemError::Empty { what: "certificate authority", path: path.to_owned() });
    }
    Ok(roots)
}

/// A certificate with its chain, and its key, which may be in the same file.
///
/// # Errors
/// [`PemError`].
pub fn identity(certificate: &Path, key: &Path) -> Result<CertifiedKey, PemError> {
    let chain = chain(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| PemError::File {
        what: "private key",
        path: key.to_owned(),
        source,
    })?;
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
        .map_err(|source| PemError::Identity { path: certificate.to_owned(), source })
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let what = "certificate";
    let failed = |source| PemError::File { what, path: path.to_owned(), source };
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    if chain.is_empty() {
        return Err(PemError::Empty { what, path: path.to_owned() });
    }
    Ok(chain)
}
