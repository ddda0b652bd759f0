//! Why a handshake at a front failed, in its own words: the other end is a client, and no network
//! has joined another.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};
use tollway_model::ErrorCode;

use super::ClientCertificateError;
use crate::tls::{code_of, explain, unwrapped};

/// The code of a handshake that failed at a front.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "the rest is all of one kind")]
pub fn front_code_of(error: &Error) -> ErrorCode {
    match error {
        Error::NoCertificatesPresented => ErrorCode::NoClientCertificate,
        Error::InvalidCertificate(_) => match code_of(error) {
            ErrorCode::TlsFailed => ErrorCode::ClientCertificateRefused,
            code => code,
        },
        // An alert about our certificate concerns the client only.
        _ => ErrorCode::TlsFailed,
    }
}

/// A handshake that failed at a front, in words.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "the rest explains itself")]
pub fn front_explain(error: &Error) -> String {
    if let Some(refused) = unwrapped::<ClientCertificateError>(error) {
        return refused.to_string();
    }
    let text = match error {
        Error::NoCertificatesPresented => "the client showed no certificate",
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the client's certificate comes from an authority that --client-ca does not hold"
        }
        Error::InvalidCertificate(CertificateError::BadSignature) => {
            "the client's certificate is not signed by the authority that it names"
        }
        Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => "the client's certificate is not meant for clients (extended key usage)",
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the client does not speak TLS; is it to use https?"
        }
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => "the client offers neither TLS 1.2 nor 1.3",
        Error::AlertReceived(AlertDescription::UnknownCA) => {
            "the client does not know the authority of the certificate here"
        }
        Error::AlertReceived(
            AlertDescription::CertificateUnknown | AlertDescription::BadCertificate,
        ) => "the client does not accept the certificate here",
        Error::InvalidCertificate(_) => {
            return explain(error).replace("the peer's certificate", "the client's certificate");
        }
        _ => return error.to_string(),
    };
    text.to_owned()
}
