//! What every state store holds to, whatever its engine. Included by the tests of each.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tollway_state::{
    Concurrency, Consistency, Delete, Entry, Fence, Op, Set, StateError, StateStore,
    TRANSACTION_OPS, Transaction, Ttl, Value,
};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the whole suite. Keys of its parts differ, so that one store serves for all.
pub async fn hold(store: Arc<dyn StateStore>) {
    let of = &*store;
    what_is_written_is_read(of).await;
    values_come_back_as_they_were(of).await;
    keys_are_any_text(of).await;
    an_etag_is_of_one_entry(of).await;
    a_first_write_is_the_first(of).await;
    an_entry_has_its_time(of).await;
    several_keys_are_read_in_order(of).await;
    a_transaction_happens_as_a_whole(of).await;
    the_last_change_of_a_key_wins(of).await;
    a_fence_only_grows(of).await;
    hosts_that_fight_are_kept_apart(&store).await;
    counts_are_not_lost(&store).await;
}

fn json(text: &str) -> Value {
    Value::Json(text.to_owned().into())
}

fn bytes(bytes: &[u8]) -> Value {
    Value::Bytes(bytes.to_vec().into())
}

fn set(key: &str, text: &str) -> Set {
    Set::new(key, json(text))
}

async fn get(store: &dyn StateStore, key: &str) -> Option<Entry> {
    store.get(key, Consistency::Strong).await.unwrap()
}

/// The document under a key; documents may be written otherwise than they came.
async fn document(store: &dyn StateStore, key: &str) -> Option<serde_json::Value> {
    get(store, key).await.map(|entry| serde_json::from_slice(&entry.value).unwrap())
}

async fn number(store: &dyn StateStore, key: &str) -> Option<u64> {
    document(store, key).await.and_then(|document| document.as_u64())
}

async fn etag(store: &dyn StateStore, key: &str) -> String {
    get(store, key).await.unwrap().etag.unwrap()
}

#[track_caller]
fn mismatch(outcome: Result<(), StateError>) {
    let reported = outcome.unwrap_err();
    assert!(reported.is_mismatch(), "{reported}");
    assert!(reported.to_string().starts_with("possible etag mismatch. error from state store"));
}

async fn what_is_written_is_read(store: &dyn StateStore) {
    assert_eq!(get(store, "plain").await, None);
    store.delete(Delete::new("plain")).await.unwrap();
    store.set(set("plain", "1")).await.unwrap();
    assert_eq!(number(store, "plain").await, Some(1));
    let first = etag(store, "plain").await;
    assert_eq!(etag(store, "plain").await, first);
    let strong = Set { consistency: Consistency::Strong, ..set("plain", "1") };
    store.set(strong).await.unwrap();
    assert_ne!(etag(store, "plain").await, first, "each write has an etag of its own");
    assert_eq!(get(store, "plain").await.unwrap().expires, None);
    store.delete(Delete::new("plain")).await.unwrap();
    assert_eq!(get(store, "plain").await, None);
}

async fn values_come_back_as_they_were(store: &dyn StateStore) {
    for (place, text) in
        ["null", "true", "-1.25", "\"ä \\\" \\u0001\"", "[]", "{\"b\":[1,{\"a\":null}]}"]
            .into_iter()
            .enumerate()
    {
        let key = format!("document-{place}");
        store.set(set(&key, text)).await.unwrap();
        let expected: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(document(store, &key).await, Some(expected));
    }
    let every: Vec<u8> = (0..=255).collect();
    let large = vec![0xa5; 1 << 20];
    for (place, value) in [&b""[..], b"\0", &every, b"{not json", &large].into_iter().enumerate() {
        let key = format!("bytes-{place}");
        store.set(Set::new(&*key, bytes(value))).await.unwrap();
        assert!(get(store, &key).await.unwrap().value == value, "{key}");
    }
}

async fn keys_are_any_text(store: &dyn StateStore) {
    let long = "k".repeat(500);
    for key in ["a b", "it's", "\"", "web||Cart||7||items", "%_$1", "a\nb", "ü/☃", "K", "k", &long]
    {
        store.set(Set::new(key, bytes(key.as_bytes()))).await.unwrap();
    }
    for key in ["a b", "it's", "\"", "web||Cart||7||items", "%_$1", "a\nb", "ü/☃", "K", "k", &long]
    {
        assert_eq!(get(store, key).await.unwrap().value, key.as_bytes());
    }
}

async fn an_etag_is_of_one_entry(store: &dyn StateStore) {
    let with = |etag: &str, text: &str| Set { etag: Some(etag.to_owned()), ..set("etag", text) };
    store.set(set("etag", "1")).await.unwrap();
    let old = etag(store, "etag").await;
    store.set(with(&old, "2")).await.unwrap();
    let new = etag(store, "etag").await;
    mismatch(store.set(with(&old, "3")).await);
    let remove = |etag: &str| Delete { etag: Some(etag.to_owned()), ..Delete::new("etag") };
    mismatch(store.delete(remove(&old)).await);
    assert_eq!(number(store, "etag").await, Some(2));
    // An etag counts whatever the concurrency; an empty one is none.
    let last = Set { concurrency: Concurrency::LastWrite, ..with(&old, "4") };
    mismatch(store.set(last).await);
    for foreign in ["no etag at all", "-1", "99999999999999999999999"] {
        assert!(store.set(with(foreign, "5")).await.is_err());
        assert!(store.delete(remove(foreign)).await.is_err());
    }
    assert_eq!(etag(store, "etag").await, new);
    store.set(with("", "6")).await.unwrap();
    let newest = etag(store, "etag").await;
    store.delete(remove(&newest)).await.unwrap();
    assert_eq!(get(store, "etag").await, None);
    mismatch(store.delete(remove(&newest)).await);
    mismatch(store.set(with(&newest, "7")).await);
    assert_eq!(get(store, "etag").await, None);
}

async fn a_first_write_is_the_first(store: &dyn StateStore) {
    let first = |text: &str| Set { concurrency: Concurrency::FirstWrite, ..set("first", text) };
    store.set(first("1")).await.unwrap();
    mismatch(store.set(first("2")).await);
    let own = Set { etag: Some(etag(store, "first").await), ..first("3") };
    store.set(own).await.unwrap();
    assert_eq!(number(store, "first").await, Some(3));
    store.delete(Delete::new("first")).await.unwrap();
    store.set(first("4")).await.unwrap();
    store.set(set("first", "5")).await.unwrap();
    assert_eq!(number(store, "first").await, Some(5));
}

fn lives(set: Set, seconds: u32) -> Set {
    Set { ttl: Ttl::Seconds(NonZeroU32::new(seconds).unwrap()), ..set }
}

async fn an_entry_has_its_time(store: &dyn StateStore) {
    store.set(lives(set("long", "1"), 1000)).await.unwrap();
    let entry = get(store, "long").await.unwrap();
    let left = entry.expires.unwrap().duration_since(SystemTime::now()).unwrap().as_secs();
    assert!((900..=1001).contains(&left), "{left} s");
    let old = entry.etag.unwrap();
    store.set(set("long", "2")).await.unwrap();
    assert_eq!(get(store, "long").await.unwrap().expires, None, "a new write has a new time");
    assert_ne!(etag(store, "long").await, old);

    store.set(lives(set("short", "1"), 1)).await.unwrap();
    store.set(lives(set("short-etag", "1"), 1)).await.unwrap();
    let old = get(store, "short-etag").await.and_then(|entry| entry.etag);
    let deadline = std::time::Instant::now() + PATIENCE;
    while get(store, "short").await.is_some() || get(store, "short-etag").await.is_some() {
        assert!(std::time::Instant::now() < deadline, "an entry outlives its time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(store.bulk_get(&["short".to_owned()]).await.unwrap(), [None]);
    if let Some(old) = old {
        mismatch(store.set(Set { etag: Some(old.clone()), ..set("short-etag", "2") }).await);
        mismatch(store.delete(Delete { etag: Some(old), ..Delete::new("short-etag") }).await);
    }
    let first = Set { concurrency: Concurrency::FirstWrite, ..set("short", "2") };
    store.set(first).await.unwrap();
    assert_eq!(number(store, "short").await, Some(2));
}

async fn several_keys_are_read_in_order(store: &dyn StateStore) {
    for number in 0..5 {
        store.set(set(&format!("many-{number}"), &number.to_string())).await.unwrap();
    }
    let keys = ["many-3", "many-x", "many-0", "many-3"].map(str::to_owned);
    let found = store.bulk_get(&keys).await.unwrap();
    let numbers: Vec<_> =
        found.iter().map(|entry| entry.as_ref().map(|entry| entry.value.to_vec())).collect();
    let three = Some(b"3".to_vec());
    assert_eq!(numbers, [three.clone(), None, Some(b"0".to_vec()), three]);
    assert_eq!(found[0].as_ref().unwrap().etag, Some(etag(store, "many-3").await));
    assert_eq!(store.bulk_get(&[]).await.unwrap(), []);
}

async fn transact(store: &dyn StateStore, ops: Vec<Op>) -> Result<(), StateError> {
    store.transact(Transaction { ops, fence: None }).await
}

async fn a_transaction_happens_as_a_whole(store: &dyn StateStore) {
    store.set(set("tx-b", "1")).await.unwrap();
    let old = etag(store, "tx-b").await;
    let ops = vec![
        Op::Set(set("tx-a", "1")),
        Op::Delete(Delete { etag: Some(old.clone()), ..Delete::new("tx-b") }),
        Op::Set(lives(set("tx-c", "1"), 1000)),
        Op::Delete(Delete::new("tx-none")),
    ];
    transact(store, ops).await.unwrap();
    assert_eq!(number(store, "tx-a").await, Some(1));
    assert_eq!(get(store, "tx-b").await, None);
    assert!(get(store, "tx-c").await.unwrap().expires.is_some());

    let stale = Set { etag: Some(old.clone()), ..set("tx-b", "2") };
    let ops = vec![
        Op::Set(set("tx-a", "2")),
        Op::Delete(Delete::new("tx-c")),
        Op::Set(stale),
        Op::Set(set("tx-d", "2")),
    ];
    mismatch(transact(store, ops).await);
    let taken = Set { concurrency: Concurrency::FirstWrite, ..set("tx-a", "3") };
    let ops = vec![Op::Set(set("tx-d", "3")), Op::Set(taken)];
    mismatch(transact(store, ops).await);
    assert_eq!(number(store, "tx-a").await, Some(1));
    assert!(get(store, "tx-c").await.is_some() && get(store, "tx-d").await.is_none());

    transact(store, Vec::new()).await.unwrap();
    let many = (0..=TRANSACTION_OPS).map(|_| Op::Delete(Delete::new("tx-a"))).collect();
    let reported = transact(store, many).await.unwrap_err();
    assert!(reported.is_callers_fault(), "{reported}");
    let most: Vec<Op> =
        (0..TRANSACTION_OPS).map(|number| Op::Set(set(&format!("tx-{number}"), "1"))).collect();
    transact(store, most).await.unwrap();
    assert_eq!(number(store, "tx-999").await, Some(1));
}

async fn the_last_change_of_a_key_wins(store: &dyn StateStore) {
    let ops = vec![
        Op::Set(set("twice", "1")),
        Op::Set(set("gone", "1")),
        Op::Set(set("twice", "2")),
        Op::Delete(Delete::new("gone")),
    ];
    transact(store, ops).await.unwrap();
    assert_eq!(number(store, "twice").await, Some(2));
    assert_eq!(get(store, "gone").await, None);
    let old = Some(etag(store, "twice").await);
    let with = |text| Op::Set(Set { etag: old.clone(), ..set("twice", text) });
    transact(store, vec![with("3"), with("4")]).await.unwrap();
    assert_eq!(number(store, "twice").await, Some(4));
}

async fn fenced(
    store: &dyn StateStore,
    number: u64,
    actor: &str,
    ops: Vec<Op>,
) -> Result<(), StateError> {
    let fence = Some(Fence { key: format!("{actor}||fence"), number });
    store.transact(Transaction { ops, fence }).await
}

async fn a_fence_only_grows(store: &dyn StateStore) {
    let write = |text: &str| vec![Op::Set(set("cart", text))];
    let shut_out = async |number| {
        let reported = fenced(store, number, "cart", write("0")).await.unwrap_err();
        assert!(matches!(reported, StateError::Fenced { .. }), "{reported}");
    };
    fenced(store, 9, "cart", write("1")).await.unwrap();
    fenced(store, 9, "cart", write("2")).await.unwrap();
    shut_out(8).await;
    fenced(store, 10, "cart", write("3")).await.unwrap();
    shut_out(9).await;
    assert_eq!(number(store, "cart").await, Some(3));
    // A transaction that fails does not raise it, one without changes does.
    let stale = Set { concurrency: Concurrency::FirstWrite, ..set("cart", "4") };
    mismatch(fenced(store, 20, "cart", vec![Op::Set(stale)]).await);
    fenced(store, 11, "cart", write("5")).await.unwrap();
    fenced(store, 12, "cart", Vec::new()).await.unwrap();
    shut_out(11).await;
    fenced(store, 1, "another cart", Vec::new()).await.unwrap();
    // Beyond the precision of a float.
    fenced(store, u64::MAX - 1, "cart", write("6")).await.unwrap();
    shut_out(u64::MAX - 2).await;
    fenced(store, u64::MAX, "cart", write("7")).await.unwrap();
    shut_out(u64::MAX - 1).await;
    assert_eq!(number(store, "cart").await, Some(7));
    let touching = vec![Op::Delete(Delete::new("cart||fence"))];
    assert!(fenced(store, u64::MAX, "cart", touching).await.unwrap_err().is_callers_fault());
}

/// Hosts write as fast as they can, each with its own number: a number below the stored one is
/// refused, and in the end the largest host's is stored.
async fn hosts_that_fight_are_kept_apart(store: &Arc<dyn StateStore>) {
    const HOSTS: u64 = 8;
    const ROUNDS: u64 = 10;
    let mut hosts = tokio::task::JoinSet::new();
    for host in 1..=HOSTS {
        let store = Arc::clone(store);
        hosts.spawn(async move {
            let mut written = 0;
            for _ in 0..ROUNDS {
                let ops = vec![
                    Op::Set(set("fought-a", &host.to_string())),
                    Op::Set(set("fought-b", &host.to_string())),
                ];
                match fenced(&*store, host, "fought", ops).await {
                    Ok(()) => written += 1,
                    Err(StateError::Fenced { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            (host, written)
        });
    }
    let mut written = [0; HOSTS as usize + 1];
    for (host, times) in hosts.join_all().await {
        written[usize::try_from(host).unwrap()] = times;
    }
    assert_eq!(written[usize::try_from(HOSTS).unwrap()], ROUNDS, "the largest is never refused");
    assert_eq!(number(&**store, "fought-a").await, Some(HOSTS));
    assert_eq!(number(&**store, "fought-b").await, Some(HOSTS));
}

/// Tasks count one up by etags, until each has done so as often as it should.
async fn counts_are_not_lost(store: &Arc<dyn StateStore>) {
    const TASKS: u64 = 4;
    const EACH: u64 = 10;
    store.set(set("count", "0")).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let mut done = 0;
            while done < EACH {
                let entry = get(&*store, "count").await.unwrap();
                let count: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                let next = set("count", &(count + 1).to_string());
                match store.set(Set { etag: entry.etag, ..next }).await {
                    Ok(()) => done += 1,
                    Err(reported) => assert!(reported.is_mismatch(), "{reported:?}"),
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(number(&**store, "count").await, Some(TASKS * EACH));
}
