//! The handle of a store: one interface over the engines.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::embedded::{Embedded, EmbeddedWatch};
use crate::error::{LeaseError, OpenError, ReadError, TransactError, WatchError};
use crate::etcd::Etcd;
use crate::etcd::parts::EtcdLocation;
use crate::model::{
    Batch, Commit, Entry, KeyRange, LeaseId, Limits, Page, Scanned, Seen, Size, Transaction,
};

/// A store; clones share it. It closes when the last clone is dropped, which waits for the write
/// under way; running watches then end.
#[derive(Clone, Debug)]
pub struct Store {
    engine: Engine,
}

/// The engines there are. Methods below are `async` wherever an engine across a network waits.
#[derive(Clone, Debug)]
enum Engine {
    Embedded(Arc<Embedded>),
}

#[expect(clippy::unused_async, reason = "an engine across a network waits where this one does not")]
impl Store {
    /// Opens the embedded engine on one file, made when absent. The whole content is read into
    /// memory. Call it inside a tokio runtime with time enabled, which must outlive the store:
    /// leases are timed there.
    ///
    /// # Errors
    /// [`OpenError`], which names the file and a remedy.
    pub async fn open_embedded(path: &Path, limits: Limits) -> Result<Self, OpenError> {
        let engine = Embedded::open(path.to_owned(), limits).await?;
        Ok(Self { engine: Engine::Embedded(Arc::new(engine)) })
    }

    /// Opens the store of this name in etcd, made when absent; otherwise as
    /// [`Store::open_embedded`]. What a frame holds is one value of etcd, so transactions that come
    /// together are one write there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open_etcd(etcd: Arc<Etcd>, name: &str, limits: Limits) -> Result<Self, OpenError> {
        let engine = Embedded::open_in(EtcdLocation::new(etcd, name), limits).await?;
        Ok(Self { engine: Engine::Embedded(Arc::new(engine)) })
    }

    /// The revision of the last durable transaction; 0 for an empty store.
    #[must_use]
    pub fn revision(&self) -> u64 {
        let Engine::Embedded(engine) = &self.engine;
        engine.revision()
    }

    /// Starts to write the log again with only what is there now, so that it does not have what was
    /// replaced or removed before. A compaction that runs already ends first; with etcd, etcd's own
    /// history keeps it until etcd compacts.
    ///
    /// # Errors
    /// [`TransactError`].
    pub async fn rewrite(&self) -> Result<(), TransactError> {
        let Engine::Embedded(engine) = &self.engine;
        engine.rewrite().await
    }

    /// How much it holds now.
    #[must_use]
    pub fn size(&self) -> Size {
        let Engine::Embedded(engine) = &self.engine;
        engine.size()
    }

    /// Calls `observer` after each written group of transactions, on the thread that
    /// wrote it: it must return quickly. Only the first observer is called.
    pub fn observe_commits(&self, observer: impl Fn(Commit) + Send + Sync + 'static) {
        let Engine::Embedded(engine) = &self.engine;
        engine.observe_commits(Box::new(observer));
    }

    /// The entry of `key`, if it is there.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        let Engine::Embedded(engine) = &self.engine;
        Ok(engine.get(key))
    }

    /// The entries of `keys`, each in the place of its key, all as of one revision. In the order
    /// of the store they are found faster.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, ReadError> {
        let Engine::Embedded(engine) = &self.engine;
        Ok(engine.get_many(keys))
    }

    /// Applies the transaction and returns its revision once it is durable. A transaction that
    /// changes nothing returns the current revision.
    ///
    /// Dropping the future does not undo it: the outcome is then unknown.
    ///
    /// # Errors
    /// [`TransactError`]; after `Disk` and `Closed` the outcome is unknown, after all others
    /// nothing has changed.
    pub async fn transact(&self, transaction: Transaction) -> Result<u64, TransactError> {
        let Engine::Embedded(engine) = &self.engine;
        engine.transact(transaction).await
    }

    /// Up to `limit` entries of `range` in key order, after the key `after` where given. A page
    /// is a consistent view of one revision; pages of one list may be of different revisions.
    ///
    /// To follow a range: list it to its end, then watch it from the revision of the first
    /// page.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn list(
        &self,
        range: &KeyRange,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let Engine::Embedded(engine) = &self.engine;
        Ok(engine.list(range, after, limit))
    }

    /// Like [`Store::list`], for a caller that needs only a part of each entry, or another form.
    /// Passes each entry to `visit` without a copy, until `visit` breaks off. Writes wait
    /// meanwhile, so `visit` must be quick.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn scan(
        &self,
        range: &KeyRange,
        after: Option<&[u8]>,
        limit: usize,
        visit: impl FnMut(Seen<'_>) -> ControlFlow<()>,
    ) -> Result<Scanned, ReadError> {
        let Engine::Embedded(engine) = &self.engine;
        Ok(engine.scan(range, after, limit, visit))
    }

    /// Watches `range` for changes after revision `from`.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] if the history no longer has the changes after `from`.
    pub async fn watch(&self, range: KeyRange, from: u64) -> Result<Watch, WatchError> {
        let Engine::Embedded(engine) = &self.engine;
        engine.watch(range, from).map(|watch| Watch { engine: EngineWatch::Embedded(watch) })
    }

    /// Grants a lease; it ends after `ttl` without [`Store::keep_alive`], and its keys are then
    /// deleted in one transaction. Leases survive a restart of the process, and then have their
    /// full `ttl` again.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        let Engine::Embedded(engine) = &self.engine;
        engine.grant_lease(ttl).await
    }

    /// Renews a lease; returns its ttl. Costs no write.
    ///
    /// # Errors
    /// [`LeaseError::NoLease`] when it has ended: its keys are gone or about to be.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Duration, LeaseError> {
        let Engine::Embedded(engine) = &self.engine;
        engine.keep_alive(lease)
    }

    /// Ends a lease and deletes its keys in one transaction.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), LeaseError> {
        let Engine::Embedded(engine) = &self.engine;
        engine.revoke(lease).await
    }

    /// Forgets changes up to and including `revision`: no watch can start below it. After a
    /// restart more may be known again, as far as the file still holds it.
    pub async fn compact(&self, revision: u64) {
        let Engine::Embedded(engine) = &self.engine;
        engine.compact(revision);
    }
}

/// A running watch. It has no buffer of its own; all watches share the history. One that falls
/// behind the history gets [`WatchError::TooSlow`] and must list again.
#[derive(Debug)]
pub struct Watch {
    engine: EngineWatch,
}

#[derive(Debug)]
enum EngineWatch {
    Embedded(EmbeddedWatch),
}

impl Watch {
    /// Waits for the next batch. Cancel safe. While nothing in the range changes a progress mark
    /// (an empty batch) comes every [`crate::PROGRESS_EVERY_REVISIONS`] revisions.
    ///
    /// # Errors
    /// [`WatchError`]; after an error the watch is over.
    pub async fn next(&mut self) -> Result<Batch, WatchError> {
        let EngineWatch::Embedded(watch) = &mut self.engine;
        watch.next().await
    }
}
