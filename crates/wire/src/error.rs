//! Why a message from a peer was refused.

use thiserror::Error;
use tollway_model::egress::{EgressError, HostError};
use tollway_model::failover::FailoverError;
use tollway_model::neighbour::{AddressError, GroupError};
use tollway_model::route::RouteError;
use tollway_model::traffic_policy::TrafficPolicyError;
use tollway_model::{AreaNameError, NameError, ObjectId, PatternError, PolicyError};

/// A field of a message that violates the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConvertError {
    #[error("the field `{field}` is missing")]
    Missing { field: &'static str },
    #[error("the field `{field}` does not hold a name")]
    Name { field: &'static str, source: NameError },
    #[error("the field `{field}` does not name a zone or a region")]
    Area { field: &'static str, source: AreaNameError },
    #[error("the field `{field}` holds an IP address of {length} bytes; it must be 4 or 16")]
    Ip { field: &'static str, length: usize },
    #[error("the field `probe_secret` holds {length} bytes; it must be 32")]
    SecretBytes { length: usize },
    #[error("the field `{field}` holds the port {port}; it must be 1 to 65535")]
    Port { field: &'static str, port: u32 },
    #[error("the field `{field}` holds {value}, which this version does not know")]
    Unknown { field: &'static str, value: i32 },
    #[error("the field `{field}` holds {count} entries; at most {limit} are accepted")]
    TooMany { field: &'static str, count: usize, limit: usize },
    #[error("{name} is said to be an address of {of}; only an address is one, of a port")]
    NotAnAddress { name: String, of: String },
    #[error("the field `{field}` is empty; it needs at least one entry")]
    Empty { field: &'static str },
    #[error("`{name}` is not the name of an object, NAMESPACE/NAME")]
    ObjectName { name: String, source: NameError },
    #[error("the {object} is not valid")]
    Policy { object: ObjectId, source: PolicyError },
    #[error("the {object} has a rule that is not valid")]
    PolicyRule { object: ObjectId, source: PatternError },
    #[error("the {object} is not valid")]
    Route { object: ObjectId, source: RouteError },
    #[error("a match is not valid")]
    RoutePattern { source: PatternError },
    #[error("the {object} is not valid")]
    TrafficPolicy { object: ObjectId, source: TrafficPolicyError },
    #[error("the parts of traffic policies are not valid")]
    TrafficParts { source: TrafficPolicyError },
    #[error("the {object} is not valid")]
    Failover { object: ObjectId, source: FailoverError },
    #[error("the networks that may serve a service are not valid")]
    FailoverRules { source: FailoverError },
    #[error("the {object} is not valid")]
    Egress { object: ObjectId, source: EgressError },
    #[error("a host is not valid")]
    Host { source: HostError },
    #[error("a caller is not valid")]
    Caller { source: PatternError },
    #[error("the {object} cannot be read")]
    InObject { object: ObjectId, source: Box<ConvertError> },
    #[error("the {object} has {bytes} bytes; at most {limit} are accepted: split it")]
    ObjectTooLarge { object: ObjectId, bytes: usize, limit: usize },
    #[error("the field `{field}` holds {value}, which is too large")]
    Number { field: &'static str, value: u32 },
    #[error(
        "the name of an actor type has {length} bytes; 1 to 256 are accepted, none of them NUL"
    )]
    ActorType { length: usize },
    #[error("a set of shards has the length {length}, which this version does not know")]
    Shards { length: usize },
    #[error("the field `{field}` of a reminder is empty or holds a NUL byte")]
    ReminderName { field: &'static str },
    #[error("the field `{field}` of a reminder is not in the years 0 to 9999: {micros} us")]
    Moment { field: &'static str, micros: i64 },
    #[error("the period of a reminder has no length that fits: {months} months and {micros} us")]
    Period { months: u32, micros: u64 },
    #[error("a shard is said to be held by host {place}, which is not in the list")]
    ActorHost { place: u32 },
    #[error("the field `{field}` does not name a group")]
    Group { field: &'static str, source: GroupError },
    #[error("the field `{field}` is not of a neighbour")]
    Neighbour { field: &'static str, source: AddressError },
    #[error("the field `{field}` holds a hardware address of {length} bytes; it must be 6")]
    Mac { field: &'static str, length: usize },
}
