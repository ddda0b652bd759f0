//! List, then watch, under writers that never rest: no gap, no change twice, the same end.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tollway_store::{Change, KeyRange, Limits, Store, Transaction};

const WRITERS: u32 = 4;
const TRANSACTIONS: u32 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn followers_end_with_the_stores_content_and_miss_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Compacts again and again while they write.
    let limits = Limits { compact_from_bytes: 4096, ..Limits::default() };
    let store = Store::open_embedded(&dir.path().join("store.db"), limits).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), writer))).collect();
    let followers: Vec<_> = (0..4)
        .map(|number| {
            let range = if number % 2 == 0 { KeyRange::all() } else { KeyRange::prefix("k1") };
            tokio::spawn(follow(store.clone(), range, Arc::clone(&stop)))
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    // Wakes every follower a last time.
    store.transact(Transaction::new().put("k1-last", "x")).await.unwrap();
    for follower in followers {
        let (range, copy) = follower.await.unwrap();
        let page = store.list(&range, None, 10_000).await.unwrap();
        let content: BTreeMap<_, _> =
            page.entries.into_iter().map(|e| (e.key, (e.value, e.revision))).collect();
        assert_eq!(copy, content);
    }
}

async fn write(store: Store, writer: u32) {
    let mut dice = u64::from(writer) + 1;
    for _ in 0..TRANSACTIONS {
        let tx = (0..3).fold(Transaction::new(), |tx, _| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = format!("k{}", (dice >> 33) % 200);
            if (dice >> 60).is_multiple_of(4) {
                tx.delete(key)
            } else {
                tx.put(key, dice.to_le_bytes().to_vec())
            }
        });
        store.transact(tx).await.unwrap();
    }
}

type Copy = BTreeMap<Bytes, (Bytes, u64)>;

async fn follow(store: Store, range: KeyRange, stop: Arc<AtomicBool>) -> (KeyRange, Copy) {
    // Begins in the middle of the writing.
    while store.revision() == 0 {
        tokio::task::yield_now().await;
    }
    let mut copy = Copy::new();
    let mut from = None;
    let mut after: Option<Bytes> = None;
    loop {
        let page = store.list(&range, after.as_deref(), 7).await.unwrap();
        from.get_or_insert(page.revision);
        after = page.entries.last().map(|entry| entry.key.clone()).or(after);
        copy.extend(page.entries.into_iter().map(|e| (e.key, (e.value, e.revision))));
        if !page.more {
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut upto = from.unwrap();
    let mut watch = store.watch(range.clone(), upto).await.unwrap();
    loop {
        let batch = watch.next().await.unwrap();
        assert!(batch.revision > upto, "{} after {upto}", batch.revision);
        let mut revisions: Vec<u64> = batch.changes.iter().map(Change::revision).collect();
        assert!(revisions.is_sorted());
        assert!(revisions.iter().all(|revision| (upto + 1..=batch.revision).contains(revision)));
        if range == KeyRange::all() {
            revisions.dedup();
            assert!(revisions.into_iter().eq(upto + 1..=batch.revision), "a revision is missing");
        }
        upto = batch.revision;
        for change in batch.changes {
            match change {
                Change::Put(entry) => {
                    copy.insert(entry.key, (entry.value, entry.revision));
                }
                Change::Delete { key, .. } => {
                    copy.remove(&key);
                }
            }
        }
        if stop.load(Ordering::Relaxed) && copy.contains_key(&b"k1-last"[..]) {
            return (range, copy);
        }
    }
}
