//! Who may have a certificate renewed, for how long, and why there is none. Pure.

use std::fmt;
use std::time::Duration;

use thiserror::Error;
use tollway_identity::SHORTEST_TTL;
use tollway_model::{ErrorCode, Group, Instance, NetworkName, ServiceName};
use tollway_wire::ConvertError;
use tonic::Status;

use crate::connections::is_system;
use crate::pods::PodRefusal;

/// The workload that a certificate is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) service: ServiceName,
    pub(crate) instance: Instance,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (instance {})", self.service, self.instance)
    }
}

/// Why no certificate was issued.
#[derive(Debug, Error)]
pub(crate) enum Refusal {
    #[error("the join token is malformed: copy it whole")]
    TokenShape(#[from] tollway_identity::TokenError),
    #[error("the join token is for the network {found}, this is {home}")]
    OtherNetwork { found: NetworkName, home: NetworkName },
    #[error("the join token is not known here; make a new one with `tollway token create`")]
    UnknownToken,
    #[error(
        "the join token expired {expired_for:?} ago; make a new one with `tollway token create`"
    )]
    ExpiredToken { expired_for: Duration },
    #[error(
        "the join token is not good for {service}; make one that is with `tollway token create`"
    )]
    Scope { service: ServiceName },
    #[error(
        "the join token was revoked {revoked_for:?} ago; make a new one with `tollway token create`"
    )]
    RevokedToken { revoked_for: Duration },
    #[error(
        "the join token is spent: {uses} of {uses} uses, the last one by {by} from {from} {ago} ago; make a new one with `tollway token create`, and where that use was none of yours, `tollway identity revoke` takes its identity back"
    )]
    SpentToken { uses: u32, by: String, from: String, ago: String },
    #[error("neither a token nor a certificate was shown")]
    NoProof,
    #[error("the certificate of {own} renews only itself, not {asked}")]
    NotYours { own: Box<Claim>, asked: Box<Claim> },
    #[error(transparent)]
    Pod(PodRefusal),
    #[error("the request is malformed")]
    Request(#[from] ConvertError),
}

impl Refusal {
    fn code(&self) -> ErrorCode {
        match self {
            Self::TokenShape(_) => ErrorCode::TokenMalformed,
            Self::ExpiredToken { .. } => ErrorCode::TokenExpired,
            Self::SpentToken { .. } => ErrorCode::TokenSpent,
            Self::RevokedToken { .. } => ErrorCode::TokenRevoked,
            Self::NoProof => ErrorCode::TokenMissing,
            Self::OtherNetwork { .. }
            | Self::UnknownToken
            | Self::Scope { .. }
            | Self::NotYours { .. } => ErrorCode::TokenRefused,
            Self::Pod(refusal) => refusal.code(),
            Self::Request(_) => ErrorCode::MalformedRequest,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let text = tollway_model::chain(&refusal);
        let code = refusal.code();
        let status = match refusal {
            Refusal::Request(_) | Refusal::TokenShape(_) => Self::invalid_argument(text),
            Refusal::NoProof => Self::unauthenticated(text),
            Refusal::Pod(pod) if pod.may_pass() => Self::unavailable(text),
            Refusal::OtherNetwork { .. }
            | Refusal::UnknownToken
            | Refusal::ExpiredToken { .. }
            | Refusal::SpentToken { .. }
            | Refusal::RevokedToken { .. }
            | Refusal::Scope { .. }
            | Refusal::Pod(_)
            | Refusal::NotYours { .. } => Self::permission_denied(text),
        };
        tollway_wire::with_code(status, code)
    }
}

/// Whether the holder of a certificate for `own` may have one for `claim`.
pub(super) fn decide_renewal(own: &(ServiceName, Instance), claim: &Claim) -> Result<(), Refusal> {
    if own.0 == claim.service && own.1 == claim.instance {
        return Ok(());
    }
    let (service, instance) = own.clone();
    let own = Box::new(Claim { service, instance });
    Err(Refusal::NotYours { own, asked: Box::new(claim.clone()) })
}

/// The lifetime of a certificate: the requested one, if it is shorter than the network's.
pub(super) fn decide_ttl(asked_s: u32, given: Duration) -> Duration {
    match asked_s {
        0 => given,
        _ => Duration::from_secs(asked_s.into()).max(SHORTEST_TTL).min(given),
    }
}

/// The group of which it is an agent, if it is one.
pub(crate) fn agents_group(service: &ServiceName) -> Option<Group> {
    if is_system(service) { Group::of_agent_app(&service.app) } else { None }
}

#[cfg(test)]
mod tests {
    use tollway_identity::JoinToken;
    use tollway_model::Label;
    use tonic::Code;

    use super::*;

    fn service(text: &str) -> ServiceName {
        let [namespace, network] = ["default", "west"].map(|l| Label::new(l).unwrap());
        ServiceName::parse_in(text, &namespace, &network).unwrap()
    }

    #[test]
    fn a_shorter_life_can_be_asked_for_and_no_longer_one() {
        let day = Duration::from_secs(24 * 3600);
        let check = |asked_s, given, life| assert_eq!(decide_ttl(asked_s, given), life);
        check(0, day, day);
        check(60, day, Duration::from_secs(60));
        check(1, day, SHORTEST_TTL);
        check(u32::MAX, day, day);
        check(60, SHORTEST_TTL, SHORTEST_TTL);
    }

    #[test]
    fn a_certificate_renews_only_itself() {
        let label = |text| Label::new(text).unwrap();
        let own = (service("stock"), label("a"));
        let decide = |name, instance| {
            decide_renewal(&own, &Claim { service: service(name), instance: label(instance) })
        };
        assert!(decide("Stock", "A").is_ok());
        assert!(decide("orders", "a").is_err());
        assert!(decide("stock", "b").is_err());
    }
    #[test]
    fn an_agents_group_is_that_of_its_name_in_the_namespace_of_the_mesh() {
        let group = |name| agents_group(&service(name)).map(|group| group.to_string());
        assert_eq!(group("fabric-racks.tollway"), Some("racks".to_owned()));
        for other in ["fabric-racks", "fabric-racks.shop", "gateway.tollway"] {
            assert_eq!(group(other), None, "{other}");
        }
    }

    #[test]
    fn a_refusal_shows_what_to_mend_and_whom_it_concerns() {
        let claim =
            |name| Box::new(Claim { service: service(name), instance: Label::new("a").unwrap() });
        let text = Refusal::NotYours { own: claim("stock"), asked: claim("orders") }.to_string();
        assert_eq!(
            text,
            "the certificate of stock.default.west (instance a) renews only itself, not \
             orders.default.west (instance a)"
        );
        let malformed = "x".parse::<JoinToken>().unwrap_err();
        let day = Duration::from_secs(24 * 3600);
        let spent = Refusal::SpentToken {
            uses: 1,
            by: String::new(),
            from: String::new(),
            ago: String::new(),
        };
        for (refusal, code, status) in [
            (Refusal::from(malformed), ErrorCode::TokenMalformed, Code::InvalidArgument),
            (Refusal::NoProof, ErrorCode::TokenMissing, Code::Unauthenticated),
            (
                Refusal::ExpiredToken { expired_for: day },
                ErrorCode::TokenExpired,
                Code::PermissionDenied,
            ),
            (spent, ErrorCode::TokenSpent, Code::PermissionDenied),
            (
                Refusal::RevokedToken { revoked_for: day },
                ErrorCode::TokenRevoked,
                Code::PermissionDenied,
            ),
            (Refusal::UnknownToken, ErrorCode::TokenRefused, Code::PermissionDenied),
            (
                Refusal::Pod(PodRefusal::NoAnswer { reason: String::new() }),
                ErrorCode::ControlUnreachable,
                Code::Unavailable,
            ),
            (Refusal::Pod(PodRefusal::NoCluster), ErrorCode::TokenRefused, Code::PermissionDenied),
        ] {
            let found = Status::from(refusal);
            assert_eq!((tollway_wire::code_of(&found), found.code()), (Some(code), status));
        }
    }
}
