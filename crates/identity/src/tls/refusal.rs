//! Why a handshake was refused, in words an operator can act on.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError};
use thiserror::Error as ThisError;
use tollway_model::{ErrorCode, NetworkName, SpiffeId, TrustDomain};

use crate::peer::PeerError;

/// A whole TLS record with the fatal alert `unrecognized_name` (RFC 6066 section 3). It is sent in
/// place of rustls's alert when `Credentials::answers_to` refuses the name. Nothing is encrypted at
/// that point of a handshake.
pub const UNRECOGNIZED_NAME_RECORD: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// A whole TLS record with the fatal alert `internal_error`. A gateway sends it if it could not
/// connect to the endpoint, before it has passed anything on.
pub const UPSTREAM_FAILED_RECORD: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

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
    fn code(&self) -> ErrorCode {
        match self {
            Self::Peer(_) => ErrorCode::TlsFailed,
            Self::UnknownTrustDomain { .. } | Self::ForeignNetwork { .. } | Self::Chain(_) => {
                ErrorCode::ForeignAuthority
            }
            Self::WrongIdentity { .. } | Self::MissingName { .. } => ErrorCode::WrongIdentity,
            Self::NotThePinnedRoot { .. } | Self::NotControl { .. } => ErrorCode::ControlForeign,
        }
    }

    /// The refusal inside a TLS error, if this crate put one there.
    #[must_use]
    pub fn from_error(error: &Error) -> Option<&Self> {
        unwrapped(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        wrapped(refusal)
    }
}

/// An error of this crate's verifiers as rustls takes it.
pub(crate) fn wrapped(reason: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(reason))))
}

/// The reason inside a TLS error, if it is one of these that was [`wrapped`].
pub(crate) fn unwrapped<R: std::error::Error + 'static>(error: &Error) -> Option<&R> {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) = error else {
        return None;
    };
    inner.downcast_ref()
}

/// The code of a failed handshake, seen from the side that dialled.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "the rest is all of one kind")]
pub fn code_of(error: &Error) -> ErrorCode {
    if let Some(refusal) = Refusal::from_error(error) {
        return refusal.code();
    }
    match error {
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => ErrorCode::CertificateExpired,
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => ErrorCode::CertificateNotYetValid,
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => ErrorCode::ForeignAuthority,
        Error::InvalidCertificate(CertificateError::Revoked)
        | Error::AlertReceived(AlertDescription::CertificateRevoked) => ErrorCode::IdentityRevoked,
        Error::AlertReceived(alert) => match alert {
            AlertDescription::AccessDenied | AlertDescription::UnrecognisedName => {
                ErrorCode::WrongIdentity
            }
            AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate => ErrorCode::CertificateRefused,
            _ => ErrorCode::TlsFailed,
        },
        _ => ErrorCode::TlsFailed,
    }
}

/// A failed handshake in words, with the refusals of this crate spelt out.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "the other alerts explain themselves")]
pub fn explain(error: &Error) -> String {
    if let Some(refusal) = Refusal::from_error(error) {
        return tollway_model::chain(refusal);
    }
    if let Error::InvalidCertificate(wrong) = error
        && let Some(text) = explain_certificate(wrong)
    {
        return text;
    }
    if let Error::InvalidMessage(InvalidMessage::InvalidContentType) = error {
        return "what answers there does not speak TLS".to_owned();
    }
    let Error::AlertReceived(alert) = error else { return tollway_model::chain(error) };
    match *alert {
        AlertDescription::AccessDenied | AlertDescription::UnrecognisedName => {
            "the peer does not have the name that was dialled; its address may have passed to another workload"
        }
        AlertDescription::CertificateUnknown => {
            "the peer refused this side's certificate: its names are not acceptable there, or its network is not joined there"
        }
        AlertDescription::UnknownCA => {
            "the peer does not know this side's authority; are the two networks joined?"
        }
        AlertDescription::CertificateRevoked => "this side's identity was revoked",
        AlertDescription::CertificateRequired => {
            "the peer demands a certificate and none was shown"
        }
        AlertDescription::CertificateExpired => {
            "the peer holds this side's certificate for expired or not yet valid; compare the clocks"
        }
        _ => return tollway_model::chain(error),
    }
    .to_owned()
}

/// What is wrong with the peer's certificate, where the library's words do not help.
#[expect(clippy::wildcard_enum_match_arm, reason = "the rest explains itself")]
fn explain_certificate(error: &CertificateError) -> Option<String> {
    let apart = |later: UnixTime, earlier: UnixTime| {
        span(Duration::from_secs(later.as_secs().saturating_sub(earlier.as_secs())))
    };
    Some(match error {
        CertificateError::ExpiredContext { time, not_after } => format!(
            "the peer's certificate expired {} ago by this machine's clock",
            apart(*time, *not_after)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "the peer's certificate is not valid for another {} by this machine's clock, so the clocks disagree",
            apart(*not_before, *time)
        ),
        CertificateError::Revoked => "the peer's identity was revoked".to_owned(),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the peer's certificate comes from another trust root than the known one of its network"
                .to_owned()
        }
        _ => return None,
    })
}

/// A span of time in at most two units, such as `2 h 5 min`.
#[must_use]
pub fn span(time: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = time.as_secs();
    let Some(first) = UNITS.iter().position(|(length, _)| seconds >= *length) else {
        return format!("{} ms", time.as_millis());
    };
    let (length, unit) = UNITS[first];
    let whole = format!("{} {unit}", seconds / length);
    match UNITS.get(first + 1) {
        Some((smaller, name)) if seconds % length >= *smaller => {
            format!("{whole} {} {name}", seconds % length / smaller)
        }
        Some(_) | None => whole,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_at_most_two_units() {
        let check = |seconds, expected| assert_eq!(span(Duration::from_secs(seconds)), expected);
        check(3 * 86_400 + 7_200 + 59, "3 d 2 h");
        check(7_500, "2 h 5 min");
        check(3_600, "1 h");
        check(61, "1 min 1 s");
        check(59, "59 s");
        assert_eq!(span(Duration::from_millis(250)), "250 ms");
    }

    #[test]
    fn a_certificate_outside_its_validity_is_reported_with_the_distance() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expired: Error =
            CertificateError::ExpiredContext { time: at(10_000), not_after: at(2_500) }.into();
        assert_eq!(code_of(&expired).word(), "ERR_CERTIFICATE_EXPIRED");
        assert!(explain(&expired).contains("expired 2 h 5 min ago"), "{}", explain(&expired));
        let early: Error =
            CertificateError::NotValidYetContext { time: at(0), not_before: at(59) }.into();
        assert_eq!(code_of(&early).word(), "ERR_CERTIFICATE_NOT_YET_VALID");
        assert!(explain(&early).contains("another 59 s"), "{}", explain(&early));
    }

    #[test]
    fn refusals_of_the_other_side_have_their_codes() {
        let check = |alert, word| {
            assert_eq!(code_of(&Error::AlertReceived(alert)).word(), word, "{alert:?}");
        };
        check(AlertDescription::UnknownCA, "ERR_CERTIFICATE_REFUSED");
        check(AlertDescription::CertificateExpired, "ERR_CERTIFICATE_REFUSED");
        check(AlertDescription::CertificateRevoked, "ERR_IDENTITY_REVOKED");
        check(AlertDescription::UnrecognisedName, "ERR_WRONG_IDENTITY");
        check(AlertDescription::ProtocolVersion, "ERR_TLS_FAILED");
        let foreign = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert_eq!(code_of(&foreign).word(), "ERR_FOREIGN_AUTHORITY");
    }
}
