//! Client certificates: the authorities that issue them, and their content as one header field.
//!
//! The field is that of Envoy, `x-forwarded-client-cert`:
//! `Hash=<SHA-256 of the certificate>;Subject="<RFC 4514>";URI=…;DNS=…`. It is printable ASCII
//! whatever a certificate holds, and what is in quotes ends at the quote and nowhere before.

use std::fmt::Write;
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use thiserror::Error;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::provider;
use crate::authority::system_time;
use crate::peer::CERTIFICATE_BYTES_LIMIT;
use crate::tls::wrapped;

/// Most alternative names of one client's certificate.
pub const CLIENT_NAMES_LIMIT: usize = 64;

/// Most certificates that a client may show: its own, the six authorities between that are followed
/// at most, and a root.
pub const CLIENT_CHAIN_LIMIT: usize = 8;

/// The authorities that issue client certificates.
#[derive(Debug, Clone)]
pub struct ClientAuthorities {
    verifier: Arc<dyn ClientCertVerifier>,
    count: usize,
}

/// Why a client's certificate, or the authorities of clients, cannot be used.
#[derive(Debug, Error)]
pub enum ClientCertificateError {
    #[error("it is not valid PEM: {0}")]
    Pem(pem::Error),
    #[error("there is no certificate in it; it must hold PEM (`-----BEGIN CERTIFICATE-----`)")]
    NoAuthority,
    #[error("its certificate number {number} cannot be an authority: {source}")]
    Authority { number: usize, source: rustls::Error },
    #[error("its certificates make no authority: {0}")]
    Verifier(rustls::server::VerifierBuilderError),
    #[error(
        "the client's certificate has {bytes} bytes; at most {CERTIFICATE_BYTES_LIMIT} are read"
    )]
    TooLarge { bytes: usize },
    #[error("the client showed {count} certificates; at most {CLIENT_CHAIN_LIMIT} are read")]
    ChainTooLong { count: usize },
    #[error("the client's certificate is malformed")]
    Malformed,
    #[error("the client's certificate has {count} names; at most {CLIENT_NAMES_LIMIT} are read")]
    TooManyNames { count: usize },
    #[error("the client's certificate has a name that is not printable text")]
    UnprintableName,
}

impl ClientAuthorities {
    /// Reads PEM: every certificate in it may vouch for clients.
    ///
    /// # Errors
    /// [`ClientCertificateError`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, ClientCertificateError> {
        let mut roots = RootCertStore::empty();
        for (index, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
            let certificate = certificate.map_err(ClientCertificateError::Pem)?;
            roots.add(certificate).map_err(|source| ClientCertificateError::Authority {
                number: index + 1,
                source,
            })?;
        }
        let count = roots.len();
        if count == 0 {
            return Err(ClientCertificateError::NoAuthority);
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(ClientCertificateError::Verifier)?;
        Ok(Self { verifier: Arc::new(Counted(verifier)), count })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }
}

/// Limits what a client presents before the library reads it. Signatures cost most, and any client
/// may have as many checked as the library allows in a chain.
#[derive(Debug)]
struct Counted(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Counted {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_sizes(leaf, intermediates).map_err(wrapped)?;
        self.0.verify_client_cert(leaf, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

fn check_sizes(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), ClientCertificateError> {
    let count = intermediates.len() + 1;
    if count > CLIENT_CHAIN_LIMIT {
        return Err(ClientCertificateError::ChainTooLong { count });
    }
    if leaf.len() > CERTIFICATE_BYTES_LIMIT {
        return Err(ClientCertificateError::TooLarge { bytes: leaf.len() });
    }
    Ok(())
}

/// What a client proved, after a handshake has verified it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    field: Vec<u8>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl ClientCertificate {
    /// Reads the first of `certificates`; `None` when none was shown.
    ///
    /// # Errors
    /// [`ClientCertificateError`]: it is larger than the limit, or has a value that a header field
    /// cannot hold.
    pub fn read(
        certificates: &[CertificateDer<'_>],
    ) -> Result<Option<Self>, ClientCertificateError> {
        let Some((leaf, intermediates)) = certificates.split_first() else { return Ok(None) };
        check_sizes(leaf, intermediates)?;
        let malformed = |_| ClientCertificateError::Malformed;
        let (_, certificate) = X509Certificate::from_der(leaf).map_err(malformed)?;
        let mut field = String::with_capacity(256);
        field.push_str("Hash=");
        push_hex(&mut field, digest(&SHA256, leaf).as_ref());
        field.push_str(";Subject=");
        push_quoted(&mut field, &subject(certificate.subject()));
        push_names(&mut field, &certificate)?;
        let validity = certificate.validity();
        Ok(Some(Self {
            field: field.into_bytes(),
            not_before: system_time(validity.not_before.timestamp()),
            not_after: system_time(validity.not_after.timestamp()),
        }))
    }

    /// The value of `x-forwarded-client-cert`.
    #[must_use]
    pub fn field(&self) -> &[u8] {
        &self.field
    }

    /// Whether it is valid at `now`. A resumed session skips the check that a full handshake
    /// makes.
    #[must_use]
    pub fn valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && now <= self.not_after
    }
}

fn push_names(
    field: &mut String,
    certificate: &X509Certificate<'_>,
) -> Result<(), ClientCertificateError> {
    let extension =
        certificate.subject_alternative_name().map_err(|_| ClientCertificateError::Malformed)?;
    let Some(extension) = extension else { return Ok(()) };
    let names = &extension.value.general_names;
    if names.len() > CLIENT_NAMES_LIMIT {
        return Err(ClientCertificateError::TooManyNames { count: names.len() });
    }
    for name in names {
        // Addresses, mail boxes and the like have no key in the field.
        let (key, value) = if let GeneralName::URI(uri) = name {
            ("URI", uri)
        } else if let GeneralName::DNSName(dns) = name {
            ("DNS", dns)
        } else {
            continue;
        };
        if !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ClientCertificateError::UnprintableName);
        }
        field.push(';');
        field.push_str(key);
        field.push('=');
        if value.contains([',', ';', '=', '"', '\\']) {
            push_quoted(field, value);
        } else {
            field.push_str(value);
        }
    }
    Ok(())
}

/// A name as RFC 4514 writes it, the last part first.
fn subject(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (at, part) in parts.iter().rev().enumerate() {
        for (nth, attribute) in part.iter().enumerate() {
            match (at, nth) {
                (0, 0) => {}
                (_, 0) => text.push(','),
                _ => text.push('+'),
            }
            push_attribute(&mut text, attribute);
        }
    }
    text
}

fn push_attribute(text: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let kind = attribute.attr_type();
    match oid2abbrev(kind, oid_registry()) {
        Ok(short) => text.push_str(short),
        Err(_) => text.push_str(&kind.to_id_string()),
    }
    text.push('=');
    let Ok(value) = attribute.as_str() else {
        text.push('#');
        return push_hex(text, attribute.as_slice());
    };
    let last = value.len().saturating_sub(1);
    for (at, byte) in value.bytes().enumerate() {
        let at_edge = (byte == b' ' && (at == 0 || at == last)) || (byte == b'#' && at == 0);
        let is_special = matches!(byte, b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' | b'=');
        if !(byte.is_ascii_graphic() || byte == b' ') {
            text.push('\\');
            push_hex(text, &[byte]);
        } else {
            if at_edge || is_special {
                text.push('\\');
            }
            text.push(char::from(byte));
        }
    }
}

/// In quotes, of which none but the last is bare.
fn push_quoted(field: &mut String, text: &str) {
    field.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            field.push('\\');
        }
        field.push(c);
    }
    field.push('"');
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
}
