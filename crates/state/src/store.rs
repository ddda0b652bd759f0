//! The one interface over the engines.

use std::sync::Arc;

use async_trait::async_trait;

use crate::component::{Component, Engine};
use crate::error::StateError;
use crate::memory::MemoryStore;
use crate::model::{Capability, Consistency, Delete, Entry, Op, Set, Transaction};
use crate::postgresql::PostgresqlStore;
use crate::redis::RedisStore;
use crate::sqlite::SqliteStore;

/// A state store. Keys are those of the store ([`crate::KeyPrefix`] makes them).
///
/// A dropped future leaves open whether its write has happened.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// What it can do, for the metadata.
    fn capabilities(&self) -> &'static [Capability];

    /// The entry of `key`, unless there is none or its time has come.
    async fn get(&self, key: &str, consistency: Consistency) -> Result<Option<Entry>, StateError>;

    /// The entries of several keys, in their order. A key that is given twice has two results.
    async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError>;

    /// Makes all changes, or none of them.
    async fn transact(&self, transaction: Transaction) -> Result<(), StateError>;

    /// Writes one key.
    async fn set(&self, set: Set) -> Result<(), StateError> {
        self.transact(Transaction { ops: vec![Op::Set(set)], fence: None }).await
    }

    /// Removes one key.
    async fn delete(&self, delete: Delete) -> Result<(), StateError> {
        self.transact(Transaction { ops: vec![Op::Delete(delete)], fence: None }).await
    }
}

/// Opens the store of a component and makes its tables where they are missing. Call it inside a
/// tokio runtime with time enabled.
///
/// # Errors
/// [`StateError`] when the store cannot be reached or used within the component's time.
pub async fn open(component: &Component) -> Result<Arc<dyn StateStore>, StateError> {
    let opening = async {
        Ok::<Arc<dyn StateStore>, StateError>(match &component.engine {
            Engine::InMemory => Arc::new(MemoryStore::default()),
            Engine::Sqlite(settings) => SqliteStore::open(settings.clone()).await?,
            Engine::Redis(settings) => Arc::new(RedisStore::open(settings).await?),
            Engine::Postgresql(settings) => PostgresqlStore::open(settings).await?,
        })
    };
    let timed = tokio::time::timeout(component.init_timeout, opening).await;
    timed.unwrap_or_else(|_| {
        Err(StateError::TimedOut {
            address: component.engine.address(),
            after: component.init_timeout,
        })
    })
}
