//! The state API: apps store values under keys in the stores of components.
//!
//! `http` and `rpc` read requests of the two protocols, `stores` carries them out, and `problem`
//! makes the error responses with Dapr's texts and codes. `guarded` keeps a store to the Resiliency
//! rules of its component. `tollway_state` has the engines.

#[cfg(test)]
mod api_tests;
mod document;
mod embedded;
mod guarded;
pub(crate) mod http;
mod problem;
pub(crate) mod rpc;
mod stores;

pub(crate) use document::{Step, TTL_END, expiry, ttl_of};
pub(crate) use embedded::EmbeddedStore;
pub(crate) use problem::Problem;
pub use stores::OpenStoreError;
pub(crate) use stores::{AllOpened, ComponentInfo, Stores, open_all};
