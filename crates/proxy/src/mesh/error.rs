//! Why a data plane has no identity or no control plane.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustls::AlertDescription;
use thiserror::Error;
use tollway_identity::{BundleError, CredentialsError, KeyError, TlsError, TokenError};
use tollway_model::{ErrorCode, chain};
use tollway_wire::ConvertError;

use super::state_folder::StateFolderError;

/// Why the mesh cannot be joined, or the control plane cannot be used.
#[derive(Debug, Error)]
pub enum MeshError {
    #[error("no join token: set {variable}, or give a file; make one with `tollway token create`")]
    NoToken { variable: &'static str },
    #[error("cannot read the join token from {}; make one with `tollway token create`", path.display())]
    TokenFile { path: PathBuf, source: std::io::Error },
    #[error("cannot read the join token from {}: {reason}", path.display())]
    OpenTokenFile { path: PathBuf, reason: String },
    #[error(
        "cannot read the token of this pod from {}; it is a projected token of the service account, as `tollway kube inject` mounts it (--pod-token-file)", path.display()
    )]
    PodTokenFile { path: PathBuf, source: std::io::Error },
    #[error("the join token is unusable")]
    Token(#[source] TokenError),
    #[error("cannot find the control plane {control}; check the name given with --control")]
    Resolve { control: String, source: std::io::Error },
    #[error(
        "cannot reach the control plane {control}; check that it runs and that this is its address (--control)"
    )]
    Connect { control: String, source: std::io::Error },
    #[error("the control plane {control} does not answer within {timeout:?}")]
    Timeout { control: String, timeout: Duration },
    #[error("the control plane {control} is not to be trusted: {reason}")]
    Tls { control: String, code: ErrorCode, reason: String },
    /// A certificate that was made a moment ago is not valid here.
    #[error(
        "the clocks of this machine and of the control plane {control} disagree: {reason}; set the clock, best with NTP"
    )]
    Clock { control: String, reason: String },
    /// Its certificate has ended by this machine's clock, and the two clocks agree as far as is known.
    #[error(
        "the certificate of the control plane {control} has ended: {reason}; it renews its own before it answers, so read its log"
    )]
    ControlEnded { control: String, reason: String, not_after: SystemTime },
    /// Of several addresses none is that of the control plane.
    #[error(
        "no control plane serves at {control} ({}); check that one runs and that these are its addresses (--control)",
        listed(each)
    )]
    Several { control: String, each: Vec<(String, MeshError)> },
    #[error("the control plane {control} does not speak HTTP/2")]
    Http { control: String, source: tonic::transport::Error },
    #[error("the control plane refused: {reason}")]
    Refused { code: Option<ErrorCode>, reason: String },
    #[error("the control plane is not available: {reason}")]
    Unavailable { code: Option<ErrorCode>, reason: String },
    #[error("the control plane was silent for {0:?}")]
    Silent(Duration),
    #[error("the control plane sent something malformed")]
    Malformed(#[from] ConvertError),
    #[error("the control plane sent unusable trust bundles")]
    Bundle(#[from] BundleError),
    #[error("the control plane sent an unusable certificate")]
    Credentials(#[from] CredentialsError),
    #[error("cannot make a key")]
    Key(#[from] KeyError),
    #[error("{0}")]
    State(#[source] StateFolderError),
    #[error("cannot prepare TLS")]
    TlsConfig(#[from] TlsError),
}

impl MeshError {
    /// Its entry in the catalogue of failures.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::NoToken { .. } | Self::TokenFile { .. } | Self::PodTokenFile { .. } => {
                Some(ErrorCode::TokenMissing)
            }
            Self::OpenTokenFile { .. } => Some(ErrorCode::FileUnusable),
            Self::Token(_) => Some(ErrorCode::TokenMalformed),
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Http { .. }
            | Self::Silent(_)
            | Self::Unavailable { code: None, .. } => Some(ErrorCode::ControlUnreachable),
            Self::Tls { code, .. } => Some(*code),
            Self::Clock { .. } => Some(ErrorCode::ClockOff),
            // What answers as something else says more than what does not answer.
            Self::Several { each, .. } => {
                let mut codes = each.iter().filter_map(|(_, error)| error.code());
                let away = ErrorCode::ControlUnreachable;
                Some(codes.find(|code| *code != away).unwrap_or(away))
            }
            Self::ControlEnded { .. } => Some(ErrorCode::CertificateExpired),
            Self::State(error) => Some(error.code()),
            Self::Refused { code, .. } | Self::Unavailable { code, .. } => *code,
            Self::Malformed(_)
            | Self::Bundle(_)
            | Self::Credentials(_)
            | Self::Key(_)
            | Self::TlsConfig(_) => None,
        }
    }

    /// Whether trying again may help without a change by an operator.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Http { .. }
            | Self::Unavailable { .. }
            | Self::ControlEnded { .. }
            | Self::Silent(_) => true,
            Self::Several { each, .. } => each.iter().any(|(_, error)| error.may_pass()),
            Self::NoToken { .. }
            | Self::TokenFile { .. }
            | Self::OpenTokenFile { .. }
            | Self::PodTokenFile { .. }
            | Self::Token(_)
            | Self::Tls { .. }
            | Self::Clock { .. }
            | Self::Refused { .. }
            | Self::Malformed(_)
            | Self::Bundle(_)
            | Self::Credentials(_)
            | Self::Key(_)
            | Self::State(_)
            | Self::TlsConfig(_) => false,
        }
    }
}

impl MeshError {
    /// Whether the control plane was not reached at all, so that it has refused nothing.
    pub(super) fn is_away(&self) -> bool {
        if let Self::Several { each, .. } = self {
            return each.iter().all(|(_, error)| error.is_away());
        }
        matches!(self, Self::Resolve { .. } | Self::Connect { .. } | Self::Timeout { .. })
    }

    /// Whether the other side does not take the own certificate any more.
    pub(super) fn needs_renewal(&self) -> bool {
        if let Self::Several { each, .. } = self {
            return each.iter().any(|(_, error)| error.needs_renewal());
        }
        let refused = [ErrorCode::CertificateExpired, ErrorCode::CertificateRefused];
        self.code().is_some_and(|code| refused.contains(&code))
            && !matches!(self, Self::ControlEnded { .. })
    }
}

impl MeshError {
    /// Why one address is not that of the control plane, without the address.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Resolve { source, .. } | Self::Connect { source, .. } => source.to_string(),
            Self::Timeout { timeout, .. } => format!("no answer within {timeout:?}"),
            // Without the advice.
            Self::Tls { code, reason, .. } => {
                format!("{code} {}", reason.split("; ").next().unwrap_or_default())
            }
            Self::Clock { reason, .. } => format!("{} {reason}", ErrorCode::ClockOff),
            Self::ControlEnded { reason, .. } => {
                format!("{} {reason}", ErrorCode::CertificateExpired)
            }
            Self::NoToken { .. }
            | Self::TokenFile { .. }
            | Self::OpenTokenFile { .. }
            | Self::PodTokenFile { .. }
            | Self::Token(_)
            | Self::Several { .. }
            | Self::Http { .. }
            | Self::Refused { .. }
            | Self::Unavailable { .. }
            | Self::Silent(_)
            | Self::Malformed(_)
            | Self::Bundle(_)
            | Self::Credentials(_)
            | Self::Key(_)
            | Self::State(_)
            | Self::TlsConfig(_) => chain(self),
        }
    }
}

/// Each address with its reason.
fn listed(each: &[(String, MeshError)]) -> String {
    let each = each.iter().map(|(at, error)| format!("{at}: {}", error.reason()));
    each.collect::<Vec<_>>().join(", ")
}

impl From<StateFolderError> for MeshError {
    fn from(error: StateFolderError) -> Self {
        Self::State(error)
    }
}

impl From<tonic::Status> for MeshError {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        let reason = status.message().to_owned();
        if is_revoked_by_alert(&status) {
            let reason = "this side's identity was revoked".to_owned();
            return Self::Refused { code: Some(ErrorCode::IdentityRevoked), reason };
        }
        let code = tollway_wire::code_of(&status);
        match status.code() {
            Code::PermissionDenied
            | Code::InvalidArgument
            | Code::Unauthenticated
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::OutOfRange
            | Code::Unimplemented => Self::Refused { code, reason },
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => Self::Unavailable { code, reason },
        }
    }
}

/// Whether a call failed because the control plane refused the own certificate as revoked: it does so
/// after this side's part of the handshake, when the connection is in use already. HTTP/2 keeps only
/// the text of an error of its connection.
fn is_revoked_by_alert(status: &tonic::Status) -> bool {
    let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRevoked).to_string();
    chain(status).contains(&alert)
}
