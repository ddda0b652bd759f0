//! State stores of apps: one interface ([`StateStore`]), its engines, and the files that configure
//! them as Dapr does ([`Component`]).
//!
//! Engines keep what they write where Dapr keeps it: under the same keys, in the same tables,
//! columns and hash fields, so that data of one is found by the other. What differs between
//! Dapr's engines is the same here, as the suite in `tests/engines/contract` says. The HTTP and gRPC APIs
//! over them are the business of `runtime`.

#![forbid(unsafe_code)]

mod component;
mod error;
mod etag;
mod key;
mod limits;
mod memory;
mod model;
mod postgresql;
mod redis;
mod sqlite;
mod store;
mod sweep;

pub use component::{
    Component, ComponentFault, Engine, Manifest, PostgresqlLayout, PostgresqlSettings, Read,
    RedisSettings, SqliteSettings, Surroundings,
};
pub use error::{BoxError, StateError};
pub use etag::{Step, plan_steps};
pub use key::{IllegalKey, KeyPrefix, Owner, actor_fence_key, actor_state_key};
pub use limits::{MEMORY_BYTES, TRANSACTION_OPS};
pub use memory::MemoryStore;
pub use model::{
    Capability, Concurrency, Condition, Consistency, Delete, Entry, Fence, IllegalTtl, Op, Set,
    Transaction, Ttl, Value,
};
pub use store::{StateStore, open};
