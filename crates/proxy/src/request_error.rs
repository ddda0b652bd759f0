//! Why a request was refused or failed, and how its caller is informed.

use std::fmt;
use std::time::Duration;

use thiserror::Error;
use tollway_http::{grpc, h1, h2};
use tollway_model::call_trace::LimitWord;
use tollway_model::{ErrorCode, Instance, NetworkName, ServiceName, UnavailableReason};
use tollway_routing::{MethodError, TargetError};

use crate::inbound::PolicyDenial;

/// One reason. The text names the hop, and what to do if anything can be done.
#[derive(Clone, Debug, Error)]
pub(crate) enum RequestError {
    #[error("{0}")]
    Target(#[from] TargetError),
    #[error("service {service} is not known; check its name and that it runs")]
    UnknownService { service: ServiceName },
    #[error("network `{network}` is not joined; join it with `tollway join`")]
    UnknownNetwork { network: NetworkName },
    #[error("network `{network}` cannot be reached now; its gateway or control plane is away")]
    UnreachableNetwork { network: NetworkName },
    #[error("service {service} has no ready endpoint: its app is not in a healthy state")]
    NoReadyEndpoint { service: ServiceName },
    #[error("service {service} has no ready workload {instance}")]
    NoReadyWorkload { service: ServiceName, instance: Instance },
    #[error(
        "no network may serve {service}; name the network, or apply a `Failover` for the service"
    )]
    NoFailover { service: ServiceName },
    /// `reasons` has one for each network.
    #[error("no network serves {service} now: {reasons}")]
    NoNetwork { service: ServiceName, reasons: String },
    #[error("the control plane did not send the state of service {service} in time")]
    DiscoveryTimedOut { service: ServiceName },
    #[error("cannot reach {peer}: {reason}")]
    Unreachable { code: ErrorCode, peer: String, reason: String },
    #[error("the sidecar of {service} cannot connect to its app: {reason}")]
    AppUnreachable { service: ServiceName, reason: String },
    #[error("{peer} closed the connection before it answered: {reason}")]
    ClosedEarly { peer: String, reason: String },
    #[error("the call was called off before it was answered")]
    CalledOff,
    #[error("{peer} reset the request ({reason})")]
    Reset { peer: String, reason: h2::ErrorCode },
    #[error("{peer} gave an answer that is not valid HTTP: {reason}")]
    BadResponse { peer: String, reason: String },
    #[error("{peer} did not answer within {within}")]
    TimedOut { peer: String, within: Within },
    #[error("the rest of the request did not come within {within}")]
    BodyTimedOut { within: Within },
    #[error("{what} is full ({limit}); try again later")]
    Overloaded { what: &'static str, limit: usize },
    #[error(
        "the app takes requests more slowly than they come; this one has waited {waited} for it"
    )]
    Shed { waited: Within },
    #[error("the sidecar stood still for too long to begin the call in time")]
    TooLate,
    #[error("the request to {service} has passed more than {limit} hops (x-forwarded-for)")]
    Loop { service: ServiceName, limit: usize },
    #[error("service {service} takes plain TCP, not HTTP")]
    NotHttp { service: ServiceName },
    #[error("no rule of the routes of service {service} is for this request")]
    NoRoute { service: ServiceName },
    /// `service` is the backend that does not exist; without one every weight is 0.
    #[error("{}", no_backend(.rule, .service.as_ref()))]
    NoBackend { rule: String, service: Option<ServiceName> },
    /// The request is over this limit of a traffic policy.
    #[error("service {service} takes no more requests {} now; try again after {after_s} s", limited(*.limit))]
    RateLimited { service: ServiceName, limit: LimitWord, after_s: u64 },
    #[error("every replica of service {service} is ejected since it has failed lately")]
    AllEjected { service: ServiceName },
    /// The statuses are those of the policy.
    #[error("a traffic policy of service {service} has this request fail on purpose, for a test")]
    FaultInjected { service: ServiceName, status: u16, grpc_status: u8 },
    /// Another hop of the mesh reports it.
    #[error("{hop} reports {code}: {}", lowered(code.entry().meaning))]
    OfCallee { code: ErrorCode, hop: String },
    /// The path of a call names no method of an app.
    #[error("{why}")]
    Method { id: String, why: MethodError },
    #[error("stream too large: the body of the call has more than {most} bytes (--max-body-size)")]
    BodyTooLarge { id: String, most: u64 },
    #[error("invalid baggage header: {why}")]
    Baggage { why: &'static str },
    #[error("{0}")]
    PolicyDenied(Box<PolicyDenial>),
    #[error("the sidecar of {service} does not know its policies yet; try again")]
    PolicyUnknown { service: ServiceName },
    #[error("no egress allows the app to call {host}")]
    EgressRefused { host: String },
    #[error("the sidecar of {service} does not know yet what its app may call; try again")]
    EgressUnknown { service: ServiceName },
    #[error("the app of {service} has not answered yet whether it runs actors; try again")]
    ActorsUnknown { service: ServiceName },
    #[error("only the sidecar of {service} calls its app by this path")]
    SidecarPath { service: ServiceName },
    #[error("a web page of another site makes this request")]
    CrossSite,
    #[error("this sidecar is not called by the name `{host}`")]
    HostName { host: String },
    #[error("{method} is not supported here: {reason}")]
    Unsupported { method: &'static str, reason: &'static str },
    #[error("this port serves health and metadata alone; use a port of the API")]
    NotPublic,
    #[error("this part of the API is not allowed to the app; ask whoever wrote its Configuration")]
    NotAllowed,
    #[error("this sidecar serves no API of its own and runs no actors; call one that does")]
    NoRuntime,
    #[error("the request does not show the API token")]
    ApiToken,
    #[error("the request's head is too large")]
    HeadTooLarge,
    /// The status is the codec's.
    #[error("the request is malformed: {reason}")]
    BadRequest { status: u16, reason: String },
    #[error("the head of the request did not come within {within}")]
    HeadTimedOut { within: Within },
}

/// A time that was given, in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within(pub(crate) Duration);

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 => write!(f, "{} s", self.0.as_secs()),
            _ => write!(f, "{} ms", self.0.as_millis()),
        }
    }
}

/// Which requests a limit counts, in words.
pub(crate) fn limited(limit: LimitWord) -> &'static str {
    match limit {
        LimitWord::Caller => "of this caller",
        LimitWord::Service => "of all callers together",
        LimitWord::Concurrency => "of this caller at one time",
    }
}

fn no_backend(rule: &str, service: Option<&ServiceName>) -> String {
    match service {
        Some(service) => {
            format!("the route {rule} sends the request to {service}, which is not known")
        }
        None => format!("the route {rule} gives none of its backends a share of the requests"),
    }
}

/// Sentences of the catalogue as a part of another.
fn lowered(sentences: &str) -> String {
    let text = sentences.trim_end_matches('.');
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    format!("{}{rest}", first.to_lowercase())
}

impl RequestError {
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
            UnavailableReason::NoFailover => Self::NoFailover { service },
        }
    }

    /// No replica takes calls, or not the one that is meant.
    pub(crate) fn unready(service: &ServiceName, instance: Option<&Instance>) -> Self {
        let service = service.clone();
        match instance.cloned() {
            Some(instance) => Self::NoReadyWorkload { service, instance },
            None => Self::NoReadyEndpoint { service },
        }
    }

    /// The HTTP status that carries it: the catalogue's, or for malformed requests the codec's, and for
    /// faults on purpose that of the policy.
    pub(crate) fn status(&self) -> u16 {
        if let Self::BadRequest { status, .. } | Self::FaultInjected { status, .. } = self {
            return *status;
        }
        self.code().http_status()
    }

    /// The text for people: which hop reports it, what happened, what to do.
    pub(crate) fn message(&self, hop: &str) -> String {
        let what = self.to_string();
        if what.contains("; ") {
            return format!("{hop}: {what}");
        }
        format!("{hop}: {what}; {}", lowered(self.code().entry().remedy))
    }

    /// The gRPC status that carries it.
    pub(crate) fn grpc_status(&self) -> u8 {
        if let Self::Reset { reason, .. } = self {
            // What the app, or another hop, said by its code.
            let status = grpc::Status::from_reset(*reason).0;
            return u8::try_from(status).expect("the statuses of gRPC are below 17");
        }
        if let Self::FaultInjected { grpc_status, .. } = self {
            return *grpc_status;
        }
        self.code().grpc_status().number()
    }

    /// Whether it is certain that the app has seen nothing of the request, so that the caller's
    /// sidecar may send it to another replica, whatever it is.
    pub(crate) fn is_unprocessed(&self) -> bool {
        matches!(
            self,
            Self::AppUnreachable { .. } | Self::PolicyUnknown { .. } | Self::ActorsUnknown { .. }
        )
    }

    /// Its entry in the catalogue.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Target(TargetError::NoAppId | TargetError::NoAppIdMetadata) => {
                ErrorCode::DirectInvoke
            }
            Self::Target(_) => ErrorCode::BadName,
            Self::UnknownService { .. } => ErrorCode::UnknownService,
            Self::UnknownNetwork { .. } => ErrorCode::UnknownNetwork,
            Self::UnreachableNetwork { .. } => ErrorCode::UnreachableNetwork,
            Self::NoReadyEndpoint { .. } | Self::NoReadyWorkload { .. } => {
                ErrorCode::NoReadyEndpoint
            }
            Self::NoFailover { .. } => ErrorCode::NoFailover,
            Self::NoNetwork { .. } => ErrorCode::NoNetwork,
            Self::DiscoveryTimedOut { .. } => ErrorCode::DiscoveryTimedOut,
            Self::Unreachable { code, .. } => *code,
            Self::AppUnreachable { .. } => ErrorCode::AppUnreachable,
            Self::ClosedEarly { .. } => ErrorCode::ClosedEarly,
            Self::CalledOff => ErrorCode::Silent,
            Self::Reset { .. } => ErrorCode::Reset,
            Self::BadResponse { .. } => ErrorCode::BadResponse,
            Self::TimedOut { .. } => ErrorCode::TimedOut,
            Self::BodyTimedOut { .. } => ErrorCode::BodyTimedOut,
            Self::Overloaded { .. } | Self::Shed { .. } | Self::TooLate => ErrorCode::Overloaded,
            Self::Loop { .. } => ErrorCode::Loop,
            Self::RateLimited { .. } => ErrorCode::RateLimited,
            Self::AllEjected { .. } => ErrorCode::ReplicasEjected,
            Self::FaultInjected { .. } => ErrorCode::FaultInjected,
            Self::NoRoute { .. } => ErrorCode::NoRoute,
            Self::NoBackend { .. } => ErrorCode::NoBackend,
            Self::NotHttp { .. } => ErrorCode::NotHttp,
            Self::OfCallee { code, .. } => *code,
            Self::Method { .. } | Self::Baggage { .. } | Self::BodyTooLarge { .. } => {
                ErrorCode::MalformedRequest
            }
            Self::PolicyDenied(_) => ErrorCode::PolicyDenied,
            Self::PolicyUnknown { .. } | Self::ActorsUnknown { .. } => ErrorCode::PolicyUnknown,
            Self::EgressRefused { .. } => ErrorCode::EgressRefused,
            Self::EgressUnknown { .. } => ErrorCode::EgressUnknown,
            Self::SidecarPath { .. } => ErrorCode::SidecarPath,
            Self::CrossSite => ErrorCode::CrossSite,
            Self::HostName { .. } => ErrorCode::HostName,
            Self::Unsupported { .. } => ErrorCode::Unsupported,
            Self::NotPublic | Self::NotAllowed | Self::NoRuntime => ErrorCode::NotServed,
            Self::ApiToken => ErrorCode::ApiToken,
            Self::HeadTooLarge => ErrorCode::HeadTooLarge,
            Self::BadRequest { status: 431, .. } => ErrorCode::HeadTooLarge,
            Self::BadRequest { .. } => ErrorCode::MalformedRequest,
            Self::HeadTimedOut { .. } => ErrorCode::HeadTimedOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    #[track_caller]
    fn check(error: &RequestError, word: &str, status: u16, grpc: u8, part: &str) {
        assert_eq!(
            (error.code().word(), error.status(), error.grpc_status()),
            (word, status, grpc)
        );
        let message = error.message("sidecar a.b.c");
        assert!(message.starts_with("sidecar a.b.c: ") && message.contains(part), "{message}");
        // What happened, and what to do about it.
        assert!(message.contains("; "), "{message}");
    }

    #[test]
    fn a_time_is_printed_as_it_was_set() {
        let text = |ms| Within(Duration::from_millis(ms)).to_string();
        assert_eq!(
            [text(500), text(1000), text(1500), text(0)],
            ["500 ms", "1 s", "1500 ms", "0 s"]
        );
    }

    #[test]
    fn a_fault_has_code_statuses_and_a_way_out() {
        let peer = || "service echo.default.east".to_owned();
        let reset = RequestError::Reset { peer: peer(), reason: h2::ErrorCode::INTERNAL_ERROR };
        check(&reset, "ERR_RESET", 502, 13, "east reset the request (INTERNAL_ERROR)");
        let refused = RequestError::Reset { peer: peer(), reason: h2::ErrorCode::REFUSED_STREAM };
        check(&refused, "ERR_RESET", 502, 14, "east reset the request (REFUSED_STREAM)");
        let slow = RequestError::BodyTimedOut { within: Within(Duration::from_secs(300)) };
        check(&slow, "ERR_BODY_TIMED_OUT", 408, 4, "300 s");
        let malformed = RequestError::BadRequest { status: 417, reason: "no".to_owned() };
        check(&malformed, "ERR_MALFORMED_REQUEST", 417, 3, "malformed: no");
        let code = ErrorCode::GatewayUnreachable;
        let away = RequestError::Unreachable { code, peer: peer(), reason: "refused".to_owned() };
        check(&away, "ERR_GATEWAY_UNREACHABLE", 503, 14, "echo.default.east: refused");
        assert!(!away.is_unprocessed());
        check(&RequestError::NotPublic, "ERR_NOT_SERVED", 404, 12, "health and metadata alone");
        check(&RequestError::NotAllowed, "ERR_NOT_SERVED", 404, 12, "not allowed to the app");
        check(&RequestError::NoRuntime, "ERR_NOT_SERVED", 404, 12, "runs no actors");
        check(&RequestError::CrossSite, "ERR_CROSS_SITE", 403, 7, "a web page of another site");
        let host = "rebind.evil.example:3500".to_owned();
        check(&RequestError::HostName { host }, "ERR_HOST_NAME", 403, 7, "evil.example:3500`; ");
        let [namespace, network] = ["default", "east"].map(|text| Label::new(text).unwrap());
        let service = ServiceName::parse_in("echo", &namespace, &network).unwrap();
        let status = 418;
        let fault = RequestError::FaultInjected { service, status, grpc_status: 10 };
        check(
            &fault,
            "ERR_FAULT_INJECTED",
            418,
            10,
            "fail on purpose, for a test; nothing is broken",
        );
        check(&RequestError::ApiToken, "ERR_API_TOKEN", 401, 16, "does not show the API token");
    }
}
