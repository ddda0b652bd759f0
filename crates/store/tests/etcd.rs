//! Stores in a real etcd: the next master has everything that was acknowledged, after any kill.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use tokio::sync::watch;
use tollway_store::{
    Etcd, EtcdError, EtcdOptions, EtcdTls, Expected, KeyRange, Limits, OpenError, Store,
    TransactError, Transaction,
};
use tollway_testkit::{EtcdServer, TOOL_MISSING, TempDir};

const PREFIX: &str = "/tollway/test/";
const PATIENCE: Duration = Duration::from_secs(30);

/// The server, where there is one.
macro_rules! etcd {
    ($options:expr) => {{
        if tollway_testkit::tool("etcd").is_none() || tollway_testkit::tool("etcdctl").is_none() {
            tollway_testkit::skip!("{TOOL_MISSING}etcd, etcdctl");
        }
        EtcdServer::start($options).unwrap()
    }};
}

/// The same with TLS, which these options configure.
macro_rules! etcd_with_tls {
    ($options:expr) => {{
        if tollway_testkit::tool("etcd").is_none() {
            tollway_testkit::skip!("{TOOL_MISSING}etcd");
        }
        EtcdServer::start_with_tls($options).unwrap()
    }};
}

fn options(server: &EtcdServer, holder: &str) -> EtcdOptions {
    EtcdOptions {
        members: vec![server.address().to_string()],
        prefix: PREFIX.into(),
        holder: holder.into(),
        tls: None,
        is_awaited: false,
        lease: Duration::from_secs(2),
    }
}

async fn connect(options: EtcdOptions) -> Result<Arc<Etcd>, EtcdError> {
    Etcd::connect(options, watch::Sender::default()).await
}

async fn master(server: &EtcdServer) -> Arc<Etcd> {
    tokio::time::timeout(PATIENCE, connect(options(server, "one"))).await.unwrap().unwrap()
}

async fn open(etcd: &Arc<Etcd>, limits: Limits) -> Store {
    Store::open_etcd(etcd.clone(), "store", limits).await.unwrap()
}

fn put(transaction: Transaction, key: u32, value: impl Into<Bytes>) -> Transaction {
    transaction.put(key.to_be_bytes().to_vec(), value)
}

async fn all(store: &Store) -> Vec<(Bytes, Bytes, u64)> {
    let everything = KeyRange::all();
    let (mut found, mut after) = (Vec::new(), None::<Bytes>);
    loop {
        let page = store.list(&everything, after.as_deref(), 10_000).await.unwrap();
        found.extend(
            page.entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.value.clone(), entry.revision)),
        );
        if !page.more {
            return found;
        }
        after = page.entries.last().map(|entry| entry.key.clone());
    }
}

#[tokio::test]
async fn next_master_finds_what_the_last_one_has_answered() {
    let server = etcd!(&[]);
    let before = {
        let etcd = master(&server).await;
        let store = open(&etcd, Limits::default()).await;
        // More than one value of etcd may have.
        let large = vec![7_u8; 200_000];
        let mut transaction = Transaction::new();
        for key in 0..20 {
            transaction = put(transaction, key, large.clone());
        }
        store.transact(transaction).await.unwrap();
        for key in 10..300 {
            store.transact(put(Transaction::new(), key, vec![1; 10])).await.unwrap();
        }
        store.transact(Transaction::new().delete(5_u32.to_be_bytes().to_vec())).await.unwrap();
        let (before, revision) = (all(&store).await, store.revision());
        drop(store);
        etcd.release().await;
        (before, revision)
    };
    let etcd = master(&server).await;
    let store = open(&etcd, Limits::default()).await;
    assert_eq!((all(&store).await, store.revision()), before);
    let other = Store::open_etcd(etcd.clone(), "another", Limits::default()).await.unwrap();
    assert_eq!(other.revision(), 0);
}

#[tokio::test]
async fn compaction_leaves_one_log_of_what_stands() {
    let server = etcd!(&[]);
    let etcd = master(&server).await;
    let limits = Limits { compact_from_bytes: 1 << 20, ..Limits::default() };
    let store = open(&etcd, limits).await;
    for round in 0..60_u8 {
        let transaction =
            (0..50).fold(Transaction::new(), |all, key| put(all, key, vec![round; 2000]));
        store.transact(transaction).await.unwrap();
    }
    // The writer compacts between writes, and after the last one as far as there is work.
    tollway_testkit::retry_until(PATIENCE, "a compaction", || {
        (store.size().file_bytes < 2 << 20).then_some(())
    })
    .unwrap();
    let before = all(&store).await;
    drop(store);
    let logs = server.command(&["get", "--prefix", PREFIX, "--keys-only"]).unwrap();
    let mut numbers: Vec<_> = logs
        .lines()
        .filter_map(|key| key.strip_prefix(&format!("{PREFIX}store/log/"))?.split('/').next())
        .collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 1, "{logs}");
    assert_ne!(numbers[0], "0000000000000001", "{logs}");
    etcd.release().await;
    let etcd = master(&server).await;
    assert_eq!(all(&open(&etcd, Limits::default()).await).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_stood_still_writes_nothing_over_its_successor() {
    let server = etcd!(&[]);
    let first = master(&server).await;
    let store = open(&first, Limits::default()).await;
    store.transact(put(Transaction::new(), 1, "first")).await.unwrap();
    let (other, mut known) = watch::channel(None);
    let standing_by = tokio::spawn(Etcd::connect(options(&server, "two"), other));
    known.changed().await.unwrap();
    assert_eq!(known.borrow().as_deref(), Some("one"));
    // Several times the pause after which it looks again.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!standing_by.is_finished(), "the first one lives");
    // As if the first had been suspended for longer than its lease.
    server.command(&["del", &format!("{PREFIX}master")]).unwrap();
    let second = tokio::time::timeout(PATIENCE, standing_by).await.unwrap().unwrap().unwrap();
    let successor = open(&second, Limits::default()).await;
    successor.transact(put(Transaction::new(), 1, "second")).await.unwrap();
    let refused = store.transact(put(Transaction::new(), 1, "late")).await.unwrap_err();
    assert!(matches!(refused, TransactError::Etcd { .. }), "{refused}");
    tokio::time::timeout(PATIENCE, first.lost()).await.unwrap();
    let again = store.transact(put(Transaction::new(), 2, "late")).await.unwrap_err();
    assert!(matches!(again, TransactError::Etcd { .. }), "{again}");
    let found = successor.get(&1_u32.to_be_bytes()).await.unwrap().unwrap();
    assert_eq!(found.value, "second");
    drop(successor);
    second.release().await;
    let third = master(&server).await;
    let found = all(&open(&third, Limits::default()).await).await;
    assert_eq!(found.len(), 1, "nothing of the late ones: {found:?}");
    assert_eq!(found[0].1, "second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moment_without_etcd_is_waited_out_and_a_long_one_ends_the_master() {
    let server = etcd!(&[]);
    let etcd = master(&server).await;
    let store = open(&etcd, Limits::default()).await;
    store.transact(put(Transaction::new(), 1, "one")).await.unwrap();
    server.signal(Signal::STOP).unwrap();
    let mut writing = tokio::spawn({
        let store = store.clone();
        async move { store.transact(put(Transaction::new(), 2, "two")).await }
    });
    // Shorter than the lease of the master.
    let early = tokio::time::timeout(Duration::from_millis(300), &mut writing).await;
    assert!(early.is_err(), "written while etcd was stopped: {early:?}");
    server.signal(Signal::CONT).unwrap();
    tokio::time::timeout(PATIENCE, writing).await.unwrap().unwrap().unwrap();
    server.signal(Signal::STOP).unwrap();
    tokio::time::timeout(PATIENCE, etcd.lost()).await.unwrap();
    let refused = store.transact(put(Transaction::new(), 3, "three")).await.unwrap_err();
    assert!(matches!(refused, TransactError::Etcd { .. }), "{refused}");
    server.signal(Signal::CONT).unwrap();
    drop(store);
    let etcd = master(&server).await;
    let found = all(&open(&etcd, Limits::default()).await).await;
    assert_eq!(found.len(), 2, "{found:?}");
}

#[tokio::test]
async fn a_full_etcd_refuses_and_the_store_goes_on() {
    let server = etcd!(&["--quota-backend-bytes", "4000000"]);
    let etcd = master(&server).await;
    let store = open(&etcd, Limits::default()).await;
    store.transact(put(Transaction::new(), 1, "one")).await.unwrap();
    // Another client fills it.
    let others = EtcdOptions { prefix: "/other/".into(), ..options(&server, "other") };
    let other = connect(others).await.unwrap();
    let large = Store::open_etcd(other, "large", Limits::default()).await.unwrap();
    let mut written = 0;
    let refused = loop {
        assert!(written < 1000, "it never filled");
        match large.transact(put(Transaction::new(), written, vec![3; 500_000])).await {
            Ok(_) => written += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, TransactError::NoRoom { .. }), "{refused}");
    assert_eq!(all(&large).await.len(), written as usize, "what is there is served on");
    drop(large);
    let refused = store.transact(put(Transaction::new(), 2, "two")).await.unwrap_err();
    assert!(matches!(refused, TransactError::NoRoom { .. }), "{refused}");
    // As an operator frees space.
    server.command(&["del", "--prefix", "/other/"]).unwrap();
    let status = server.command(&["endpoint", "status", "--write-out", "json"]).unwrap();
    let revision = status.split("\"revision\":").nth(1).unwrap();
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    server.command(&["compact", &revision]).unwrap();
    server.command(&["defrag"]).unwrap();
    server.command(&["alarm", "disarm"]).unwrap();
    store.transact(put(Transaction::new(), 9999, "small")).await.unwrap();
    let before = all(&store).await;
    drop(store);
    etcd.release().await;
    let etcd = master(&server).await;
    assert_eq!(all(&open(&etcd, Limits::default()).await).await, before);
}

#[tokio::test]
async fn what_is_in_etcd_and_no_store_is_refused_with_its_place() {
    let server = etcd!(&[]);
    let etcd = master(&server).await;
    drop(open(&etcd, Limits::default()).await);
    let part = format!("{PREFIX}store/log/0000000000000001/0000000000000000");
    server.command(&["put", &part, "something else that is long enough for a header"]).unwrap();
    let opened = Store::open_etcd(etcd.clone(), "store", Limits::default()).await;
    let refused = opened.map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::NotAStore { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("{PREFIX}store")), "{refused}");
    server.command(&["put", &format!("{PREFIX}store/head"), "seven"]).unwrap();
    let opened = Store::open_etcd(etcd, "store", Limits::default()).await;
    assert!(matches!(opened.map(drop).unwrap_err(), OpenError::Etcd { .. }));
}

#[tokio::test]
async fn where_no_etcd_is_that_is_said() {
    let closed = tollway_testkit::ClosedPort::on(std::net::Ipv4Addr::LOCALHOST).unwrap();
    let options = EtcdOptions {
        members: vec![closed.address().to_string()],
        prefix: PREFIX.into(),
        holder: "one".into(),
        tls: None,
        is_awaited: false,
        lease: Duration::from_secs(2),
    };
    let refused = tokio::time::timeout(PATIENCE, connect(options)).await.unwrap();
    let refused = refused.map(drop).unwrap_err();
    let is_named = refused.to_string().contains(&closed.address().to_string());
    assert!(is_named && !matches!(refused, EtcdError::Thread(_)), "{refused}");
}

/// An authority, and what it signs.
struct Authority {
    certificate: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: rcgen::Issuer::new(params, key) }
    }

    /// A certificate of this machine, and its key.
    fn sign(&self) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let params = rcgen::CertificateParams::new(names).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// What a client of a server of this authority shows and trusts.
    fn client(&self) -> EtcdTls {
        let (certificate, key) = self.sign();
        let ca = self.certificate.clone().into_bytes();
        EtcdTls { ca, identity: Some((certificate.into_bytes(), key.into_bytes())) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_certificates_are_used_from_then_on_and_an_etcd_is_waited_for() {
    let files = TempDir::new().unwrap();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    let (former, present) = (Authority::new(), Authority::new());
    // As etcd reads its own files again at every handshake.
    let serve_with = |authority: &Authority| {
        let (certificate, key) = authority.sign();
        std::fs::write(path("server"), certificate).unwrap();
        std::fs::write(path("server.key"), key).unwrap();
    };
    std::fs::write(path("ca"), former.certificate.clone() + &present.certificate).unwrap();
    serve_with(&present);
    let server = etcd_with_tls!(&[
        "--cert-file",
        &path("server"),
        "--key-file",
        &path("server.key"),
        "--trusted-ca-file",
        &path("ca"),
        "--client-cert-auth",
    ]);
    let (shown, tls) = watch::channel(former.client());
    let options = EtcdOptions { tls: Some(tls), is_awaited: true, ..options(&server, "one") };
    let connecting = tokio::spawn(connect(options.clone()));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!connecting.is_finished(), "it does not trust the server, and waits");
    shown.send_replace(present.client());
    let etcd = tokio::time::timeout(PATIENCE, connecting).await.unwrap().unwrap().unwrap();
    let store = open(&etcd, Limits::default()).await;
    store.transact(put(Transaction::new(), 1, "one")).await.unwrap();
    // What etcd does not answer with changes nothing, for longer than the lease.
    for unusable in [b"nothing".to_vec(), former.certificate.clone().into_bytes()] {
        shown.send_replace(EtcdTls { ca: unusable, identity: None });
        tokio::time::sleep(Duration::from_secs(3)).await;
        store.transact(put(Transaction::new(), 2, "two")).await.unwrap();
    }
    // The authority of the servers becomes another one.
    serve_with(&former);
    shown.send_replace(former.client());
    tokio::time::sleep(Duration::from_secs(3)).await;
    store.transact(put(Transaction::new(), 3, "three")).await.unwrap();
    assert_eq!(all(&store).await.len(), 3);
}

#[tokio::test]
async fn guards_and_leases_hold_as_over_a_file() {
    let server = etcd!(&[]);
    let etcd = master(&server).await;
    let store = open(&etcd, Limits::default()).await;
    let revision = store.transact(put(Transaction::new(), 1, "one")).await.unwrap();
    let key = 1_u32.to_be_bytes().to_vec();
    let at = || Transaction::new().when(key.clone(), Expected::Revision(revision));
    let guarded = || put(at(), 1, "two");
    store.transact(guarded()).await.unwrap();
    let refused = store.transact(guarded()).await.unwrap_err();
    assert!(matches!(refused, TransactError::Conflict { .. }), "{refused}");
    let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
    store.transact(Transaction::new().put_leased("leased", "x", lease)).await.unwrap();
    drop(store);
    let store = open(&etcd, Limits::default()).await;
    assert!(store.get(b"leased").await.unwrap().is_some());
    store.revoke(lease).await.unwrap();
    assert!(store.get(b"leased").await.unwrap().is_none());
}
