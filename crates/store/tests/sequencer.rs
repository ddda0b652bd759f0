//! A service that counts, over a [`Sequencer`]: what comes together is one transaction, answers are
//! of what is durable, and a group that is not written leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tollway_store::{
    CommitOutcome, Decide, Ended, Limits, Pending, ReadError, Sequencer, SequencerTask, Store,
    TransactError,
};

const KEY: &[u8] = b"count";
const VALUE_BYTES: usize = 8;

/// Adds to one key; records the commits that are reported.
#[derive(Default)]
struct Adder {
    commits: Vec<Result<Option<u64>, String>>,
    upkeep_at: Option<Instant>,
}

enum Request {
    /// Answered with the sum and the revision at which it is durable.
    Add(u64),
    /// As `Add`; upkeep is due at once, and deletes the key.
    AddForUpkeep(u64),
    /// As `Add`, after a commit of what was decided before.
    AddAlone(u64),
    /// Sets a value that the store refuses.
    TooLong,
    /// Refused without a change.
    Refuse,
    /// Answered with the revisions of the commits so far; 0 for one that wrote nothing.
    Commits,
}

#[derive(Debug, PartialEq, Eq)]
struct Response {
    sum: u64,
    revision: u64,
    commits: Vec<Result<Option<u64>, String>>,
}

#[derive(Debug, thiserror::Error)]
enum AddError {
    #[error("refused")]
    Refused,
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] Arc<TransactError>),
}

impl Decide for Adder {
    type Request = Request;
    type Response = Response;
    type Error = AddError;

    async fn decide(
        &mut self,
        pending: &mut Pending<Self>,
        request: Request,
    ) -> Result<Response, AddError> {
        let mut response = Response { sum: 0, revision: 0, commits: self.commits.clone() };
        match request {
            Request::Add(number) => response.sum = add(pending, number).await?,
            Request::AddForUpkeep(number) => {
                response.sum = add(pending, number).await?;
                self.upkeep_at = Some(Instant::now());
            }
            Request::AddAlone(number) => {
                pending.commit(self).await?;
                response.sum = add(pending, number).await?;
            }
            Request::TooLong => pending.put(KEY.into(), vec![0; VALUE_BYTES + 1].into()),
            Request::Refuse => return Err(AddError::Refused),
            Request::Commits => {}
        }
        Ok(response)
    }

    async fn committed(&mut self, outcome: &CommitOutcome) {
        let written = outcome.written.as_ref();
        self.commits.push(written.copied().map_err(ToString::to_string));
    }

    fn answer(
        &mut self,
        response: Response,
        outcome: &CommitOutcome,
    ) -> Result<Response, AddError> {
        let revision = outcome.written.clone()?.unwrap_or(0);
        Ok(Response { revision, ..response })
    }

    fn upkeep_at(&self) -> Option<Instant> {
        self.upkeep_at
    }

    async fn upkeep(&mut self, pending: &mut Pending<Self>) {
        self.upkeep_at = None;
        pending.delete(KEY.into());
    }
}

async fn add(pending: &mut Pending<Adder>, number: u64) -> Result<u64, ReadError> {
    let before = pending.get(KEY).await?.map_or(0, |value| number_of(&value));
    pending.put(KEY.into(), (before + number).to_be_bytes().to_vec().into());
    Ok(before + number)
}

fn number_of(value: &Bytes) -> u64 {
    u64::from_be_bytes(value[..].try_into().unwrap())
}

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    adder: Sequencer<Adder>,
    task: SequencerTask<Adder>,
}

async fn world(adder: Adder) -> World {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { value_bytes: VALUE_BYTES, ..Limits::default() };
    let store = Store::open_embedded(&dir.path().join("store.db"), limits).await.unwrap();
    let (adder, task) = Sequencer::new(store.clone(), adder, 100);
    World { _dir: dir, store, adder, task }
}

/// Queues the requests, then runs the task until there is nothing to do; the answers, in order.
async fn ask_at_once(world: World, requests: Vec<Request>) -> Vec<Result<Response, AddError>> {
    let World { _dir, store: _store, adder, task } = world;
    let mut answers = Vec::new();
    for request in requests {
        answers.push(adder.send(request).await.unwrap());
    }
    drop(adder);
    task.run(std::future::pending()).await;
    let mut received = Vec::new();
    for answer in answers {
        received.push(answer.await.unwrap());
    }
    received
}

#[tokio::test]
async fn requests_that_come_together_share_a_transaction_and_see_each_other() {
    let world = world(Adder::default()).await;
    let store = world.store.clone();
    let requests = vec![Request::Add(1), Request::Refuse, Request::Add(2), Request::Add(3)];
    let answers = ask_at_once(world, requests).await;
    let sums: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().ok().map(|it| (it.sum, it.revision))).collect();
    assert_eq!(sums, [Some((1, 1)), None, Some((3, 1)), Some((6, 1))]);
    assert!(matches!(answers[1], Err(AddError::Refused)));
    let entry = store.get(KEY).await.unwrap().unwrap();
    assert_eq!((number_of(&entry.value), entry.revision), (6, 1));
}

#[tokio::test]
async fn a_service_may_commit_before_it_decides() {
    let requests = vec![Request::Add(1), Request::AddAlone(2), Request::Add(3)];
    let answers = ask_at_once(world(Adder::default()).await, requests).await;
    let revisions: Vec<_> =
        answers.into_iter().map(|answer| answer.map(|it| (it.sum, it.revision)).unwrap()).collect();
    assert_eq!(revisions, [(1, 1), (3, 2), (6, 2)]);
}

#[tokio::test]
async fn a_group_that_is_refused_fails_all_its_requests_and_the_next_one_starts_anew() {
    let world = world(Adder::default()).await;
    let store = world.store.clone();
    let requests = vec![Request::Add(1), Request::TooLong, Request::AddAlone(2), Request::Add(3)];
    let answers = ask_at_once(world, requests).await;
    let is_refused = |answer: &Result<Response, AddError>| {
        let Err(AddError::Write(error)) = answer else { return false };
        matches!(**error, TransactError::ValueTooLong { .. })
    };
    // The third needed a commit, which failed.
    assert!(answers[..3].iter().all(is_refused), "{answers:?}");
    assert_eq!(answers[3].as_ref().map(|it| (it.sum, it.revision)).unwrap(), (3, 1));
    assert_eq!(number_of(&store.get(KEY).await.unwrap().unwrap().value), 3);
}

#[tokio::test]
async fn settling_waits_for_what_was_queued_before() {
    let World { _dir, store, adder, task } = world(Adder::default()).await;
    let answer = adder.send(Request::Add(1)).await.unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(task.run(stop.clone().cancelled_owned()));
    adder.settle().await.unwrap();
    assert_eq!(number_of(&store.get(KEY).await.unwrap().unwrap().value), 1);
    assert_eq!(answer.await.unwrap().unwrap().sum, 1);
    stop.cancel();
    running.await.unwrap();
    assert_eq!(adder.settle().await, Err(Ended));
    assert!(adder.send(Request::Add(1)).await.is_err());
}

#[tokio::test]
async fn upkeep_is_committed_when_its_time_has_come() {
    let World { _dir, store, adder, task } = world(Adder::default()).await;
    let running = tokio::spawn(task.run(std::future::pending()));
    let added = adder.send(Request::AddForUpkeep(1)).await.unwrap().await.unwrap().unwrap();
    assert_eq!((added.sum, added.revision), (1, 1));
    let mut watch = store.watch(tollway_store::KeyRange::key(KEY), 1).await.unwrap();
    if store.get(KEY).await.unwrap().is_some() {
        watch.next().await.unwrap();
    }
    assert_eq!(store.get(KEY).await.unwrap(), None);
    drop(adder);
    running.await.unwrap();
}

#[tokio::test]
async fn the_service_learns_of_every_commit() {
    let World { _dir, store: _store, adder, task } = world(Adder::default()).await;
    let running = tokio::spawn(task.run(std::future::pending()));
    let ask = async |request| adder.send(request).await.unwrap().await.unwrap();
    ask(Request::Add(1)).await.unwrap();
    ask(Request::TooLong).await.unwrap_err();
    ask(Request::Refuse).await.unwrap_err();
    let commits = ask(Request::Commits).await.unwrap().commits;
    assert_eq!(commits.len(), 3, "{commits:?}");
    assert_eq!((&commits[0], &commits[2]), (&Ok(Some(1)), &Ok(None)));
    assert!(commits[1].as_ref().unwrap_err().contains("9 bytes"), "{commits:?}");
    drop(adder);
    running.await.unwrap();
}
