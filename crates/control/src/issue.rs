//! Certificates for workloads and gateways: for the holder of a join token, and again for the
//! holder of a certificate. `tokens.rs` decides about tokens and [`decide_renewal`] about certificates;
//! the service executes, and stores the last certificate of each instance (`issued.rs`).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use thiserror::Error;
use tollway_identity::{
    IssueError, IssueRequest, IssuedChain, SHORTEST_TTL, SystemRequest, peer_identity,
};
use tollway_model::{ErrorCode, Group, Instance, NetworkName, ServiceName};
use tollway_wire::v1::identity_server::Identity;
use tollway_wire::{ConvertError, v1};
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::clock::unix_now_ms;
use crate::connections::{Caller, is_system, revoked_status};
use crate::hub::Hub;
use crate::instance_keys::{InstanceKeys, Remembered};
use crate::issued::{IssuedLog, record_of};
use crate::tokens::{Redeemable, Tokens, is_gateway};

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
    #[error("neither a join token nor a certificate was shown")]
    NoProof,
    #[error("the certificate of {own} renews only itself, not {asked}")]
    NotYours { own: Box<Claim>, asked: Box<Claim> },
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
            Refusal::OtherNetwork { .. }
            | Refusal::UnknownToken
            | Refusal::ExpiredToken { .. }
            | Refusal::SpentToken { .. }
            | Refusal::RevokedToken { .. }
            | Refusal::Scope { .. }
            | Refusal::NotYours { .. } => Self::permission_denied(text),
        };
        tollway_wire::with_code(status, code)
    }
}

/// Whether the holder of a certificate for `own` may have one for `claim`.
fn decide_renewal(own: &(ServiceName, Instance), claim: &Claim) -> Result<(), Refusal> {
    if own.0 == claim.service && own.1 == claim.instance {
        return Ok(());
    }
    let (service, instance) = own.clone();
    let own = Box::new(Claim { service, instance });
    Err(Refusal::NotYours { own, asked: Box::new(claim.clone()) })
}

/// The lifetime of a certificate: the requested one, if it is shorter than the network's.
fn decide_ttl(asked_s: u32, given: Duration) -> Duration {
    match asked_s {
        0 => given,
        _ => Duration::from_secs(asked_s.into()).max(SHORTEST_TTL).min(given),
    }
}

/// The group of which it is an agent, if it is one.
pub(crate) fn agents_group(service: &ServiceName) -> Option<Group> {
    if is_system(service) { Group::of_agent_app(&service.app) } else { None }
}

/// By what a caller may have a certificate.
enum Proof {
    Token(Redeemable),
    Certificate,
}

pub(crate) struct IdentityService {
    pub(crate) tokens: Tokens,
    pub(crate) keys: Arc<InstanceKeys>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) issued: IssuedLog,
    /// Lifetime of a certificate unless a shorter one is requested.
    pub(crate) certificate_ttl: Duration,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn issue(
        &self,
        request: Request<v1::IssueRequest>,
    ) -> Result<Response<v1::IssueResponse>, Status> {
        let (caller, from) = (Caller::of(&request), Caller::address(&request));
        let request = request.into_inner();
        let claim = Claim {
            service: tollway_wire::service_name(request.service.as_ref()).map_err(Refusal::from)?,
            instance: tollway_wire::instance(&request.instance).map_err(Refusal::from)?,
        };
        let issuing = async {
            let Allowed { proof, remembered, ended } =
                self.may_have(&caller, &claim, &request.token).await?;
            let ttl = decide_ttl(request.ttl_s, self.certificate_ttl);
            let issued =
                self.sign(&claim, request.csr, ttl).map_err(|error| issue_status(&error))?;
            let identity = peer_identity(&issued.chain)
                .map_err(|error| Status::internal(tollway_model::chain(&error)))?;
            let record = record_of(&claim, &identity, unix_now_ms());
            // Stored before it is given out: no certificate runs that is not listed.
            if let Proof::Token(token) = &proof {
                let is_new = self.issued.is_new(&claim).await?;
                let may_repeat = !remembered.is_barred();
                self.tokens.spend(token, &claim.instance, record.clone(), may_repeat, from).await?;
                if is_new {
                    self.issued.add(&claim);
                }
            }
            self.keys.issued(remembered, &identity, ended).await?;
            if let Proof::Certificate = proof {
                self.issued.renew(&claim, record).await?;
            }
            Ok::<_, Status>(issued)
        };
        let issued = issuing.await.inspect_err(|status| {
            let (code, reason) = (tollway_wire::code_of(status), status.message());
            let code = code.map(ErrorCode::word);
            warn!(service = %claim.service, instance = %claim.instance, code, reason, "a certificate was refused");
        })?;
        self.tokens.noted.note();
        info!(service = %claim.service, instance = %claim.instance, "issued a certificate");
        Ok(Response::new(v1::IssueResponse {
            chain: issued.chain.iter().map(|der| der.to_vec()).collect(),
            trust: Some(self.hub.read(crate::catalogue::Catalogue::trust)),
            trust_domain: self.tokens.authority.trust_domain().to_string(),
        }))
    }

    async fn check(
        &self,
        request: Request<v1::CheckRequest>,
    ) -> Result<Response<v1::CheckResponse>, Status> {
        let token = request.into_inner().token;
        let stored = self.tokens.check(&token).await;
        let stored = stored.map_err(tollway_wire::with_clock(unix_now_ms()))?;
        Ok(Response::new(v1::CheckResponse {
            network: self.tokens.authority.network().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_unix_ms: unix_now_ms(),
            token_expires_at_unix_ms: stored.expires_at_unix_ms,
        }))
    }
}

/// The right to a certificate.
struct Allowed {
    proof: Proof,
    remembered: Remembered,
    /// How long ago the certificate that is renewed ended, if it has.
    ended: Option<Duration>,
}

impl IdentityService {
    async fn may_have(
        &self,
        caller: &Caller,
        claim: &Claim,
        token: &str,
    ) -> Result<Allowed, Status> {
        let Claim { service, instance } = claim;
        if !token.is_empty() {
            let token = self.tokens.find(token, service).await?;
            // Only the holder of a token learns what is revoked.
            if self.hub.read(|catalogue| catalogue.is_revoked(service, instance)) {
                return Err(revoked_status(service, instance));
            }
            let remembered = self.keys.enrolling(service, instance).await?;
            return Ok(Allowed { proof: Proof::Token(token), remembered, ended: None });
        }
        if matches!(caller, Caller::Anonymous) {
            return Err(Refusal::NoProof.into());
        }
        let grace = self.keys.grace();
        let who = self.hub.read(|catalogue| caller.renewing(catalogue, grace))?;
        decide_renewal(&(who.service.clone(), who.instance.clone()), claim)?;
        let remembered = self.keys.renewing(&who).await?;
        Ok(Allowed { proof: Proof::Certificate, remembered, ended: who.ended })
    }

    fn sign(
        &self,
        claim: &Claim,
        csr_der: Vec<u8>,
        ttl: Duration,
    ) -> Result<IssuedChain, IssueError> {
        let instance = claim.instance.clone();
        let now = SystemTime::now();
        if is_gateway(&claim.service) {
            return self
                .tokens
                .authority
                .issue_gateway(&SystemRequest { csr_der, instance, ttl }, now);
        }
        if let Some(group) = agents_group(&claim.service) {
            let request = SystemRequest { csr_der, instance, ttl };
            return self.tokens.authority.issue_fabric(&group, &request, now);
        }
        let service = claim.service.clone();
        self.tokens.authority.issue(&IssueRequest { csr_der, service, instance, ttl }, now)
    }
}

fn issue_status(error: &IssueError) -> Status {
    let text = tollway_model::chain(error);
    match error {
        IssueError::RequestTooLarge { .. }
        | IssueError::Request(_)
        | IssueError::KeyType
        | IssueError::ForeignNetwork { .. }
        | IssueError::ReservedNamespace
        | IssueError::Name { .. } => Status::invalid_argument(text),
        IssueError::Ttl { .. }
        | IssueError::RootEnded
        | IssueError::Clock
        | IssueError::Randomness
        | IssueError::Sign(_) => Status::internal(text),
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

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
}
