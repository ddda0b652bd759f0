//! The file under attack, compaction, groups, leases, and slow watchers.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tempfile::TempDir;

use super::medium::compaction_path;
use crate::{
    Change, Expected, KeyRange, LeaseError, Limits, OpenError, Store, TransactError, Transaction,
    WatchError,
};
use std::time::Duration;

#[tokio::test]
async fn what_was_acknowledged_is_there_after_reopening() {
    let home = Home::new();
    let store = home.open().await;
    assert_eq!(store.revision(), 0);
    let tx = Transaction::new().put("a", "1").put("b", "2");
    assert_eq!(store.transact(tx).await.unwrap(), 1);
    assert_eq!(store.transact(Transaction::new().delete("a")).await.unwrap(), 2);
    assert_eq!(mode(&home.file), 0o600, "values may be secrets");
    drop(store);
    let store = home.open().await;
    assert_eq!(store.revision(), 2);
    assert_eq!(store.get(b"a").await.unwrap(), None);
    let b = store.get(b"b").await.unwrap().unwrap();
    assert_eq!((&b.value[..], b.revision), (&b"2"[..], 1));
}

#[tokio::test]
async fn a_watch_resumes_across_a_restart() {
    let home = Home::new();
    let store = home.open().await;
    for key in ["a", "b", "c"] {
        store.transact(Transaction::new().put(key, "")).await.unwrap();
    }
    drop(store);
    let store = home.open().await;
    let mut watch = store.watch(KeyRange::all(), 1).await.unwrap();
    let batch = watch.next().await.unwrap();
    assert_eq!(keys(&batch.changes), ["b", "c"]);
    assert_eq!(batch.revision, 3);
}

#[tokio::test]
async fn guards_hold_or_nothing_happens() {
    let home = Home::new();
    let store = home.open().await;
    let first = store.transact(Transaction::new().when("a", Expected::Absent).put("a", "1"));
    let revision = first.await.unwrap();
    let again = Transaction::new().when("a", Expected::Absent).put("a", "2").put("b", "2");
    let refused = store.transact(again).await.unwrap_err();
    assert!(matches!(refused, TransactError::Conflict { found: Some(1), .. }), "{refused}");
    assert_eq!(store.get(b"b").await.unwrap(), None);
    let swap = |at| Transaction::new().when("a", Expected::Revision(at)).put("a", "3");
    assert_eq!(store.transact(swap(revision)).await.unwrap(), 2);
    assert!(store.transact(swap(revision)).await.is_err());
    assert_eq!(store.revision(), 2);
}

#[tokio::test]
async fn a_transaction_that_changes_nothing_takes_no_revision() {
    let home = Home::new();
    let store = home.open().await;
    store.transact(Transaction::new().put("a", "1")).await.unwrap();
    assert_eq!(store.transact(Transaction::new()).await.unwrap(), 1);
    assert_eq!(store.transact(Transaction::new().delete("b")).await.unwrap(), 1);
}

#[tokio::test]
async fn several_keys_are_read_in_their_places() {
    let home = Home::new();
    let store = home.open().await;
    store.transact(Transaction::new().put("a", "1").put("c", "33")).await.unwrap();
    let keys = ["c", "b", "a", "c"].map(Bytes::from);
    let found = store.get_many(&keys).await.unwrap();
    let values: Vec<_> =
        found.into_iter().map(|entry| entry.map(|entry| (entry.key, entry.value))).collect();
    let entry = |key, value| Some((Bytes::from(key), Bytes::from(value)));
    assert_eq!(values, [entry("c", "33"), None, entry("a", "1"), entry("c", "33")]);
    assert_eq!(store.get_many(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn a_scan_shows_what_a_list_has() {
    let home = Home::new();
    let store = home.open_with(Limits { page_bytes: 8, ..Limits::default() }).await;
    for (key, value) in [("a", "1"), ("b", "22"), ("c", "333"), ("d", "4444"), ("e", "")] {
        store.transact(Transaction::new().put(key, value)).await.unwrap();
    }
    let range = KeyRange { start: "b".into(), end: Some("e".into()) };
    for limit in [1, 2, 10] {
        let mut after: Option<Bytes> = None;
        loop {
            let page = store.list(&range, after.as_deref(), limit).await.unwrap();
            let mut shown = Vec::new();
            let scan = store.scan(&range, after.as_deref(), limit, |seen| {
                shown.push((seen.key.to_vec(), seen.value.to_vec(), seen.revision));
                ControlFlow::Continue(())
            });
            let scanned = scan.await.unwrap();
            let listed: Vec<_> = page
                .entries
                .iter()
                .map(|entry| (entry.key.to_vec(), entry.value.to_vec(), entry.revision))
                .collect();
            assert_eq!((shown, scanned.more), (listed, page.more));
            assert_eq!(scanned.last, page.entries.last().map(|entry| entry.key.clone()));
            assert_eq!(scanned.revision, 5);
            if !page.more {
                break;
            }
            after = scanned.last;
        }
    }
    let first = store.scan(&range, None, 10, |_| ControlFlow::Break(())).await.unwrap();
    assert_eq!((first.last, first.more), (Some("b".into()), true));
    let nothing = KeyRange { start: "x".into(), end: None };
    let scanned = store.scan(&nothing, None, 10, |_| panic!("nothing is there")).await.unwrap();
    assert_eq!((scanned.last, scanned.more), (None, false));
}

#[tokio::test]
async fn the_last_step_on_a_key_wins_and_is_one_change() {
    let home = Home::new();
    let store = home.open().await;
    let tx = Transaction::new().put("a", "1").delete("a").put("b", "1").put("a", "2");
    store.transact(tx).await.unwrap();
    assert_eq!(store.get(b"a").await.unwrap().unwrap().value, "2");
    let batch = store.watch(KeyRange::all(), 0).await.unwrap().next().await.unwrap();
    assert_eq!(keys(&batch.changes), ["b", "a"]);
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_waits() {
    let home = Home::new();
    let limits = Limits {
        key_bytes: 4,
        value_bytes: 8,
        transaction_ops: 2,
        transaction_bytes: 12,
        ..Limits::default()
    };
    let store = home.open_with(limits).await;
    let refuse = async |tx| store.transact(tx).await.unwrap_err();
    let tx = Transaction::new();
    assert!(matches!(refuse(tx.clone().put("", "")).await, TransactError::KeyLength { .. }));
    assert!(matches!(refuse(tx.clone().delete("abcde")).await, TransactError::KeyLength { .. }));
    let long = tx.clone().put("a", "123456789");
    assert!(matches!(refuse(long).await, TransactError::ValueTooLong { .. }));
    let many = tx.clone().delete("a").delete("b").delete("c");
    assert!(matches!(refuse(many).await, TransactError::TooManyOps { count: 3, limit: 2 }));
    let large = tx.put("a", "12345678").put("b", "1234");
    assert!(matches!(refuse(large).await, TransactError::TooLarge { bytes: 14, limit: 12 }));
    assert_eq!(store.revision(), 0);
}

#[tokio::test]
async fn pages_are_bounded_and_show_whether_more_follows() {
    let home = Home::new();
    let limits = Limits { page_entries: 4, page_bytes: 6, ..Limits::default() };
    let store = home.open_with(limits).await;
    let keys = ["a1", "a2", "a3", "a4", "a5", "b1"];
    let tx = keys.iter().fold(Transaction::new(), |tx, key| tx.put(*key, ""));
    store.transact(tx).await.unwrap();
    let range = KeyRange::prefix("a");
    let page = async |after: Option<&[u8]>, limit| {
        let page = store.list(&range, after, limit).await.unwrap();
        let keys: Vec<_> =
            page.entries.iter().map(|e| String::from_utf8(e.key.to_vec()).unwrap()).collect();
        (keys.join(","), page.more)
    };
    assert_eq!(page(None, 2).await, ("a1,a2".into(), true));
    assert_eq!(page(None, 99).await, ("a1,a2,a3".into(), true));
    assert_eq!(page(Some(b"a3"), 99).await, ("a4,a5".into(), false));
    assert_eq!(page(Some(b"a5"), 99).await, (String::new(), false));
    assert_eq!(page(Some(b"z"), 99).await, (String::new(), false));
    assert_eq!(page(Some(b"A"), 1).await, ("a1".into(), true));
}

#[tokio::test]
async fn a_file_in_use_is_refused() {
    let home = Home::new();
    let store = home.open().await;
    let refused = Store::open_embedded(&home.file, Limits::default()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    assert!(refused.to_string().contains("store.db"), "{refused}");
    drop(store);
    home.open().await;
}

#[tokio::test]
async fn other_files_are_refused_and_left_alone() {
    let home = Home::new();
    for content in [&b"# my shopping list\n"[..], &[b'x'; 5000], &b"\0\0\0x"[..]] {
        fs::write(&home.file, content).unwrap();
        let refused = home.try_open().await.unwrap_err();
        assert!(matches!(refused, OpenError::NotAStore { .. }), "{refused}");
        assert_eq!(fs::read(&home.file).unwrap(), content);
    }
    let missing = home.dir.path().join("no/such/dir/store.db");
    let refused = Store::open_embedded(&missing, Limits::default()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
}

#[tokio::test]
async fn a_file_that_was_never_begun_is_begun() {
    let home = Home::new();
    for content in [&b""[..], &[0; 64]] {
        fs::write(&home.file, content).unwrap();
        assert_eq!(home.open().await.revision(), 0);
    }
}

#[tokio::test]
async fn a_write_cut_off_at_any_byte_is_dropped_whole() {
    let home = Home::new();
    let lengths = filled(&home, 3).await;
    let bytes = fs::read(&home.file).unwrap();
    for cut in lengths[1]..lengths[2] {
        fs::write(&home.file, &bytes[..cut]).unwrap();
        assert_eq!(home.open().await.revision(), 2, "cut at {cut}");
        let mut torn = bytes.clone();
        torn[cut..lengths[2]].fill(0);
        if torn == bytes {
            continue;
        }
        fs::write(&home.file, torn).unwrap();
        let store = home.open().await;
        assert_eq!(store.revision(), 2, "zeros from {cut}");
    }
}

#[tokio::test]
async fn damage_before_the_end_is_refused_with_its_place() {
    let home = Home::new();
    let lengths = filled(&home, 4).await;
    let bytes = fs::read(&home.file).unwrap();
    for at in (0..lengths[2]).step_by(3) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(&home.file, &damaged).unwrap();
        match home.try_open().await.unwrap_err() {
            OpenError::Corrupt { offset, .. } => assert!(offset <= at as u64, "{offset} {at}"),
            OpenError::NotAStore { .. } => assert!(at < 16, "{at}"),
            OpenError::Format { .. } => assert!((16..20).contains(&at), "{at}"),
            other @ (OpenError::Io { .. }
            | OpenError::Etcd { .. }
            | OpenError::Missing { .. }
            | OpenError::Locked { .. }
            | OpenError::RuntimeGone
            | OpenError::Thread { .. }) => {
                panic!("byte {at}: {other}")
            }
        }
        assert_eq!(fs::read(&home.file).unwrap(), damaged, "a refused file was changed");
    }
}

#[tokio::test]
async fn a_value_that_looks_like_a_record_is_no_record() {
    let home = Home::new();
    let lengths = filled(&home, 3).await;
    let bytes = fs::read(&home.file).unwrap();
    let image = bytes[lengths[1]..lengths[2]].to_vec();
    let other = Home::new();
    let store = other.open().await;
    store.transact(Transaction::new().put("a", "1")).await.unwrap();
    let start = used_bytes(&other.file);
    store.transact(Transaction::new().put("b", image)).await.unwrap();
    drop(store);
    let mut torn = fs::read(&other.file).unwrap();
    torn[start + 24] ^= 0xff;
    // The last write is torn; the image inside must not pass for a later, whole one.
    fs::write(&other.file, torn).unwrap();
    assert_eq!(other.open().await.revision(), 1);
}

#[tokio::test]
async fn compaction_shrinks_the_file_and_keeps_everything() {
    let home = Home::new();
    let limits = Limits { compact_from_bytes: 64 << 10, ..Limits::default() };
    let store = home.open_with(limits).await;
    let lease = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    store.transact(Transaction::new().put_leased("lease", "x", lease)).await.unwrap();
    let ended = store.grant_lease(Duration::from_secs(3600)).await.unwrap();
    store.transact(Transaction::new().put_leased("ended", "x", ended)).await.unwrap();
    store.revoke(ended).await.unwrap();
    for round in 0..200_u32 {
        let tx = (0..20_u32).fold(Transaction::new(), |tx, key| {
            tx.put(format!("k{key:03}"), vec![b'v'; 100 + (round as usize % 7)])
        });
        store.transact(tx).await.unwrap();
    }
    let before = store.list(&KeyRange::all(), None, 100).await.unwrap();
    let next = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    drop(store);
    let size = used_bytes(&home.file);
    assert!(size < 200 << 10, "480 KB were written, the file has {size}");
    assert_eq!(mode(&home.file), 0o600, "values may be secrets");
    let store = home.open_with(limits).await;
    let after = store.list(&KeyRange::all(), None, 100).await.unwrap();
    assert_eq!(before, after);
    assert_eq!(after.entries.len(), 21);
    assert!(store.keep_alive(lease).await.is_ok());
    assert!(store.keep_alive(ended).await.is_err());
    assert!(store.grant_lease(Duration::from_secs(60)).await.unwrap() > next);
    let refused = store.watch(KeyRange::all(), 1).await.unwrap_err();
    assert!(matches!(refused, WatchError::Compacted { from: 1, oldest } if oldest > 1));
    store.revoke(lease).await.unwrap();
    assert_eq!(store.get(b"lease").await.unwrap(), None);
}

#[tokio::test]
async fn an_unfinished_compaction_is_cleared_away() {
    let home = Home::new();
    filled(&home, 2).await;
    fs::write(compaction_path(&home.file), b"half").unwrap();
    assert_eq!(home.open().await.revision(), 2);
    assert!(!compaction_path(&home.file).exists());
}

#[tokio::test]
async fn a_repair_keeps_what_was_written_before_the_damage() {
    let home = Home::new();
    let store = home.open().await;
    let mut ends = Vec::new();
    for key in ["a/1/x", "a/1/y", "b/2/z"] {
        store.transact(Transaction::new().put(key, "value")).await.unwrap();
        let used = fs::read(&home.file).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
        ends.push(used + 1);
    }
    assert!(matches!(crate::inspect(&home.file), Err(OpenError::Locked { .. })));
    drop(store);
    let whole = crate::inspect(&home.file).unwrap();
    assert_eq!((whole.revision, whole.damage), (3, None));
    let groups: Vec<_> = whole.keys.into_iter().collect();
    assert_eq!(groups, [("a/1".to_owned(), 2), ("b/2".to_owned(), 1)]);
    assert!(matches!(crate::repair(&home.file), Err(crate::RepairError::NotDamaged { .. })));

    let mut bytes = fs::read(&home.file).unwrap();
    bytes[ends[0] + 30] ^= 0xff;
    fs::write(&home.file, &bytes).unwrap();
    assert!(matches!(home.try_open().await, Err(OpenError::Corrupt { .. })));
    let found = crate::inspect(&home.file).unwrap();
    assert_eq!(found.revision, 1);
    assert_eq!(found.damage.unwrap().offset, u64::try_from(ends[0]).unwrap());
    assert_eq!(fs::read(&home.file).unwrap(), bytes, "looking changed it");

    let repaired = crate::repair(&home.file).unwrap();
    assert_eq!(fs::read(&repaired.damaged_file).unwrap(), bytes);
    let store = home.open().await;
    assert!(store.get(b"a/1/x").await.unwrap().is_some());
    assert!(store.get(b"a/1/y").await.unwrap().is_none());
    // A follower at revision 3 of the former store has to list again.
    let watch = store.watch(KeyRange::all(), 3).await;
    assert!(matches!(watch, Err(WatchError::Compacted { .. })), "{watch:?}");
    assert!(store.transact(Transaction::new().put("c", "")).await.unwrap() > 3);
}

/// The harm: a follower that saw what a copy lacks takes later changes for those that it knows.
#[tokio::test]
async fn a_store_that_was_put_back_uses_no_revision_again() {
    let home = Home::new();
    let store = home.open().await;
    store.transact(Transaction::new().put("a", "1")).await.unwrap();
    assert!(matches!(crate::skip_lost_revisions(&home.file), Err(crate::SkipError::Read(_))));
    drop(store);
    let copy = fs::read(&home.file).unwrap();
    let store = home.open().await;
    let mut seen = 0;
    for value in ["2", "3", "4"] {
        seen = store.transact(Transaction::new().put("a", value)).await.unwrap();
    }
    drop(store);
    fs::write(&home.file, &copy).unwrap();
    let from = crate::skip_lost_revisions(&home.file).unwrap();
    let store = home.open().await;
    assert_eq!(store.get(b"a").await.unwrap().unwrap().value, "1");
    assert_eq!(store.revision(), from);
    let watch = store.watch(KeyRange::all(), seen).await;
    assert!(matches!(watch, Err(WatchError::Compacted { .. })), "{watch:?}");
    assert_eq!(store.transact(Transaction::new().put("b", "")).await.unwrap(), from + 1);
    drop(store);

    let mut bytes = fs::read(&home.file).unwrap();
    bytes[80] ^= 0xff;
    fs::write(&home.file, &bytes).unwrap();
    let refused = crate::skip_lost_revisions(&home.file);
    let damaged = matches!(refused, Err(crate::SkipError::Read(OpenError::Corrupt { .. })));
    assert!(damaged, "{refused:?}");
    assert_eq!(fs::read(&home.file).unwrap(), bytes);
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_with_its_keys_in_one_transaction() {
    let _real_time = NoAutoAdvance::new();
    let home = Home::new();
    let store = home.open().await;
    let lease = store.grant_lease(Duration::from_secs(10)).await.unwrap();
    let tx = Transaction::new().put_leased("a", "1", lease).put_leased("b", "1", lease);
    let revision = store.transact(tx.put("c", "1")).await.unwrap();
    let moved = store.transact(Transaction::new().put("b", "2")).await.unwrap();
    let mut watch = store.watch(KeyRange::all(), moved).await.unwrap();
    advance(Duration::from_secs(9)).await;
    assert_eq!(store.keep_alive(lease).await.unwrap(), Duration::from_secs(10));
    advance(Duration::from_secs(9)).await;
    assert_eq!(store.get(b"a").await.unwrap().unwrap().revision, revision);
    advance(Duration::from_secs(2)).await;
    let batch = watch.next().await.unwrap();
    assert_eq!(batch.changes, [Change::Delete { key: "a".into(), revision: moved + 1 }]);
    assert!(store.get(b"b").await.unwrap().is_some());
    assert!(store.get(b"c").await.unwrap().is_some());
    assert!(matches!(store.keep_alive(lease).await, Err(LeaseError::NoLease { .. })));
    let late = store.transact(Transaction::new().put_leased("d", "", lease)).await;
    assert!(matches!(late, Err(TransactError::NoLease { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_lease_does_not_end_by_time_in_which_the_process_was_stopped() {
    let _real_time = NoAutoAdvance::new();
    let home = Home::new();
    let store = home.open().await;
    let lease = store.grant_lease(Duration::from_secs(10)).await.unwrap();
    let put = Transaction::new().put_leased("a", "1", lease);
    let mut watch = store.watch(KeyRange::all(), store.transact(put).await.unwrap()).await.unwrap();
    advance(Duration::from_secs(1)).await;
    // The process is stopped for a minute: what was to keep the lease alive waits in its sockets.
    tokio::time::advance(Duration::from_secs(60)).await;
    advance(Duration::from_secs(8)).await;
    assert!(store.get(b"a").await.unwrap().is_some());
    assert_eq!(store.keep_alive(lease).await.unwrap(), Duration::from_secs(10));
    advance(Duration::from_secs(11)).await;
    assert_eq!(keys(&watch.next().await.unwrap().changes), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn leases_have_their_full_time_again_after_a_restart() {
    let _real_time = NoAutoAdvance::new();
    let home = Home::new();
    let store = home.open().await;
    let lease = store.grant_lease(Duration::from_secs(10)).await.unwrap();
    store.transact(Transaction::new().put_leased("a", "1", lease)).await.unwrap();
    advance(Duration::from_secs(8)).await;
    drop(store);
    let store = home.open().await;
    let mut watch = store.watch(KeyRange::all(), store.revision()).await.unwrap();
    advance(Duration::from_secs(8)).await;
    assert!(store.get(b"a").await.unwrap().is_some());
    advance(Duration::from_secs(3)).await;
    assert_eq!(keys(&watch.next().await.unwrap().changes), ["a"]);
    drop(store);
    let store = home.open().await;
    assert!(matches!(store.keep_alive(lease).await, Err(LeaseError::NoLease { .. })));
}

#[tokio::test]
async fn leases_are_bounded_in_time_and_number() {
    let home = Home::new();
    let store = home.open_with(Limits { leases: 1, ..Limits::default() }).await;
    for ttl in [Duration::from_millis(10), Duration::from_secs(31 * 24 * 3600)] {
        assert!(matches!(store.grant_lease(ttl).await, Err(LeaseError::Ttl { .. })));
    }
    let lease = store.grant_lease(Duration::from_secs(5)).await.unwrap();
    let refused = store.grant_lease(Duration::from_secs(5)).await;
    assert!(matches!(refused, Err(LeaseError::TooMany { limit: 1 })));
    store.revoke(lease).await.unwrap();
    assert!(matches!(store.revoke(lease).await, Err(LeaseError::NoLease { .. })));
    store.grant_lease(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn a_lease_holds_a_bounded_number_of_keys() {
    let home = Home::new();
    let store = home.open_with(Limits { lease_keys: 2, ..Limits::default() }).await;
    let lease = store.grant_lease(Duration::from_secs(5)).await.unwrap();
    let put = async |keys: &[&'static str]| {
        let tx = keys.iter().fold(Transaction::new(), |tx, key| tx.put_leased(*key, "", lease));
        store.transact(tx).await
    };
    let refused = put(&["a", "b", "c"]).await.unwrap_err();
    assert!(matches!(refused, TransactError::LeaseFull { limit: 2, .. }), "{refused}");
    put(&["a"]).await.unwrap();
    put(&["b"]).await.unwrap();
    assert!(matches!(put(&["c"]).await, Err(TransactError::LeaseFull { .. })));
    store.transact(Transaction::new().delete("a")).await.unwrap();
    put(&["c"]).await.unwrap();
}

#[tokio::test]
async fn a_slow_watch_ends_with_an_error_and_holds_nothing() {
    let home = Home::new();
    let store = home.open_with(Limits { history_changes: 10, ..Limits::default() }).await;
    let mut slow = store.watch(KeyRange::all(), 0).await.unwrap();
    for _ in 0..30 {
        store.transact(Transaction::new().put("a", "x")).await.unwrap();
    }
    assert_eq!(slow.next().await, Err(WatchError::TooSlow { oldest: 20 }));
    let late = store.watch(KeyRange::all(), 19).await.unwrap_err();
    assert_eq!(late, WatchError::Compacted { from: 19, oldest: 20 });
    let mut fresh = store.watch(KeyRange::all(), 20).await.unwrap();
    assert_eq!(fresh.next().await.unwrap().changes.len(), 10);
    let early = store.watch(KeyRange::all(), 31).await.unwrap_err();
    assert_eq!(early, WatchError::Future { from: 31, current: 30 });
}

#[tokio::test]
async fn a_quiet_range_reports_progress() {
    let home = Home::new();
    let store = home.open().await;
    let mut quiet = store.watch(KeyRange::prefix("quiet/"), 0).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..super::PROGRESS_EVERY_REVISIONS {
        let store = store.clone();
        waiting.push(tokio::spawn(async move {
            store.transact(Transaction::new().put("loud", "x")).await.unwrap()
        }));
    }
    for task in waiting {
        task.await.unwrap();
    }
    let mark = quiet.next().await.unwrap();
    assert_eq!((mark.revision, mark.changes.len()), (super::PROGRESS_EVERY_REVISIONS, 0));
    store.transact(Transaction::new().put("quiet/a", "x")).await.unwrap();
    assert_eq!(keys(&quiet.next().await.unwrap().changes), ["quiet/a"]);
}

#[tokio::test]
async fn explicit_compaction_ends_watches_that_are_behind() {
    let home = Home::new();
    let store = home.open().await;
    let mut behind = store.watch(KeyRange::all(), 0).await.unwrap();
    for _ in 0..5 {
        store.transact(Transaction::new().put("a", "x")).await.unwrap();
    }
    store.compact(3).await;
    assert_eq!(behind.next().await, Err(WatchError::TooSlow { oldest: 3 }));
    store.compact(99).await;
    assert!(store.watch(KeyRange::all(), 5).await.is_ok());
}

#[tokio::test]
async fn watches_are_bounded_and_end_with_the_store() {
    let home = Home::new();
    let store = home.open_with(Limits { watches: 1, ..Limits::default() }).await;
    let mut watch = store.watch(KeyRange::all(), 0).await.unwrap();
    let refused = store.watch(KeyRange::all(), 0).await.unwrap_err();
    assert_eq!(refused, WatchError::TooMany { limit: 1 });
    store.transact(Transaction::new().put("a", "x")).await.unwrap();
    drop(store);
    assert_eq!(keys(&watch.next().await.unwrap().changes), ["a"]);
    assert_eq!(watch.next().await, Err(WatchError::Closed));
    drop(watch);
    let store = home.open_with(Limits { watches: 1, ..Limits::default() }).await;
    assert!(store.watch(KeyRange::all(), 0).await.is_ok());
}

#[tokio::test]
async fn concurrent_transactions_share_the_disk() {
    let home = Home::new();
    let store = home.open().await;
    let counter = |n: u32| n.to_string();
    store.transact(Transaction::new().put("n", counter(0))).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let mut conflicts = 0;
            loop {
                let entry = store.get(b"n").await.unwrap().unwrap();
                let n: u32 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                let tx = Transaction::new()
                    .when("n", Expected::Revision(entry.revision))
                    .put("n", (n + 1).to_string());
                match store.transact(tx).await {
                    Ok(_) => return conflicts,
                    Err(TransactError::Conflict { .. }) => conflicts += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }));
    }
    let mut conflicts = 0;
    for task in tasks {
        conflicts += task.await.unwrap();
    }
    assert_eq!(store.get(b"n").await.unwrap().unwrap().value, "20");
    assert!(conflicts > 0, "the swaps never met");
}

/// A directory with a store in it.
struct Home {
    dir: TempDir,
    file: PathBuf,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.db");
        Self { dir, file }
    }

    async fn open(&self) -> Store {
        self.open_with(Limits::default()).await
    }

    async fn open_with(&self, limits: Limits) -> Store {
        Store::open_embedded(&self.file, limits).await.unwrap()
    }

    async fn try_open(&self) -> Result<Store, OpenError> {
        Store::open_embedded(&self.file, Limits::default()).await
    }
}

/// Commits `count` transactions, one per frame; returns where each frame ends.
async fn filled(home: &Home, count: usize) -> Vec<usize> {
    let store = home.open().await;
    let mut ends = Vec::new();
    for number in 0..count {
        let tx = Transaction::new().put(format!("key-{number}"), "a value that ends in text");
        store.transact(tx).await.unwrap();
        ends.push(used_bytes(&home.file));
    }
    ends
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

/// Bytes up to the last that is not zero.
fn used_bytes(file: &PathBuf) -> usize {
    fs::read(file).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1
}

fn keys(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(|change| std::str::from_utf8(change.key()).unwrap()).collect()
}

/// Lets time pass as it does for a process that runs: in steps. In one it would be a standstill.
async fn advance(time: Duration) {
    const STEP: Duration = Duration::from_millis(200);
    let mut left = time;
    while !left.is_zero() {
        tokio::time::advance(left.min(STEP)).await;
        tokio::task::yield_now().await;
        left = left.saturating_sub(STEP);
    }
}

/// Keeps the paused clock from jumping ahead while the disk is awaited: tokio does not advance
/// it while a blocking task runs.
struct NoAutoAdvance {
    _end: std::sync::mpsc::Sender<()>,
}

impl NoAutoAdvance {
    fn new() -> Self {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || ended.recv());
        Self { _end: end }
    }
}
