use proptest::prelude::*;
use tollway_model::SpiffeId;
use tollway_store::Limits;

use super::*;

/// The number of seconds since 1970 at which the instance enrolled.
const ENROLLED: u64 = 1_000;
const ENDS: u64 = 2_000;
/// When all keys are used, and shown.
const NOW: u64 = 1_500;
/// How long a request may have been under way.
const LATE: u64 = 60;

fn key(number: u8) -> [u8; 32] {
    [number; 32]
}

/// A key of a certificate that was renewed long after the instance enrolled.
fn shown(key: &[u8; 32]) -> Shown<'_> {
    Shown { key, issued_at_unix_s: ENROLLED + 100, has_ended: false, now_unix_s: NOW }
}

fn enrolled() -> Keys {
    Keys::enrolled(&key(0), ENROLLED, ENDS)
}

fn renewed(keys: Keys, from: u8, to: u8) -> Keys {
    Keys::renewed(Some(keys), &key(from), &key(to), NOW - LATE, ENDS)
}

#[test]
fn a_key_renews_until_its_successor_is_used_once() {
    let mut keys = renewed(enrolled(), 0, 1);
    assert_eq!(decide_renewal(Some(&keys), shown(&key(0)), LATE), Ok(()), "the answer was lost");
    assert_eq!(decide_renewal(Some(&keys), shown(&key(1)), LATE), Ok(()));
    assert!(keys.use_once(&key(1), NOW - LATE));
    assert!(!keys.use_once(&key(1), NOW - LATE), "only the first use is news");
    assert_eq!(decide_renewal(Some(&keys), shown(&key(1)), LATE), Ok(()));
    assert_eq!(decide_renewal(Some(&keys), shown(&key(0)), LATE), Err(KeyRefusal::Reused));
}

#[test]
fn a_renewal_is_a_use_of_its_key() {
    let keys = renewed(renewed(enrolled(), 0, 1), 1, 2);
    assert_eq!(decide_renewal(Some(&keys), shown(&key(0)), LATE), Err(KeyRefusal::Reused));
    assert_eq!(decide_renewal(Some(&keys), shown(&key(1)), LATE), Ok(()));
}

/// The harm: the request of an attempt that was given up arrives when the next one has succeeded, and
/// looks like a thief's.
#[test]
fn a_request_that_was_under_way_shows_no_second_holder() {
    let mut keys = renewed(enrolled(), 0, 1);
    keys.use_once(&key(1), NOW);
    for (since, refusal) in [(LATE - 1, KeyRefusal::Late), (LATE, KeyRefusal::Reused)] {
        let shown = Shown { now_unix_s: NOW + since, ..shown(&[0; 32]) };
        assert_eq!(decide_renewal(Some(&keys), shown, LATE), Err(refusal));
    }
}

#[test]
fn a_barred_instance_renews_with_no_key_until_it_enrols() {
    let barred = Keys { is_barred: true, ..renewed(enrolled(), 0, 1) };
    for number in [0, 1, 2] {
        assert_eq!(
            decide_renewal(Some(&barred), shown(&key(number)), LATE),
            Err(KeyRefusal::Barred)
        );
    }
    assert_eq!(decide_renewal(Some(&enrolled()), shown(&key(0)), LATE), Ok(()));
}

#[test]
fn a_key_from_before_an_enrolment_is_refused_and_shows_no_theft() {
    let keys = renewed(renewed(enrolled(), 0, 1), 1, 2);
    let first = Shown { issued_at_unix_s: ENROLLED, ..shown(&[0; 32]) };
    assert_eq!(decide_renewal(Some(&keys), first, LATE), Err(KeyRefusal::Reused));
    let before = Shown { issued_at_unix_s: ENROLLED, ..shown(&[9; 32]) };
    assert_eq!(decide_renewal(Some(&enrolled()), before, LATE), Err(KeyRefusal::Replaced));
}

#[test]
fn without_a_record_a_certificate_renews_while_it_is_valid() {
    let valid = shown(&[7; 32]);
    assert_eq!(decide_renewal(None, valid, LATE), Ok(()));
    let ended = Shown { has_ended: true, ..valid };
    assert_eq!(decide_renewal(None, ended, LATE), Err(KeyRefusal::Forgotten));
    let keys = Keys::renewed(None, &key(7), &key(8), NOW - LATE, ENDS);
    assert!(keys.has(&key(7)) && keys.has(&key(8)));
}

#[test]
fn a_record_lasts_as_long_as_the_longest_certificate() {
    let keys = Keys::renewed(Some(enrolled()), &key(0), &key(1), NOW - LATE, ENDS - 500);
    assert_eq!(keys.ends_at_unix_s, ENDS);
    let keys = Keys::renewed(Some(keys), &key(0), &key(2), NOW - LATE, ENDS + 500);
    assert_eq!(keys.ends_at_unix_s, ENDS + 500);
}

#[test]
fn unused_keys_are_bounded_and_the_one_in_use_stays() {
    let keys = (1..=100).fold(enrolled(), |keys, number| renewed(keys, 0, number));
    assert_eq!(keys.issued.len(), UNUSED_KEYS_LIMIT);
    assert!(keys.has(&key(0)) && keys.has(&key(100)) && !keys.has(&key(1)));
}

proptest! {
    /// The harm: an answer that is lost or late locks an instance out. A process tries up to as many
    /// renewals as are remembered; any of their answers may come, in any order.
    #[test]
    fn a_process_that_uses_what_it_received_last_is_never_locked_out(
        rounds in prop::collection::vec((1_usize..=UNUSED_KEYS_LIMIT, any::<prop::sample::Index>()), 1..20),
    ) {
        let (mut keys, mut held, mut next) = (enrolled(), 0, 1);
        for (attempts, received) in rounds {
            let issued: Vec<u8> = (0..attempts).map(|_| { next += 1; next }).collect();
            for number in &issued {
                prop_assert_eq!(decide_renewal(Some(&keys), shown(&key(held)), LATE), Ok(()));
                keys = renewed(keys, held, *number);
            }
            let former = held;
            held = issued[received.index(issued.len())];
            keys.use_once(&key(held), NOW - LATE);
            prop_assert_eq!(decide_renewal(Some(&keys), shown(&key(held)), LATE), Ok(()));
            prop_assert_eq!(decide_renewal(Some(&keys), shown(&key(former)), LATE), Err(KeyRefusal::Reused));
        }
    }
}

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
        let remembered = Remembered { key: name.clone(), entry, shown: Some(key(from)) };
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
