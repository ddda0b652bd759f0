//! Certificates and keys as they lie in PEM files.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{TlsError, provider};

/// Every certificate of a file of authorities.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(path)?);
    if roots.is_empty() {
        return Err(TlsError::Empty { what: "certificate authority", path: path.to_owned() });
    }
    Ok(roots)
}

/// A certificate, what it chains to, and its key, which may lie in the same file.
pub(super) fn identity(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = chain(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File {
        what: "private key",
        path: key.to_owned(),
        source,
    })?;
    CertifiedKey::from_der(chain, key, &provider())
        .map_err(|source| TlsError::Identity { path: certificate.to_owned(), source })
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "certificate";
    let failed = |source| TlsError::File { what, path: path.to_owned(), source };
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    if chain.is_empty() {
        return Err(TlsError::Empty { what, path: path.to_owned() });
    }
    Ok(chain)
}
