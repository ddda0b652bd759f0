use tollway_model::SpiffeId;
use tollway_store::Limits;

use super::decide::tests::{ENDS, LATE, enrolled, key, renewed, shown};
use super::*;

#[tokio::test]
async fn instances_whose_certificates_renew_no_more_are_forgotten() {
    let (directory, grace) = (tempfile::tempdir().unwrap(), Duration::from_secs(3600));
    let store =
        Store::open_embedded(&directory.path().join("store"), Limits::default()).await.unwrap();
    let now = unix_now_s();
    for (name, ends) in [("long-ago", now - 3700), ("lately", now - 3500), ("valid", now + 60)] {
        let keys = Keys::enrolled(&key(1), 0, ends);
        let put = Transaction::new().put(name_of(name), keys.encode_to_vec());
        store.transact(put).await.unwrap();
    }
    let keys = load(&store, grace).await;
    assert_eq!(keys.counts().get("default"), Some(&3));
    keys.sweep().await;
    assert_eq!(keys.counts().get("default"), Some(&2));
    assert!(store.get(&name_of("long-ago")).await.unwrap().is_none());
    assert!(store.get(&name_of("lately")).await.unwrap().is_some());
}

/// The harm: a token that makes any number of instances fills the store.
#[tokio::test]
async fn at_its_limit_a_namespace_forgets_those_that_ended_first_and_no_other_namespaces() {
    let directory = tempfile::tempdir().unwrap();
    let store =
        Store::open_embedded(&directory.path().join("store"), Limits::default()).await.unwrap();
    let other = Bytes::from(format!("{INSTANCE_PREFIX}shop/stock/a"));
    let first = Keys::enrolled(&key(1), 0, 0).encode_to_vec();
    let put = Transaction::new().put(other.clone(), first);
    store.transact(put).await.unwrap();
    for page in 0..INSTANCES_PER_NAMESPACE_LIMIT / 100 {
        let mut put = Transaction::new();
        for number in page * 100..page * 100 + 100 {
            let keys = Keys::enrolled(&key(1), 0, 1 + number as u64);
            put = put.put(name_of(&number.to_string()), keys.encode_to_vec());
        }
        store.transact(put).await.unwrap();
    }
    let keys = load(&store, Duration::ZERO).await;
    keys.make_room("shop").await.unwrap();
    assert_eq!(keys.counts().get("default"), Some(&INSTANCES_PER_NAMESPACE_LIMIT));
    keys.make_room("default").await.unwrap();
    let forgotten = INSTANCES_PER_NAMESPACE_LIMIT / FORGOTTEN_SHARE;
    assert_eq!(keys.counts().get("default"), Some(&(INSTANCES_PER_NAMESPACE_LIMIT - forgotten)));
    let is_there =
        async |name: usize| store.get(&name_of(&name.to_string())).await.unwrap().is_some();
    assert!(!is_there(forgotten - 1).await && is_there(forgotten).await);
    assert!(store.get(&other).await.unwrap().is_some());
}

async fn load(store: &Store, renewal_grace: Duration) -> InstanceKeys {
    let west = Label::new("west").unwrap();
    let options = Options { renewal_grace, ..Options::new("unused".into(), west) };
    InstanceKeys::load(store.clone(), &options).await.unwrap()
}

/// That of the instance `a`.
fn identity(key_hash: [u8; 32]) -> PeerIdentity {
    let label = |text| Label::new(text).unwrap();
    PeerIdentity {
        spiffe: SpiffeId::parse("spiffe://west.tollway/ns/default/stock").unwrap(),
        service: ServiceName {
            app: label("stock"),
            namespace: label("default"),
            network: label("west"),
        },
        dns_names: Vec::new(),
        instance: Some(label("a")),
        not_before: UNIX_EPOCH,
        not_after: UNIX_EPOCH + Duration::from_secs(ENDS),
        key_hash,
        serial: Vec::new(),
    }
}

fn name_of(instance: &str) -> Bytes {
    format!("{INSTANCE_PREFIX}default/stock/{instance}").into()
}

/// The harm: a full disk ends identities, because no certificate is renewed.
#[tokio::test]
async fn a_store_that_takes_no_writes_ends_no_identity() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let name = name_of("a");
    let room = enrolled().encode_to_vec().len();
    let limits = Limits { value_bytes: room, ..Limits::default() };
    let store = Store::open_embedded(&path, limits).await.unwrap();
    store.transact(Transaction::new().put(name.clone(), enrolled().encode_to_vec())).await.unwrap();
    let keys = load(&store, Duration::from_secs(1_000)).await;
    for (from, to) in [(0, 1), (1, 2)] {
        let entry = keys.read(&name).await.unwrap();
        let known = entry.as_ref().map(|(keys, _)| keys);
        assert_eq!(decide_renewal(known, shown(&key(from)), LATE), Ok(()), "{from}");
        let remembered = Remembered { key: name.clone(), entry, shown: Some(key(from)), pod: None };
        keys.issued(remembered, &identity(key(to)), None).await.unwrap();
    }
    keys.save().await;
    assert_eq!(keys.unsaved().len(), 1, "the store takes none of it");
    keys.bar(name.clone(), keys.read(&name).await.unwrap()).await;
    let (known, _) = keys.read(&name).await.unwrap().unwrap();
    assert!(known.is_barred, "what is not stored counts");
    drop((keys, store));
    let store = Store::open_embedded(&path, Limits::default()).await.unwrap();
    let keys = load(&store, Duration::from_secs(1_000)).await;
    let (known, _) = keys.read(&name).await.unwrap().unwrap();
    assert!(keys.keep(name.clone(), renewed(renewed(known, 0, 1), 1, 2)));
    keys.save().await;
    assert!(keys.unsaved().is_empty());
    let (known, _) = keys.read(&name).await.unwrap().unwrap();
    assert!(known.has(&key(2)) && !known.has(&key(0)), "it is stored once it can be");
    assert!(keys.keep(name.clone(), renewed(known.clone(), 2, 3)));
    keys.bar(name.clone(), keys.read(&name).await.unwrap()).await;
    keys.save().await;
    let (known, _) = keys.read(&name).await.unwrap().unwrap();
    assert!(known.is_barred, "no former keys come back over it");
}

/// The harm: while the disk is full, renewals of many instances fill the memory.
#[tokio::test]
async fn no_more_instances_renew_than_are_kept_while_the_store_takes_no_writes() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { value_bytes: enrolled().encode_to_vec().len(), ..Limits::default() };
    let store = Store::open_embedded(&dir.path().join("store"), limits).await.unwrap();
    let put = Transaction::new().put(name_of("a"), enrolled().encode_to_vec());
    store.transact(put).await.unwrap();
    let keys = load(&store, Duration::from_secs(1_000)).await;
    let others = || (1..UNSAVED_INSTANCES_LIMIT).map(|number| name_of(&format!("other-{number}")));
    assert!(others().all(|name| keys.keep(name, enrolled())));
    let renew = async |from, to| {
        let entry = keys.read(&name_of("a")).await.unwrap();
        let (key, shown) = (name_of("a"), Some(key(from)));
        let remembered = Remembered { key, entry, shown, pod: None };
        keys.issued(remembered, &identity([to; 32]), None).await
    };
    assert!(!keys.unsaved().contains_key(&name_of("a")));
    // The last place is its own, and one that has a place goes on.
    renew(0, 1).await.unwrap();
    renew(1, 2).await.unwrap();
    assert_eq!(keys.unsaved().len(), UNSAVED_INSTANCES_LIMIT);
    assert!(!keys.keep(name_of("late"), enrolled()), "no place is left");
    keys.unsaved().remove(&name_of("a"));
    assert!(keys.keep(name_of("late"), enrolled()));
    let refused = renew(0, 1).await.unwrap_err();
    assert!(refused.message().contains("store refused"), "{refused:?}");
    assert_eq!(keys.unsaved().len(), UNSAVED_INSTANCES_LIMIT);
}
