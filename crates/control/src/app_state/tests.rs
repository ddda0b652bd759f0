//! Conditions, limits and sweeps of app state, over a file.

use std::sync::Arc;

use tempfile::TempDir;
use tollway_store::{Answer, Transaction};
use tollway_wire::v1;
use tollway_wire::v1::StateChange;
use tollway_wire::v1::remove_state_request::What;
use tollway_wire::v1::state_change::Condition;

use super::*;

const OWNER: &str = "shop/cart/";

struct World {
    _dir: TempDir,
    open: Open,
    usage: Arc<Usage>,
}

async fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let (stores, usage) = (Stores::Directory(dir.path().to_owned()), Arc::default());
    let (committer, store) = Committer::open(&stores, Arc::clone(&usage)).await.unwrap();
    let (writes, task) = Sequencer::new(store.clone(), committer, QUEUE_LIMIT);
    tokio::spawn(task.run(std::future::pending()));
    World { _dir: dir, open: Open { store, writes }, usage }
}

fn set(key: &str, value: &str, condition: Option<Condition>) -> StateChange {
    let value = Some(value.as_bytes().to_vec());
    StateChange { key: key.to_owned(), value, condition, ttl_seconds: 0 }
}

impl World {
    async fn send(&self, changes: Vec<StateChange>) -> Answer<Committer> {
        let request = WriteStateRequest { changes, fence: None };
        let write = Write { owner: OWNER.to_owned(), request };
        self.open.writes.send(write).await.unwrap()
    }

    async fn value(&self, key: &str) -> (String, u64) {
        let entry = self.open.read(OWNER, &[key.to_owned()]).await.unwrap().remove(0);
        (String::from_utf8(entry.value).unwrap(), entry.revision)
    }
}

fn mismatch(answer: Result<(), StateError>) -> (String, u64) {
    match answer {
        Err(StateError::Refused(Refused::Mismatch { key, revision })) => (key, revision),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn of_writes_that_come_together_one_meets_the_condition() {
    let world = world().await;
    let mut answers = Vec::new();
    for value in ["first", "second", "third"] {
        let changes = vec![set("x", value, Some(Condition::Absent(true)))];
        answers.push(world.send(changes).await);
    }
    answers.remove(0).await.unwrap().unwrap();
    let (value, revision) = world.value("x").await;
    assert_eq!(value, "first");
    for answer in answers {
        assert_eq!(mismatch(answer.await.unwrap()), ("x".to_owned(), revision));
    }
    let mut answers = Vec::new();
    for value in ["fourth", "fifth"] {
        answers.push(world.send(vec![set("x", value, Some(Condition::Revision(revision)))]).await);
    }
    answers.remove(0).await.unwrap().unwrap();
    let (value, later) = world.value("x").await;
    assert_eq!(value, "fourth");
    assert_eq!(mismatch(answers.remove(0).await.unwrap()), ("x".to_owned(), later));
}

#[tokio::test]
async fn a_request_with_one_refused_change_makes_none() {
    let world = world().await;
    let earlier = world.send(vec![set("y", "old", None)]).await;
    let wrong = set("y", "new", Some(Condition::Revision(77)));
    let refused = world.send(vec![set("x", "new", None), wrong]).await;
    earlier.await.unwrap().unwrap();
    let (key, _) = mismatch(refused.await.unwrap());
    assert_eq!(key, "y");
    assert_eq!(world.value("x").await, (String::new(), 0));
    assert_eq!(world.value("y").await.0, "old");
    assert_eq!((world.usage.entries.value(), world.usage.bytes.value()), (1, 14));
}

#[tokio::test]
async fn large_requests_that_come_together_are_written_apart() {
    let world = world().await;
    let value = "v".repeat(1 << 20);
    let mut answers = Vec::new();
    for request in 0..4 {
        let changes = (0..4).map(|change| set(&format!("{request}-{change}"), &value, None));
        answers.push(world.send(changes.collect()).await);
    }
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(world.usage.entries.value(), 16);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_removes_what_is_over_from_all_pages() {
    let world = world().await;
    let over = Record { expires_unix_ms: 1, value: "v".into() };
    let later = Record { expires_unix_ms: u64::MAX, value: "v".into() };
    let put = async |range: std::ops::Range<u32>, record: &Record| {
        let put = |transaction: Transaction, number| {
            transaction.put(format!("{OWNER}{number:05}"), record.encode())
        };
        world.open.store.transact(range.fold(Transaction::new(), put)).await.unwrap();
    };
    put(0..2_000, &over).await;
    put(2_000..2_010, &later).await;
    put(2_010..2_500, &over).await;
    while world.open.store.size().entries > 10 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!(world.value("02005").await.0, "v");
}

/// The harm: apps of one namespace, under as many names as they like, fill the state of all, until
/// an app of another namespace cannot write a key.
#[tokio::test]
async fn a_namespace_that_fills_its_state_takes_it_from_no_other_and_the_operator_frees_it() {
    const MIB: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let stores = Stores::Directory(dir.path().to_owned());
    let state = AppState::new(stores, Background::default());
    let open = state.open().await.unwrap();
    let write = async |owner: &str, key: String, bytes: usize| {
        let change = StateChange { key, value: Some(vec![b'x'; bytes]), ..StateChange::default() };
        let request = WriteStateRequest { changes: vec![change], fence: None };
        let write = Write { owner: owner.to_owned(), request };
        open.writes.send(write).await.unwrap().await.unwrap()
    };
    write("default/victim/", "before".to_owned(), 100).await.unwrap();
    let mut filled = 0;
    for app in 0..5 {
        for number in 0..64 {
            let written =
                write(&format!("lowly/filler-{app}/"), number.to_string(), MIB - 64).await;
            filled += usize::from(written.is_ok());
        }
    }
    assert_eq!(filled, 128, "MiB of the namespace, half of all");
    write("default/victim/", "after".to_owned(), MIB).await.unwrap();

    let listed = state.list(&v1::ListStateRequest::default()).await.unwrap();
    let names: Vec<_> = listed.apps.iter().map(|app| &*app.app).collect();
    assert_eq!(names, ["filler-0", "filler-1", "victim"], "those with most first");
    assert_eq!(listed.namespaces[0].namespace, "lowly");
    let quotas = listed.quotas.unwrap();
    let used = listed.namespaces[0].usage.unwrap();
    assert!(used.bytes > quotas.namespace_bytes - MIB as u64 && used.entries == 128);

    write("lowly/filler-4/", "more".to_owned(), MIB).await.unwrap_err();
    let request = v1::RemoveStateRequest {
        namespace: "Lowly".to_owned(),
        app: "Filler-0".to_owned(),
        what: Some(What::All(true)),
    };
    let removed = state.remove(request).await.unwrap().removed.unwrap();
    assert_eq!(removed.entries, 64);
    write("lowly/filler-4/", "more".to_owned(), MIB).await.unwrap();
    let entries = open.read("default/victim/", &["before".to_owned()]).await.unwrap();
    assert_eq!(entries[0].value.len(), 100, "others keep theirs");
}
