//! What the keeper counts, over a file of its own.

use tempfile::TempDir;
use tollway_schedule::{FailurePolicy, Terms};
use tollway_testkit::{check_limit, grouped};

use super::*;

/// Room for three reminders of one namespace, and for four of all.
fn few() -> book::Limits {
    let limit = |what, most| Limit { what, most };
    book::Limits {
        owner_bytes: limit("bytes of one", 1_000),
        owner_entries: limit("reminders of one", 3),
        bytes: limit("bytes of all", 1_500),
        entries: limit("reminders of all", 4),
    }
}

async fn open(dir: &TempDir) -> Keeper {
    let plane = Store::open_embedded(&dir.path().join("plane"), Default::default()).await.unwrap();
    let placements = Arc::new(Placements::load(&plane, Duration::from_secs(1)).await.unwrap());
    let stores = Stores::Directory(dir.path().to_owned());
    Keeper::open(&stores, few(), placements, Arc::default()).await.unwrap().0
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

impl Keeper {
    /// What a change comes to, or what limit it passes.
    async fn make(&mut self, namespace: &str, change: ReminderChange) -> Result<u64, String> {
        match self.change(&Label::new(namespace).unwrap(), change).await.unwrap() {
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
    let mut keeper = open(&dir).await;
    for name in ["x", "y", "z"] {
        keeper.make("shop", put(name, 10, "")).await.unwrap();
    }
    let told = keeper.make("shop", put("more", 10, "")).await.unwrap_err();
    assert_eq!(told, "reminders of one");
    keeper.make("SHOP", put("x", 11, "")).await.unwrap();
    let told = keeper.make("shop", put("x", 900, "")).await.unwrap_err();
    assert_eq!(told, "bytes of one");
    keeper.make("other", put("x", 10, "")).await.unwrap();
    let told = keeper.make("other", put("y", 10, "")).await.unwrap_err();
    assert_eq!(told, "reminders of all");
    keeper.make("shop", delete("z")).await.unwrap();
    let told = keeper.make("other", put("y", 1_200, "")).await.unwrap_err();
    assert_eq!(told, "bytes of one");
    keeper.make("other", put("y", 500, "")).await.unwrap();
    keeper.commit().await.unwrap();
    let all = keeper.book.all();
    drop(keeper);
    // Who opens the file counts the same.
    let mut keeper = open(&dir).await;
    assert_eq!(keeper.book.all(), all);
    assert_eq!(keeper.store.size().entries, 4);
    let told = keeper.make("other", put("z", 10, "")).await.unwrap_err();
    assert_eq!(told, "reminders of all");
}

#[tokio::test]
async fn versions_grow_even_if_the_clock_was_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = open(&dir).await;
    let ahead = u64::try_from(now().unix_micros()).unwrap() + 3_600_000_000;
    keeper.version = ahead;
    assert_eq!(keeper.make("shop", put("x", 0, "")).await, Ok(ahead + 1));
    keeper.commit().await.unwrap();
    drop(keeper);
    let mut keeper = open(&dir).await;
    assert_eq!(keeper.make("shop", put("x", 0, "")).await, Ok(ahead + 2));
    assert_eq!(keeper.make("shop", put("y", 0, "")).await, Ok(ahead + 3));
}

#[tokio::test]
async fn a_sweep_removes_what_is_over_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = open(&dir).await;
    for (name, ttl) in [("over", "1us"), ("renewed", "1us"), ("later", "1h")] {
        keeper.make("shop", put(name, 10, ttl)).await.unwrap();
    }
    keeper.make("shop", put("renewed", 10, "")).await.unwrap();
    keeper.commit().await.unwrap();
    drop(keeper);
    let mut keeper = open(&dir).await;
    assert!(keeper.next_sweep().is_some());
    keeper.sweep().await;
    assert_eq!((keeper.store.size().entries, keeper.book.all().entries), (2, 2));
    assert_eq!(keeper.ends.len(), 1);
    keeper.make("shop", delete("later")).await.unwrap();
    assert!(keeper.next_sweep().is_none());
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
    ] {
        check_limit(PAGE, name, &grouped(limit));
    }
}
