//! The call trace of one request: what the caller's sidecar reports to its app, and the part that
//! the callee's sidecar adds.
//!
//! Times are durations, each measured by one process on its own clock; hosts never compare
//! theirs. The shape of [`CallTrace`] in JSON is documented in `docs/guide/explain.md`.

mod part;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::failure::{ErrorCode, Group};
use crate::locality::Level;
use crate::object::ObjectName;

pub use part::{CALLEE_PART_BYTES_LIMIT, CalleePart};

/// Longest trace that is read, in bytes of JSON. A trace that is written is far shorter.
pub const CALL_TRACE_BYTES_LIMIT: usize = 16 * 1024;
/// Most failed attempts that a trace lists.
pub const FAILED_ATTEMPTS_LIMIT: usize = 8;
/// Most gateways that a trace lists.
pub const GATEWAYS_LIMIT: usize = 8;

/// What each hop did with one request, as far as the request came, by the caller's sidecar.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CallTrace {
    /// The hop that reports it, such as `sidecar web.default.west`.
    pub reported_by: String,
    /// The caller's SPIFFE ID.
    pub caller: String,
    /// The service, `app.namespace.network`; none if the request names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The rule of a route that sent the request to `name`; none if its service has no routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteTaken>,
    /// The network that was chosen for a service that is called in any; none for other services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<NetworkTaken>,
    /// What was known of the service when the request was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// What a traffic policy had go wrong with the request on purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The connection that the last attempt was made on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    /// Why the callee's sidecar admitted or refused the request; none if it does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// The limit of a traffic policy that the request is over, if the callee's sidecar reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<OverLimit>,
    /// What was decided on a call of a host out of the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressTaken>,
    /// Requests sent, including the last.
    #[serde(default)]
    pub attempts: u32,
    /// What failed before the last attempt, including dials; the first [`FAILED_ATTEMPTS_LIMIT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_attempts: Vec<FailedAttempt>,
    /// Where the request ended, if not at the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub times_us: Times,
}

/// A rule that held for a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RouteTaken {
    /// The service that the request names, `app.namespace.network`.
    pub service: String,
    /// The route, `namespace/name`.
    pub route: String,
    /// The rule's name, or its number from 0.
    pub rule: String,
}

/// The network that was chosen for a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetworkTaken {
    /// The service as it was called, `app.namespace.any`.
    pub called: String,
    pub network: String,
    pub priority: u32,
    /// Why: `priority`, `health`, `load`, `last_resort`; `retry` after another network had failed.
    pub by: String,
}

/// A service in the view of its caller's network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    pub state: ServiceWord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    pub ready_replicas: u32,
    /// Those of them that were passed over, since the caller's sidecar has ejected them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ejected_replicas: u32,
    /// What replicas of each level take, where near ones are preferred; the nearest first, and only levels
    /// that have replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<LevelShown>,
    /// Gateways that are dialled for it, the first [`GATEWAYS_LIMIT`]: those of its network or of
    /// the caller's. Empty for a service of the caller's network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    /// If `gateways` are those of the caller's network: the gateways of the service's network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_gateways: Vec<String>,
}

/// The replicas of one level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelShown {
    pub level: Level,
    /// Those that can be sent requests, as the caller's sidecar has found.
    pub healthy: u32,
    pub registered: u32,
    /// The part of all requests that they take by their health, before any spill over.
    pub percent: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What went wrong with a request on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// It was held back for so long; a part of the caller's sidecar's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<u64>,
    /// It was answered and not sent.
    pub is_aborted: bool,
}

/// The network that has a service, or why none does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceWord {
    OwnNetwork,
    JoinedNetwork,
    UnknownService,
    UnknownNetwork,
    UnreachableNetwork,
    NoReadyEndpoint,
    /// It is called in any network, and none may serve it, or none could be chosen.
    NoFailover,
}

/// A connection from sidecar to sidecar.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The dialled address: a gateway's, or that of the replica's sidecar.
    pub address: String,
    pub through_gateway: bool,
    /// The replica that the peer's certificate names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// How near the replica is to the caller, where near ones are preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// The SPIFFE ID of the peer's certificate.
    pub callee: String,
    /// Whether it was made while this request waited.
    pub is_new: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// What a TLS handshake agreed on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tls {
    /// Such as `1.3`.
    pub version: String,
    /// The cipher suite's name in IANA's registry.
    pub cipher: String,
    /// Whether the handshake resumed an earlier session.
    pub is_resumed: bool,
}

/// Why a request was admitted or refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "policy")]
pub enum Admission {
    /// No policy protects the service.
    Unprotected,
    /// Policies protect it, and none refuses the request.
    NotRefused,
    /// A rule of this policy allows it. Only callers of the callee's namespace see this.
    Allowed(ObjectName),
    /// It is admitted, and this policy in shadow mode would refuse it. Only callers of the callee's
    /// namespace see this.
    WouldBeRefused(ObjectName),
    /// This policy refuses it. Only callers of the callee's namespace see this.
    Refused(ObjectName),
}

/// A limit that a request is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OverLimit {
    pub limit: LimitWord,
    /// It is in shadow mode, so that the request was let in.
    pub is_shadow: bool,
}

/// What a limit of a traffic policy counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitWord {
    /// Requests of this caller in a time.
    Caller,
    /// Requests of all callers in a time.
    Service,
    /// Requests of this caller at one time.
    Concurrency,
}

impl LimitWord {
    const ALL: [Self; 3] = [Self::Caller, Self::Service, Self::Concurrency];

    /// `caller`, `service` or `concurrency`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Service => "service",
            Self::Concurrency => "concurrency",
        }
    }
}

/// A call of a host out of the mesh.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EgressTaken {
    /// The host with its port.
    pub host: String,
    pub decision: EgressWord,
    /// The Egress that allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<ObjectName>,
}

/// What the rules for hosts out of the mesh decide on a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressWord {
    /// An Egress allows it.
    Allowed,
    /// It passes by default.
    Default,
    Refused,
    /// It passes, and would be refused if what is in shadow mode were in force.
    ShadowRefused,
}

/// An attempt that failed and was followed by another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// A word of the catalogue of failures.
    pub code: String,
    /// The dialled address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The replica, if a connection to it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// How a request ended without the app's response.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// A word of the catalogue of failures.
    pub code: String,
    /// The hop that reports it.
    pub reported_by: String,
    /// The last stage that the request reached.
    pub at: Stage,
}

/// A stage of a call, in the order in which a request reaches them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    CallerSidecar,
    Name,
    Service,
    Network,
    Gateway,
    /// The connection to the callee's sidecar, or that sidecar itself.
    Replica,
    Policy,
    App,
}

/// Durations up to the response's head, in microseconds. `None`: it did not happen, or is not
/// known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// From the request's head to the response's head, at the caller's sidecar.
    pub total: u64,
    /// Waiting for discovery of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<u64>,
    /// Waiting for a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// TCP connect of a new connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<u64>,
    /// TLS handshake of a new connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake: Option<u64>,
    /// From the first attempt to the failure of the last one that was followed by another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_attempts: Option<u64>,
    /// In the caller's sidecar: what remains of `total`.
    pub caller_sidecar: u64,
    /// From the last attempt to the response's head, or to the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<u64>,
    /// In the network and its gateways, both directions: what remains of `round_trip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<u64>,
    /// In the callee's sidecar, as that reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee_sidecar: Option<u64>,
    /// From sending the request to the app to the head of its response, as its sidecar reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<u64>,
}

impl Times {
    /// Adds the times of the callee's sidecar; the network gets what remains of `round_trip`.
    pub fn add_part(&mut self, part: &CalleePart) {
        let Some(round_trip) = self.round_trip else { return };
        self.callee_sidecar = Some(part.sidecar_us);
        self.app = part.app_us;
        let callee = part.sidecar_us.saturating_add(part.app_us.unwrap_or(0));
        self.network = Some(round_trip.saturating_sub(callee));
    }

    /// Sets the caller's sidecar's time to what no other figure accounts for.
    pub fn settle(&mut self) {
        let elsewhere = [self.discovery, self.connection, self.failed_attempts, self.round_trip];
        let elsewhere = elsewhere.into_iter().flatten().fold(0, u64::saturating_add);
        self.caller_sidecar = self.total.saturating_sub(elsewhere);
    }
}

impl Stage {
    /// The stage at which a request fails with `code`. `from_callee`: the callee's sidecar
    /// reports it.
    #[must_use]
    pub fn of(code: ErrorCode, from_callee: bool) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the rest happens at the replica")]
        match code {
            ErrorCode::BadName | ErrorCode::DirectInvoke => Self::Name,
            ErrorCode::UnknownService
            | ErrorCode::NoReadyEndpoint
            | ErrorCode::DiscoveryTimedOut
            | ErrorCode::NotHttp => Self::Service,
            ErrorCode::UnknownNetwork | ErrorCode::UnreachableNetwork => Self::Network,
            ErrorCode::GatewayUnreachable
            | ErrorCode::GatewayRefused
            | ErrorCode::GatewayUpstream => Self::Gateway,
            ErrorCode::PolicyDenied | ErrorCode::PolicyUnknown => Self::Policy,
            ErrorCode::AppUnreachable => Self::App,
            ErrorCode::ClosedEarly
            | ErrorCode::Reset
            | ErrorCode::BadResponse
            | ErrorCode::TimedOut
                if from_callee =>
            {
                Self::App
            }
            _ if !from_callee && matches!(code.entry().group, Group::Request | Group::Limit) => {
                Self::CallerSidecar
            }
            _ => Self::Replica,
        }
    }
}

/// As one text, `namespace/name`.
impl Serialize for ObjectName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        part::policy_of(&text).ok_or_else(|| D::Error::custom("not the name of a policy"))
    }
}

#[cfg(test)]
mod tests;
