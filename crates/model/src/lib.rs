//! The nouns of Tollway: names, networks, workloads, services, policies, routes, traffic
//! policies, failover, egress, neighbours, revisions, failures.
//!
//! Pure: no sockets, clock, environment or randomness. Everything here is a value that other
//! crates exchange; `wire` converts it to and from protobuf, `routing` decides on it.

mod address;
mod agent_account;
pub mod call_trace;
mod chain;
mod config;
pub mod egress;
pub mod failover;
pub mod failure;
mod host_names;
mod kube_name;
mod locality;
mod mode;
mod name;
pub mod neighbour;
mod object;
mod path;
mod policy;
mod probe_secret;
mod revocation;
pub mod route;
mod service;
mod text;
mod trace;
pub mod traffic_policy;

pub use address::{AddressKind, AddressRange, AddressRangeError, plain_address};
pub use agent_account::{AgentAccount, AgentAccountError};
pub use chain::chain;
pub use config::RunningConfig;
pub use egress::{Egress, EgressDefault, HostName};
pub use failover::Failover;
pub use failure::ErrorCode;
pub use host_names::HostNames;
pub use kube_name::KubeName;
pub use locality::{AREA_NAME_BYTES, AreaName, AreaNameError, Level, Locality};
pub use mode::Mode;
pub use name::{
    ANY_NETWORK, AppId, Called, Instance, Label, MESH_SUFFIX, NameError, NetworkName, ServiceName,
    SpiffeId, TrustDomain,
};
pub use neighbour::{Group, HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};
pub use object::{Object, ObjectId, ObjectKind, ObjectName, ObjectScope, ServiceRef};
pub use path::{NormalPath, PathError};
pub use policy::{
    Caller, CallerPattern, MethodName, OperationPath, PATTERN_BYTES_LIMIT, PATTERN_SEGMENTS_LIMIT,
    Part, PathPattern, PatternError, PatternSegment, Policy, PolicyError, PolicyRule, PolicyScope,
    PolicyTarget, RULE_ENTRIES_LIMIT, RULES_PER_POLICY_LIMIT,
};
pub use probe_secret::ProbeSecret;
pub use revocation::Revocation;
pub use route::{Route, RouteScope};
pub use service::{
    AppProtocol, Endpoint, Remote, Revision, ServedPort, ServiceState, ServiceUpdate,
    UnavailableReason, Unready, Workload,
};
pub use text::decode_text;
pub use trace::{SpanId, TraceContext, TraceId};
pub use traffic_policy::TrafficPolicy;
