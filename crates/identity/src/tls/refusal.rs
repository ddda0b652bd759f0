//! Why a handshake was refused, in words an operator can act on.

use std::sync::Arc;

use rustls::{AlertDescription, CertificateError, Error, OtherError};
use thiserror::Error as ThisError;
use tollway_model::{NetworkName, SpiffeId, TrustDomain};

use crate::peer::PeerError;

/// A whole TLS record with the fatal alert `unrecognized_name` (RFC 6066 section 3), to be sent
/// instead of what rustls wants to send when `Credentials::answers_to` says no. Nothing is
/// encrypted at that point of a handshake.
pub const UNRECOGNIZED_NAME_RECORD: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// What is wrong with a peer beyond what TLS itself checks.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum Refusal {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("{spiffe} belongs to the trust domain {}, which is not known here; join its network", spiffe.trust_domain)]
    UnknownTrustDomain { spiffe: SpiffeId },
    #[error("{trust_domain} may vouch for names of the network {own} only, not of {claimed}")]
    ForeignNetwork { trust_domain: TrustDomain, own: NetworkName, claimed: NetworkName },
    #[error("the peer is {found}, expected was {expected}")]
    WrongIdentity { expected: SpiffeId, found: SpiffeId },
    #[error("the certificate of {spiffe} does not carry the name `{name}` that was dialled")]
    MissingName { spiffe: SpiffeId, name: String },
    #[error(
        "the join token names another root than the one the server at `{name}` has; check the token and the address"
    )]
    NotThePinnedRoot { name: String },
    #[error("the peer at the address of the control plane is {found}")]
    NotControl { found: SpiffeId },
    #[error("the certificate chain is not acceptable: {0}")]
    Chain(webpki::Error),
}

impl Refusal {
    /// The refusal inside a TLS error, if this crate put one there.
    #[must_use]
    pub fn from_error(error: &Error) -> Option<&Self> {
        let Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) = error else {
            return None;
        };
        inner.downcast_ref()
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

/// A failed handshake in words, with the refusals of this crate spelt out.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "the other alerts explain themselves")]
pub fn explain(error: &Error) -> String {
    if let Some(refusal) = Refusal::from_error(error) {
        return chain_of(refusal);
    }
    let Error::AlertReceived(alert) = error else { return chain_of(error) };
    match *alert {
        AlertDescription::AccessDenied | AlertDescription::UnrecognisedName => {
            "the peer does not have the name that was dialled; its address may have passed to another workload"
        }
        AlertDescription::CertificateUnknown => {
            "the peer refused this side's certificate: its names are not acceptable there"
        }
        AlertDescription::UnknownCA => {
            "the peer does not know this side's authority; are the two networks joined?"
        }
        AlertDescription::CertificateRequired => {
            "the peer demands a certificate and none was shown"
        }
        AlertDescription::CertificateExpired => {
            "the peer holds this side's certificate for expired or not yet valid; compare the clocks"
        }
        _ => return chain_of(error),
    }
    .to_owned()
}

fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// What webpki found, as rustls names it, so that the alert sent is the precise one.
#[expect(clippy::wildcard_enum_match_arm, reason = "the rest has no alert of its own")]
pub(super) fn from_webpki(error: webpki::Error) -> Error {
    let known = match error {
        webpki::Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        webpki::Error::BadDer | webpki::Error::BadDerTime => CertificateError::BadEncoding,
        webpki::Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        webpki::Error::UnsupportedCriticalExtension => CertificateError::UnhandledCriticalExtension,
        other => return Refusal::Chain(other).into(),
    };
    Error::InvalidCertificate(known)
}
