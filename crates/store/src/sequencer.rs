//! Group commit for a service that is the only writer of its store: one task takes requests in
//! order, decides each on top of those before it, and writes what they change as one transaction.
//!
//! Requests that arrive while the store writes share the next transaction. No request is answered
//! before its changes are durable. What a request means, and what is counted, is up to the
//! service ([`Decide`]).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::{ReadError, TransactError};
use crate::model::{Op, Transaction};
use crate::store::Store;

/// A group takes no further request when it changes this many keys.
const GROUP_KEYS: usize = 4096;
/// A group takes no further request when its keys and values have this many bytes.
const GROUP_BYTES: usize = 4 << 20;

/// The decisions of a service about its own store.
pub trait Decide: Send + Sized + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;
    type Error: Send + 'static;

    /// Decides one request: reads through `pending`, puts its changes there. The response is sent
    /// once the group is durable.
    ///
    /// # Errors
    /// Sent at once. Changes that are in the group by then stay in it.
    fn decide(
        &mut self,
        pending: &mut Pending<Self>,
        request: Self::Request,
    ) -> impl Future<Output = Result<Self::Response, Self::Error>> + Send;

    /// Updates what the service holds in memory. Runs after each group, before its answers.
    fn committed(&mut self, outcome: &CommitOutcome) -> impl Future<Output = ()> + Send;

    /// Turns the response of [`Decide::decide`] into the answer, once the group is written.
    ///
    /// # Errors
    /// What the caller gets in place of a response, as a rule when the group was not written.
    fn answer(
        &mut self,
        response: Self::Response,
        outcome: &CommitOutcome,
    ) -> Result<Self::Response, Self::Error>;

    /// When [`Decide::upkeep`] runs next, if it has work.
    fn upkeep_at(&self) -> Option<Instant> {
        None
    }

    /// One bounded step of background work. Its changes are committed after it.
    fn upkeep(&mut self, pending: &mut Pending<Self>) -> impl Future<Output = ()> + Send {
        let _ = pending;
        std::future::ready(())
    }
}

/// The outcome of a group of requests.
#[derive(Debug)]
pub struct CommitOutcome {
    /// Each changed key with its new value; `None` for a deleted key.
    pub changes: BTreeMap<Bytes, Option<Bytes>>,
    /// The revision of the transaction; `None` when there was nothing to write.
    pub written: Result<Option<u64>, Arc<TransactError>>,
    /// How long the transaction took.
    pub took: Duration,
}

/// The changes that are decided and not written yet, and the callers that wait for them.
pub struct Pending<D: Decide> {
    store: Store,
    changes: BTreeMap<Bytes, Option<Bytes>>,
    bytes: usize,
    waiting: Vec<(Reply<D>, D::Response)>,
}

type Reply<D> = oneshot::Sender<Result<<D as Decide>::Response, <D as Decide>::Error>>;

/// The answer to a request of a service, once it is durable.
pub type Answer<D> = oneshot::Receiver<Result<<D as Decide>::Response, <D as Decide>::Error>>;

impl<D: Decide> Pending<D> {
    /// An empty group over a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store, changes: BTreeMap::new(), bytes: 0, waiting: Vec::new() }
    }

    /// The store without the changes of this group.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The value of `key` as this group leaves it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.changes.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.store.get(key).await?.map(|entry| entry.value)),
        }
    }

    /// What this group does with `key`: `Some(None)` when it deletes it, `None` when it leaves the
    /// key as it is in the store.
    #[must_use]
    pub fn change(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        self.changes.get(key).map(Option::as_ref)
    }

    /// Sets a key.
    pub fn put(&mut self, key: Bytes, value: Bytes) {
        self.bytes += key.len() + value.len();
        self.changes.insert(key, Some(value));
    }

    /// Removes a key.
    pub fn delete(&mut self, key: Bytes) {
        self.bytes += key.len();
        self.changes.insert(key, None);
    }

    /// Whether it is time to commit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.has_room_for(0)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.changes.len() < GROUP_KEYS && self.bytes + bytes < GROUP_BYTES
    }

    /// Commits now if `bytes` more would not fit.
    ///
    /// # Errors
    /// [`TransactError`]; every caller that waited has got its answer.
    pub async fn make_room_for(
        &mut self,
        bytes: usize,
        service: &mut D,
    ) -> Result<(), Arc<TransactError>> {
        match self.has_room_for(bytes) {
            true => Ok(()),
            false => self.commit(service).await,
        }
    }

    /// Writes the group as one transaction and answers its callers. A service calls it when a
    /// request needs the changes before it to be durable.
    ///
    /// # Errors
    /// [`TransactError`]; every caller that waited has got its answer.
    pub async fn commit(&mut self, service: &mut D) -> Result<(), Arc<TransactError>> {
        let changes = std::mem::take(&mut self.changes);
        self.bytes = 0;
        let began = Instant::now();
        let written = match changes.is_empty() {
            true => Ok(None),
            false => self.store.transact(transaction(&changes)).await.map(Some).map_err(Arc::new),
        };
        let outcome = CommitOutcome { changes, written, took: began.elapsed() };
        service.committed(&outcome).await;
        for (reply, response) in self.waiting.drain(..) {
            // A caller that is gone needs no answer.
            let _ = reply.send(service.answer(response, &outcome));
        }
        outcome.written.map(drop)
    }
}

fn transaction(changes: &BTreeMap<Bytes, Option<Bytes>>) -> Transaction {
    let op = |(key, value): (&Bytes, &Option<Bytes>)| match value.clone() {
        Some(value) => Op::Put { key: key.clone(), value, lease: None },
        None => Op::Delete { key: key.clone() },
    };
    Transaction { guards: Vec::new(), ops: changes.iter().map(op).collect() }
}

enum Job<D: Decide> {
    Request(D::Request, Reply<D>),
    Settle(oneshot::Sender<()>),
}

/// The task of a service has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the task that writes the store has ended")]
pub struct Ended;

/// Accepts requests; clones share one queue.
pub struct Sequencer<D: Decide> {
    jobs: mpsc::Sender<Job<D>>,
}

impl<D: Decide> Clone for Sequencer<D> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone() }
    }
}

impl<D: Decide> Sequencer<D> {
    /// A sequencer of `service` with a queue of `queue` requests, and the task that serves it.
    #[must_use]
    pub fn new(store: Store, service: D, queue: usize) -> (Self, SequencerTask<D>) {
        let (jobs, waiting) = mpsc::channel(queue);
        (Self { jobs }, SequencerTask { service, pending: Pending::new(store), jobs: waiting })
    }

    /// Queues a request; waits while the queue is full.
    ///
    /// # Errors
    /// [`Ended`]. The answer ends without a value when the task ends before it.
    pub async fn send(&self, request: D::Request) -> Result<Answer<D>, Ended> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Request(request, reply)).await.map_err(|_| Ended)?;
        Ok(answer)
    }

    /// Waits until every request that was queued before is decided, and its changes are durable or
    /// refused.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn settle(&self) -> Result<(), Ended> {
        let (reply, settled) = oneshot::channel();
        self.jobs.send(Job::Settle(reply)).await.map_err(|_| Ended)?;
        settled.await.map_err(|_| Ended)
    }
}

/// The task behind a [`Sequencer`].
pub struct SequencerTask<D: Decide> {
    service: D,
    pending: Pending<D>,
    jobs: mpsc::Receiver<Job<D>>,
}

impl<D: Decide> SequencerTask<D> {
    /// Serves until `stop` is ready, or until the last [`Sequencer`] is dropped.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        loop {
            let upkeep = sleep_until(self.service.upkeep_at());
            tokio::select! {
                job = self.jobs.recv() => match job {
                    Some(job) => self.serve(job).await,
                    None => return,
                },
                () = upkeep => self.service.upkeep(&mut self.pending).await,
                () = &mut stop => return,
            }
            // The service learns of a failure in `committed`.
            let _ = self.pending.commit(&mut self.service).await;
        }
    }

    /// Decides a job and those that wait behind it.
    async fn serve(&mut self, first: Job<D>) {
        let mut next = Some(first);
        while let Some(job) = next.take() {
            match job {
                Job::Request(request, reply) => {
                    match self.service.decide(&mut self.pending, request).await {
                        Ok(response) => self.pending.waiting.push((reply, response)),
                        Err(error) => drop(reply.send(Err(error))),
                    }
                }
                Job::Settle(reply) => {
                    let _ = self.pending.commit(&mut self.service).await;
                    let _ = reply.send(());
                }
            }
            if !self.pending.is_full() {
                next = self.jobs.try_recv().ok();
            }
        }
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
