//! State stores of apps: one interface ([`StateStore`]), its engines, and the files that configure
//! them as Dapr does ([`Component`]).
//!
//! Engines store entries as Dapr does: under the same keys, in the same tables, columns and hash
//! fields, so that each finds the other's data. Dapr's engines behave differently in some cases;
//! these behave alike, and the suite in `tests/engines/contract` tests it. `runtime` has the HTTP
//! and gRPC APIs.

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
    Component, ComponentContext, Engine, Manifest, PostgresqlLayout, PostgresqlSettings, Read,
    RedisSettings, SqliteSettings, UnusableStore,
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
