//! The handle everybody holds: one interface over the engines.

use std::path::Path;
use std::time::Duration;

use crate::error::{LeaseError, OpenError, ReadError, TransactError, WatchError};
use crate::model::{Batch, Entry, KeyRange, LeaseId, Limits, Page, Transaction};

/// A store; clones share it. It closes when the last clone and the last [`Watch`] are dropped.
#[derive(Clone, Debug)]
pub struct Store {}

impl Store {
    /// Opens the embedded engine on one file, made when absent. Call it inside a tokio runtime:
    /// leases are timed there.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and a way out.
    pub async fn open_embedded(_path: &Path, _limits: Limits) -> Result<Self, OpenError> {
        todo!()
    }

    /// The revision of the last durable transaction; 0 for an empty store.
    #[must_use]
    pub fn revision(&self) -> u64 {
        todo!()
    }

    /// The entry of `key`, if it is there.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get(&self, _key: &[u8]) -> Result<Option<Entry>, ReadError> {
        todo!()
    }

    /// Applies the transaction and returns its revision once it is durable. A transaction that
    /// changes nothing returns the current revision.
    ///
    /// Dropping the future does not undo it: the outcome is then unknown.
    ///
    /// # Errors
    /// [`TransactError`]; after `Conflict` and the limits nothing has changed.
    pub async fn transact(&self, _transaction: Transaction) -> Result<u64, TransactError> {
        todo!()
    }

    /// Up to `limit` entries of `range` in key order, after the key `after` where given.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn list(
        &self,
        _range: &KeyRange,
        _after: Option<&[u8]>,
        _limit: usize,
    ) -> Result<Page, ReadError> {
        todo!()
    }

    /// Watches `range` for changes after revision `from`.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] when changes after `from` are no longer kept.
    pub async fn watch(&self, _range: KeyRange, _from: u64) -> Result<Watch, WatchError> {
        todo!()
    }

    /// Grants a lease; it ends after `ttl` without [`Store::keep_alive`]. Leases survive a
    /// restart of the process, and then have their full `ttl` again.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub async fn grant_lease(&self, _ttl: Duration) -> Result<LeaseId, LeaseError> {
        todo!()
    }

    /// Starts the lease's time anew; returns its ttl.
    ///
    /// # Errors
    /// [`LeaseError::NoLease`] when it has ended: its keys are gone.
    pub async fn keep_alive(&self, _lease: LeaseId) -> Result<Duration, LeaseError> {
        todo!()
    }

    /// Ends a lease and deletes its keys in one transaction.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub async fn revoke(&self, _lease: LeaseId) -> Result<(), LeaseError> {
        todo!()
    }

    /// Forgets changes up to and including `revision`; watches can no longer start before it.
    pub async fn compact(&self, _revision: u64) {
        todo!()
    }
}

/// A running watch. It holds no buffer of its own: a watcher that falls behind the kept history
/// gets [`WatchError::TooSlow`].
#[derive(Debug)]
pub struct Watch {}

impl Watch {
    /// Waits for the next batch. Cancel safe. Without changes in the range a progress mark (an
    /// empty batch) comes at least every `PROGRESS_EVERY_REVISIONS` revisions.
    ///
    /// # Errors
    /// [`WatchError`]; after an error the watch is over.
    pub async fn next(&mut self) -> Result<Batch, WatchError> {
        todo!()
    }
}
