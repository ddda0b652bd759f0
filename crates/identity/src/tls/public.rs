//! TLS to servers outside the mesh: HTTP endpoints, collectors, databases. They have ordinary
//! certificates, of an authority that the system or the user trusts.

use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, Error, RootCertStore};
use thiserror::Error as ThisError;

use super::owned;
use super::p521::outside_provider;

/// The certificate and key that a client shows.
pub type ClientPair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificate authorities that this system trusts; empty when it has none.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Why a text or file holds no authorities.
#[derive(Debug, ThisError)]
pub enum RootsError {
    #[error("not readable as PEM")]
    Pem(#[source] pem::Error),
    #[error("no certificate can be used as an authority")]
    None,
}

/// The certificate authorities in a PEM file.
///
/// # Errors
/// [`RootsError`].
pub fn roots_in_file(path: &Path) -> Result<RootCertStore, RootsError> {
    roots_of(CertificateDer::pem_file_iter(path).map_err(RootsError::Pem)?)
}

/// The certificate authorities in a PEM text.
///
/// # Errors
/// [`RootsError`].
pub fn roots_in_pem(text: &str) -> Result<RootCertStore, RootsError> {
    roots_of(CertificateDer::pem_slice_iter(text.as_bytes()))
}

fn roots_of(
    certificates: impl Iterator<Item = Result<CertificateDer<'static>, pem::Error>>,
) -> Result<RootCertStore, RootsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        // One that is no authority is of no use, and harmless.
        let _ = roots.add(certificate.map_err(RootsError::Pem)?);
    }
    if roots.is_empty() { Err(RootsError::None) } else { Ok(roots) }
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
    let builder = ClientConfig::builder_with_provider(outside_provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match pair {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = owned(alpn);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_are_read_and_what_is_none_is_refused() {
        let certified = rcgen::generate_simple_self_signed(["db".to_owned()]).unwrap();
        let pem = certified.cert.pem();
        assert_eq!(roots_in_pem(&pem).unwrap().len(), 1);
        assert!(matches!(roots_in_pem("nothing"), Err(RootsError::None)));
        let no_certificate =
            "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n".to_owned();
        assert!(matches!(roots_in_pem(&no_certificate), Err(RootsError::None)));
        assert_eq!(roots_in_pem(&(no_certificate + &pem)).unwrap().len(), 1);
        let cut = &pem[..pem.len() / 2];
        assert!(matches!(roots_in_pem(cut), Err(RootsError::Pem(_))));
        let absent = roots_in_file(Path::new("/nowhere/ca.pem"));
        assert!(matches!(absent, Err(RootsError::Pem(pem::Error::Io(_)))));
    }
}
