//! The store against a naive model: any sequence of operations, restarts included, must leave
//! both with the same content, revisions, conflicts and history.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tollway_store::{
    Change, Expected, KeyRange, LeaseId, Limits, Store, TransactError, Transaction,
};

const KEYS: u8 = 6;

#[derive(Debug, Clone)]
enum Command {
    /// Sent together without waiting, so that they share a group.
    Together(Vec<Vec<Step>>),
    Grant,
    Revoke(usize),
    List {
        from: u8,
        to: u8,
        limit: usize,
    },
    Reopen,
}

#[derive(Debug, Clone)]
enum Step {
    Put {
        key: u8,
        value: u8,
        lease: Option<usize>,
    },
    Delete(u8),
    GuardAbsent(u8),
    /// Expects the revision the model had before the group; later ones may have changed it.
    GuardCurrent(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..KEYS, any::<u8>(), prop::option::weighted(0.3, 0_usize..4))
            .prop_map(|(key, value, lease)| Step::Put { key, value, lease }),
        2 => (0..KEYS).prop_map(Step::Delete),
        1 => (0..KEYS).prop_map(Step::GuardAbsent),
        2 => (0..KEYS).prop_map(Step::GuardCurrent),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let transaction = prop::collection::vec(step(), 0..5);
    prop_oneof![
        8 => prop::collection::vec(transaction, 1..6).prop_map(Command::Together),
        1 => Just(Command::Grant),
        1 => (0_usize..4).prop_map(Command::Revoke),
        2 => (0..KEYS, 0..KEYS, 0_usize..8)
            .prop_map(|(from, to, limit)| Command::List { from, to, limit }),
        1 => Just(Command::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_model_does(
        commands in prop::collection::vec(command(), 1..30),
        compact_often: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(commands, compact_often));
    }
}

async fn run(commands: Vec<Command>, compact_often: bool) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    let compact_from_bytes = if compact_often { 1 } else { u64::MAX };
    let limits = Limits { compact_from_bytes, ..Limits::default() };
    let mut store = Store::open_embedded(&file, limits).await.unwrap();
    let (mut model, mut leases) = (Model::default(), Vec::new());
    let mut reopened = false;
    for command in commands {
        match command {
            Command::Together(group) => together(&store, &mut model, &leases, &group).await,
            Command::Grant => {
                let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
                assert!(!leases.contains(&lease), "a lease number came twice");
                leases.push(lease);
                model.leases.push(lease);
            }
            Command::Revoke(index) => {
                let Some(lease) = leases.get(index) else { continue };
                assert_eq!(store.revoke(*lease).await.is_ok(), model.revoke(*lease));
            }
            Command::List { from, to, limit } => list(&store, &model, from, to, limit).await,
            Command::Reopen => {
                drop(store);
                store = Store::open_embedded(&file, limits).await.unwrap();
                reopened = true;
            }
        }
        assert_eq!(store.revision(), model.revision);
    }
    list(&store, &model, 0, KEYS, 100).await;
    history(&store, &model, reopened && compact_often).await;
}

async fn together(store: &Store, model: &mut Model, leases: &[LeaseId], group: &[Vec<Step>]) {
    let transactions: Vec<_> =
        group.iter().map(|steps| transaction(steps, model, leases)).collect();
    let tasks: Vec<_> = transactions
        .iter()
        .map(|tx| {
            let (store, tx) = (store.clone(), tx.clone());
            // A current-thread runtime starts tasks in the order they were made.
            tokio::spawn(async move { store.transact(tx).await })
        })
        .collect();
    for (transaction, task) in transactions.iter().zip(tasks) {
        let result = task.await.unwrap();
        match (model.transact(transaction), result) {
            (Verdict::Done(expected), Ok(revision)) => assert_eq!(revision, expected),
            (Verdict::Conflict(expected), Err(TransactError::Conflict { found, .. })) => {
                assert_eq!(found, expected);
            }
            (Verdict::NoLease, Err(TransactError::NoLease { .. })) => {}
            (expected, found) => panic!("expected {expected:?}, found {found:?}"),
        }
    }
}

fn transaction(steps: &[Step], model: &Model, leases: &[LeaseId]) -> Transaction {
    steps.iter().fold(Transaction::new(), |tx, step| match step {
        Step::Put { key, value, lease } => match lease.and_then(|index| leases.get(index)) {
            Some(lease) => tx.put_leased(vec![*key + 1], vec![*value], *lease),
            None => tx.put(vec![*key + 1], vec![*value]),
        },
        Step::Delete(key) => tx.delete(vec![*key + 1]),
        Step::GuardAbsent(key) => tx.when(vec![*key + 1], Expected::Absent),
        Step::GuardCurrent(key) => {
            let key = vec![*key + 1];
            let expected = model
                .rows
                .get(&key)
                .map_or(Expected::Absent, |row| Expected::Revision(row.revision));
            tx.when(key, expected)
        }
    })
}

async fn list(store: &Store, model: &Model, from: u8, to: u8, limit: usize) {
    let range = KeyRange { start: vec![from].into(), end: Some(vec![to + 1].into()) };
    let page = store.list(&range, None, limit).await.unwrap();
    let expected: Vec<_> =
        model.rows.iter().filter(|(key, _)| key[0] >= from && key[0] <= to).collect();
    assert_eq!(page.more, expected.len() > limit);
    assert_eq!(page.revision, model.revision);
    assert_eq!(page.entries.len(), expected.len().min(limit));
    for (entry, (key, row)) in page.entries.iter().zip(expected) {
        assert_eq!(entry.key, key);
        assert_eq!((&entry.value[..], entry.revision, entry.lease), row.as_seen());
    }
}

/// Replaying the history from its start gives the content; a compacted file may lack the start.
async fn history(store: &Store, model: &Model, may_be_compacted: bool) {
    let mut watch = match store.watch(KeyRange::all(), 0).await {
        Ok(watch) => watch,
        Err(error) => {
            assert!(may_be_compacted, "{error}");
            return;
        }
    };
    let mut seen = Vec::new();
    let mut upto = 0;
    while upto < model.revision {
        let batch = watch.next().await.unwrap();
        upto = batch.revision;
        seen.extend(batch.changes);
    }
    let seen: Vec<_> = seen
        .iter()
        .map(|change| {
            let value = match change {
                Change::Put(entry) => Some(entry.value.to_vec()),
                Change::Delete { .. } => None,
            };
            (change.revision(), change.key().to_vec(), value)
        })
        .collect();
    assert_eq!(seen, model.changes);
}

#[derive(Debug)]
enum Verdict {
    Done(u64),
    Conflict(Option<u64>),
    NoLease,
}

#[derive(Debug, Clone)]
struct Row {
    value: Vec<u8>,
    revision: u64,
    lease: Option<LeaseId>,
}

impl Row {
    fn as_seen(&self) -> (&[u8], u64, Option<LeaseId>) {
        (&self.value, self.revision, self.lease)
    }
}

/// The promises in the plainest implementation.
#[derive(Debug, Default)]
struct Model {
    rows: BTreeMap<Vec<u8>, Row>,
    revision: u64,
    leases: Vec<LeaseId>,
    changes: Vec<(u64, Vec<u8>, Option<Vec<u8>>)>,
}

impl Model {
    fn transact(&mut self, tx: &Transaction) -> Verdict {
        use tollway_store::Op;
        for guard in &tx.guards {
            let found = self.rows.get(&guard.key[..]).map(|row| row.revision);
            let holds = match guard.expected {
                Expected::Absent => found.is_none(),
                Expected::Revision(revision) => found == Some(revision),
            };
            if !holds {
                return Verdict::Conflict(found);
            }
        }
        for op in &tx.ops {
            if let Op::Put { lease: Some(lease), .. } = op
                && !self.leases.contains(lease)
            {
                return Verdict::NoLease;
            }
        }
        let mut changes = Vec::new();
        for (index, op) in tx.ops.iter().enumerate() {
            let is_last = tx.ops[index + 1..].iter().all(|later| later.key() != op.key());
            let is_change = matches!(op, Op::Put { .. }) || self.rows.contains_key(&op.key()[..]);
            if is_last && is_change {
                changes.push(op.clone());
            }
        }
        self.commit(&changes);
        Verdict::Done(self.revision)
    }

    fn revoke(&mut self, lease: LeaseId) -> bool {
        use tollway_store::Op;
        if !self.leases.contains(&lease) {
            return false;
        }
        let held = self.rows.iter().filter(|(_, row)| row.lease == Some(lease));
        let deletes: Vec<_> = held.map(|(key, _)| Op::Delete { key: key.clone().into() }).collect();
        self.commit(&deletes);
        self.leases.retain(|known| *known != lease);
        true
    }

    fn commit(&mut self, changes: &[tollway_store::Op]) {
        use tollway_store::Op;
        if changes.is_empty() {
            return;
        }
        self.revision += 1;
        let revision = self.revision;
        for op in changes {
            let key = op.key().to_vec();
            match op {
                Op::Put { value, lease, .. } => {
                    let value = value.to_vec();
                    self.changes.push((revision, key.clone(), Some(value.clone())));
                    self.rows.insert(key, Row { value, revision, lease: *lease });
                }
                Op::Delete { .. } => {
                    self.changes.push((revision, key.clone(), None));
                    self.rows.remove(&key);
                }
            }
        }
    }
}
