//! Why a request was refused or failed, and how that is told to its caller.

use thiserror::Error;
use tollway_http::h1;
use tollway_model::{NetworkName, ServiceName, UnavailableReason};
use tollway_routing::TargetError;

/// One reason. The text names the hop and what to do where somebody can do something.
#[derive(Clone, Debug, Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Target(#[from] TargetError),
    #[error("service {service} is not known; check its name and that it runs")]
    UnknownService { service: ServiceName },
    #[error("network `{network}` is not joined; join it with `tollway join`")]
    UnknownNetwork { network: NetworkName },
    #[error("network `{network}` cannot be reached now; its gateway or control plane is away")]
    UnreachableNetwork { network: NetworkName },
    #[error("service {service} has no ready endpoint")]
    NoReadyEndpoint { service: ServiceName },
    #[error("the control plane did not tell of service {service} in time")]
    DiscoveryTimedOut { service: ServiceName },
    #[error("cannot reach {peer}: {reason}")]
    Unreachable { peer: String, reason: String },
    #[error("{peer} closed the connection before it answered: {reason}")]
    ClosedEarly { peer: String, reason: String },
    #[error("{peer} reset the request")]
    Reset { peer: String },
    #[error("{peer} gave an answer that is not valid HTTP: {reason}")]
    BadResponse { peer: String, reason: String },
    #[error("{peer} did not answer within {seconds} s")]
    TimedOut { peer: String, seconds: u64 },
    #[error("the rest of the request did not come within {seconds} s")]
    BodyTimedOut { seconds: u64 },
    #[error("{what} is full ({limit}); try again later")]
    Overloaded { what: &'static str, limit: usize },
    #[error("service {service} takes plain TCP, not HTTP")]
    NotHttp { service: ServiceName },
    #[error("{method} is not supported here: {reason}")]
    Unsupported { method: &'static str, reason: &'static str },
    #[error("{what} is not served")]
    Unimplemented { what: &'static str },
    #[error("the request's head is too large")]
    HeadTooLarge,
    /// The status is the codec's.
    #[error("the request is malformed: {reason}")]
    BadRequest { status: u16, reason: String },
}

impl Fault {
    pub(crate) fn refused(refusal: h1::Refusal) -> Self {
        Self::BadRequest { status: refusal.status(), reason: refusal.to_string() }
    }

    pub(crate) fn unavailable(reason: UnavailableReason, service: &ServiceName) -> Self {
        let service = service.clone();
        let network = service.network.clone();
        match reason {
            UnavailableReason::UnknownService => Self::UnknownService { service },
            UnavailableReason::UnknownNetwork => Self::UnknownNetwork { network },
            UnavailableReason::UnreachableNetwork => Self::UnreachableNetwork { network },
            UnavailableReason::NoReadyEndpoint => Self::NoReadyEndpoint { service },
        }
    }

    /// The HTTP status that carries it.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Target(TargetError::NoAppId | TargetError::NoAppIdMetadata) => 404,
            Self::Target(_) | Self::Unsupported { .. } => 400,
            Self::BadRequest { status, .. } => *status,
            Self::UnknownService { .. } | Self::UnknownNetwork { .. } => 404,
            Self::BodyTimedOut { .. } => 408,
            Self::HeadTooLarge => 431,
            Self::Unimplemented { .. } => 501,
            Self::ClosedEarly { .. }
            | Self::Reset { .. }
            | Self::BadResponse { .. }
            | Self::NotHttp { .. } => 502,
            Self::UnreachableNetwork { .. }
            | Self::NoReadyEndpoint { .. }
            | Self::Unreachable { .. }
            | Self::Overloaded { .. } => 503,
            Self::DiscoveryTimedOut { .. } | Self::TimedOut { .. } => 504,
        }
    }

    /// The gRPC status that carries it.
    pub(crate) fn grpc_status(&self) -> u8 {
        match self.status() {
            400 => 3,        // INVALID_ARGUMENT
            404 | 501 => 12, // UNIMPLEMENTED: nobody here serves it
            431 => 8,        // RESOURCE_EXHAUSTED
            408 | 504 => 4,  // DEADLINE_EXCEEDED
            _ => 14,         // UNAVAILABLE
        }
    }

    /// The stable word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Target(TargetError::NoAppId | TargetError::NoAppIdMetadata) => {
                "ERR_DIRECT_INVOKE"
            }
            Self::Target(_) => "ERR_BAD_NAME",
            Self::UnknownService { .. } => "ERR_UNKNOWN_SERVICE",
            Self::UnknownNetwork { .. } => "ERR_UNKNOWN_NETWORK",
            Self::UnreachableNetwork { .. } => "ERR_UNREACHABLE_NETWORK",
            Self::NoReadyEndpoint { .. } => "ERR_NO_READY_ENDPOINT",
            Self::DiscoveryTimedOut { .. } => "ERR_DISCOVERY_TIMED_OUT",
            Self::Unreachable { .. } => "ERR_UNREACHABLE",
            Self::ClosedEarly { .. } => "ERR_CLOSED_EARLY",
            Self::Reset { .. } => "ERR_RESET",
            Self::BadResponse { .. } => "ERR_BAD_RESPONSE",
            Self::TimedOut { .. } => "ERR_TIMED_OUT",
            Self::BodyTimedOut { .. } => "ERR_BODY_TIMED_OUT",
            Self::Overloaded { .. } => "ERR_OVERLOADED",
            Self::NotHttp { .. } => "ERR_NOT_HTTP",
            Self::Unsupported { .. } => "ERR_UNSUPPORTED",
            Self::HeadTooLarge => "ERR_HEAD_TOO_LARGE",
            Self::Unimplemented { .. } => "ERR_NOT_SERVED",
            Self::BadRequest { .. } => "ERR_MALFORMED_REQUEST",
        }
    }
}
