//! A store that was put back from a copy: what comes back with it, and what the operator's command
//! ends.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::path::Path;

use support::{
    Joined, Member, Network, PATIENCE, Registration, Watch, enroll, issue, name, subscribed,
};
use tempfile::TempDir;
use tokio::time::{Duration, Instant};
use tollway_control::{Restored, confirm_restored};
use tollway_identity::JoinToken;
use tollway_model::ErrorCode;
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tonic::Status;

const AHEAD: &str = "tollway_watchers_ahead_total";

/// Copies every file of a store; the admin socket is none.
fn copy_files(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

/// Restarts it with a copy of its store made meanwhile.
async fn copied(network: Network) -> (Network, TempDir) {
    let copy = tempfile::tempdir().unwrap();
    let network = network.restart_over(async |store: &Path| copy_files(store, copy.path())).await;
    (network, copy)
}

/// Puts the copy in the place of the store.
async fn put_back(network: Network, copy: &TempDir) -> Network {
    network.restart_over(async |store: &Path| copy_files(copy.path(), store)).await
}

/// The same, and confirms it as the operator does.
async fn put_back_and_confirmed(network: Network, copy: &TempDir) -> (Network, Restored) {
    let mut confirmed = None;
    let network = network
        .restart_over(async |store: &Path| {
            copy_files(copy.path(), store);
            confirmed = Some(confirm_restored(store).await.unwrap());
        })
        .await;
    (network, confirmed.unwrap())
}

async fn token(network: &mut Network) -> (JoinToken, String) {
    let scope = Some(Scope::Any(v1::AnyWorkload {}));
    let request = v1::CreateTokenRequest { scope, ttl_ms: 0, uses: Some(1) };
    let created = network.admin.create_token(request).await.unwrap();
    (created.token.parse().unwrap(), created.id)
}

async fn renew(network: &Network, member: &Member) -> Result<Member, Status> {
    let member = Member { address: network.address, ..member.clone() };
    let (service, instance) =
        (member.credentials.service().clone(), member.credentials.instance().unwrap().clone());
    let credentials =
        issue(member.channel().await, &service, instance.as_str(), String::new()).await?;
    Ok(Member { credentials, ..member })
}

fn code<T>(outcome: Result<T, Status>) -> Option<ErrorCode> {
    tollway_wire::code_of(&outcome.err().expect("it is refused"))
}

/// A network of which a copy of the store was made, and what happened since.
struct Since {
    west: Network,
    copy: TempDir,
    /// One that is spent since, one that is revoked since, one that is not used.
    tokens: [JoinToken; 3],
    /// It has renewed since.
    instance: Member,
    _others: (Network, Box<dyn std::any::Any>),
}

async fn since_the_copy() -> Since {
    let joined = Joined::start().await;
    let Joined { east, mut west, east_relay, west_relay, gateways } = joined;
    let revoked = v1::RevokedIdentity {
        namespace: "default".into(),
        app: "before".into(),
        instance: String::new(),
    };
    west.admin.revoke_identity(revoked.clone()).await.unwrap();
    let (spent, _) = token(&mut west).await;
    let (taken_back, id) = token(&mut west).await;
    let (unused, _) = token(&mut west).await;
    let instance = west.member("stock", "a").await;
    let (mut west, copy) = copied(west).await;

    enroll(west.address, &spent, &name("web"), "a").await.unwrap();
    assert_eq!(
        code(enroll(west.address, &spent, &name("web"), "b").await),
        Some(ErrorCode::TokenSpent)
    );
    west.admin.revoke_token(id).await.unwrap();
    west.admin
        .revoke_identity(v1::RevokedIdentity { app: "since".into(), ..revoked })
        .await
        .unwrap();
    west.admin.remove_join("east").await.unwrap();
    let instance = renew(&west, &instance).await.unwrap();
    // The key is in use from the first handshake on.
    let instance = renew(&west, &instance).await.unwrap();
    let _others = (east, Box::new((east_relay, west_relay, gateways)) as Box<_>);
    Since { west, copy, tokens: [spent, taken_back, unused], instance, _others }
}

/// The harm that the command ends.
#[tokio::test]
async fn a_copy_that_is_not_confirmed_brings_back_what_was_spent_revoked_and_removed() {
    let Since { west, copy, tokens, instance, _others } = Box::pin(since_the_copy()).await;
    let mut west = put_back(west, &copy).await;
    for (number, token) in tokens.iter().enumerate() {
        enroll(west.address, token, &name("thief"), &format!("i{number}")).await.unwrap();
    }
    assert_eq!(west.admin.joins().await.unwrap().len(), 1);
    assert_eq!(west.admin.revocations().await.unwrap().len(), 1, "the one of before");
    // An instance that has renewed is taken for a second holder of its key.
    assert_eq!(code(renew(&west, &instance).await), Some(ErrorCode::KeyRefused));
}

#[tokio::test]
async fn once_a_copy_is_confirmed_no_token_or_bundle_of_before_is_good_and_instances_go_on() {
    let Since { west, copy, tokens, instance, _others } = Box::pin(since_the_copy()).await;
    let (mut west, confirmed) = put_back_and_confirmed(west, &copy).await;
    for token in &tokens {
        let refused = enroll(west.address, token, &name("thief"), "a").await;
        assert_eq!(code(refused), Some(ErrorCode::TokenRevoked));
    }
    // Beside them those of the gateway and of the instance, which have any number of uses.
    let Restored { tokens, instances, joined, revoked, revision, .. } = confirmed;
    assert_eq!((tokens, instances), (5, 2));
    assert_eq!(
        (joined, revoked),
        (vec!["east (east.tollway)".into()], vec!["before.default".into()])
    );
    assert!(west.admin.services().await.unwrap().revision >= revision);
    // Those that run go on, and new ones enrol by new tokens.
    let instance = renew(&west, &instance).await.unwrap();
    renew(&west, &instance).await.unwrap();
    west.member("web", "c").await;
    // To confirm again voids what was made since, and nothing twice.
    let (_west, again) = put_back_and_confirmed(west, &tempfile::tempdir().unwrap()).await;
    assert_eq!((again.tokens, again.bundles), (1, 0));
}

#[tokio::test]
async fn a_bundle_that_a_copy_holds_joins_no_network() {
    let mut west = Network::start("west").await;
    let mut east = Network::start("east").await;
    let (_west_relay, _west_gateway) = west.open_gateway().await;
    let (_east_relay, _east_gateway) = east.open_gateway().await;
    let bundle = east.admin.export_join(0).await.unwrap();
    let (east, copy) = copied(east).await;
    let (mut east, confirmed) = put_back_and_confirmed(east, &copy).await;
    assert_eq!(confirmed.bundles, 1);
    let refused = west.admin.accept_join(bundle).await.unwrap_err();
    assert!(refused.to_string().contains("expired"), "{refused}");
    assert!(east.admin.joins().await.unwrap().is_empty());
}

/// A workload may state any revision, so it has no other effect.
#[tokio::test]
async fn a_data_plane_that_has_seen_more_than_the_store_is_counted_and_served_as_others_are() {
    let west = Network::start_with_metrics("west", |_| {}).await;
    let (mut west, copy) = copied(west).await;
    let stock = west.member("stock", "a").await;
    let mut registration = Registration::workload(&stock, 1000).await;
    for port in 1001..1050 {
        registration.set_ready(&stock, port, true).await;
    }
    let seen = west.admin.services().await.unwrap().revision;
    assert_eq!(west.metric(AHEAD).await, 0);

    let mut west = put_back(west, &copy).await;
    let (unused, _) = token(&mut west).await;
    let liar = west.member("evil.lowly", "a").await;
    for (count, revision) in [(1, seen), (2, u64::MAX)] {
        let _watch = Watch::open(&liar, subscribed(revision, &["stock"])).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        while west.metric(AHEAD).await < count {
            assert!(Instant::now() < deadline, "it is not counted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    enroll(west.address, &unused, &name("web"), "a").await.expect("tokens are good");
    let mut watch = Watch::services(&liar, &["stock"]).await;
    watch.until("stock", "unknown service").await;
    assert_eq!(west.metric(AHEAD).await, 2);
}

/// The harm: a sidecar that was away goes on with what the network has forgotten.
#[tokio::test]
async fn a_data_plane_that_comes_late_to_a_confirmed_copy_is_sent_all_that_it_follows() {
    let west = Network::start("west").await;
    let (mut west, copy) = copied(west).await;
    let stock = west.member("stock", "a").await;
    let registration = Registration::workload(&stock, 1000).await.keep_alive();
    let seen = west.admin.services().await.unwrap().revision;
    drop(registration);

    let (mut west, _) = put_back_and_confirmed(west, &copy).await;
    // As many changes as it takes until the revisions of the copy would be those of before.
    let orders = west.member("orders", "a").await;
    let mut registration = Registration::workload(&orders, 1).await;
    let deadline = Instant::now() + PATIENCE;
    for port in 2..u16::try_from(seen).unwrap() + 5 {
        assert!(Instant::now() < deadline);
        registration.set_ready(&orders, port, true).await;
    }
    assert!(west.admin.services().await.unwrap().revision > seen);
    let mut watch = Watch::open(&orders, subscribed(seen, &["stock"])).await.unwrap();
    let sent = tokio::time::timeout(Duration::from_secs(20), watch.until_quiet()).await;
    sent.expect("it is quiet");
    assert_eq!(watch.known.get(&name("stock")).map(String::as_str), Some("unknown service"));
}
