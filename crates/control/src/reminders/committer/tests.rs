//! What the committer counts, over a file of its own.

use tempfile::TempDir;
use tollway_actors::schedule::{FailurePolicy, Terms};
use tollway_testkit::{check_limit, grouped};

use super::*;

/// Room for three reminders of one namespace, and for four of all.
fn few() -> quota::Limits {
    let limit = |what, most| Limit { what, most };
    quota::Limits {
        owner_bytes: limit("bytes of one", 1_000),
        owner_entries: limit("reminders of one", 3),
        bytes: limit("bytes of all", 1_500),
        entries: limit("reminders of all", 4),
    }
}

async fn open(dir: &TempDir) -> Tested {
    let plane = Store::open_embedded(&dir.path().join("plane"), Default::default()).await.unwrap();
    let placements =
        Arc::new(Placements::load(&plane, Duration::from_secs(1), false).await.unwrap());
    let stores = Stores::Directory(dir.path().to_owned());
    let (committer, store) =
        Committer::open(&stores, few(), placements, Arc::default()).await.unwrap();
    Tested { committer, pending: Pending::new(store) }
}

fn key_of(name: &str) -> ReminderKey {
    ReminderKey { actor_type: "cart".into(), actor_id: "a".into(), name: name.into() }
}

fn put(name: &str, data: usize, ttl: &str) -> ReminderChange {
    let terms = Terms::new("", "1s", ttl);
    let registration = Registration {
        schedule: terms.read(now()).unwrap(),
        terms,
        data: vec![b'x'; data],
        policy: FailurePolicy::Drop,
    };
    ReminderChange::Put { key: key_of(name), epoch: Epoch(1), registration, if_absent: false }
}

fn delete(name: &str) -> ReminderChange {
    ReminderChange::Delete { key: key_of(name), epoch: Epoch(1), version: None }
}

/// A committer and what it has decided, without the task that runs it.
struct Tested {
    committer: Committer,
    pending: Pending<Committer>,
}

impl Tested {
    async fn commit(&mut self) {
        self.pending.commit(&mut self.committer).await.unwrap();
    }

    async fn sweep(&mut self) {
        self.committer.sweep(&mut self.pending).await;
    }

    /// What a change comes to, or what limit it passes.
    async fn make(&mut self, namespace: &str, change: ReminderChange) -> Result<u64, String> {
        let namespace = Label::new(namespace).unwrap();
        match self.committer.change(&mut self.pending, &namespace, change).await.unwrap() {
            ReminderResult::Done { version, .. } => Ok(version),
            ReminderResult::Excess { what, .. } => Err(what),
            other
            @ (ReminderResult::NotFound | ReminderResult::Exists | ReminderResult::Fenced) => {
                panic!("{other:?}")
            }
        }
    }
}

#[tokio::test]
async fn a_namespace_has_its_room_and_all_have_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let mut tested = open(&dir).await;
    for name in ["x", "y", "z"] {
        tested.make("shop", put(name, 10, "")).await.unwrap();
    }
    let refused = tested.make("shop", put("more", 10, "")).await.unwrap_err();
    assert_eq!(refused, "reminders of one");
    tested.make("SHOP", put("x", 11, "")).await.unwrap();
    let refused = tested.make("shop", put("x", 900, "")).await.unwrap_err();
    assert_eq!(refused, "bytes of one");
    tested.make("other", put("x", 10, "")).await.unwrap();
    let refused = tested.make("other", put("y", 10, "")).await.unwrap_err();
    assert_eq!(refused, "reminders of all");
    tested.make("shop", delete("z")).await.unwrap();
    let refused = tested.make("other", put("y", 1_200, "")).await.unwrap_err();
    assert_eq!(refused, "bytes of one");
    tested.make("other", put("y", 500, "")).await.unwrap();
    tested.commit().await;
    let all = tested.committer.quotas.all();
    drop(tested);
    // Another process that opens the file counts alike.
    let mut tested = open(&dir).await;
    assert_eq!(tested.committer.quotas.all(), all);
    assert_eq!(tested.committer.store.size().entries, 4);
    let refused = tested.make("other", put("z", 10, "")).await.unwrap_err();
    assert_eq!(refused, "reminders of all");
}

#[tokio::test]
async fn versions_grow_even_if_the_clock_was_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut tested = open(&dir).await;
    let ahead = u64::try_from(now().unix_micros()).unwrap() + 3_600_000_000;
    tested.committer.version = ahead;
    assert_eq!(tested.make("shop", put("x", 0, "")).await, Ok(ahead + 1));
    tested.commit().await;
    drop(tested);
    let mut tested = open(&dir).await;
    assert_eq!(tested.make("shop", put("x", 0, "")).await, Ok(ahead + 2));
    assert_eq!(tested.make("shop", put("y", 0, "")).await, Ok(ahead + 3));
}

#[tokio::test]
async fn a_sweep_removes_what_is_over_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut tested = open(&dir).await;
    for (name, ttl) in [("over", "1us"), ("renewed", "1us"), ("later", "1h")] {
        tested.make("shop", put(name, 10, ttl)).await.unwrap();
    }
    tested.make("shop", put("renewed", 10, "")).await.unwrap();
    tested.commit().await;
    drop(tested);
    let mut tested = open(&dir).await;
    assert!(tested.committer.upkeep_at().is_some());
    tested.sweep().await;
    assert_eq!(
        (tested.committer.store.size().entries, tested.committer.quotas.all().entries),
        (2, 2)
    );
    assert_eq!(tested.committer.ends.len(), 1);
    tested.make("shop", delete("later")).await.unwrap();
    assert!(tested.committer.upkeep_at().is_none());
}

#[test]
fn limits_of_reminders_are_documented() {
    const PAGE: &str = include_str!("../../../../../docs/limits.md");
    for (name, limit) in [
        ("NAMESPACE_REMINDERS", NAMESPACE_REMINDERS),
        ("NAMESPACE_REMINDER_BYTES", NAMESPACE_REMINDER_BYTES),
        ("REMINDERS", REMINDERS),
        ("REMINDER_BYTES", REMINDER_BYTES),
        (
            "ACTOR_TYPES_PER_NAMESPACE_LIMIT",
            crate::placement::ACTOR_TYPES_PER_NAMESPACE_LIMIT as u64,
        ),
        ("ACTOR_TYPES_PER_APP_LIMIT", crate::placement::ACTOR_TYPES_PER_APP_LIMIT as u64),
    ] {
        check_limit(PAGE, name, &grouped(limit));
    }
}
