//! The way that one request took: what a sidecar tells its app of it, and what the callee's
//! sidecar adds.
//!
//! Times are durations, each measured by one process on its own clock; hosts never compare
//! theirs. The shape of [`Way`] in JSON is documented in `docs/guide/explain.md`.

mod part;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::failure::{ErrorCode, Group};
use crate::policy::PolicyName;

pub use part::{PART_BYTES_LIMIT, Part};

/// Longest way that is read, in bytes of JSON. One that is written is far shorter.
pub const WAY_BYTES_LIMIT: usize = 16 * 1024;
/// Most failed attempts that are told of one by one.
pub const FAILED_ATTEMPTS_LIMIT: usize = 8;
/// Most gateways that are told of one by one.
pub const GATEWAYS_LIMIT: usize = 8;

/// The way of one request, as far as it went, as the caller's sidecar tells it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Way {
    /// Who tells it, such as `sidecar web.default.west`.
    pub told_by: String,
    /// The identity that the request was made under.
    pub caller: String,
    /// Whom the name meant, `app.namespace.network`; none if it is no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What was known of the service when the request was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Service>,
    /// The connection that the last attempt was made on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    /// Why the callee's sidecar let the request in; it tells nobody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// Requests sent, the last one included.
    #[serde(default)]
    pub attempts: u32,
    /// What failed before it, connections that could not be made included; the first
    /// [`FAILED_ATTEMPTS_LIMIT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_attempts: Vec<FailedAttempt>,
    /// Where the way ended, if not at the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub times_us: Times,
}

/// A service as its caller's network knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    pub state: ServiceWord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    pub ready_replicas: u32,
    /// Gateways that are dialled for it, the first [`GATEWAYS_LIMIT`]: those of its network, or
    /// the caller's own; none in the own network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
    /// Where `gateways` are the caller's own: those of the service's network behind them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways_beyond: Vec<String>,
}

/// Where a service is, or why it is nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceWord {
    OwnNetwork,
    JoinedNetwork,
    UnknownService,
    UnknownNetwork,
    UnreachableNetwork,
    NoReadyEndpoint,
}

/// A connection from sidecar to sidecar.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Where it was dialled: a gateway of the other network, or the replica's sidecar.
    pub address: String,
    pub through_gateway: bool,
    /// The replica that its certificate names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The identity that the other end proved.
    pub callee: String,
    /// Made while this request waited for one.
    pub is_new: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// What the two ends agreed on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tls {
    /// Such as `1.3`.
    pub version: String,
    /// The suite's name in the registry of TLS.
    pub cipher: String,
    /// The handshake went on from an earlier connection.
    pub is_resumed: bool,
}

/// Why a request was let in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "policy")]
pub enum Admission {
    /// No policy protects the service.
    Unprotected,
    /// Policies protect it, and none refuses this or closes it.
    NotRefused,
    /// A rule of this policy allows it.
    Allowed(PolicyName),
}

/// An attempt that failed and was followed by another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// A word of the catalogue.
    pub code: String,
    /// Where it was dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The replica, if it came that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// How the way ended before the app's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// A word of the catalogue.
    pub code: String,
    /// Who says so.
    pub told_by: String,
    /// The last place that it reached.
    pub at: Place,
}

/// A place on the way, in the order in which a request meets them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
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

/// Where the time went, in microseconds, until the head of the answer. What is none did not
/// happen, or is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// From the request's head at the caller's sidecar to the answer's head there.
    pub total: u64,
    /// Until the control plane had told of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<u64>,
    /// In line for a connection, or until one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// Of a connection that is new: until the other end answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<u64>,
    /// Of a connection that is new: TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake: Option<u64>,
    /// From the first attempt to the failure of the last one that was followed by another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_attempts: Option<u64>,
    /// In the caller's sidecar: what remains of `total`.
    pub caller_sidecar: u64,
    /// From the last attempt to the answer's head, or to the end of patience.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<u64>,
    /// In the network and its gateways, both ways: what remains of `round_trip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<u64>,
    /// In the callee's sidecar, as that tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee_sidecar: Option<u64>,
    /// From the app's being sent the request to the head of its answer, as its sidecar tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<u64>,
}

impl Times {
    /// Adds what the callee's sidecar tells, and what remains for the network between.
    pub fn add_part(&mut self, part: &Part) {
        let Some(round_trip) = self.round_trip else { return };
        self.callee_sidecar = Some(part.sidecar_us);
        self.app = part.app_us;
        let beyond = part.sidecar_us.saturating_add(part.app_us.unwrap_or(0));
        self.network = Some(round_trip.saturating_sub(beyond));
    }

    /// Leaves to the caller's sidecar what no other figure accounts for.
    pub fn settle(&mut self) {
        let elsewhere = [self.discovery, self.connection, self.failed_attempts, self.round_trip];
        let elsewhere = elsewhere.into_iter().flatten().fold(0, u64::saturating_add);
        self.caller_sidecar = self.total.saturating_sub(elsewhere);
    }
}

impl Place {
    /// Where a request was when this became of it. `from_afar` says that the callee's sidecar
    /// tells it.
    #[must_use]
    pub fn of(code: ErrorCode, from_afar: bool) -> Self {
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
                if from_afar =>
            {
                Self::App
            }
            _ if !from_afar && matches!(code.entry().group, Group::Request | Group::Limit) => {
                Self::CallerSidecar
            }
            _ => Self::Replica,
        }
    }
}

/// As one text, `namespace/name`.
impl Serialize for PolicyName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PolicyName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        part::policy_of(&text).ok_or_else(|| D::Error::custom("not the name of a policy"))
    }
}

#[cfg(test)]
mod tests;
