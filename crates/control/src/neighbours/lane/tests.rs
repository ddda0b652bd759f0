//! Watchers at many positions of one lane.

use tollway_model::neighbour::packed::records;

use super::*;

/// Tombstones of this many records, as if of one transaction.
fn batch(revision: u64, count: usize) -> (Bytes, usize) {
    let mut packed = Vec::new();
    for number in 0..u32::try_from(count).unwrap() {
        packed.extend_from_slice(&[4, 0, 0, 7, 10, 0]);
        packed.extend_from_slice(&u16::try_from(number + 1).unwrap().to_be_bytes());
        packed.extend_from_slice(&revision.to_be_bytes());
    }
    (packed.into(), count)
}

fn push(lane: &Lane, revision: u64, counts: &[usize], most: usize) {
    let batches = counts.iter().map(|count| batch(revision, *count)).collect();
    lane.push(Head::default(), revision, batches, most);
}

/// The revisions of each batch from a cursor on, and the cursor at the end.
fn follow(lane: &Lane, mut cursor: Cursor) -> (Vec<Vec<u64>>, Option<Cursor>) {
    let mut batches = Vec::new();
    loop {
        match lane.next(cursor) {
            Next::Batch { packed, cursor: reached } => {
                assert_ne!(cursor, reached, "it goes round");
                cursor = reached;
                batches.push(records(&packed).map(|record| record.unwrap().revision()).collect());
            }
            Next::Nothing => return (batches, Some(cursor)),
            Next::Behind => return (batches, None),
        }
    }
}

#[test]
fn small_transactions_share_a_batch() {
    let lane = Lane::new(Head::default(), 5);
    assert!(matches!(lane.next(Cursor::after(5)), Next::Nothing));
    for revision in 6..10 {
        push(&lane, revision, &[2], usize::MAX);
    }
    let (batches, cursor) = follow(&lane, Cursor::after(5));
    assert_eq!(batches, [[6, 6, 7, 7, 8, 8, 9, 9]]);
    assert_eq!(cursor.unwrap().revision, 9);
    let (batches, _) = follow(&lane, Cursor::after(8));
    assert_eq!(batches, [[9, 9]]);
}

#[test]
fn a_large_transaction_has_several_batches_and_ends_with_its_last() {
    let lane = Lane::new(Head::default(), 0);
    push(&lane, 1, &[1], usize::MAX);
    push(&lane, 2, &[BATCH_RECORDS, 3], usize::MAX);
    push(&lane, 3, &[1], usize::MAX);
    let Next::Batch { packed, cursor } = lane.next(Cursor::after(0)) else { panic!("it has news") };
    assert_eq!((records(&packed).count(), cursor.revision), (1, 1));
    let Next::Batch { packed, cursor } = lane.next(cursor) else { panic!("it has news") };
    assert_eq!((records(&packed).count(), cursor.revision), (BATCH_RECORDS, 1), "not all of it");
    let Next::Batch { packed, cursor } = lane.next(cursor) else { panic!("it has news") };
    assert_eq!((records(&packed).count(), cursor.revision), (4, 3));
    assert!(matches!(lane.next(cursor), Next::Nothing));
}

#[test]
fn a_watcher_that_falls_out_is_behind_at_any_cursor() {
    let most = 2 * (16 + size_of::<Batch>());
    let lane = Lane::new(Head::default(), 0);
    push(&lane, 1, &[1], most);
    let Next::Batch { cursor: after_one, .. } = lane.next(Cursor::after(0)) else {
        panic!("it has news")
    };
    push(&lane, 2, &[1, 1], most);
    // The first is dropped; a watcher that has it goes on.
    assert!(matches!(lane.next(Cursor::after(0)), Next::Behind));
    assert_eq!(follow(&lane, after_one).0, [[2, 2]]);
    push(&lane, 3, &[1], most);
    // A part of the second is left, with which no watcher may begin.
    assert!(matches!(lane.next(after_one), Next::Behind));
    assert!(matches!(lane.next(Cursor::after(1)), Next::Behind));
    assert_eq!(follow(&lane, Cursor::after(2)).0, [[3]]);
    assert!(lane.inner().bytes <= most);
}

#[test]
fn a_transaction_without_changes_still_counts() {
    let lane = Lane::new(Head::default(), 4);
    push(&lane, 9, &[], usize::MAX);
    let (batches, cursor) = follow(&lane, Cursor::after(4));
    assert_eq!((batches, cursor.unwrap().revision), (vec![vec![]], 9));
    push(&lane, 10, &[1], usize::MAX);
    assert_eq!(follow(&lane, cursor.unwrap()).0, [[10]]);
}

#[tokio::test(start_paused = true)]
async fn lag_counts_from_the_oldest_transaction_that_is_missing() {
    let lane = Lane::new(Head::default(), 0);
    let second = Duration::from_secs(1);
    for revision in 1..=3000 {
        tokio::time::advance(second).await;
        push(&lane, revision, &[], usize::MAX);
    }
    assert_eq!(lane.lag(3000, Instant::now()), Duration::ZERO);
    assert_eq!(lane.lag(2999, Instant::now()), Duration::ZERO);
    tokio::time::advance(second).await;
    assert_eq!(lane.lag(2999, Instant::now()), second);
    let old = lane.lag(0, Instant::now());
    assert!(old >= 2960 * second && old <= 3000 * second, "{old:?}");
    assert!(lane.inner().moments.len() <= MOMENTS);
}
