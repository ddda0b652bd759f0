//! Certificates for workloads and gateways: for the holder of a join token, and again for the
//! holder of a certificate. [`decide_token`] and [`decide_renewal`] decide; the service executes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prost::Message;
use thiserror::Error;
use tollway_identity::{
    Authority, GATEWAY_APP, IssueError, IssueRequest, IssuedChain, JoinToken, SHORTEST_TTL,
    SecretHash, SystemRequest, peer_identity,
};
use tollway_model::{ErrorCode, Group, Instance, NetworkName, ServiceName};
use tollway_store::{Expected, Store, Transaction};
use tollway_wire::v1::identity_server::Identity;
use tollway_wire::{ConvertError, v1};
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::clock::{ago, later, unix_now_ms};
use crate::connections::{Caller, is_system};
use crate::hub::Hub;
use crate::instance_keys::{InstanceKeys, Remembered};
use crate::key::TOKEN_PREFIX;
use crate::linger::Use;
use crate::status::store_status;
use crate::stored::{ScopeKind, Token};

/// What a join token is good for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    Any,
    Namespace(String),
    App {
        namespace: String,
        app: String,
    },
    Gateway,
    /// Agents of the fabric, of this group.
    Fabric(Group),
}

/// The workload that a certificate is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Claim {
    service: ServiceName,
    instance: Instance,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (instance {})", self.service, self.instance)
    }
}

/// Why no certificate was issued.
#[derive(Debug, Error)]
enum Refusal {
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
            | Refusal::Scope { .. }
            | Refusal::NotYours { .. } => Self::permission_denied(text),
        };
        tollway_wire::with_code(status, code)
    }
}

/// Whether `secret` redeems `stored` for `service` at `now_unix_ms`.
fn decide_token(
    stored: Option<&Token>,
    secret: &[u8],
    service: &ServiceName,
    now_unix_ms: u64,
) -> Result<(), Refusal> {
    let stored = decide_usable(stored, secret, now_unix_ms)?;
    if Scope::read(stored).is_some_and(|scope| scope.allows(service)) {
        return Ok(());
    }
    Err(Refusal::Scope { service: service.clone() })
}

/// The token that `secret` redeems at `now_unix_ms`, for whatever its scope is.
fn decide_usable<'a>(
    stored: Option<&'a Token>,
    secret: &[u8],
    now_unix_ms: u64,
) -> Result<&'a Token, Refusal> {
    // One answer for an unknown id and a wrong secret: an id is not secret.
    let stored = stored
        .filter(|token| {
            SecretHash::from_bytes(&token.secret_hash).is_some_and(|hash| hash.matches(secret))
        })
        .ok_or(Refusal::UnknownToken)?;
    match ago(now_unix_ms, stored.expires_at_unix_ms) {
        Some(expired_for) => Err(Refusal::ExpiredToken { expired_for }),
        None => Ok(stored),
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

impl Scope {
    fn read(token: &Token) -> Option<Self> {
        let (namespace, app) = (token.namespace.clone(), token.app.clone());
        match token.scope() {
            ScopeKind::Any => Some(Self::Any),
            ScopeKind::Namespace => Some(Self::Namespace(namespace)),
            ScopeKind::App => Some(Self::App { namespace, app }),
            ScopeKind::Gateway => Some(Self::Gateway),
            ScopeKind::Fabric => Group::new(&app).ok().map(Self::Fabric),
            ScopeKind::Unspecified => None,
        }
    }

    /// Names compare without case. The namespace of the mesh itself is never in a scope, but
    /// for its gateways.
    fn allows(&self, service: &ServiceName) -> bool {
        let in_namespace =
            |namespace: &str| service.namespace.as_str().eq_ignore_ascii_case(namespace);
        if is_system(service) {
            return match self {
                Self::Gateway => is_gateway(service),
                Self::Fabric(group) => agents_group(service).as_ref() == Some(group),
                Self::Any | Self::Namespace(_) | Self::App { .. } => false,
            };
        }
        match self {
            Self::Any => true,
            Self::Namespace(namespace) => in_namespace(namespace),
            Self::App { namespace, app } => {
                in_namespace(namespace) && service.app.as_str().eq_ignore_ascii_case(app)
            }
            Self::Gateway | Self::Fabric(_) => false,
        }
    }
}

fn is_gateway(service: &ServiceName) -> bool {
    is_system(service) && service.app.as_str().eq_ignore_ascii_case(GATEWAY_APP)
}

/// The group of which it is an agent, if it is one.
pub(crate) fn agents_group(service: &ServiceName) -> Option<Group> {
    if is_system(service) { Group::of_agent_app(&service.app) } else { None }
}

/// The join tokens of a network.
#[derive(Clone)]
pub(crate) struct Tokens {
    pub(crate) authority: Arc<Authority>,
    pub(crate) store: Store,
    pub(crate) noted: Arc<Use>,
}

impl Tokens {
    /// Makes a token and stores its hash.
    pub(crate) async fn create(
        &self,
        scope: &Scope,
        ttl: Duration,
    ) -> Result<(JoinToken, u64), Status> {
        let network = self.authority.network();
        let token = JoinToken::generate(network, self.authority.root_der())
            .map_err(|error| Status::internal(error.to_string()))?;
        let expires_at_unix_ms = later(unix_now_ms(), ttl);
        let (kind, namespace, app) = match scope {
            Scope::Any => (ScopeKind::Any, "", ""),
            Scope::Namespace(namespace) => (ScopeKind::Namespace, namespace.as_str(), ""),
            Scope::App { namespace, app } => (ScopeKind::App, namespace.as_str(), app.as_str()),
            Scope::Gateway => (ScopeKind::Gateway, "", ""),
            Scope::Fabric(group) => (ScopeKind::Fabric, "", group.as_str()),
        };
        let record = Token {
            secret_hash: token.secret_hash().as_bytes().to_vec(),
            expires_at_unix_ms,
            scope: kind.into(),
            namespace: namespace.to_owned(),
            app: app.to_owned(),
        };
        let key = token_key(&token);
        let put =
            Transaction::new().when(key.clone(), Expected::Absent).put(key, record.encode_to_vec());
        self.store.transact(put).await.map_err(|error| store_status(&error))?;
        self.noted.note();
        info!(token = token.id(), ?scope, "made a join token");
        Ok((token, expires_at_unix_ms))
    }

    /// A token of this network, and what is stored of it.
    async fn find(&self, token: &str) -> Result<(JoinToken, Option<Token>), Status> {
        let token: JoinToken = token.parse().map_err(Refusal::TokenShape)?;
        let home = self.authority.network();
        if token.network() != home {
            let (found, home) = (token.network().clone(), home.clone());
            return Err(Refusal::OtherNetwork { found, home }.into());
        }
        let entry = self.store.get(&token_key(&token)).await.map_err(|e| store_status(&e))?;
        let stored = entry.and_then(|entry| Token::decode(entry.value).ok());
        Ok((token, stored))
    }
}

fn token_key(token: &JoinToken) -> Bytes {
    format!("{TOKEN_PREFIX}{}", token.id()).into()
}

pub(crate) struct IdentityService {
    pub(crate) tokens: Tokens,
    pub(crate) keys: Arc<InstanceKeys>,
    pub(crate) hub: Arc<Hub>,
    /// Lifetime of a certificate unless a shorter one is requested.
    pub(crate) certificate_ttl: Duration,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn issue(
        &self,
        request: Request<v1::IssueRequest>,
    ) -> Result<Response<v1::IssueResponse>, Status> {
        let caller = Caller::of(&request);
        let request = request.into_inner();
        let claim = Claim {
            service: tollway_wire::service_name(request.service.as_ref()).map_err(Refusal::from)?,
            instance: tollway_wire::instance(&request.instance).map_err(Refusal::from)?,
        };
        let allowed = self.may_have(&caller, &claim, &request.token).await;
        if let Err(status) = &allowed {
            let (code, reason) = (tollway_wire::code_of(status), status.message());
            let code = code.map(ErrorCode::word);
            warn!(service = %claim.service, instance = %claim.instance, code, reason, "a certificate was refused");
        }
        let Allowed { remembered, ended } = allowed?;
        let ttl = decide_ttl(request.ttl_s, self.certificate_ttl);
        let issued = self.sign(&claim, request.csr, ttl).map_err(|error| issue_status(&error))?;
        let identity = peer_identity(&issued.chain);
        let identity = identity.map_err(|error| Status::internal(error.to_string()))?;
        self.keys.issued(remembered, &identity, ended).await?;
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
        let found = self.tokens.find(&token).await;
        let (token, stored) = found.map_err(tollway_wire::with_clock(unix_now_ms()))?;
        let stored = decide_usable(stored.as_ref(), token.secret(), unix_now_ms())?;
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
        if !token.is_empty() {
            self.redeem(token, claim).await?;
            let remembered = self.keys.enrolling(&claim.service, &claim.instance).await?;
            return Ok(Allowed { remembered, ended: None });
        }
        if matches!(caller, Caller::Anonymous) {
            return Err(Refusal::NoProof.into());
        }
        let grace = self.keys.grace();
        let who = self.hub.read(|catalogue| caller.renewing(catalogue, grace))?;
        decide_renewal(&(who.service.clone(), who.instance.clone()), claim)?;
        Ok(Allowed { remembered: self.keys.renewing(&who).await?, ended: who.ended })
    }

    async fn redeem(&self, token: &str, claim: &Claim) -> Result<(), Status> {
        let (token, stored) = self.tokens.find(token).await?;
        let decided = decide_token(stored.as_ref(), token.secret(), &claim.service, unix_now_ms());
        Ok(decided?)
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

    fn token(scope: ScopeKind, namespace: &str, app: &str) -> Token {
        Token {
            secret_hash: SecretHash::of(b"secret").as_bytes().to_vec(),
            expires_at_unix_ms: 1_000,
            scope: scope.into(),
            namespace: namespace.to_owned(),
            app: app.to_owned(),
        }
    }

    #[track_caller]
    fn check(token: &Token, name: &str, allowed: bool) {
        let decided = decide_token(Some(token), b"secret", &service(name), 999);
        assert_eq!(decided.is_ok(), allowed, "{name}: {decided:?}");
    }

    #[test]
    fn a_token_is_good_for_its_scope_only() {
        let any = token(ScopeKind::Any, "", "");
        check(&any, "stock", true);
        check(&any, "stock.shop", true);
        check(&any, "gateway.tollway", false);
        check(&any, "control.Tollway", false);
        let shop = token(ScopeKind::Namespace, "shop", "");
        check(&shop, "stock.Shop", true);
        check(&shop, "stock", false);
        let app = token(ScopeKind::App, "shop", "stock");
        check(&app, "STOCK.shop", true);
        check(&app, "orders.shop", false);
        check(&app, "stock", false);
        let gateway = token(ScopeKind::Gateway, "", "");
        check(&gateway, "gateway.tollway", true);
        check(&gateway, "control.tollway", false);
        check(&gateway, "stock", false);
        check(&any, "fabric-racks.tollway", false);
        check(&gateway, "fabric-racks.tollway", false);
        let fabric = token(ScopeKind::Fabric, "", "Racks");
        check(&fabric, "fabric-racks.tollway", true);
        check(&fabric, "fabric-rack.tollway", false);
        check(&fabric, "gateway.tollway", false);
        check(&fabric, "fabric-racks", false);
        check(&token(ScopeKind::Unspecified, "", ""), "stock", false);
        check(&token(ScopeKind::Namespace, "tollway", ""), "control.tollway", false);
    }

    #[test]
    fn a_token_needs_its_secret_and_its_time() {
        let any = token(ScopeKind::Any, "", "");
        let refusal = |stored: Option<&Token>, secret: &[u8], now| {
            decide_token(stored, secret, &service("stock"), now).unwrap_err().to_string()
        };
        let unknown =
            "the join token is not known here; make a new one with `tollway token create`";
        assert_eq!(refusal(None, b"secret", 0), unknown);
        assert_eq!(refusal(Some(&any), b"Secret", 0), unknown);
        assert_eq!(
            refusal(Some(&any), b"secret", 1_000),
            "the join token expired 0ns ago; make a new one with `tollway token create`"
        );
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
