//! The state API: apps keep values under keys in the stores of the components.
//!
//! What HTTP (`http`) and gRPC (`rpc`) ask for is done here once; what fails is told in one place
//! (`problem`), in the words and codes of Dapr. The stores themselves are the business of
//! `tollway_state`.

#[cfg(test)]
mod api_tests;
mod document;
mod embedded;
pub(crate) mod http;
mod problem;
pub(crate) mod rpc;
mod stores;

pub(crate) use document::{Step, TTL_END, expiry, ttl_of};
pub(crate) use embedded::EmbeddedStore;
pub(crate) use problem::Problem;
pub use stores::OpenStoreError;
pub(crate) use stores::{ComponentInfo, Opened, Stores, open_all};
