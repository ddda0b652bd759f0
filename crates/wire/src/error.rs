//! Why a message from a peer was refused.

use thiserror::Error;
use tollway_model::{NameError, PatternError, PolicyError};

/// A field of a message that does not hold what the protocol says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConvertError {
    #[error("the field `{field}` is missing")]
    Missing { field: &'static str },
    #[error("the field `{field}` does not hold a name")]
    Name { field: &'static str, source: NameError },
    #[error("the field `{field}` holds an IP address of {length} bytes; it must be 4 or 16")]
    Ip { field: &'static str, length: usize },
    #[error("the field `{field}` holds the port {port}; it must be 1 to 65535")]
    Port { field: &'static str, port: u32 },
    #[error("the field `{field}` holds {value}, which this version does not know")]
    Unknown { field: &'static str, value: i32 },
    #[error("the field `{field}` holds {count} entries; at most {limit} are accepted")]
    TooMany { field: &'static str, count: usize, limit: usize },
    #[error("the field `{field}` is empty; it needs at least one entry")]
    Empty { field: &'static str },
    #[error("the policy `{policy}` is not valid")]
    Policy { policy: String, source: PolicyError },
    #[error("the policy `{policy}` has a rule that is not valid")]
    PolicyRule { policy: String, source: PatternError },
    #[error("the policy `{policy}` has {bytes} bytes; at most {limit} are accepted: split it")]
    PolicyTooLarge { policy: String, bytes: usize, limit: usize },
}
